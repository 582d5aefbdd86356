package rsh_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/sshd"
)

// These tests run the pool against the real server, with the keys of a job, as in the containers.

func keys(t testing.TB, secret, job, attempt string) *jobkey.Keys {
	k, err := jobkey.Derive([]byte(secret), job, attempt)
	require.NoError(t, err)
	return k
}

const secret = "a secret of a test, which has 32 bytes or more"

func container(t testing.TB, k *jobkey.Keys, id string) rsh.Target {
	s, err := sshd.New(sshd.Config{
		HostKey:    k.Host(id),
		Comment:    rsh.Comment(k.Label(), id),
		Authorized: []ssh.PublicKey{k.User().PublicKey()},
		Environ:    []string{"PATH=" + os.Getenv("PATH"), "CONTAINER=" + id},
		Grace:      100 * time.Millisecond,
		Channels: map[string]func(context.Context, io.ReadWriteCloser, net.Addr){
			"control@paiinit": func(_ context.Context, ch io.ReadWriteCloser, _ net.Addr) {
				_, _ = io.Copy(ch, ch)
				_ = ch.Close()
			},
		},
	})
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
		require.ErrorIs(t, <-served, sshd.ErrServerClosed)
	})
	return rsh.Target{Name: id, ID: id, Addr: ln.Addr().(*net.TCPAddr).AddrPort()}
}

func pool(t testing.TB, k *jobkey.Keys) *rsh.Pool {
	p := rsh.New(rsh.Config{
		User:  k.User(),
		Host:  func(id string) ssh.PublicKey { return k.Host(id).PublicKey() },
		Label: k.Label(),
	})
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestRealServer(t *testing.T) {
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	p := pool(t, k)
	for _, tt := range []struct {
		command string
		stdin   io.Reader
		status  rsh.Status
		out     string
		err     string
	}{
		{"true", nil, rsh.Status{}, "", ""},
		{"exit 3", nil, rsh.Status{Code: 3}, "", ""},
		{"kill -TERM $$", nil, rsh.Status{Code: 143, Signal: syscall.SIGTERM}, "", ""},
		{"kill -KILL $$", nil, rsh.Status{Code: 137, Signal: syscall.SIGKILL}, "", ""},
		{`echo "$CONTAINER"; echo err >&2`, nil, rsh.Status{}, "worker-1\n", "err\n"},
		{"cat", strings.NewReader("in"), rsh.Status{}, "in", ""},
		{"cat", nil, rsh.Status{}, "", ""},
		{"head -c 3000000 /dev/zero | tr '\\0' x", nil, rsh.Status{}, strings.Repeat("x", 3000000), ""},
		{"setsid sleep 0.2 & exit 4", nil, rsh.Status{Code: 4}, "", ""},
	} {
		var out, errs bytes.Buffer
		status, err := p.Exec(within(t), target, rsh.Request{Command: tt.command, Stdin: tt.stdin, Stdout: &out,
			Stderr: &errs})
		require.NoError(t, err, tt.command)
		require.Equal(t, tt.status, status, tt.command)
		require.True(t, tt.out == out.String(), tt.command)
		require.Equal(t, tt.err, errs.String(), tt.command)
	}
	status, err := p.Exec(within(t), target, rsh.Request{Command: "no-such-command-anywhere"})
	require.NoError(t, err)
	require.Equal(t, rsh.Status{Code: 127}, status)

	// The server decides which variables and login names it accepts.
	var out bytes.Buffer
	_, err = p.Exec(within(t), target, rsh.Request{
		User: fmt.Sprint(os.Getuid()), Environ: []string{"LC_A=1", "LC_A=a b", "EVIL=1", "CONTAINER=other"},
		Command: `echo "$LC_A $EVIL $CONTAINER"`, Stdout: &out,
	})
	require.NoError(t, err)
	require.Equal(t, "a b  worker-1\n", out.String())
	for _, user := range []string{"not-this-user", "root\x00", " root"} {
		_, err = p.Exec(within(t), target, rsh.Request{User: user, Command: "true"})
		require.ErrorContains(t, err, fmt.Sprintf("channel: user %q: commands run as that container's user", user))
	}
}

func TestRealControl(t *testing.T) {
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	known, err := pool(t, k).Connect(within(t), rsh.Target{Addr: target.Addr})
	require.NoError(t, err)
	require.Equal(t, "worker-1", known.ID)
	ch, err := pool(t, k).Control(within(t), target)
	require.NoError(t, err)
	_, err = io.WriteString(ch, "ping")
	require.NoError(t, err)
	buf := make([]byte, 4)
	_, err = io.ReadFull(ch, buf)
	require.NoError(t, err)
	require.Equal(t, "ping", string(buf))
	require.NoError(t, ch.Close())
}

func TestRealRefusals(t *testing.T) {
	target := container(t, keys(t, secret, "job", "0"), "worker-1")
	for name, tt := range map[string]struct {
		keys *jobkey.Keys
		id   string
		want error
	}{
		"other secret":  {keys(t, "another secret, long enough", "job", "0"), "worker-1", rsh.ErrOtherSecret},
		"insecure":      {jobkey.Insecure("job", "0"), "worker-1", rsh.ErrOtherSecret},
		"other job":     {keys(t, secret, "job2", "0"), "worker-1", rsh.ErrOtherJob},
		"other attempt": {keys(t, secret, "job", "1"), "worker-1", rsh.ErrOtherJob},
		"other id":      {keys(t, secret, "job", "0"), "worker-2", rsh.ErrOtherID},
	} {
		target.ID = tt.id
		_, err := pool(t, tt.keys).Connect(within(t), target)
		require.ErrorIs(t, err, tt.want, name)
	}
}

func TestRealSignalsAndEnd(t *testing.T) {
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	p := pool(t, k)
	r, w := io.Pipe()
	signals := make(chan os.Signal, 1)
	done := make(chan rsh.Status, 1)
	go func() {
		status, err := p.Exec(within(t), target, rsh.Request{
			Command: `trap 'exit 42' TERM; echo ready; while :; do sleep 0.05; done`, Stdout: w, Signals: signals,
		})
		_ = w.CloseWithError(err)
		done <- status
	}()
	_, err := io.ReadFull(r, make([]byte, len("ready\n")))
	require.NoError(t, err)
	signals <- syscall.SIGTERM
	require.Equal(t, rsh.Status{Code: 42}, <-done)

	// The end of ctx is the end of the command.
	ctx, cancel := context.WithCancel(within(t))
	r, w = io.Pipe()
	failed := make(chan error, 1)
	go func() {
		_, err := p.Exec(ctx, target, rsh.Request{Command: `echo $$; exec sleep 1000`, Stdout: w})
		failed <- err
	}()
	var pid int
	_, err = fmt.Fscan(r, &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, 0))
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	for end := time.Now().Add(time.Minute); !errors.Is(syscall.Kill(pid, 0),
		syscall.ESRCH); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "the command still runs")
	}
}

func TestRealMany(t *testing.T) {
	k := keys(t, secret, "job", "0")
	p := pool(t, k)
	var targets []rsh.Target
	for i := range 4 {
		targets = append(targets, container(t, k, fmt.Sprintf("worker-%d", i)))
	}
	ctx := within(t)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			var out bytes.Buffer
			target := targets[i%len(targets)]
			status, err := p.Exec(ctx, target, rsh.Request{Command: "echo $CONTAINER; exit " + fmt.Sprint(i),
				Stdout: &out})
			if err != nil || status.Code != i || out.String() != target.ID+"\n" {
				t.Errorf("%d: %v %v %q", i, status, err, out.String())
			}
		})
	}
	wg.Wait()
}

func BenchmarkRealExecTrue(b *testing.B) {
	k := keys(b, secret, "job", "0")
	target := container(b, k, "worker-1")
	p := pool(b, k)
	for b.Loop() {
		if status, err := p.Exec(b.Context(), target, rsh.Request{Command: "true"}); err != nil || status.Code != 0 {
			b.Fatal(err)
		}
	}
}

func BenchmarkRealHandshake(b *testing.B) {
	k := keys(b, secret, "job", "0")
	target := container(b, k, "worker-1")
	for b.Loop() {
		p := pool(b, k)
		if _, err := p.Connect(b.Context(), target); err != nil {
			b.Fatal(err)
		}
		_ = p.Close()
	}
}
