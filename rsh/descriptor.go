package rsh

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openDescriptor makes a stream of a file descriptor that unknown processes share, and takes ownership of it.
//
// A read or write can block for ever and must still end when the stream is closed, and a read must not take what is
// typed into a terminal after its command has ended. O_NONBLOCK would do, but it belongs to the open file and not to
// the descriptor: setting it here would set it in the launcher and in every process that shares its output. So the
// descriptor stays blocking, and we touch it only when poll(2) reports it ready. Until then an epoll instance around
// it, which has its own O_NONBLOCK, waits in Go's network poller, where closing it ends the wait.
func openDescriptor(fd int, events uint32) (io.ReadWriteCloser, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(ep, true)
	}
	d := &descriptor{fd: fd, epoll: os.NewFile(uintptr(ep), "epoll")} // nil if there is no ep
	if err == nil {
		err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events})
	}
	if errors.Is(err, unix.EPERM) {
		// A regular file or /dev/null never blocks, and epoll refuses it (epoll_ctl(2)).
		_ = d.epoll.Close()
		return os.NewFile(uintptr(fd), "descriptor"), nil
	}
	if err == nil {
		d.ready, err = d.epoll.SyscallConn()
	}
	if err != nil {
		_, _ = d.epoll.Close(), unix.Close(fd)
		return nil, fmt.Errorf("waiting for a descriptor: %w", err)
	}
	return d, nil
}

type descriptor struct {
	fd    int
	epoll *os.File
	ready syscall.RawConn
}

// when runs f as soon as the descriptor is ready for events, and again when f returns EAGAIN.
func (d *descriptor) when(events int16, f func() (int, error)) (n int, err error) {
	waitErr := d.ready.Read(func(uintptr) bool {
		for {
			fds := []unix.PollFd{{Fd: int32(d.fd), Events: events}}
			ready, pollErr := unix.Poll(fds, 0)
			switch {
			case errors.Is(pollErr, unix.EINTR):
				continue
			case pollErr != nil:
				n, err = 0, pollErr
				return true
			case ready == 0:
				return false
			}
			n, err = f()
			if errors.Is(err, unix.EINTR) {
				continue
			}
			// EAGAIN: another process has set O_NONBLOCK, and took the data first.
			return !errors.Is(err, unix.EAGAIN)
		}
	})
	if waitErr != nil {
		return 0, waitErr
	}
	return n, err
}

func (d *descriptor) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := d.when(unix.POLLIN, func() (int, error) { return unix.Read(d.fd, p) })
	if err == nil && n == 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

func (d *descriptor) Write(p []byte) (int, error) {
	// A pipe that poll(2) calls writable takes this much without blocking (pipe(7), PIPE_BUF).
	const chunk = 4096
	written := 0
	for written < len(p) {
		n, err := d.when(unix.POLLOUT, func() (int, error) {
			return unix.Write(d.fd, p[written:min(len(p), written+chunk)])
		})
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// Close waits until no Read and no Write is in progress. It may be called more than once.
func (d *descriptor) Close() error {
	if err := d.epoll.Close(); err != nil {
		return err
	}
	return unix.Close(d.fd)
}
