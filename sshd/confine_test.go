package sshd_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/pkg/sftp"
	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/sshd"
)

// Without Landlock, the path checks refuse hidden files, by every name that leads there.
func TestHiddenPathsByName(t *testing.T) {
	dir := t.TempDir()
	hidden, free := filepath.Join(dir, "hidden"), filepath.Join(dir, "free")
	for _, d := range []string{hidden, free} {
		require.NoError(t, os.Mkdir(d, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(d, "file"), []byte("text"), 0o600))
	}
	require.NoError(t, os.Symlink(hidden, filepath.Join(dir, "other")))
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := sshd.ServeHiding(free, []string{filepath.Join(dir, "other"), "/proc"}, toServer, fromServer)
		_ = fromServer.Close()
		served <- err
	}()
	client, err := sftp.NewClientPipe(toClient, fromClient)
	require.NoError(t, err)

	open := func(name string, flags int) error {
		f, err := client.OpenFile(name, flags)
		if err == nil {
			_ = f.Close()
		}
		return err
	}
	require.NoError(t, open("file", os.O_RDWR))
	require.NoError(t, open(filepath.Join(dir, "hiddenly"), os.O_RDWR|os.O_CREATE)) // starts with the same letters
	require.NoError(t, client.PosixRename("file", "file2"))
	require.NoError(t, client.Symlink(dir, "up"))
	_, err = client.ReadDir("up")
	require.NoError(t, err)
	for _, name := range []string{
		hidden + "/file", dir + "/other/file", "../hidden/file", "up/hidden/file", "up/other/../hidden/file",
		"/proc/self/mem",
		hidden + "/new",
	} {
		require.Error(t, open(name, os.O_RDWR|os.O_CREATE), name)
		require.Error(t, client.Remove(name), name)
		require.Error(t, client.Mkdir(name+"dir"), name)
		require.Error(t, client.RemoveDirectory(name), name)
		require.Error(t, client.Rename("file2", name), name)
		require.Error(t, client.PosixRename(name, "taken"), name)
		require.Error(t, client.Link(name, "taken"), name)
		require.Error(t, client.Symlink(name, "link"), name)
		require.Error(t, client.Chmod(name, 0o666), name)
		require.Error(t, client.Truncate(name, 0), name)
		_, err := client.Stat(name)
		require.Error(t, err, name)
		_, err = client.ReadDir(filepath.Dir(name))
		require.Error(t, err, name)
	}
	require.NoError(t, client.Close())
	require.NoError(t, <-served)
	names, err := os.ReadDir(hidden)
	require.NoError(t, err)
	require.Len(t, names, 1)
	text, err := os.ReadFile(filepath.Join(hidden, "file"))
	require.NoError(t, err)
	require.Equal(t, "text", string(text))
}

// Hidden files stay hidden under other names: in bind mounts of them and of directories above and below them, and in
// file systems of the machine.
func TestMountedToo(t *testing.T) {
	const mounts = `21 1 8:1 / / rw - ext4 /dev/vda rw
22 21 0:5 / /proc rw shared:1 master:2 - proc proc rw
23 21 0:6 / /host/proc rw - proc proc rw
24 21 0:7 / /host\040sys rw - sysfs sysfs rw
25 21 8:2 / /data rw - xfs /dev/vdb rw
26 21 8:2 /jobs/state /mnt/state rw - xfs /dev/vdb rw
27 21 8:2 /jobs /mnt/jobs rw - xfs /dev/vdb rw
28 21 8:2 /jobs/state/bin /mnt/bin rw - xfs /dev/vdb rw
29 21 8:2 /jobs/states /mnt/states rw - xfs /dev/vdb rw
30 21 8:3 /jobs/state /mnt/other rw - xfs /dev/vdc rw
31 21 8:1 /etc /mnt/etc rw - ext4 /dev/vda rw
a line that means nothing
`
	require.Equal(t, []string{
		"/proc", "/data/jobs/state", "/etc/keys",
		"/proc", "/host/proc", "/host sys",
		"/mnt/state", "/mnt/jobs/state", "/mnt/bin",
		"/mnt/etc/keys",
	}, sshd.MountedToo(mounts, []string{"/proc", "/data/jobs/state", "/etc/keys"}))
}
