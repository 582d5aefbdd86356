// Package unixsock serves the Unix sockets of the state directory, which only their user and root may use.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listen opens a socket at path, and replaces the socket of an earlier process. Only this user and root can connect to
// it.
func Listen(path string) (*net.UnixListener, error) {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, &os.PathError{Op: "remove", Path: path, Err: err}
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = ln.Close()
		return nil, err
	}
	return ln, nil
}

// Server answers the connections to a socket. Its functions may be called concurrently.
type Server struct {
	// Answer answers a process of this user or of root, and must return soon after ctx ends. pid is 0 for a process
	// of another PID namespace. Serve closes the connection.
	Answer func(ctx context.Context, conn *net.UnixConn, pid int)

	// Refuse, if not nil, is called instead of Answer for a process that may not connect.
	Refuse func(conn *net.UnixConn, err error)

	// Retry, if not nil, is called after a temporary failure to accept. Serve tries again after pause.
	Retry func(err error, pause time.Duration)
}

// Serve answers each connection in its own goroutine. When ctx ends, or the socket fails, it closes the socket, and
// returns once all connections are answered: nil if ctx has ended.
func (s Server) Serve(ctx context.Context, ln *net.UnixListener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var answering sync.WaitGroup
	defer answering.Wait()
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()

	pause := time.Duration(0)
	for {
		conn, err := ln.AcceptUnix()
		switch {
		case err == nil:
			pause = 0
			answering.Go(func() {
				defer func() { _ = conn.Close() }()
				s.answer(ctx, conn)
			})
		case ctx.Err() != nil:
			return nil
		case mayBeTemporary(err):
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			if s.Retry != nil {
				s.Retry(err, pause)
			}
			wait(ctx, pause)
		default:
			_ = ln.Close()
			err = fmt.Errorf("accepting on %v: %w", ln.Addr(), err)
			cancel(err)
			return err
		}
	}
}

func (s Server) answer(ctx context.Context, conn *net.UnixConn) {
	pid, err := checkClient(conn)
	switch {
	case err == nil:
		s.Answer(ctx, conn, pid)
	case s.Refuse != nil:
		s.Refuse(conn, err)
	}
}

// mayBeTemporary reports whether accept lacks a resource that other connections release when they end. The client waits
// in the kernel's queue meanwhile.
func mayBeTemporary(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS}, func(e error) bool {
		return errors.Is(err, e)
	})
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Await returns when a client has connected to the socket, which it does not accept, or ctx ends.
func Await(ctx context.Context, ln *net.UnixListener) error {
	file, err := ln.File() // a listener itself cannot be waited for without accepting
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	// Read forgets what the runtime's poller has seen before, so each round looks for itself.
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Pair returns two sockets that are connected to each other.
func Pair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a socket pair: %w", err)
	}
	first, second := os.NewFile(uintptr(fds[0]), "socket pair"), os.NewFile(uintptr(fds[1]), "socket pair")
	defer func() { _, _ = first.Close(), second.Close() }()
	one, err := net.FileConn(first)
	if err != nil {
		return nil, nil, fmt.Errorf("using a socket pair: %w", err)
	}
	other, err := net.FileConn(second)
	if err != nil {
		_ = one.Close()
		return nil, nil, fmt.Errorf("using a socket pair: %w", err)
	}
	return one.(*net.UnixConn), other.(*net.UnixConn), nil
}

// UserError says that a process of another user, which is not root, is at the other end of a socket.
type UserError struct{ UID, Own int }

func (e *UserError) Error() string {
	return fmt.Sprintf("the other end belongs to user %d instead of user %d or root", e.UID, e.Own)
}

// checkClient returns the process that has connected, which must be this user's or root's.
func checkClient(conn *net.UnixConn) (pid int, err error) {
	peer, err := peerOf(conn)
	if err != nil {
		return 0, err
	}
	if own := os.Getuid(); peer.Uid != 0 && int(peer.Uid) != own {
		return 0, &UserError{int(peer.Uid), own}
	}
	return int(peer.Pid), nil
}

// CheckServer returns the process to which a connection was made; pid is 0 for a process of another PID namespace. It
// must be this user's or root's, because others may lay out a socket where all users can write. Root may connect to
// every user's.
func CheckServer(conn *net.UnixConn) (pid int, err error) {
	peer, err := peerOf(conn)
	if err != nil {
		return 0, err
	}
	if own := os.Geteuid(); peer.Uid != 0 && int(peer.Uid) != own && own != 0 {
		return 0, &UserError{int(peer.Uid), own}
	}
	return int(peer.Pid), nil
}

// peerOf returns the user and the process at the other end of a socket (unix(7), SO_PEERCRED).
func peerOf(conn *net.UnixConn) (cred *syscall.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err == nil {
		controlErr := raw.Control(func(fd uintptr) {
			cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		})
		err = errors.Join(err, controlErr)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the user at the other end: %w", err)
	}
	return cred, nil
}
