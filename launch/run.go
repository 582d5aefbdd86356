package launch

import (
	"cmp"
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

// Command is a command to run.
type Command struct {
	Path    string   // the file to execute, as returned by [Look]
	Args    []string // args[0] is the name under which the command is called; nil means Path alone
	Environ []string // complete
	Dir     string   // the working directory, "" for that of this process
	// Stdin, Stdout and Stderr become those of the command; nil means /dev/null. Run does not close them.
	Stdin, Stdout, Stderr *os.File
	// TailLines is the number of last lines of stderr to keep for Result.Tail. If 0, the command gets Stderr itself, so
	// that a terminal stays a terminal. Otherwise every byte is copied to Stderr as soon as it arrives, and so is
	// Stdout if it is a pipe.
	TailLines int
	TailHosts []string      // names of hosts, because pdsh prefixes each line with the name of the host that wrote it
	Grace     time.Duration // between SIGTERM and SIGKILL
	// RestGrace is Grace for what the command leaves behind in its group after it has ended by itself; 0 = Grace,
	// negative = none.
	RestGrace time.Duration
	// Signals are passed on to the command, in order. The first SIGTERM, SIGINT or SIGQUIT also starts Grace; repeated
	// signals do not shorten it. SIGKILL kills the whole group at once.
	Signals <-chan os.Signal
	// WholeGroup sends every signal to all processes of the command's group. Otherwise signals go to the command alone,
	// through shells and other wrappers; the rest of the group gets SIGTERM when the command has ended, or shortly
	// before the end of Grace.
	WholeGroup bool
	// Processes lists the processes of the job, without this one. If it is nil or returns none, signals go to the whole
	// group.
	Processes func() []Process
	Fork      func(start func() error) error // calls start, for which it may prepare the thread; may be nil
	Started   func()                         // is called once the command runs; may be nil
	Hang      Hang                           // when the command hangs, and what ends it then
	// Stays is called when the command has ended with 0 by itself. What it leaves behind in its group then stays until
	// the end of the context. Nil = it is stopped, see Run.
	Stays func()
}

// Result describes how a command ended.
type Result struct {
	Code   int            // the exit status, 0 if a signal ended the command; 126 or 127 if it could not be started
	Signal syscall.Signal // the signal that ended the command, 0 if it exited
	// Forwarded is the first SIGTERM, SIGINT or SIGQUIT that was passed on to the command, or SIGTERM if the context
	// ended; 0 if there was none within the last Grace before the end.
	Forwarded syscall.Signal
	At        time.Time // when the command itself ended; the processes that it left behind may end later
	// Tail holds the last lines of stderr without line ends, at most TailLines. If a launcher marks which process wrote
	// a line, up to as many lines of the process that failed first come before them, or, with OwnTail, these alone. The
	// lines that a launcher writes about every failure are left out if Status is not 0.
	Tail    []string
	OwnTail bool
	Stdout  []string // the same for stdout, if it is a pipe or a regular file
	Blame   Blame    // what a launcher reported about the failure; zero if Status is 0
	// LostDaemon says that Status is 0 although a launcher has reported the loss of a daemon.
	LostDaemon bool
	Hung       *Hung // the command was told to end because it hung; nil = it did not
	// Unread is the number of bytes at the end of stderr and stdout that were dropped, because no reader took them
	// within a moment after the end; those of stdout only after a signal.
	Unread int
}

// Status returns the exit status that a shell would report: the command's own, or 128+n if signal n ended it. A command
// that was told to stop may have saved its work and exit with 0; [Result.JobStatus] tells the status of a launcher.
func (r Result) Status() int {
	if r.Signal != 0 {
		return 128 + int(r.Signal)
	}
	return r.Code
}

// Run runs c in a process group of its own and waits for its end.
//
// If Stdin is the controlling terminal and this process's group is in its foreground, the command's group becomes the
// foreground group until the end.
//
// The end of ctx stops the command: it gets SIGTERM, and its group SIGKILL after Grace. Processes that the command
// leaves behind in its group are stopped in the same way; they get no time beyond a Grace that already runs. Processes
// that left the group get SIGTERM after a command that was told to end has ended, and have a share of its Grace, at
// most 2 s; if the command ends by itself, they keep running. Run does not wait for other processes that hold Stderr
// open.
//
// The error is a [*LookError] if the command could not be started. Other errors say that ctx had ended before, or that
// other code reaped the command.
func Run(ctx context.Context, c Command) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("not starting %q: %w", c.Path, context.Cause(ctx))
	}
	files := []*os.File{c.Stdin, c.Stdout, c.Stderr} // by descriptor
	if slices.Contains(files, nil) {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return Result{}, err
		}
		defer func() { _ = null.Close() }()
		for fd := range files {
			files[fd] = cmp.Or(files[fd], null)
		}
	}
	o, err := newOutput(c, files)
	if err != nil {
		return Result{}, err
	}
	attr := &syscall.SysProcAttr{Setpgid: true}
	if tty := int(files[0].Fd()); ownForeground(tty) {
		attr.Foreground, attr.Ctty = true, tty
		defer takeForeground(tty)
	}
	// A nil environment would mean that of this process.
	environ := append([]string{}, c.Environ...)
	proc, failed := start(c, &os.ProcAttr{Dir: c.Dir, Env: environ, Files: files, Sys: attr})
	o.started()
	if failed != nil {
		o.finish(nil)
		return Result{Code: failed.Status}, failed
	}
	if c.Started != nil {
		c.Started()
	}
	g := &group{
		pgid: proc.Pid, agent: os.Getpid(), grace: max(c.Grace, 0), restGrace: max(cmp.Or(c.RestGrace, c.Grace), 0),
		signals: c.Signals,
		kill:    syscall.Kill, look: c.Processes, whole: c.WholeGroup,
		hasEnded: func() bool { return hasEnded(proc.Pid) },
	}
	watched, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	g.unwatch = unwatch
	hung := c.Hang.watch(watched, o, func() bool { return c.Processes != nil && anyStopped(c.Processes(), proc.Pid) })
	state, err := g.supervise(ctx, proc)
	at := time.Now()
	unwatch()
	if c.Stays != nil && err == nil && state.Success() && !g.stopped {
		c.Stays()
		<-ctx.Done()
	}
	g.sweep()

	r := Result{Forwarded: g.forwarded, At: at}
	stall := hung()
	stop := g.signals
	if r.Forwarded != 0 {
		stop = closedSignals()
	}
	o.finish(stop)
	if err != nil {
		o.describe(&r)
		return r, fmt.Errorf("waiting for %q: %w", c.Path, err)
	}
	if ws := state.Sys().(syscall.WaitStatus); ws.Signaled() {
		r.Signal = ws.Signal()
	} else {
		r.Code = ws.ExitStatus()
	}
	if r.Forwarded != 0 || r.Status() != 0 { // else the command had ended well when it was told to end
		r.Hung = stall
	}
	o.describe(&r)
	return r, nil
}

// start starts c. Like execvp, it passes a file that the kernel does not recognise as a program to /bin/sh.
func start(c Command, attr *os.ProcAttr) (*os.Process, *LookError) {
	args := c.Args
	if len(args) == 0 {
		args = []string{c.Path}
	}
	startProcess := func(path string, args []string) (proc *os.Process, err error) {
		if c.Fork == nil {
			return os.StartProcess(path, args, attr)
		}
		err = c.Fork(func() error {
			proc, err = os.StartProcess(path, args, attr)
			return err
		})
		return proc, err
	}
	proc, err := startProcess(c.Path, args)
	if errors.Is(err, syscall.ENOEXEC) {
		if isELF(c.Path) {
			err = fmt.Errorf("%w: built for another machine than %s", err, runtime.GOARCH)
			return nil, &LookError{args[0], statusCannotExecute, err}
		}
		script := append([]string{"/bin/sh", c.Path}, args[1:]...)
		if p, errSh := startProcess("/bin/sh", script); errSh == nil {
			return p, nil
		}
	}
	if err == nil {
		return proc, nil
	}
	le := lookError(args[0], err)
	if le.Status == statusNotFound && executable(c.Path) == nil {
		if fi, errDir := os.Stat(c.Dir); c.Dir != "" && (errDir != nil || !fi.IsDir()) {
			le.Status = statusCannotExecute
		} else {
			le.Err = fmt.Errorf("%w: the interpreter or loader that the file asks for is missing", err)
		}
	}
	return nil, le
}

func isELF(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	magic := make([]byte, 4)
	_, err = f.Read(magic)
	return err == nil && string(magic) == "\x7fELF"
}

// group is the command: its process group, and the processes that have left that group.
type group struct {
	pgid  int
	agent int // this process
	grace time.Duration
	// restGrace replaces grace for what the command leaves behind in its group, if it ended by itself.
	restGrace time.Duration
	signals   <-chan os.Signal
	kill      func(pid int, sig syscall.Signal) error // kill(2)
	look      func() []Process                        // may be nil
	whole     bool                                    // every signal goes to the whole group

	stopped   bool         // the command was asked to end
	unwatch   func()       // a command that was asked to end cannot hang; may be nil
	told      map[int]mark // processes that were asked to end one by one, and seem to be still running
	restTold  bool         // the rest of the group was asked to end, too
	daemons   bool         // the processes that left the group were asked to end
	killed    bool
	again     <-chan time.Time // askAgain is due
	pause     time.Duration    // before the next askAgain
	rest      <-chan time.Time // it is time to ask the rest of the group and daemons
	deadline  <-chan time.Time // SIGKILL is due; nil: not stopped
	forwarded syscall.Signal
	since     time.Time // when forwarded was set
	hasEnded  func() bool
}

// hasEnded reports whether a child has ended or is exiting, so that a signal changes nothing. On a busy machine it may
// be exiting for milliseconds: its connections are closed, but it cannot be reaped yet.
func hasEnded(pid int) bool {
	return exiting(os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"))
}

// exiting reads /proc/PID/stat. The error is ESRCH if the process is reaped between open and read.
func exiting(stat []byte, err error) bool {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		_, err := os.Stat("/proc/self/stat")
		return err == nil // it was reaped
	}
	p, ok := proc.Parse(stat)
	return ok && p.Exiting
}

// mark identifies a process that was asked to end.
type mark struct {
	started time.Duration
	// forked is the command line of a process that still is a copy of its parent, such as a shell's child before its
	// exec. It loses a signal at that point, because the shell's handler runs in the child, and the exec discards that.
	forked []string
	rest   bool // it was asked with the rest of the group
}

// lastShare returns the part at the end of the grace that is left for helpers and daemons, which get SIGTERM then.
func lastShare(grace time.Duration) time.Duration { return min(grace/4, 2*time.Second) }

// forward passes on one signal.
func (g *group) forward(s os.Signal) {
	sig, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT:
		late := g.hasEnded != nil && g.hasEnded()
		g.ask(sig)
		if !late { // otherwise the command does not end because of the signal
			g.note(sig)
		}
		g.begin()
	case syscall.SIGKILL:
		g.begin()
		g.deadline = time.After(0)
	case syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGWINCH:
		g.signalGroup(sig) // job control acts on groups
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

// signalGroup signals the whole group. It ignores errors: the group may be gone, or have a process of another user.
func (g *group) signalGroup(sig syscall.Signal) { _ = g.kill(-g.pgid, sig) }

// family returns the processes of the job; none if /proc does not show them.
func (g *group) family() family {
	if g.look == nil {
		return nil
	}
	return newFamily(g.look())
}

// path returns the processes that get a signal; if there are none, the whole group gets it. After a request to end,
// later signals go to the same processes, because commands that a shell starts in its trap may save the job's work.
func (g *group) path(f family) []Process {
	if g.whole {
		return nil
	}
	if told := f.living(g.isTold); len(told) > 0 {
		return told
	}
	return f.path(g.pgid)
}

func (g *group) isTold(p Process) bool {
	m, ok := g.told[p.PID]
	return ok && m.started == p.Started
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

// tell signals processes one by one and remembers them.
func (g *group) tell(f family, to []Process, sig syscall.Signal) {
	if g.told == nil {
		g.told = make(map[int]mark)
	}
	for _, p := range to { // all of them before the first one ends
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

// wake continues stopped processes (after Ctrl-Z), because they do not handle the signal before. Other processes get no
// SIGCONT: they might redraw a screen.
func (g *group) wake(f family) {
	if len(f) == 0 {
		g.signalGroup(syscall.SIGCONT)
	}
	for _, p := range f {
		if p.State == 'T' && (p.Group == g.pgid || g.isTold(p)) {
			_ = g.kill(p.PID, syscall.SIGCONT)
		}
	}
}

// askAgain repeats the request to processes that lost the signal between a shell's fork and exec.
func (g *group) askAgain() {
	f := g.family()
	g.tell(f, f.living(func(p Process) bool {
		forked := g.told[p.PID].forked
		return g.isTold(p) && forked != nil && !slices.Equal(p.args(), forked)
	}), syscall.SIGTERM)
	g.lookAgain()
}

// lookAgain schedules askAgain as long as a process may be about to exec, which mostly takes milliseconds.
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

// askRest asks the rest of the group to end, or all of it.
func (g *group) askRest(f family, all bool) {
	g.restTold = true
	if all || len(f) == 0 || g.whole {
		g.signalGroup(syscall.SIGTERM)
	} else {
		rest := f.living(func(p Process) bool { return p.Group == g.pgid && !g.isTold(p) })
		g.tell(f, rest, syscall.SIGTERM)
	}
	g.wake(f)
}

// askDaemons asks the processes that left the group to end.
func (g *group) askDaemons(f family) {
	g.daemons = true
	g.tell(f, slices.DeleteFunc(f.daemons(g.pgid, g.agent), g.isTold), syscall.SIGTERM)
	g.wake(f)
}

// askAll asks the processes that were spared until now to end within the last share of the grace.
func (g *group) askAll() {
	f := g.family()
	if len(f) > 0 && !g.restTold && !g.whole { // otherwise the whole group was asked at once
		g.askRest(f, false)
	}
	g.askDaemons(f)
}

// end kills the group and the processes that were asked to end.
func (g *group) end() {
	g.killed = true
	g.signalGroup(syscall.SIGKILL)
	if len(g.told) == 0 {
		return
	}
	for _, p := range g.family() {
		if g.isTold(p) {
			_ = g.kill(p.PID, syscall.SIGKILL)
		}
	}
}

// note remembers the signal that is the reason if the command ends now. SIGHUP is no reason, because it may mean "read
// your configuration again".
func (g *group) note(sig syscall.Signal) {
	now := time.Now()
	if g.forwarded == 0 || now.Sub(g.since) > g.grace {
		g.forwarded, g.since = sig, now
	}
}

// begin starts Grace, unless it runs.
func (g *group) begin() {
	if !g.stopped {
		g.stopped = true
		if g.unwatch != nil {
			g.unwatch()
		}
		g.rest = time.After(g.grace - lastShare(g.grace))
		g.deadline = time.After(g.grace)
	}
}

// step waits for the next event and handles it; it returns false when done is closed.
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
	// SIGKILL is sent at the end of Grace, and the kernel may take a moment. A command that ends later than that has
	// another reason.
	if time.Since(g.since) > g.grace+time.Second {
		g.forwarded = 0
	}
	return state, err
}

// sweep waits until the processes that were asked to end have ended, and ends the rest of the leader's group.
func (g *group) sweep() {
	asked := g.stopped
	if !asked {
		if g.gone() {
			return
		}
		g.grace = g.restGrace
		g.begin()
		g.rest = nil // the whole group is asked now, and daemons may be meant to stay
		g.askRest(g.family(), true)
	}
	// The kernel reports no empty group, and the members are not our children: check again at growing intervals.
	const longest = 50 * time.Millisecond
	var end time.Time // zero: it waits without limit
	giveUpAfter := func(wait time.Duration) {
		if at := time.Now().Add(wait); end.IsZero() || at.Before(end) {
			end = at
		}
	}
	for wait := time.Millisecond; ; wait = min(2*wait, longest) {
		g.forget()
		if g.gone() {
			// These were about to become daemons when the rest of the group was asked to end.
			maps.DeleteFunc(g.told, func(_ int, m mark) bool { return m.rest })
		}
		if len(g.told) == 0 {
			switch {
			case g.gone() && (!asked || g.daemons || g.killed):
				return
			case g.gone():
				g.askDaemons(g.family())
				giveUpAfter(lastShare(g.grace))
				continue
			case !g.restTold:
				g.askRest(g.family(), false)
			}
		}
		if g.killed {
			giveUpAfter(time.Second) // if no init reaps orphans, zombies stay in the group for ever
		}
		if !end.IsZero() {
			wait = min(wait, time.Until(end))
		}
		if wait <= 0 {
			return
		}
		tick, cancel := context.WithTimeout(context.Background(), wait)
		g.step(tick, tick.Done())
		cancel()
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
// foreground. It is false without a terminal, for a terminal of another session, and in a background job.
func ownForeground(fd int) bool {
	pgrp, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && pgrp != 0 && pgrp == unix.Getpgrp()
}

// takeForeground makes this process's group the foreground group again. A background process that does so gets SIGTTOU,
// which stops it unless the calling thread blocks the signal.
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
