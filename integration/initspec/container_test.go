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

	"github.com/paiinit/paiinit/integration/hang"
)

// waitTimeout is the timeout of one wait, long enough on a slow machine.
const waitTimeout = 3 * time.Minute

// program describes what runs in a container.
type program struct {
	before  string   // shell commands that PID 1 runs before it executes paiinit
	flags   []string // flags of paiinit
	command []string
	env     []string
	stdin   io.Reader // nil = /dev/null
	tty     bool
	bare    bool // without writable directories
	noProc  bool
	behind  string // shell commands that run as PID 1 instead, and start paiinit
	deaf    bool   // standard error is a closed pipe; not with Docker
	unread  bool   // standard error is a full pipe; not with Docker
}

// script returns a program that runs a shell script.
func script(text string, flags ...string) program {
	return program{flags: flags, command: []string{"/bin/sh", "-c", text}}
}

// args returns the command line of PID 1.
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
	name   string // with Docker
	cmd    *exec.Cmd
	stdout *output
	stderr *output
	tty    *os.File

	executed *os.File // with namespaces: at EOF once PID 1 has executed the program

	ended  chan struct{}
	status int // valid once ended is closed, as docker wait prints it
}

// start starts a container, and removes it at the end of the test.
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
		c.stdout.readers.Wait() // for the last output on a terminal
		c.status = c.cmd.ProcessState.ExitCode()
		if how := c.cmd.ProcessState.Sys().(syscall.WaitStatus); how.Signaled() {
			c.status = 128 + int(how.Signal())
		}
	}()
	t.Cleanup(func() {
		select {
		case <-c.ended:
		default:
			if t.Failed() {
				t.Log(hang.Report(hang.Container{Name: "the container", First: d.first(c)}))
			}
			d.remove(c)
			select {
			case <-c.ended:
			case <-time.After(waitTimeout):
				t.Error("the container was removed, but does not end")
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

// fullPipe returns the writing end of a full pipe, which is never read.
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

// startOnTerminal starts the container on a terminal of 24 lines and 80 columns, as standard input, output and error.
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

// wait waits until the container has ended, and returns its exit status.
func (c *container) wait() int {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(waitTimeout):
		require.FailNow(c.t, "the container does not end")
	}
	return c.status
}

// signal sends a signal to PID 1, from outside.
func (c *container) signal(sig syscall.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.driver.signal(c, sig))
}

// line waits until standard output contains the text.
func (c *container) line(text string) {
	c.t.Helper()
	c.stdout.has(c, text)
}

// says waits until standard error contains the text.
func (c *container) says(text string) {
	c.t.Helper()
	c.stderr.has(c, text)
}

// output collects one output of a container.
type output struct {
	readers sync.WaitGroup
	mu      sync.Mutex
	buf     bytes.Buffer
	news    chan struct{} // closed at the next write
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

// has waits until the output contains text, or fails the test.
func (o *output) has(c *container, text string) {
	c.t.Helper()
	if !o.saidBy(c, text) {
		require.FailNow(c.t, "the container ended without this output", "%q", text)
	}
}

// saidBy waits until the output contains text, or returns false at the end of the container.
func (o *output) saidBy(c *container, text string) bool {
	c.t.Helper()
	timeout := time.After(waitTimeout)
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
			require.FailNow(c.t, "timeout: the container does not write this", "%q", text)
		}
	}
}
