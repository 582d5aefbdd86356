package launch

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxLine = 4096 // bytes of a line that are kept; a longer line is passed on in full
	// The lines of maxOrigins processes, each with maxOriginLine bytes, take 0.7 MB with 20 lines per process.
	maxOrigins    = 64
	maxOriginLine = 512
)

// recentBytes is how much of the end of a stream is kept, at least: the ranks that a launcher ends may print much after
// its report.
const recentBytes = 64 << 10

// tail copies stderr or stdout of a command and remembers its last lines. A nil *tail does nothing.
type tail struct {
	exact bool // stdout: every byte is passed on, and a closed pipe is closed for the command, too

	w    *os.File // the command's end of the pipe
	r    *os.File
	fd   int // of r
	out  *os.File
	done chan struct{}

	mu      sync.Mutex
	written int  // finished writes to out
	waiting int  // bytes that were read, but not written to out yet
	left    bool // nothing reads out any more: new lines are kept, but not passed on
	lost    int  // bytes that were not passed on
	reads   int  // of the pipe

	recent  []byte           // the last bytes, at least recentBytes of them
	most    int              // lines per process; 0 = none, as on stdout, which may carry gigabytes
	origins map[string]*ring // the last lines of each process whose lines a launcher marks
	hosts   map[string]bool  // the names of hosts with which pdsh marks lines
	count   int              // lines
	partial []byte
}

// ring holds the last lines, at most max.
type ring struct {
	lines []kept // oldest first
	max   int
}

// kept is a line and its number among all lines.
type kept struct {
	number int
	text   string
}

func (r *ring) add(line kept) {
	if len(r.lines) == r.max {
		r.lines = slices.Delete(r.lines, 0, 1)
	}
	r.lines = append(r.lines, line)
}

// last returns the number of the latest line.
func (r *ring) last() int { return r.lines[len(r.lines)-1].number }

// newTail returns a tail that copies a pipe to out. exact is true for stdout.
func newTail(out *os.File, exact bool, lines int, hosts []string) (*tail, error) {
	// os.Pipe does not fit: the command's end must be in blocking mode, ours must not.
	var fds [2]int
	err := unix.Pipe2(fds[:], unix.O_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fds[0], true)
	}
	if err != nil {
		return nil, fmt.Errorf("making a pipe for %s: %w", out.Name(), err)
	}
	t := &tail{
		exact: exact,
		fd:    fds[0], r: os.NewFile(uintptr(fds[0]), out.Name()), w: os.NewFile(uintptr(fds[1]), out.Name()),
		out: out, done: make(chan struct{}),
		most: lines, origins: make(map[string]*ring), hosts: make(map[string]bool, len(hosts)),
	}
	for _, h := range hosts {
		t.hosts[h] = true
	}
	go t.copy()
	return t, nil
}

// copy passes bytes on until the last writer has closed the pipe, or finish stops it.
func (t *tail) copy() {
	defer close(t.done)
	buf := make([]byte, 32<<10)
	if t.exact {
		buf = make([]byte, 64<<10) // the capacity of a pipe
	}
	for {
		n, err := t.r.Read(buf)
		if !t.pass(buf[:n]) {
			_ = t.r.Close() // the command gets SIGPIPE, as without paiinit
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.drain(buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// drain passes on the bytes that are in the pipe now, at most as many as it can hold: a process outside the group may
// go on writing.
func (t *tail) drain(buf []byte) {
	left, err := unix.FcntlInt(uintptr(t.fd), unix.F_GETPIPE_SZ, 0)
	for err == nil && left > 0 {
		var n int
		n, err = unix.Read(t.fd, buf)
		if errors.Is(err, syscall.EINTR) {
			err = nil
			continue
		}
		if n <= 0 {
			break
		}
		left -= n
		if !t.pass(buf[:n]) {
			return
		}
	}
}

// pass remembers the lines of p and writes it to stderr. It ignores write errors, such as a closed pipe, because the
// command must not fail because of them. A stderr that nothing reads blocks the command, as without paiinit. It returns
// false if the exact stream cannot be written any more.
func (t *tail) pass(p []byte) (open bool) {
	t.mu.Lock()
	t.remember(p)
	t.reads += min(len(p), 1)
	left := t.left
	if left {
		t.lost += len(p)
	} else {
		t.waiting = len(p)
	}
	t.mu.Unlock()
	for len(p) > 0 && !left {
		n := firstChunk(p)
		if t.exact { // nothing else writes to it, so large writes mix no lines
			var err error
			if n, err = writeSome(t.out, p); err != nil {
				t.mu.Lock()
				defer t.mu.Unlock()
				t.waiting = 0
				return false
			}
		} else {
			_, _ = t.out.Write(p[:n])
		}
		p = p[n:]
		t.mu.Lock()
		t.written++
		t.waiting = len(p)
		left = t.left
		t.mu.Unlock()
	}
	return true
}

// activity returns a number that changes when something was read, or still waits for its reader: that may block the
// command, which is not its fault.
func (t *tail) activity() int {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads += min(t.waiting, 1)
	return t.reads
}

// writeSome writes at least one byte. It waits if another process has made the file non-blocking. os.File.Write would
// end this process at a closed stdout.
func writeSome(out *os.File, p []byte) (int, error) {
	fd := int(out.Fd())
	for {
		n, err := unix.Write(fd, p)
		switch {
		case errors.Is(err, unix.EAGAIN):
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		case !errors.Is(err, unix.EINTR):
			return n, err
		}
	}
}

// firstChunk returns the length of the next write: whole lines if possible, and at most as many bytes as a pipe takes
// without mixing them with other writers' lines (pipe(7), PIPE_BUF).
func firstChunk(p []byte) int {
	const pipeBuf = 4096
	if len(p) <= pipeBuf {
		return len(p)
	}
	if i := bytes.LastIndexByte(p[:pipeBuf], '\n'); i >= 0 {
		return i + 1
	}
	return pipeBuf
}

// remember keeps the last bytes and, of the processes that a launcher marks, the last lines.
func (t *tail) remember(p []byte) {
	if len(t.recent)+len(p) > 4*recentBytes {
		keep := t.recent[max(0, len(t.recent)-recentBytes):]
		t.recent = t.recent[:copy(t.recent, keep)]
	}
	t.recent = append(t.recent, p[max(0, len(p)-2*recentBytes):]...)
	if t.most == 0 {
		return
	}
	for line := range bytes.Lines(p) {
		line, ended := bytes.CutSuffix(line, []byte("\n"))
		room := max(maxLine-len(t.partial), 0)
		t.partial = append(t.partial, line[:min(room, len(line))]...)
		if ended {
			t.keep()
		}
	}
}

// keep moves the partial line to the ring of its process.
func (t *tail) keep() {
	line := strings.ToValidUTF8(strings.TrimSuffix(string(t.partial), "\r"), "\ufffd")
	t.partial = t.partial[:0]
	t.count++
	name := t.origin(line)
	if name == "" {
		return
	}
	r := t.origins[name]
	if r == nil {
		if len(t.origins) == maxOrigins {
			t.forget()
		}
		r = &ring{max: t.most}
		t.origins[name] = r
	}
	if len(line) > maxOriginLine {
		line = strings.ToValidUTF8(line[:maxOriginLine], "")
	}
	r.add(kept{t.count, strings.Clone(line)})
}

// forget makes room for another process: it drops the lines of the process that has not written for longest.
func (t *tail) forget() {
	delete(t.origins, slices.MinFunc(slices.Collect(maps.Keys(t.origins)), func(a, b string) int {
		return t.origins[a].last() - t.origins[b].last()
	}))
}

// origin returns the process that wrote a line, as a launcher marks it:
//
//	[1,2]<stderr>:  [2]<stderr>:   Open MPI --tag-output, horovodrun --gloo; a time may come before it
//	[2] text                       hydra -l
//	[rank2]: text  [default2]:     PyTorch's tracebacks, torchrun --tee
//	worker-2: text                 pdsh, with the name of a host
//
// It returns "" for every other line, such as a line that begins with a date or a level in brackets.
func (t *tail) origin(line string) string {
	const longestTime = 40
	start := strings.IndexByte(line, '[')
	if start < 0 || start > longestTime {
		if name, _, ok := strings.Cut(line, ": "); ok && t.hosts[name] {
			return name
		}
		return ""
	}
	name, rest, ok := strings.Cut(line[start+1:], "]")
	if !ok || name == "" || len(name) > 64 || strings.ContainsAny(name, " \t") {
		return ""
	}
	number := strings.TrimLeft(name[strings.IndexByte(name, '@')+1:], "0123456789,") == ""
	word := strings.TrimRight(name, "0123456789")
	stream, _, _ := strings.Cut(rest, ":")
	switch {
	case number && (stream == "<stderr>" || stream == "<stdout>" || stream == "<stddiag>") && stream != rest:
		return name
	case start > 0:
		return ""
	case number && strings.HasPrefix(rest, " "):
		return name
	case !number && word != name && strings.HasPrefix(rest, ":") &&
		strings.Trim(word, "abcdefghijklmnopqrstuvwxyz_") == "":
		return name
	}
	return ""
}

// unreadTimeout is how long the reader of stderr may take for the next few KiB that an ended command has written.
const unreadTimeout = 2 * time.Second

// finish passes on the rest of the pipe, as long as it is read. For stdout it waits for the reader until stop has a
// signal: without paiinit the command would wait.
func (t *tail) finish(stop <-chan os.Signal) {
	if t == nil {
		return
	}
	_ = t.r.SetReadDeadline(time.Unix(1, 0)) // wakes the reader; the pipe keeps its bytes
	if t.exact {
		t.awaitReader(stop)
	}
	if t.await() {
		_ = t.r.Close()
	} else {
		t.drain(make([]byte, 32<<10)) // keeps the last lines; copy is blocked in a write
	}
}

// awaitReader waits until all bytes are passed on, or a signal asks to end.
func (t *tail) awaitReader(stop <-chan os.Signal) {
	for {
		select {
		case <-t.done:
			return
		case s := <-stop:
			if s == nil || s == syscall.SIGTERM || s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGKILL {
				return
			}
		}
	}
}

// await waits until all bytes are passed on. It returns false if nothing reads stderr.
func (t *tail) await() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for before := -1; t.written != before; {
		before = t.written
		t.mu.Unlock()
		select {
		case <-t.done:
			t.mu.Lock()
			return true
		case <-time.After(unreadTimeout):
			t.mu.Lock()
		}
	}
	t.left = true
	t.lost += t.waiting
	return false
}
