package localapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// acceptPause is how long the server waits after it could not accept a connection for want of descriptors or memory.
const acceptPause = 100 * time.Millisecond

// acceptAll calls serve in a goroutine of its own for each connection, which it closes afterwards. When ctx ends, it
// closes the listener, waits for all of them, and returns nil.
func acceptAll(ctx context.Context, ln *net.UnixListener, serve func(*net.UnixConn)) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := ln.AcceptUnix()
		switch {
		case err == nil:
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
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

// pause returns after d, or when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// peerOf returns the user and the process at the other end of a socket (unix(7), SO_PEERCRED). The number of a process
// of another PID namespace is 0.
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
