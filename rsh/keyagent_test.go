package rsh_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/unixsock/unixsocktest"
	"github.com/paiinit/paiinit/rsh"
)

// keySocket serves the key of a job until the end of the test.
func keySocket(t *testing.T) (socket string, key ssh.PublicKey) {
	k := keys(t, secret, "job", "0")
	dir, err := os.MkdirTemp("", "rsh")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "keys.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	p := pool(t, k)
	go func() { served <- p.ServeKey(ctx, ln, rsh.Agent{}) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	return socket, k.User().PublicKey()
}

// login is what a client signs.
func login(key ssh.PublicKey, method string, rest ...byte) []byte {
	return append(ssh.Marshal(struct {
		Session               []byte
		Type                  byte
		User, Service, Method string
		Signed                bool
		Algorithm             string
		Key                   []byte
	}{[]byte("a session id"), 50, "root", "ssh-connection", method, true, key.Type(), key.Marshal()}), rest...)
}

func TestKeyAgent(t *testing.T) {
	socket, key := keySocket(t)
	conn, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer conn.Close()
	client := agent.NewClient(conn)
	listed, err := client.List()
	require.NoError(t, err)
	require.Len(t, listed, 1)
	require.Equal(t, key.Marshal(), listed[0].Blob)

	for _, data := range [][]byte{login(key, "publickey"), login(key, "publickey-hostbound-v00@openssh.com", ssh.Marshal(struct{ K []byte }{[]byte("host key")})...)} {
		signature, err := client.Sign(key, data)
		require.NoError(t, err)
		require.NoError(t, key.Verify(data, signature))
	}
	other := keys(t, secret, "job", "1").User().PublicKey()
	for name, data := range map[string][]byte{
		"nothing":       {},
		"text":          []byte("SSHSIG and what somebody wants to have signed"),
		"another key":   login(other, "publickey"),
		"more":          login(key, "publickey", 'x'),
		"other method":  login(key, "hostbased"),
		"no login":      bytes.Replace(login(key, "publickey"), []byte("ssh-connection"), []byte("ssh-userauth!!"), 1),
		"half of it":    login(key, "publickey")[:40],
		"empty session": bytes.Repeat([]byte{0}, 64),
	} {
		_, err := client.Sign(key, data)
		require.Error(t, err, name)
	}
	_, err = client.Sign(other, login(other, "publickey"))
	require.Error(t, err)
	require.Error(t, client.RemoveAll())
	require.Error(t, client.Lock([]byte("x")))
	require.NoError(t, conn.Close())
}

// A moment without free descriptors must not end the key agent for the rest of the job.
func TestKeyAgentWithoutDescriptors(t *testing.T) {
	waiting := make(chan struct{}, 100)
	logger := slog.New(slog.NewTextHandler(writeFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("too many open files")) {
			waiting <- struct{}{}
		}
		return len(b), nil
	}), nil))
	k := keys(t, secret, "job", "0")
	p := rsh.New(rsh.Config{User: k.User(), Logger: logger})
	defer func() { require.NoError(t, p.Close()) }()
	socket := filepath.Join(t.TempDir(), "keys.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.ServeKey(ctx, ln, rsh.Agent{}) }()

	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	file := os.NewFile(uintptr(client), socket)
	defer func() { _ = file.Close() }()
	restore := unixsocktest.LimitFiles(t, 0)
	require.NoError(t, unix.Connect(client, &unix.SockaddrUnix{Name: socket}))
	select {
	case <-waiting:
	case err := <-served:
		t.Fatal("the key agent has ended: ", err)
	}
	restore()
	listed, err := agent.NewClient(file).List()
	require.NoError(t, err)
	require.Len(t, listed, 1)
	cancel()
	require.NoError(t, <-served)
}

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(b []byte) (int, error) { return f(b) }

// A real client logs in with a key that it never sees, and checks the host's.
func TestKeyAgentOpenSSH(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil {
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skip("no OpenSSH client; on Debian or Ubuntu: apt-get install openssh-client")
	}
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	socket, _ := keySocket(t)
	known := filepath.Join(t.TempDir(), "known_hosts")
	run := func(id string) (string, error) {
		require.NoError(t, os.WriteFile(known, fmt.Appendf(nil, "worker-1 %s", ssh.MarshalAuthorizedKey(k.Host(id).PublicKey())), 0o600))
		out, err := exec.CommandContext(within(t), "ssh", "-F", "none", "-oIdentityAgent="+socket, "-oIdentityFile=none", "-oUserKnownHostsFile="+known,
			"-oGlobalKnownHostsFile=none", "-oStrictHostKeyChecking=yes", "-oHostKeyAlias=worker-1", "-oBatchMode=yes",
			"-p", fmt.Sprint(target.Addr.Port()), "root@127.0.0.1", "echo $CONTAINER; exit 3").CombinedOutput()
		return string(out), err
	}
	out, err := run("worker-1")
	require.ErrorContains(t, err, "exit status 3", out)
	require.Equal(t, "worker-1\n", out)
	out, err = run("worker-2")
	require.ErrorContains(t, err, "exit status 255")
	require.Contains(t, out, "Host key verification failed")
}

// Whatever a client sends gets one answer, and only logins get a signature.
func FuzzAnswerMessage(f *testing.F) {
	key := keys(f, secret, "job", "0").User()
	sign := func(data []byte) []byte {
		return append([]byte{13}, ssh.Marshal(struct {
			Key, Data []byte
			Flags     uint32
		}{key.PublicKey().Marshal(), data, 0})...)
	}
	f.Add(sign(login(key.PublicKey(), "publickey")))
	f.Add(sign([]byte("text")))
	f.Add([]byte{11})
	f.Add([]byte{13, 0, 0})
	f.Fuzz(func(t *testing.T, message []byte) {
		if len(message) == 0 {
			return
		}
		answer := rsh.AnswerMessage(message, key)
		require.NotEmpty(t, answer)
		if answer[0] == 14 {
			require.True(t, message[0] == 13 && bytes.Contains(message, []byte("ssh-connection")), "%q", message)
		}
	})
}
