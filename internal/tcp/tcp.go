// Package tcp detects the loss of a connection between two ranks, and keeps the reason. Both the client and the server
// of SSH need it.
package tcp

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/rawconn"
)

// Watch lets the kernel end the connection when the other machine acknowledges nothing for the timeout, whether we send
// or not. TCP keepalives wake no process; with several probes, a few lost packets do not end the connection (tcp(7),
// tcp_keepalive_*).
func Watch(conn net.Conn, timeout time.Duration) error {
	const probes = 6
	pause := int(max(timeout/probes, time.Second).Seconds())
	err := onSocket(conn, func(fd int) error {
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, pause),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, pause),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, probes))
	})
	return errors.Join(err, SetUserTimeout(conn, timeout))
}

// SetUserTimeout sets TCP_USER_TIMEOUT (tcp(7)): the connection ends if the other end does not acknowledge data for
// this long. The kernel's own limit is about 15 minutes (tcp_retries2).
func SetUserTimeout(conn net.Conn, d time.Duration) error {
	return onSocket(conn, func(fd int) error {
		// Any of a login's small steps may get lost, and all ranks wait for the slowest. Since Linux 6.15
		// (TCP_RTO_MAX_MS) the kernel sends it again after at most a second; before, up to six times without doubling
		// the wait (Documentation/networking/tcp-thin.rst of the kernel).
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, 1000)
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}

// onSocket calls f, which sets options of a TCP socket. It unwraps connections such as tls.Conn, and skips Unix
// sockets, which have none of these options.
func onSocket(conn net.Conn, f func(fd int) error) error {
	for {
		switch inner := conn.(type) {
		case *net.UnixConn:
			return nil
		case syscall.Conn:
			return rawconn.Control(inner, f)
		case interface{ NetConn() net.Conn }:
			conn = inner.NetConn()
		default:
			return errors.New("not a TCP connection")
		}
	}
}

// Loss keeps why a connection was lost: SSH channels over it see only an EOF.
type Loss struct{ cause atomic.Pointer[error] }

// Note takes the error of each read and write, and keeps the first that is a loss.
func (l *Loss) Note(err error) {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		l.cause.CompareAndSwap(nil, &err)
	}
}

// Cause returns why the connection was lost, or nil.
func (l *Loss) Cause() error {
	if cause := l.cause.Load(); cause != nil {
		return *cause
	}
	return nil
}

// Explain replaces a channel's io.EOF by the cause.
func (l *Loss) Explain(err error) error {
	if cause := l.Cause(); cause != nil && errors.Is(err, io.EOF) {
		return cause
	}
	return err
}

// RoundTrip returns the shortest round trip that the kernel has measured on a connection in the last minutes
// (tcp_min_rtt_wlen): the average has delayed acknowledgements in it. 0 = unknown. It sends nothing.
func RoundTrip(conn net.Conn) time.Duration {
	var rtt time.Duration
	_ = onSocket(conn, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			rtt = time.Duration(info.Min_rtt) * time.Microsecond
		}
		return err
	})
	return rtt
}
