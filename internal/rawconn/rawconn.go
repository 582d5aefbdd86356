// Package rawconn reaches the descriptors of files and sockets without changing their blocking mode: os.File.Fd would
// change it for every process that shares the file.
package rawconn

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Control calls f with the descriptor of a file or socket.
func Control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// AwaitReadable returns when poll(2) reports that file is readable, or at the file's read deadline.
func AwaitReadable(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	// Read forgets what the runtime's poller has seen before, so each round looks for itself.
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}
