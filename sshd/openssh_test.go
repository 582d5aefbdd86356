package sshd_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/sshd"
	"github.com/paiinit/paiinit/sshd/sshdtest"
)

// openSSH starts a server and returns a function that runs the system's ssh client with a new key and strict host keys.
func openSSH(t *testing.T) (server *sshdtest.Server, client func(args ...string) *exec.Cmd) {
	t.Helper()
	program, err := exec.LookPath("ssh")
	if err != nil {
		missing(t, "no OpenSSH client: "+err.Error())
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(block), 0o600))
	authorized, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	server = sshdtest.Start(t, sshd.Config{Authorized: []ssh.PublicKey{authorized}})
	known := filepath.Join(dir, "known_hosts")
	require.NoError(t, os.WriteFile(known, []byte("target "+string(ssh.MarshalAuthorizedKey(server.Host))), 0o600))
	port := fmt.Sprint(server.Addr.(*net.TCPAddr).Port)
	return server, func(args ...string) *exec.Cmd {
		return exec.CommandContext(
			t.Context(),
			program,
			append([]string{
				"-F",
				"none",
				"-p",
				port,
				"-i",
				key,
				"-l",
				"root",
				"-o",
				"IdentitiesOnly=yes",
				"-o",
				"BatchMode=yes",
				"-o",
				"StrictHostKeyChecking=yes",
				"-o",
				"UserKnownHostsFile=" + known,
				"-o",
				"GlobalKnownHostsFile=none",
				"-o",
				"HostKeyAlias=target",
				"-o",
				"ControlPath=" + filepath.Join(dir, "ctl"),
			}, args...)...)
	}
}

func statusOf(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

func TestOpenSSHClient(t *testing.T) {
	_, client := openSSH(t)
	for _, status := range []int{0, 1, 42, 255} {
		cmd := client("127.0.0.1", fmt.Sprintf("echo out; echo err >&2; exit %d", status))
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		require.Equal(t, status, statusOf(t, cmd))
		require.Equal(t, "out\n", stdout.String())
		require.Equal(t, "err\n", stderr.String())
	}
	require.Equal(t, 255, statusOf(t, client("127.0.0.1", "kill -9 $$")), "OpenSSH says so to exit-signal")

	data := make([]byte, 10<<20)
	_, _ = rand.Read(data)
	cmd := client("127.0.0.1", "cat")
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, out))

	out, err = client("-o", "SendEnv=LANG LD_PRELOAD", "-o", "SetEnv=LC_TIME=x", "127.0.0.1", "echo $LC_TIME").Output()
	require.NoError(t, err)
	require.Equal(t, "x\n", string(out))

	cmd = client("-tt", "127.0.0.1", "test -t 0 && stty size && echo $TERM; exit 3")
	cmd.Env = append(os.Environ(), "TERM=vt100")
	out, _ = cmd.Output()
	require.Equal(t, 3, cmd.ProcessState.ExitCode())
	require.Contains(t, string(out), "vt100\r\n")

}

func TestOpenSSHClientSubsystemAndForwardingRefused(t *testing.T) {
	_, client := openSSH(t)
	cmd := client("-s", "127.0.0.1", "sftp")
	out, _ := cmd.CombinedOutput()
	require.Equal(t, 255, cmd.ProcessState.ExitCode())
	require.Contains(t, string(out), "subsystem request failed")
	out, _ = client("-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1", "127.0.0.1", "true").CombinedOutput()
	require.Contains(t, string(out), "remote port forwarding failed")
	out, err := client("-A", "-X", "127.0.0.1", "echo fine").Output()
	require.NoError(t, err)
	require.Equal(t, "fine\n", string(out))
}

func TestOpenSSHClientKilledEndsTheCommand(t *testing.T) {
	_, client := openSSH(t)
	cmd := client("127.0.0.1", "echo $$; exec sleep 1013")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	gone(t, pid)
}

func TestOpenSSHClientMultiplexed(t *testing.T) {
	_, client := openSSH(t)
	require.Zero(t, statusOf(t, client("-M", "-N", "-f", "127.0.0.1")))
	defer func() { _ = client("-O", "exit", "127.0.0.1").Run() }()
	long := client("127.0.0.1", "echo $$; read x; exit 9")
	in, err := long.StdinPipe()
	require.NoError(t, err)
	out, err := long.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, long.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	require.NoError(t, err)

	victim := client("127.0.0.1", "echo $$; exec sleep 1014")
	vout, err := victim.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, victim.Start())
	var vpid int
	_, err = fmt.Fscan(vout, &vpid)
	require.NoError(t, err)
	require.NoError(t, victim.Process.Kill())
	_ = victim.Wait()
	gone(t, vpid)
	require.True(t, alive(pid))

	var group sync.WaitGroup
	for i := range 10 {
		group.Go(func() {
			out, err := client("127.0.0.1", fmt.Sprintf("echo %d", i)).CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != fmt.Sprint(i) {
				t.Errorf("%d: %q %v", i, out, err)
			}
		})
	}
	group.Wait()
	_, err = in.Write([]byte("\n"))
	require.NoError(t, err)
	_ = long.Wait()
	require.Equal(t, 9, long.ProcessState.ExitCode())
}

func TestOpenSSHClientDaemonAndHeldOutput(t *testing.T) {
	_, client := openSSH(t)
	cmd := client("127.0.0.1", "setsid sleep 1015 </dev/null >/dev/null 2>&1 & echo $!; sleep 1016 & echo $!; exit 3")
	begin := time.Now()
	out, _ := cmd.Output()
	require.Equal(t, 3, cmd.ProcessState.ExitCode())
	require.Less(t, time.Since(begin), 15*time.Second)
	var daemon, child int
	_, err := fmt.Sscan(string(out), &daemon, &child)
	require.NoError(t, err)
	killAtEnd(t, daemon)
	killAtEnd(t, child)
	require.True(t, alive(daemon))
	require.True(t, alive(child))
}
