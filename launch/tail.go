package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxLine bounds one kept line, in bytes; the rest of a longer line is passed on but not kept.
const maxLine = 4096

// tail stands between a command and its stderr: it passes everything on and remembers the last lines. A nil *tail does
// nothing.
type tail struct {
	w    *os.File // the command's end of the pipe
	r    *os.File
	out  *os.File
	done chan struct{}

	lines   []string // ring of the last complete lines
	next    int
	max     int
	partial []byte
}

func newTail(out *os.File, lines int) (*tail, error) {
	// Not os.Pipe: the command's end must be in blocking mode, ours must not.
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("launch: making a pipe for stderr: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, errors.Join(fmt.Errorf("launch: making a pipe for stderr: %w", err), unix.Close(fds[0]), unix.Close(fds[1]))
	}
	t := &tail{
		r: os.NewFile(uintptr(fds[0]), "stderr"), w: os.NewFile(uintptr(fds[1]), "stderr"),
		out: out, max: lines, done: make(chan struct{}),
	}
	go t.copy()
	return t, nil
}

// started closes our copy of the command's end.
func (t *tail) started() {
	if t != nil {
		_ = t.w.Close()
	}
}

// copy passes on until the last writer is gone or finish ends it.
func (t *tail) copy() {
	defer close(t.done)
	buf := make([]byte, 32<<10)
	for {
		n, err := t.r.Read(buf)
		t.pass(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.drain(buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// drain passes on what is in the pipe at this moment, and no more than it can hold: a process outside the group may
// keep on writing.
func (t *tail) drain(buf []byte) {
	raw, err := t.r.SyscallConn()
	if err != nil || t.r.SetReadDeadline(time.Time{}) != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		left, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0)
		for err == nil && left > 0 {
			var n int
			n, err = unix.Read(int(fd), buf)
			if errors.Is(err, syscall.EINTR) {
				err = nil
				continue
			}
			if n <= 0 {
				break
			}
			left -= n
			t.pass(buf[:n])
		}
		return true
	})
}

// pass writes p to stderr and keeps its lines. That stderr cannot be written is the reader's business: the command must
// not block on us.
func (t *tail) pass(p []byte) {
	if len(p) == 0 {
		return
	}
	_, _ = t.out.Write(p)
	for {
		line, rest, found := bytes.Cut(p, []byte("\n"))
		if room := maxLine - len(t.partial); room > 0 {
			t.partial = append(t.partial, line[:min(room, len(line))]...)
		}
		if !found {
			return
		}
		t.keep()
		p = rest
	}
}

// keep moves the partial line to the ring.
func (t *tail) keep() {
	line := strings.ToValidUTF8(strings.TrimSuffix(string(t.partial), "\r"), "\ufffd")
	t.partial = t.partial[:0]
	if len(t.lines) < t.max {
		t.lines = append(t.lines, line)
		return
	}
	t.lines[t.next] = line
	t.next = (t.next + 1) % t.max
}

// finish passes on what is left in the pipe and returns the kept lines, oldest first.
func (t *tail) finish() []string {
	if t == nil {
		return nil
	}
	_ = t.r.SetReadDeadline(time.Unix(1, 0)) // wakes the reader up; what is in the pipe stays there
	<-t.done
	_ = t.r.Close()
	if len(t.partial) > 0 {
		t.keep()
	}
	return append(append([]string{}, t.lines[t.next:]...), t.lines[:t.next]...)
}
