// Package tcp notices that a connection between two ranks is lost, and keeps why. The client and the server of SSH both
// need it.
package tcp

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Watch has the kernel lose the connection when the other machine has acknowledged nothing for that long, whether we
// send or not. The kernels ask each other, which wakes no process. They ask six times, so that a few lost packets do
// not make a machine look dead (tcp(7), tcp_keepalive_*).
func Watch(conn net.Conn, silence time.Duration) error {
	const questions = 6
	pause := int(max(silence/questions, time.Second).Seconds())
	err := onSocket(conn, func(fd int) error {
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, pause),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, pause),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, questions))
	})
	return errors.Join(err, SetUserTimeout(conn, silence))
}

// SetUserTimeout sets TCP_USER_TIMEOUT (tcp(7)): data that the other end does not acknowledge for that long ends the
// connection. The kernel's own limit is about 15 minutes (tcp_retries2).
func SetUserTimeout(conn net.Conn, d time.Duration) error {
	return onSocket(conn, func(fd int) error {
		// Each of a login's small steps may be lost, and all ranks wait for the slowest one. The kernel sends it again
		// after a second at most (Linux 6.15), or up to six times without doubling the wait (before,
		// Documentation/networking/tcp-thin.rst of the kernel).
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, 1000)
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}

// onSocket has f set options of a TCP socket. Wrappers are looked through by the methods that net.TCPConn and tls.Conn
// have. A Unix socket has none of these options and needs none.
func onSocket(conn net.Conn, f func(fd int) error) error {
	for {
		switch inner := conn.(type) {
		case *net.UnixConn:
			return nil
		case syscall.Conn:
			raw, err := inner.SyscallConn()
			if err != nil {
				return err
			}
			var optionErr error
			err = raw.Control(func(fd uintptr) { optionErr = f(int(fd)) })
			return errors.Join(err, optionErr)
		case interface{ NetConn() net.Conn }:
			conn = inner.NetConn()
		default:
			return errors.New("not a TCP connection")
		}
	}
}

// Loss keeps why a connection was lost: the channels of SSH over it only see its end.
type Loss struct{ cause atomic.Pointer[error] }

// Note takes the error of each read and write. The first one that is a loss stays.
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

// Explain returns the cause in place of the io.EOF of a channel.
func (l *Loss) Explain(err error) error {
	if cause := l.Cause(); cause != nil && errors.Is(err, io.EOF) {
		return cause
	}
	return err
}
