package sshclients

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

func needLandlock(t testing.TB) {
	t.Helper()
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1 /* return the version */); errno != 0 {
		need(t, "Landlock: "+errno.Error())
	}
}

func (s *server) sftp(t testing.TB) *sftp.Client {
	t.Helper()
	conn, err := ssh.Dial("tcp", s.addr(), s.config(t, "root", s.person.signer))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	client, err := sftp.NewClient(conn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// own returns the directory that has the state directory, the secret and authorized_keys.
func (s *server) own() string {
	return filepath.Dir(s.cmd.Args[slices.Index(s.cmd.Args, "--state-dir")+1])
}

// TestOnlySFTPIsNoShell: a key for sftp only gives no access to the memory of processes, devices, secrets and keys, by
// any path.
func TestOnlySFTPIsNoShell(t *testing.T) {
	needRoot(t, "mounting")
	needLandlock(t)
	const script = `mkdir "$MNT" && cd "$MNT" && mkdir proc own all && mount --bind /proc proc &&
		mount --bind "$OWN" own && mount --bind .. all && exec "$@"`
	s := startWith(t, filesIn(t.TempDir()), `restrict,command="internal-sftp" `, func(s *server, cmd *exec.Cmd) {
		own := filepath.Dir(cmd.Args[slices.Index(cmd.Args, "--state-dir")+1])
		unshare := []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"}
		cmd.Args = append(unshare, cmd.Args...)
		cmd.Env = append(cmd.Env, "OWN="+own, "MNT="+filepath.Join(filepath.Dir(own), "mnt"))
		var err error
		cmd.Path, err = exec.LookPath("unshare")
		require.NoError(t, err)
	})
	client := s.sftp(t)
	home, own, mnt := s.home, s.own(), filepath.Join(filepath.Dir(s.own()), "mnt")
	agent := strconv.Itoa(children(t, s.cmd.Process.Pid)[0])
	keys, secretFile := filepath.Join(own, "authorized_keys"), filepath.Join(own, "secret")
	text, err := os.ReadFile(keys)
	require.NoError(t, err)

	write := func(name, data string) error {
		f, err := client.OpenFile(name, os.O_WRONLY|os.O_CREATE)
		if err != nil {
			return err
		}
		_, err = io.WriteString(f, data)
		require.NoError(t, f.Close())
		return err
	}
	// The usual operations still work.
	require.NoError(t, write("data", "data"))
	require.NoError(t, client.Mkdir("dir"))
	require.NoError(t, client.PosixRename("data", "dir/data"))
	require.NoError(t, client.Link("dir/data", "again"))
	require.NoError(t, client.Symlink("/etc/passwd", "link"))
	require.NoError(t, client.Chmod("again", 0o600))
	require.NoError(t, client.Truncate("again", 2))
	got, err := os.ReadFile(filepath.Join(home, "dir", "data"))
	require.NoError(t, err)
	require.Equal(t, "da", string(got))
	for _, name := range []string{"link", "/usr/bin/env", "/bin/sh"} {
		f, err := client.Open(name)
		require.NoError(t, err, name)
		require.NoError(t, f.Close())
	}
	for _, name := range []string{"", "/", "/etc", filepath.Dir(own)} {
		_, err := client.ReadDir(name)
		require.NoError(t, err, name)
	}

	require.NoError(t, client.Symlink("/proc/self/mem", "memory"))
	require.NoError(t, client.Symlink("/proc", "processes"))
	require.NoError(t, client.Symlink(own, "keys"))
	require.NoError(t, write("evil", string(ssh.MarshalAuthorizedKey(s.stranger.signer.PublicKey()))))
	open := func(flags int, names ...string) map[string]func() error {
		attacks := make(map[string]func() error)
		for _, name := range names {
			attacks[fmt.Sprintf("open %s %#x", name, flags)] = func() error {
				f, err := client.OpenFile(name, flags)
				if err == nil {
					_ = f.Close()
				}
				return err
			}
		}
		return attacks
	}
	// The kernel refuses these.
	for _, attacks := range []map[string]func() error{
		open(os.O_RDWR, "/proc/self/mem", "/proc/"+agent+"/mem", "/proc/1/mem", "memory", "processes/self/mem",
			"../../mnt/proc/self/mem", "../../../../../proc/self/mem", "/proc/self/root/proc/self/mem",
			mnt+"/proc/"+agent+"/mem", fmt.Sprintf("/proc/%d/mem", s.cmd.Process.Pid), "/dev/zero",
			keys, "keys/authorized_keys",
			mnt+"/own/authorized_keys",
			mnt+"/all/"+filepath.Base(own)+"/authorized_keys", secretFile, filepath.Join(own, "state/lock")),
		open(os.O_RDONLY, "/proc/self/environ", "/proc/"+agent+"/environ", "/proc/cpuinfo", "/sys/kernel/uevent_seqnum",
			keys, secretFile, "keys/secret", mnt+"/own/secret"),
		open(os.O_WRONLY|os.O_CREATE, filepath.Join(own, "new"), filepath.Join(own, "state", "new"), "/new",
			mnt+"/own/new"),
		{
			"rename into place":       func() error { return client.PosixRename("evil", keys) },
			"rename by a link":        func() error { return client.PosixRename("evil", "keys/authorized_keys") },
			"rename in another mount": func() error { return client.PosixRename("evil", mnt+"/own/authorized_keys") },
			"rename away":             func() error { return client.PosixRename(keys, "taken") },
			"rename the directory":    func() error { return client.PosixRename(own, own+"2") },
			"link away":               func() error { return client.Link(keys, "taken") },
			"link the secret away":    func() error { return client.Link(secretFile, "taken") },
			"remove":                  func() error { return client.Remove(keys) },
			"make a directory":        func() error { return client.Mkdir(filepath.Join(own, "dir")) },
			"make a link":             func() error { return client.Symlink("x", filepath.Join(own, "state/link")) },
		},
	} {
		for name, attack := range attacks {
			// The kernel reports cross-device if an operation concerns two directories.
			require.Regexp(t, "permission denied|cross-device", attack(), name)
		}
	}
	// The server refuses these by their paths.
	for name, attack := range map[string]func() error{
		"truncate":        func() error { return client.Truncate(keys, 0) },
		"chmod":           func() error { return client.Chmod(keys, 0o666) },
		"chmod by a link": func() error { return client.Chmod("keys/authorized_keys", 0o666) },
		"chown":           func() error { return client.Chown(keys, 1, 1) },
		"times":           func() error { return client.Chtimes(mnt+"/own/secret", time.Now(), time.Now()) },
		"stat":            func() error { _, err := client.Stat("/proc/self/exe"); return err },
		"readlink":        func() error { _, err := client.ReadLink("/proc/" + agent + "/exe"); return err },
		"list":            func() error { _, err := client.ReadDir("/proc/self/fd"); return err },
		"open a directory": func() error {
			f, err := client.Open(filepath.Join(own, "state"))
			if err == nil {
				err = f.Chmod(0o777)
			}
			return err
		},
		"list state": func() error { _, err := client.ReadDir(filepath.Join(own, "state")); return err },
	} {
		require.Error(t, attack(), name)
	}
	now, err := os.ReadFile(keys)
	require.NoError(t, err)
	require.Equal(t, string(text), string(now))
	info, err := os.Stat(keys)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode())
}

// TestSFTPBesideShellIsNotConfined: with a key that also allows a shell, sftp and scp have access to the same files as
// the shell.
func TestSFTPBesideShellIsNotConfined(t *testing.T) {
	needProgram(t, "scp", "openssh-client")
	s := start(t, "restrict ")
	f, err := s.sftp(t).Open("/proc/self/status")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	got := run(t, nil, nil, append([]string{"scp"}, s.openSSH("person", "-P", strconv.Itoa(s.port),
		"root@127.0.0.1:/proc/cpuinfo", s.path("cpuinfo"))...)...)
	require.Equal(t, 0, got.status, got.stderr)
}
