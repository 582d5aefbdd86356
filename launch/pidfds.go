package launch

import (
	"cmp"
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// mostPidfds leaves descriptors for the rest of the program: a job may have thousands of processes.
const mostPidfds = 512

// pidfds waits for the ends of processes by events (pidfd_open(2)).
type pidfds struct {
	epoll  *os.File
	open   map[int]*target
	cancel func() bool
}

// newPidfds returns an empty set. Its await ends with ctx.
func newPidfds(ctx context.Context) (*pidfds, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	_ = unix.SetNonblock(fd, true) // so that it is waited for by the runtime's poller, not by a thread
	s := &pidfds{epoll: os.NewFile(uintptr(fd), "epoll"), open: make(map[int]*target)}
	s.cancel = context.AfterFunc(ctx, func() { _ = s.epoll.SetReadDeadline(time.Unix(1, 0)) })
	return s, nil
}

func (s *pidfds) close() {
	s.cancel()
	for fd := range s.open {
		_ = unix.Close(fd)
	}
	_ = s.epoll.Close()
}

func (s *pidfds) len() int { return len(s.open) }

func (s *pidfds) full() bool { return len(s.open) >= mostPidfds }

// add takes over the pidfd of a process, unless it returns false.
func (s *pidfds) add(fd int, t *target) bool {
	raw, err := s.epoll.SyscallConn()
	if err != nil {
		return false
	}
	errRaw := raw.Control(func(epoll uintptr) {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)} // a pidfd is readable when all threads have ended
		err = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, fd, &event)
	})
	if cmp.Or(errRaw, err) != nil {
		return false
	}
	t.pidfd = fd
	s.open[fd] = t
	return true
}

// await waits until a process has ended, and removes it. It returns false at the given time, or when ctx has ended.
func (s *pidfds) await(ctx context.Context, until time.Time) bool {
	raw, err := s.epoll.SyscallConn()
	if err != nil || s.epoll.SetReadDeadline(until) != nil {
		return false
	}
	if ctx.Err() != nil { // not before SetReadDeadline, which may have replaced that of newPidfds
		return false
	}
	var events [64]unix.EpollEvent
	n := 0
	_ = raw.Read(func(epoll uintptr) bool {
		n, _ = unix.EpollWait(int(epoll), events[:], 0)
		return n > 0
	})
	for _, e := range events[:max(n, 0)] {
		fd := int(e.Fd)
		s.open[fd].pidfd = -1
		delete(s.open, fd)
		_ = unix.Close(fd)
	}
	return n > 0
}
