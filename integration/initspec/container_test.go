package initspec

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// patience is more than anything takes on a slow machine.
const patience = 3 * time.Minute

// program is what runs in a container.
type program struct {
	before  string   // shell commands that run as the first process before it becomes paiinit
	flags   []string // of paiinit
	command []string
	env     []string
	stdin   io.Reader // nil: /dev/null
	tty     bool
	bare    bool // no writable place at all
	noProc  bool
	behind  string // shell commands that are the first process instead, and run paiinit
	deaf    bool   // standard error is a closed pipe; not for Docker
	unread  bool   // standard error is a full pipe; not for Docker
}

// script is a program that is a shell script.
func script(text string, flags ...string) program {
	return program{flags: flags, command: []string{"/bin/sh", "-c", text}}
}

// args is the command line of the first process.
func (p program) args() []string {
	if p.behind != "" {
		return []string{"/bin/sh", "-c", p.behind}
	}
	args := append(append([]string{"/sbin/paiinit"}, p.flags...), "--")
	args = append(args, p.command...)
	if p.before != "" {
		args = append([]string{"/bin/sh", "-c", p.before + "\nexec \"$@\"", "sh"}, args...)
	}
	return args
}

// container is a running container.
type container struct {
	t      *testing.T
	driver driver
	name   string // for Docker
	cmd    *exec.Cmd
	stdout *output
	stderr *output
	tty    *os.File

	executed *os.File // of namespaces: at its end when the first process has become the program

	ended  chan struct{}
	status int // when ended is closed: as docker wait says it
}

// start starts a container, which is gone at the end of the test.
func start(t *testing.T, d driver, p program) *container {
	t.Helper()
	c := &container{t: t, driver: d, stdout: newOutput(), stderr: newOutput(), ended: make(chan struct{})}
	d.prepare(c, p)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = p.stdin, c.stdout, c.stderr
	if p.deaf {
		read, write, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, read.Close())
		defer func() { _ = write.Close() }()
		c.cmd.Stderr = write
	}
	if p.unread {
		c.cmd.Stderr = fullPipe(t)
	}
	if p.tty {
		c.startOnTerminal()
	} else {
		require.NoError(t, c.cmd.Start())
	}
	for _, file := range c.cmd.ExtraFiles {
		require.NoError(t, file.Close())
	}
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait()
		c.stdout.readers.Wait() // a terminal's last words
		c.status = c.cmd.ProcessState.ExitCode()
		if how := c.cmd.ProcessState.Sys().(syscall.WaitStatus); how.Signaled() {
			c.status = 128 + int(how.Signal())
		}
	}()
	t.Cleanup(func() {
		select {
		case <-c.ended:
		default:
			d.remove(c)
			select {
			case <-c.ended:
			case <-time.After(patience):
				t.Error("the container was removed, and does not end")
				_ = c.cmd.Process.Kill()
				<-c.ended
			}
		}
		if c.executed != nil {
			_ = c.executed.Close()
		}
		if c.tty != nil {
			_ = c.tty.Close()
		}
		if t.Failed() {
			t.Logf("%q\nstandard output:\n%s\nstandard error:\n%s", c.cmd.Args, c.stdout, c.stderr)
		}
	})
	return c
}

// fullPipe is a pipe that is not read.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	t.Cleanup(func() { _ = unix.Close(fds[0]) })
	require.NoError(t, unix.SetNonblock(fds[1], true))
	for err := error(nil); err == nil; {
		_, err = unix.Write(fds[1], []byte("."))
	}
	require.NoError(t, unix.SetNonblock(fds[1], false))
	w := os.NewFile(uintptr(fds[1]), "standard error")
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// startOnTerminal gives the container a terminal of 24 lines and 80 columns, which is its standard input, output and error.
func (c *container) startOnTerminal() {
	master, slave, err := pty.Open()
	require.NoError(c.t, err)
	defer func() { _ = slave.Close() }()
	require.NoError(c.t, pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: 80}))
	c.tty = master
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = slave, slave, slave
	if c.cmd.SysProcAttr == nil {
		c.cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	c.cmd.SysProcAttr.Setsid, c.cmd.SysProcAttr.Setctty = true, true
	require.NoError(c.t, c.cmd.Start())
	c.stdout.readers.Go(func() { _, _ = io.Copy(c.stdout, master) })
}

// wait waits for the end, and returns the exit status.
func (c *container) wait() int {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(patience):
		require.FailNow(c.t, "the container does not end")
	}
	return c.status
}

// signal sends a signal to the first process, from outside.
func (c *container) signal(sig syscall.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.driver.signal(c, sig))
}

// line waits until the standard output has that text.
func (c *container) line(text string) {
	c.t.Helper()
	c.stdout.has(c, text)
}

// says waits until the standard error has that text.
func (c *container) says(text string) {
	c.t.Helper()
	c.stderr.has(c, text)
}

// output keeps what was written.
type output struct {
	readers sync.WaitGroup
	mu      sync.Mutex
	buf     bytes.Buffer
	news    chan struct{} // closed at the next writing
}

func newOutput() *output { return &output{news: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.news)
	o.news = make(chan struct{})
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// has waits for text.
func (o *output) has(c *container, text string) {
	c.t.Helper()
	if !o.saidBy(c, text) {
		require.FailNow(c.t, "the container ended without saying it", "%q", text)
	}
}

// saidBy waits for text, or the end of the container without it.
func (o *output) saidBy(c *container, text string) bool {
	c.t.Helper()
	timeout := time.After(patience)
	for ended := false; ; {
		o.mu.Lock()
		found, news := strings.Contains(o.buf.String(), text), o.news
		o.mu.Unlock()
		if found || ended {
			return found
		}
		select {
		case <-news:
		case <-c.ended:
			ended = true
		case <-timeout:
			require.FailNow(c.t, "the container does not say it", "%q", text)
		}
	}
}
