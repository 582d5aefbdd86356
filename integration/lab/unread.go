package lab

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// filler is the line that fills a pipe that is not read. The lab drops it when it reads again.
var filler = strings.Repeat("~", 255) + "\n"

// unread stops the reader of a container's standard error.
type unread struct {
	pipe *os.File // the lab's end

	mu      sync.Mutex
	stopped bool
	parked  bool // the reader reads nothing
	changed *sync.Cond
}

func (u *unread) init(pipe *os.File) { u.pipe, u.changed = pipe, sync.NewCond(&u.mu) }

// await returns once the pipe may be read.
func (u *unread) await() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.stopped {
		u.park()
		u.changed.Wait()
	}
	u.parked = false
}

// park notes that the reader reads nothing. The caller holds mu.
func (u *unread) park() {
	u.parked = true
	u.changed.Broadcast()
}

// end notes that the reader has ended.
func (u *unread) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.park()
}

// BlockStderr stops reading the container's standard error and fills its pipe, like a log collector that hangs: every
// further write of the container blocks. Wait returns only after ReadStderr.
func (c *Container) BlockStderr() error {
	u := &c.stderr
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stopped = true
	err := u.write(false) // wakes a reader that waits for more
	for err == nil && !u.parked {
		u.changed.Wait()
	}
	if err == nil {
		err = u.write(true)
	}
	if err != nil {
		return fmt.Errorf("lab: blocking the standard error of container %q: %w", c.Name, err)
	}
	return nil
}

// write writes a filler to the pipe, or as many as it takes.
func (u *unread) write(full bool) error {
	raw, err := u.pipe.SyscallConn()
	if err != nil {
		return err
	}
	opening := raw.Control(func(fd uintptr) { err = fill(fmt.Sprintf("/proc/self/fd/%d", fd), full) })
	return errors.Join(err, opening)
}

func fill(pipe string, full bool) error {
	fd, err := unix.Open(pipe, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for more := true; more && (err == nil || errors.Is(err, unix.EINTR)); more = full {
		_, err = unix.Write(fd, []byte(filler))
	}
	if errors.Is(err, unix.EAGAIN) {
		err = nil
	}
	return errors.Join(err, unix.Close(fd))
}

// ReadStderr reads the container's standard error again.
func (c *Container) ReadStderr() {
	u := &c.stderr
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stopped = false
	u.changed.Broadcast()
}
