package launch

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MPI launchers give their ranks one second between SIGTERM and SIGKILL, and horovodrun gives mpirun less than that.
// Open MPI 4.1 has a variable for a longer time, but then waits for about twice that time whenever any rank fails. So
// the ranks get the signal from the paiinit of their own host, and have the time of --grace to save their work. The
// launcher ends after its ranks, or gets SIGTERM shortly before that time is over.

// launcherEndTime is how long a launcher needs to end after SIGTERM.
const launcherEndTime = 3 * time.Second

// Stopper passes signals on to a command, and stops the ranks of a launcher before the launcher.
type Stopper struct {
	Line      []string      // the command line
	Grace     time.Duration // between SIGTERM and SIGKILL
	Log       *slog.Logger
	Hard      func(os.Signal) // signals the command itself
	Soft      func(os.Signal) // signals the ranks of its launcher on all hosts
	Launchers func() []int    // the launchers that run now: the command itself, or those below it; may be nil

	mu     sync.Mutex
	told   bool // the command or its ranks were told to end
	asked  bool // this container itself got a signal to end
	begun  bool // the ranks were told before the command
	ranked bool // a launcher was running when the command was told to end
	timers []*time.Timer
	cancel func() // stops waiting for the launchers below the command; nil if it does not wait
}

// Own passes on a signal that this container got. Kubernetes signals every container of a job, so the first signal here
// after another rank's request only repeats that request: the command does not get it again.
func (g *Stopper) Own(sig os.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ends(sig) {
		again := g.asked
		g.asked = true
		if g.told && !again {
			return
		}
	}
	g.pass(sig)
}

// Request passes on a signal that another rank got.
func (g *Stopper) Request(sig os.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.told {
		g.pass(sig)
	}
}

// Abort signals the command at once: the job cannot go on, and its ranks have nothing to save.
func (g *Stopper) Abort(sig os.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = true
	g.Hard(sig)
}

// AbortFirst is Abort for a command that was not told to end yet. It reports whether it has signalled the command.
func (g *Stopper) AbortFirst(sig os.Signal) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.told {
		return false
	}
	g.told = true
	g.Hard(sig)
	return true
}

// ends reports whether a signal makes [Run] end the command.
func ends(sig os.Signal) bool {
	return sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGQUIT
}

// pass sends a first SIGTERM, and the signals that repeat it, to the ranks on all hosts, because a launcher that gets a
// second signal kills its ranks at once. It sends every other signal to the command itself, and also SIGTERM if there
// are no ranks or too little time. The caller holds the lock.
func (g *Stopper) pass(sig os.Signal) {
	var below []int
	direct := lineStarts(g.Line, ranks)
	if ends(sig) {
		g.told = true
		if g.begun {
			g.Soft(sig)
			return
		}
		if g.Launchers != nil {
			below = g.Launchers()
		}
		g.ranked = g.ranked || len(below) > 0 || direct
	}
	if sig != syscall.SIGTERM || !g.ranked || g.Grace < 2*launcherEndTime {
		g.Hard(sig)
		return
	}
	g.begun = true
	if !direct {
		// A script gets the signal as soon as its launcher has ended; otherwise it would run its next commands.
		g.cancel = whenEnded(below, func() { g.Hard(syscall.SIGTERM) })
	}
	g.Log.Info("the ranks are told to end, the launcher later", "phase", "wait", "grace", g.Grace-launcherEndTime)
	g.Soft(sig)
	g.timers = append(g.timers,
		time.AfterFunc(g.Grace-launcherEndTime, func() { g.Hard(syscall.SIGTERM) }),
		time.AfterFunc(g.Grace, func() { g.Hard(syscall.SIGKILL) }))
}

// End cancels scheduled signals. It reports whether a launcher was running when the command was told to end.
func (g *Stopper) End() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.timers {
		t.Stop()
	}
	if g.cancel != nil {
		g.cancel()
	}
	return g.ranked
}

// RankLaunchers returns the launchers of ranks among the processes of the job, whatever started them.
func RankLaunchers(job []Process) (found []int) {
	for _, p := range job {
		line := p.args()
		if p.State != 'Z' && (IsLauncher(p.Name) || lineStarts(line, ranks)) && !asksVersion(line) {
			found = append(found, p.PID)
		}
	}
	return found
}

// whenEnded calls f when all of these processes have ended; they need not be children. The caller calls cancel once; f
// does not run after it returns. Without pidfd_open(2), whenEnded does nothing.
func whenEnded(pids []int, f func()) (cancel func()) {
	var running []*os.File // a pidfd becomes readable when its process ends
	closeAll := func() {
		for _, p := range running {
			_ = p.Close()
		}
	}
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case errors.Is(err, unix.ESRCH):
			continue // it has ended
		case err != nil:
			closeAll()
			return func() {}
		}
		_ = unix.SetNonblock(fd, true) // so that Close ends awaitEnd; PIDFD_NONBLOCK needs Linux 5.10
		running = append(running, os.NewFile(uintptr(fd), "pidfd"))
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for _, p := range running {
			if !awaitEnd(p) {
				return
			}
		}
		f()
	})
	return func() {
		closeAll()
		wait.Wait()
	}
}

// awaitEnd waits until a process has ended. It returns false if the pidfd was closed before.
func awaitEnd(pidfd *os.File) bool {
	raw, err := pidfd.SyscallConn()
	return err == nil && raw.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	}) == nil
}

// Ranks returns the processes of the job that a launcher started as ranks: processes with a rank's variable whose
// parent has none. A variable in environ, the environment of the container, marks no rank. In job a parent comes before
// its children. If a rank leads a process group, the result has the number of the group: -pid.
func Ranks(job []Process, environ []string) (found []int) {
	var marks []string
	for _, l := range launchers {
		marks = append(marks, l.RankVariables...)
	}
	marks = slices.DeleteFunc(marks, setIn(environ))
	marked := make(map[int]bool)
	for _, p := range job {
		has := p.variables()
		marked[p.PID] = slices.ContainsFunc(marks, func(name string) bool { return has[name] })
		switch {
		case !marked[p.PID] || marked[p.Parent]:
		case p.Group == p.PID:
			found = append(found, -p.PID)
		default:
			found = append(found, p.PID)
		}
	}
	slices.Sort(found)
	return found
}
