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

	"github.com/paiinit/paiinit/internal/rawconn"
)

// Listen opens a socket at path, and replaces the socket of an earlier process. Only this user and root can connect to
// it.
func Listen(path string) (*net.UnixListener, error) {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("listening on %s: removing what is there: %w", path, err)
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

// Dial connects to a socket. It retries while the queue of the socket is full, because a launcher starts hundreds of
// processes at once.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	const retryTimeout = 5 * time.Second
	for deadline := time.Now().Add(retryTimeout); ; {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) || ctx.Err() != nil {
			return nil, err
		}
		wait(ctx, 5*time.Millisecond)
	}
}

// Server answers the connections to a socket. Its functions may be called concurrently.
type Server struct {
	// Answer answers a process of this user or of root, and must return soon after ctx ends. pid is 0 for a process
	// of another PID namespace. Serve closes the connection.
	Answer func(ctx context.Context, conn *net.UnixConn, pid int)

	// Refuse is called instead of Answer for a process that may not connect.
	Refuse func(conn *net.UnixConn, err error)

	// Retry is called after a temporary failure to accept. Serve tries again after pause.
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
				if pid, err := checkPeer(conn, os.Getuid(), false); err != nil {
					s.Refuse(conn, err)
				} else {
					s.Answer(ctx, conn, pid)
				}
			})
		case ctx.Err() != nil:
			return nil
		case mayBeTemporary(err):
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.Retry(err, pause)
			wait(ctx, pause)
		default:
			_ = ln.Close()
			err = fmt.Errorf("accepting on %v: %w", ln.Addr(), err)
			cancel(err)
			return err
		}
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
	select {
	case <-time.After(d):
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
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = rawconn.AwaitReadable(file)
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

// CheckServer returns the process to which a connection was made; pid is 0 for a process of another PID namespace. It
// refuses a server of another user, who may have created a socket in a directory that all users can write to. Root's
// servers are allowed, and root may connect to every user's server.
func CheckServer(conn *net.UnixConn) (pid int, err error) {
	own := os.Geteuid()
	return checkPeer(conn, own, own == 0)
}

// checkPeer returns the process at the other end of a socket (unix(7), SO_PEERCRED). It must be root's or that of the
// user own, unless anyUser is set.
func checkPeer(conn *net.UnixConn, own int, anyUser bool) (pid int, err error) {
	var peer *syscall.Ucred
	err = rawconn.Control(conn, func(fd int) (err error) {
		peer, err = syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("finding the user at the other end: %w", err)
	}
	if peer.Uid != 0 && int(peer.Uid) != own && !anyUser {
		return 0, &UserError{int(peer.Uid), own}
	}
	return int(peer.Pid), nil
}
