package rsh

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// A stopped agent must not delay the end of its clients. It ends their commands as soon as it continues.
func TestSignalWhileTheAgentIsStopped(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	dir, err := os.MkdirTemp("", "rsh")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "agent.sock")
	agent := exec.Command(os.Args[0], socket)
	agent.Env = append(os.Environ(), agentPeer+"="+peer.target.Addr.String(), "GORACE=atexit_sleep_ms=0")
	says, err := agent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, agent.Start())
	defer func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
	}()
	_, err = io.ReadFull(says, make([]byte, len("listening\n")))
	require.NoError(t, err)

	client := (&testAgent{socket: socket}).client("worker-1", "hang")
	errs, err := os.Create(filepath.Join(dir, "stderr")) // not a pipe, which the stopped agent holds open
	require.NoError(t, err)
	defer errs.Close()
	client.Stderr = errs
	out, err := client.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, client.Start())
	_, err = io.ReadFull(out, make([]byte, len("started\n")))
	require.NoError(t, err)
	require.NoError(t, agent.Process.Signal(unix.SIGSTOP))
	var status unix.WaitStatus
	_, err = unix.Wait4(agent.Process.Pid, &status, unix.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())

	late := time.AfterFunc(time.Minute, func() { _ = client.Process.Kill() })
	defer late.Stop()
	require.NoError(t, client.Process.Signal(unix.SIGTERM))
	_ = client.Wait() // the test reads the status below
	require.Equal(t, 128+int(unix.SIGTERM), client.ProcessState.ExitCode())
	text, err := os.ReadFile(errs.Name())
	require.NoError(t, err)
	require.Equal(t, "paiinit rsh: worker-1: the paiinit of this container is stopped or hangs; "+
		"it ends the command as soon as it continues\n", string(text))

	require.NoError(t, agent.Process.Signal(unix.SIGCONT))
	require.Equal(t, "hang", <-peer.ended)
}

// stuckConn never returns from OpenChannel, not even when it is closed, which can happen in x/crypto (see openOn).
type stuckConn struct {
	ssh.Conn
	release chan struct{}
}

func (c stuckConn) OpenChannel(string, []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	<-c.release
	return nil, nil, errors.New("released")
}

func (c stuckConn) Close() error { return nil }

func TestOpeningAChannelEndsWithTheConnection(t *testing.T) {
	conn := stuckConn{release: make(chan struct{})}
	defer close(conn.release)
	l := &link{conn: &connection{Conn: conn}, lost: make(chan struct{})}
	p := New(Config{})
	failed := make(chan error)
	go func() {
		_, err := p.openOn(t.Context(), l, "session")
		failed <- err
	}()
	close(l.lost)
	require.ErrorIs(t, <-failed, errLost)
	require.NoError(t, p.Close(), "the pool must not wait for OpenChannel")
}

// frozenConn neither delivers nor accepts bytes once the peer's processes are frozen.
type frozenConn struct {
	net.Conn
	frozen, closed chan struct{}
	once           sync.Once
}

func (c *frozenConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.frozen:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *frozenConn) Write(b []byte) (int, error) {
	select {
	case <-c.frozen:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return c.Conn.Write(b)
	}
}

func (c *frozenConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Closing a control channel to a frozen peer returns at once, and the warm connection stays until the peer continues.
func TestCloseOfAControlChannelDoesNotWaitForAFrozenPeer(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	conn := &frozenConn{frozen: make(chan struct{}), closed: make(chan struct{})}
	p := testPool(t, func(c *Config) {
		c.Dial = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			var err error
			conn.Conn, err = d.DialContext(ctx, "tcp", addr.String())
			return conn, err
		}
	})
	ch, err := p.Control(testCtx(t), peer.target)
	require.NoError(t, err)
	close(conn.frozen)
	ended := make(chan error, 2)
	go func() {
		_, err := ch.Read(make([]byte, 1))
		ended <- err
	}()
	go func() {
		_, err := ch.Write([]byte("ping"))
		ended <- err
	}()
	require.NoError(t, ch.Close())
	require.Error(t, <-ended)
	require.Error(t, <-ended)
	l, err := p.link(testCtx(t), peer.target, 0)
	require.NoError(t, err)
	select {
	case <-l.lost:
		require.Fail(t, "the connection was closed as well")
	default:
	}
}
