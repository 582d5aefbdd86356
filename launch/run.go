package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command is one command to run.
type Command struct {
	// Path is the file to execute, as [Look] found it.
	Path string
	// Args are the arguments; Args[0] is the name by which the command was called. Empty: Path alone.
	Args []string
	// Environ is the complete environment.
	Environ []string
	// Dir is the working directory, "" for that of this process.
	Dir string
	// Stdin, Stdout and Stderr become the command's; nil is /dev/null. They are passed on as they are and not closed.
	Stdin, Stdout, Stderr *os.File
	// TailLines is the number of last lines of stderr to keep for Result.Tail. 0: the command gets Stderr itself, a terminal
	// stays a terminal. Above 0: it gets a pipe, and every byte is passed on to Stderr as soon as it comes.
	TailLines int
	// Grace is the time between SIGTERM and SIGKILL, 0 for DefaultGrace.
	Grace time.Duration
	// Signals are passed on to the command's process group, in order. SIGTERM, SIGINT and SIGQUIT also start Grace; a second
	// SIGTERM or SIGINT is passed on and then ends the group at once. nil: none.
	Signals <-chan os.Signal
	// Fork calls the function that starts the process, in the way in which a process has to be started here; nil: it is called as it is.
	Fork func(start func() error) error
	// Started is called once the command runs; nil: nobody is told.
	Started func()
}

// Result says how a command ended.
type Result struct {
	// Code is the exit status, 0 if a signal ended the command. If it could not be started: 126 or 127.
	Code int
	// Signal is the signal that ended the command, 0 if it exited.
	Signal syscall.Signal
	// Forwarded is the first of SIGTERM, SIGINT, SIGQUIT and SIGHUP that was passed on to the command, or SIGTERM if the
	// context ended; 0 if there was none in the last Grace before the end.
	Forwarded syscall.Signal
	// At is when the command itself had ended; to end what it left behind may have taken longer.
	At time.Time
	// Tail are the last lines of stderr without their line ends, at most TailLines.
	Tail []string
}

// Status returns the exit status that stands for r: the command's own, 128+n if signal n ended it, and 128+n if it says
// 0 although n told it to stop (MPICH's mpiexec exits 0 after SIGTERM: the job is not finished, it was stopped).
func (r Result) Status() int {
	switch {
	case r.Signal != 0:
		return 128 + int(r.Signal)
	case r.Code == 0 && r.Forwarded != 0:
		return 128 + int(r.Forwarded)
	}
	return r.Code
}

// Run runs c in a process group of its own and waits for its end.
//
// If Stdin is the controlling terminal and this process's group is in its foreground, the command's group takes the
// foreground and this one gets it back at the end.
//
// The end of ctx stops the command: SIGTERM to the group, SIGKILL after Grace. What the command leaves behind in its
// group is stopped the same way: it gets SIGTERM, a second one if the group had one, and no time beyond the Grace that
// already runs. Processes that left the group are not touched, and Run does not wait for them, even if they hold Stderr.
//
// The error is a [*LookError] if the command could not be started (Result.Code is its status); it says that ctx had
// ended before, or that somebody else reaped the command. How the command ended is not an error.
func Run(ctx context.Context, c Command) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("launch: not starting %q: %w", c.Path, context.Cause(ctx))
	}
	if c.Grace <= 0 {
		c.Grace = DefaultGrace
	}
	stdin, stdout, stderr, release, err := c.files()
	if err != nil {
		return Result{}, err
	}
	defer release()

	var t *tail
	if c.TailLines > 0 {
		if t, err = newTail(stderr, c.TailLines); err != nil {
			return Result{}, err
		}
		stderr = t.w
	}
	attr := &syscall.SysProcAttr{Setpgid: true}
	tty := -1
	if fd := int(stdin.Fd()); ownForeground(fd) {
		tty = fd
		attr.Foreground, attr.Ctty = true, fd
	}
	proc, err := start(c, &os.ProcAttr{
		Dir: c.Dir,
		Env: append([]string{}, c.Environ...), // never nil: that would mean this process's environment
		// The order is that of the descriptors.
		Files: []*os.File{stdin, stdout, stderr},
		Sys:   attr,
	})
	t.started()
	if err == nil && c.Started != nil {
		c.Started()
	}
	if tty >= 0 {
		defer takeForeground(tty)
	}
	if err != nil {
		t.finish()
		var le *LookError
		errors.As(err, &le)
		return Result{Code: le.Status}, err
	}
	g := &group{pgid: proc.Pid, grace: c.Grace, signals: c.Signals}
	// That the group is gone, or that a process in it belongs to somebody else, is no concern.
	g.kill = func(sig syscall.Signal) { _ = syscall.Kill(-proc.Pid, sig) }
	state, err := g.supervise(ctx, proc)
	at := time.Now()
	g.sweep()

	r := Result{Forwarded: g.forwarded, At: at, Tail: t.finish()}
	if err != nil {
		return r, fmt.Errorf("launch: waiting for %q: %w", c.Path, err)
	}
	if ws := state.Sys().(syscall.WaitStatus); ws.Signaled() {
		r.Signal = ws.Signal()
	} else {
		r.Code = ws.ExitStatus()
	}
	return r, nil
}

// files replaces nil by /dev/null; release closes what it opened.
func (c Command) files() (stdin, stdout, stderr *os.File, release func(), err error) {
	stdin, stdout, stderr, release = c.Stdin, c.Stdout, c.Stderr, func() {}
	if stdin != nil && stdout != nil && stderr != nil {
		return stdin, stdout, stderr, release, nil
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, nil, nil, fmt.Errorf("launch: %w", err)
	}
	for _, f := range []**os.File{&stdin, &stdout, &stderr} {
		if *f == nil {
			*f = null
		}
	}
	return stdin, stdout, stderr, func() { _ = null.Close() }, nil
}

// start starts c. A file that the kernel does not recognise as a program goes to /bin/sh, as execvp does it.
func start(c Command, attr *os.ProcAttr) (*os.Process, error) {
	args := c.Args
	if len(args) == 0 {
		args = []string{c.Path}
	}
	fork := c.Fork
	if fork == nil {
		fork = func(start func() error) error { return start() }
	}
	startProcess := func(path string, args []string) (proc *os.Process, err error) {
		err = fork(func() error {
			proc, err = os.StartProcess(path, args, attr)
			return err
		})
		return proc, err
	}
	proc, err := startProcess(c.Path, args)
	if errors.Is(err, syscall.ENOEXEC) {
		if isELF(c.Path) {
			return nil, &LookError{args[0], statusCannotExecute, fmt.Errorf("%w: built for another machine than %s", err, runtime.GOARCH)}
		}
		script := append([]string{"/bin/sh", c.Path}, args[1:]...)
		if p, errSh := startProcess("/bin/sh", script); errSh == nil {
			return p, nil
		}
	}
	if err == nil {
		return proc, nil
	}
	if le := lookError(args[0], err); le.Status == statusNotFound && executable(c.Path) == nil {
		if fi, errDir := os.Stat(c.Dir); c.Dir != "" && (errDir != nil || !fi.IsDir()) {
			return nil, &LookError{args[0], statusCannotExecute, err}
		}
		return nil, &LookError{args[0], statusNotFound, fmt.Errorf("%w: the interpreter or loader that the file asks for is missing", err)}
	}
	return nil, lookError(args[0], err)
}

func isELF(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	magic := make([]byte, 4)
	_, err = f.Read(magic)
	return err == nil && bytes.Equal(magic, []byte("\x7fELF"))
}

// group is a process group under supervision.
type group struct {
	pgid    int
	kill    func(syscall.Signal) // signals the whole group
	grace   time.Duration
	signals <-chan os.Signal

	stopped   bool             // somebody asked the group to end
	urgent    int              // SIGTERM and SIGINT seen
	deadline  <-chan time.Time // SIGKILL is due; nil: not stopped
	forwarded syscall.Signal
	since     time.Time // of forwarded
}

// forward passes one signal on.
func (g *group) forward(s os.Signal) {
	sig, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	g.kill(sig)
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT:
		g.note(sig)
		g.begin()
		if sig != syscall.SIGQUIT {
			g.urgent++
		}
		if g.urgent > 1 {
			g.kill(syscall.SIGKILL)
		}
	case syscall.SIGHUP:
		// May mean "read your configuration again": no deadline.
		g.note(sig)
	}
}

// note remembers the signal that is the reason if the command now ends.
func (g *group) note(sig syscall.Signal) {
	now := time.Now()
	if g.forwarded == 0 || now.Sub(g.since) > g.grace {
		g.forwarded, g.since = sig, now
	}
}

// begin starts Grace, once.
func (g *group) begin() {
	if !g.stopped {
		g.stopped = true
		g.deadline = time.After(g.grace)
	}
}

// stop asks the group to end.
func (g *group) stop() {
	g.begin()
	g.kill(syscall.SIGTERM)
	g.kill(syscall.SIGCONT) // a stopped process would get SIGTERM only when somebody continues it
}

// step waits for the next event and deals with it; it returns false when done is.
func (g *group) step(ctx context.Context, done <-chan struct{}) bool {
	ended := ctx.Done()
	if g.stopped {
		ended = nil
	}
	select {
	case <-done:
		return false
	case s, ok := <-g.signals:
		if !ok {
			g.signals = nil
			break
		}
		g.forward(s)
	case <-ended:
		g.note(syscall.SIGTERM)
		g.stop()
	case <-g.deadline:
		g.kill(syscall.SIGKILL)
	}
	return true
}

// supervise waits for the end of the group's leader.
func (g *group) supervise(ctx context.Context, proc *os.Process) (state *os.ProcessState, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		state, err = proc.Wait()
	}()
	for g.step(ctx, done) {
	}
	// SIGKILL is due at the end of Grace, and the kernel may take a moment.
	if time.Since(g.since) > g.grace+time.Second {
		g.forwarded = 0
	}
	return state, err
}

// sweep ends what the leader left behind in its group.
func (g *group) sweep() {
	if g.gone() {
		return
	}
	// Also if it was stopped before: a command that a shell with a trap was just starting then has lost that SIGTERM, as the
	// handler runs in the child before the exec, which forgets it.
	g.stop()
	// The kernel tells nobody that a group is empty, and its members are not our children: look again at growing intervals.
	const longest = 50 * time.Millisecond
	wait := time.Millisecond
	again := time.NewTimer(wait)
	defer again.Stop()
	var killed <-chan time.Time
	for !g.gone() {
		select {
		case <-again.C:
			wait = min(2*wait, longest)
			again.Reset(wait)
		case s, ok := <-g.signals:
			if !ok {
				g.signals = nil
				break
			}
			g.forward(s)
		case <-g.deadline:
			g.kill(syscall.SIGKILL)
			// Where nobody reaps orphans, zombies stay in their group for ever.
			killed = time.After(time.Second)
		case <-killed:
			return
		}
	}
}

func (g *group) gone() bool { return errors.Is(syscall.Kill(-g.pgid, 0), syscall.ESRCH) }

// ownForeground reports whether fd is the controlling terminal of this process and this process's group is in its
// foreground. Everything else (no terminal, somebody else's terminal, a background job) is a no.
func ownForeground(fd int) bool {
	pgrp, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && pgrp != 0 && pgrp == unix.Getpgrp()
}

// takeForeground gives the terminal back to this process's group. A background process that does so gets SIGTTOU, which
// stops it unless the signal is blocked in the calling thread.
func takeForeground(fd int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, old unix.Sigset_t
	block.Val[0] = 1 << (uint(unix.SIGTTOU) - 1)
	if unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old) != nil {
		return
	}
	_ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, unix.Getpgrp())
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
}
