package tcp_test

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/tcp"
)

type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

func TestThroughWrappers(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	nc, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer func() { _ = nc.Close() }()
	require.NoError(t, tcp.SetUserTimeout(wrapped{wrapped{nc}}, 60*time.Second))
	raw, err := nc.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		require.NoError(t, err)
		require.Equal(t, 60000, got)
	}))
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	require.Error(t, tcp.SetUserTimeout(wrapped{a}, time.Second))
}

func TestWatch(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	option := func(level, name int) (value int) {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), level, name) }))
		require.NoError(t, err)
		return value
	}
	for silence, pause := range map[time.Duration]int{20 * time.Second: 3, 12 * time.Second: 2, 3 * time.Second: 1} {
		require.NoError(t, tcp.Watch(conn, silence))
		require.Equal(t, 1, option(unix.SOL_SOCKET, unix.SO_KEEPALIVE))
		require.Equal(t, pause, option(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE))
		require.Equal(t, pause, option(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL))
		require.Equal(t, 6, option(unix.IPPROTO_TCP, unix.TCP_KEEPCNT))
		require.EqualValues(t, silence.Milliseconds(), option(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
	}
	require.NoError(t, conn.Close())
	require.Error(t, tcp.Watch(conn, time.Second))
}

func TestLoss(t *testing.T) {
	var l tcp.Loss
	for _, err := range []error{nil, io.EOF, net.ErrClosed} {
		l.Note(err)
		require.NoError(t, l.Cause())
	}
	require.Equal(t, io.EOF, l.Explain(io.EOF))
	l.Note(&net.OpError{Op: "read", Err: syscall.ETIMEDOUT})
	l.Note(syscall.ECONNRESET)
	require.ErrorIs(t, l.Cause(), syscall.ETIMEDOUT, "the first one")
	require.ErrorIs(t, l.Explain(io.EOF), syscall.ETIMEDOUT)
	require.NoError(t, l.Explain(nil))
	other := errors.New("other")
	require.Equal(t, other, l.Explain(other))
}

func TestRoundTrip(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	rtt := tcp.RoundTrip(wrapped{conn})
	require.Positive(t, rtt)
	require.Less(t, rtt, time.Minute)
	require.NoError(t, conn.Close())
	require.Zero(t, tcp.RoundTrip(conn))
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	require.Zero(t, tcp.RoundTrip(a))
}
