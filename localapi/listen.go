package localapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// listener accepts the connections to a socket.
type listener struct {
	// answer answers a process of this user or of root. pid is 0 for a process of another PID namespace. serve closes
	// the connection.
	answer func(ctx context.Context, conn *net.UnixConn, pid int)
	// refuse is called in place of answer for a process that may not connect.
	refuse func(conn *net.UnixConn, err error)
}

// acceptPause is how long the server waits after it could not accept a connection for want of descriptors or memory.
const acceptPause = 100 * time.Millisecond

// serve answers each connection in its own goroutine. When ctx ends, it closes the socket, and returns nil once all
// connections are answered.
func (l listener) serve(ctx context.Context, ln *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var answering sync.WaitGroup
	defer answering.Wait()
	for {
		conn, err := ln.AcceptUnix()
		switch {
		case err == nil:
			answering.Go(func() {
				defer func() { _ = conn.Close() }()
				pid, err := checkClient(conn)
				if err != nil {
					l.refuse(conn, err)
					return
				}
				l.answer(ctx, conn, pid)
			})
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) ||
			errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS):
			pause(ctx, acceptPause) // the kernel keeps the client waiting
		default:
			return fmt.Errorf("accepting on %v: %w", ln.Addr(), err)
		}
	}
}

// checkClient returns the process that has connected, which must be this user's or root's.
func checkClient(conn *net.UnixConn) (pid int, err error) {
	peer, err := peerOf(conn)
	if err != nil {
		return 0, err
	}
	return int(peer.Pid), admit(int(peer.Uid), os.Getuid())
}

// checkServer returns the process to which a connection was made, which must be this user's or root's: other users may
// create a socket where all users can write. Root may connect to every user's.
func checkServer(conn *net.UnixConn) (pid int, err error) {
	peer, err := peerOf(conn)
	if err != nil {
		return 0, err
	}
	if own := os.Geteuid(); own != 0 {
		err = admit(int(peer.Uid), own)
	}
	return int(peer.Pid), err
}

// admit admits the own user and root.
func admit(uid, own int) error {
	if uid != 0 && uid != own {
		return fmt.Errorf("user %d is at the other end, neither user %d nor root", uid, own)
	}
	return nil
}

// peerOf returns the user and the process at the other end of a socket (unix(7), SO_PEERCRED).
func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return nil, fmt.Errorf("finding out who is at the other end: %w", err)
	}
	return cred, nil
}
