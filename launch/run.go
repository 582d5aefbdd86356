package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
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
	// TailHosts are names of hosts: pdsh begins each line with that of the host from which it comes.
	TailHosts []string
	// Grace is the time between SIGTERM and SIGKILL; 0: SIGKILL follows at once.
	Grace time.Duration
	// Signals are passed on to the command, in order. SIGTERM, SIGINT and SIGQUIT also start Grace, once: repeating
	// them does not shorten it. SIGKILL ends the whole group at once. nil: none.
	Signals <-chan os.Signal
	// WholeGroup has all processes of the command's group get every signal. Otherwise signals go to the command alone,
	// through shells and other wrappers; the rest of the group gets SIGTERM when these have ended, or shortly before
	// the end of Grace.
	WholeGroup bool
	// Processes lists the processes of the job, without this one; nil, or an empty list, is as WholeGroup.
	Processes func() []Process
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
	// Forwarded is the first of SIGTERM, SIGINT and SIGQUIT that was passed on to the command, or SIGTERM if the
	// context ended; 0 if there was none in the last Grace before the end.
	Forwarded syscall.Signal
	// At is when the command itself had ended; to end what it left behind may have taken longer.
	At time.Time
	// Tail are the last lines of stderr without their line ends, at most TailLines. Where a launcher marks from which
	// process a line comes, as many of the process that failed first come before them.
	Tail []string
	// Unread is how many bytes at the end of stderr were dropped, because they were not read within a moment after the
	// end.
	Unread int
}

// Status returns the exit status that stands for r: the command's own, and 128+n if signal n ended it. A command that
// was told to stop may have saved its work and say 0. For a launcher that says so, the caller knows better.
func (r Result) Status() int {
	if r.Signal != 0 {
		return 128 + int(r.Signal)
	}
	return r.Code
}

// Run runs c in a process group of its own and waits for its end.
//
// If Stdin is the controlling terminal and this process's group is in its foreground, the command's group takes the
// foreground and this one gets it back at the end.
//
// The end of ctx stops the command: SIGTERM, and SIGKILL to the group after Grace. What the command leaves behind in
// its group is stopped the same way, and has no time beyond the Grace that already runs. Processes that left the group
// get SIGTERM when a command that was asked to end has done so, and a share of its Grace, at most 2 s; those of a
// command that ends by itself are not touched. Run does not wait for any that hold Stderr.
//
// The error is a [*LookError] if the command could not be started (Result.Code is its status); it says that ctx had
// ended before, or that somebody else reaped the command. How the command ended is not an error.
func Run(ctx context.Context, c Command) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("not starting %q: %w", c.Path, context.Cause(ctx))
	}
	stdin, stdout, stderr, release, err := c.files()
	if err != nil {
		return Result{}, err
	}
	defer release()

	var t *tail
	if c.TailLines > 0 {
		if t, err = newTail(stderr, c.TailLines, c.TailHosts); err != nil {
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
	g := &group{
		pgid: proc.Pid, agent: os.Getpid(), grace: max(c.Grace, 0), signals: c.Signals,
		kill: syscall.Kill, look: c.Processes, whole: c.WholeGroup, hasEnded: func() bool { return hasEnded(proc.Pid) },
	}
	state, err := g.supervise(ctx, proc)
	at := time.Now()
	g.sweep()

	r := Result{Forwarded: g.forwarded, At: at}
	r.Tail, r.Unread = t.finish()
	if err != nil {
		return r, fmt.Errorf("waiting for %q: %w", c.Path, err)
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
		return nil, nil, nil, nil, fmt.Errorf("%w", err)
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

// group is the command: its process group, and what has left that.
type group struct {
	pgid    int
	agent   int // this process
	grace   time.Duration
	signals <-chan os.Signal
	kill    func(pid int, sig syscall.Signal) error // kill(2)
	look    func() []Process                        // nil: only the whole group can be signalled
	whole   bool                                    // the whole group gets every signal

	stopped   bool         // the command was asked to end
	told      map[int]mark // processes that were asked to end one by one, and have not ended as far as is known
	restTold  bool         // the rest of the group was asked, too
	daemons   bool         // and what had left the group
	killed    bool
	again     <-chan time.Time // askAgain is due
	pause     time.Duration    // before the next one
	rest      <-chan time.Time // the rest of the group and daemons are due
	deadline  <-chan time.Time // SIGKILL is due; nil: not stopped
	forwarded syscall.Signal
	since     time.Time // of forwarded
	hasEnded  func() bool
}

// hasEnded says whether a child has ended or is exiting, so that a signal changes nothing. On a busy machine it may
// be exiting for milliseconds: its connections are closed, but it cannot be reaped yet.
func hasEnded(pid int) bool {
	return exiting(os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"))
}

// exiting reads /proc/PID/stat. A process that is reaped between open and read is ESRCH.
func exiting(stat []byte, err error) bool {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		_, err := os.Stat("/proc/self/stat")
		return err == nil // it was reaped
	}
	p, ok := proc.Parse(stat)
	return ok && p.Exiting
}

// mark recognises a process that was told.
type mark struct {
	started time.Duration
	// forked is the command line of a process that still is a copy of its parent, as a shell's child before its exec.
	// There it loses the signal: the shell's handler runs in the child, and the exec forgets that.
	forked []string
	rest   bool // it was spared at first
}

// lastShare is the part of the grace at its end that is left to helpers and daemons: what was not asked to end gets
// SIGTERM then.
func lastShare(grace time.Duration) time.Duration { return min(grace/4, 2*time.Second) }

// forward passes one signal on.
func (g *group) forward(s os.Signal) {
	sig, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT:
		late := g.hasEnded != nil && g.hasEnded()
		g.ask(sig)
		if !late { // otherwise it is not why the command ends
			g.note(sig)
		}
		g.begin()
	case syscall.SIGKILL:
		g.begin()
		g.deadline = time.After(0)
	case syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGWINCH:
		g.signalGroup(sig) // job control is about groups
	default:
		to := g.path(g.family())
		for _, p := range to {
			_ = g.kill(p.PID, sig)
		}
		if len(to) == 0 {
			g.signalGroup(sig)
		}
	}
}

// signalGroup signals the whole group. That it is gone, or that a process in it belongs to another user, does not
// matter.
func (g *group) signalGroup(sig syscall.Signal) { _ = g.kill(-g.pgid, sig) }

// family looks at the processes of the job; it is empty where /proc does not show them.
func (g *group) family() family {
	if g.look == nil {
		return nil
	}
	return newFamily(g.look())
}

// path are the processes to which a signal goes; none: to the whole group. Once some were asked to end, they are the
// same ones: what a shell starts in its trap may save the job's work.
func (g *group) path(f family) (to []Process) {
	if g.whole {
		return nil
	}
	for pid, m := range g.told {
		if p, ok := f[pid]; ok && p.State != 'Z' && p.Started == m.started {
			to = append(to, p)
		}
	}
	if len(to) > 0 {
		return to
	}
	return f.path(g.pgid)
}

// ask asks the command to end.
func (g *group) ask(sig syscall.Signal) {
	f := g.family()
	to := g.path(f)
	if len(to) == 0 {
		g.signalGroup(sig)
	}
	g.tell(f, to, sig)
	g.wake(f)
	g.lookAgain()
}

// tell signals processes one by one.
func (g *group) tell(f family, to []Process, sig syscall.Signal) {
	if g.told == nil {
		g.told = make(map[int]mark)
	}
	for _, p := range to { // before the first one ends
		m := mark{started: p.Started, rest: g.restTold && p.Group == g.pgid}
		if parent, ok := f[p.Parent]; ok && slices.Equal(p.args(), parent.args()) {
			m.forked = p.args()
		}
		g.told[p.PID] = m
	}
	for _, p := range to {
		_ = g.kill(p.PID, sig)
	}
}

// wake continues stopped processes, as after Ctrl-Z: they would take the signal only then. The others get no SIGCONT:
// they might take it for the end of a stop, and redraw a screen.
func (g *group) wake(f family) {
	if len(f) == 0 {
		g.signalGroup(syscall.SIGCONT)
	}
	for _, p := range f {
		if _, told := g.told[p.PID]; p.State == 'T' && (told || p.Group == g.pgid) {
			_ = g.kill(p.PID, syscall.SIGCONT)
		}
	}
}

// askAgain asks those anew that have lost the signal on their way from a shell to their program.
func (g *group) askAgain() {
	f := g.family()
	var to []Process
	for pid, m := range g.told {
		if p, ok := f[pid]; ok && p.State != 'Z' && p.Started == m.started && m.forked != nil &&
			!slices.Equal(p.args(), m.forked) {
			to = append(to, p)
		}
	}
	g.tell(f, to, syscall.SIGTERM)
	g.lookAgain()
}

// lookAgain has askAgain called after a while, as long as there is a process that may be about to exec. That is mostly
// a matter of milliseconds.
func (g *group) lookAgain() {
	g.again = nil
	for _, m := range g.told {
		if m.forked != nil {
			g.pause = min(max(2*g.pause, time.Millisecond), time.Minute)
			g.again = time.After(g.pause)
			return
		}
	}
}

// askGroup asks all of the group to end.
func (g *group) askGroup(f family) {
	g.restTold = true
	g.signalGroup(syscall.SIGTERM)
	g.wake(f)
}

// askRest asks what is left of the group to end.
func (g *group) askRest(f family) {
	if len(f) == 0 || g.whole {
		g.askGroup(f)
		return
	}
	g.restTold = true
	var to []Process
	for _, p := range f {
		if _, told := g.told[p.PID]; p.Group == g.pgid && p.State != 'Z' && !told {
			to = append(to, p)
		}
	}
	g.tell(f, to, syscall.SIGTERM)
	g.wake(f)
}

// askDaemons asks what has left the group to end.
func (g *group) askDaemons(f family) {
	g.daemons = true
	to := slices.DeleteFunc(f.daemons(g.pgid, g.agent), func(p Process) bool { _, told := g.told[p.PID]; return told })
	g.tell(f, to, syscall.SIGTERM)
	g.wake(f)
}

// askAll asks the processes that were spared until now to end within the last share of the grace.
func (g *group) askAll() {
	f := g.family()
	if len(f) > 0 && !g.restTold && !g.whole { // or else all of the group was told at first
		g.askRest(f)
	}
	g.askDaemons(f)
}

// end kills.
func (g *group) end() {
	g.killed = true
	g.signalGroup(syscall.SIGKILL)
	if len(g.told) == 0 {
		return
	}
	f := g.family()
	for pid, m := range g.told {
		if p, ok := f[pid]; ok && p.Started == m.started {
			_ = g.kill(pid, syscall.SIGKILL)
		}
	}
}

// note remembers the signal that is the reason if the command now ends. SIGHUP is none: it may mean "read your
// configuration again".
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
		g.rest = time.After(g.grace - lastShare(g.grace))
		g.deadline = time.After(g.grace)
	}
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
		g.forward(syscall.SIGTERM)
	case <-g.again:
		g.askAgain()
	case <-g.rest:
		g.askAll()
	case <-g.deadline:
		g.end()
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

// sweep waits until the processes that were asked have ended, and ends what the leader left behind in its group.
func (g *group) sweep() {
	asked := g.stopped
	if !asked {
		if g.gone() {
			return
		}
		g.begin()
		g.rest = nil // all of the group is told now, and daemons may be meant to stay
		g.askGroup(g.family())
	}
	// The kernel tells nobody that a group is empty, and its members are not our children: look again at growing intervals.
	const longest = 50 * time.Millisecond
	wait := time.Millisecond
	tick := time.NewTimer(wait)
	defer tick.Stop()
	var killed, last <-chan time.Time
	for {
		g.forget()
		if g.gone() {
			// A process that was about to become a daemon when the rest of the group was told.
			maps.DeleteFunc(g.told, func(_ int, m mark) bool { return m.rest })
		}
		if len(g.told) == 0 {
			switch {
			case g.gone() && (!asked || g.daemons || g.killed):
				return
			case g.gone():
				g.askDaemons(g.family())
				last = time.After(lastShare(g.grace))
				continue
			case !g.restTold:
				g.askRest(g.family())
			}
		}
		select {
		case <-tick.C:
			wait = min(2*wait, longest)
			tick.Reset(wait)
		case s, ok := <-g.signals:
			if !ok {
				g.signals = nil
				break
			}
			g.forward(s)
		case <-g.again:
			g.askAgain()
		case <-g.rest:
			g.askAll()
		case <-g.deadline:
			g.end()
			// Where nobody reaps orphans, zombies stay in their group for ever.
			killed = time.After(time.Second)
		case <-last:
			return
		case <-killed:
			return
		}
	}
}

// forget drops processes that have ended.
func (g *group) forget() {
	for pid := range g.told {
		if errors.Is(g.kill(pid, 0), syscall.ESRCH) {
			delete(g.told, pid)
		}
	}
}

func (g *group) gone() bool { return errors.Is(g.kill(-g.pgid, 0), syscall.ESRCH) }

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
