package launch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The exit status of a launcher is not enough: a launcher may hang after a daemon has failed or after all daemons have
// ended, and it may exit with 0 although it lost a daemon or never used the other hosts. Its sessions to the other
// hosts show that.

const (
	// idleTimeout is how long a launcher may still print the output of the ranks after all its daemons have ended.
	idleTimeout = 10 * time.Second
	// zombieInterval is the time between two checks for failed children that the launcher may not have waited for.
	zombieInterval = 5 * time.Second
	// silenceTime is how long the daemons of a launcher may take to connect to it.
	silenceTime = 15 * time.Second
	// SettleTime is how long after a failure of the command the loss of a rank may still be noticed.
	SettleTime = 300 * time.Millisecond
)

// Supervisor watches a command on rank 0 that is a launcher or may start launchers, ends it if it cannot go on, and
// judges how the job ended.
type Supervisor struct {
	Line         []string // the command line
	Self         string   // the name of this host
	Scene        Scene    // of this rank
	Hosts        int      // the number of hosts
	Own          []string // the environment of the job
	Environ      []string // that of the command
	AllowPartial bool     // a launcher need not use all hosts that it was asked to use
	Log          *slog.Logger

	Sessions *Sessions
	Asks     *Asks

	Processes func() []Process // those of the job in this container
	// Connections returns those of processes of this container with other hosts.
	Connections func(pids []int) Connections
	SinceBoot   func() time.Duration // the clock of their start times
	Hard        func(os.Signal)      // signals the command
	Gently      func(os.Signal)      // signals its ranks first
	Kill        func(pid int, sig syscall.Signal) error

	blocked atomic.Pointer[string]

	stops  chan Stop
	losses chan Loss
	done   chan struct{} // closed when Watch has returned
}

// Supervise returns a complete Supervisor, whose methods may be called.
func Supervise(s *Supervisor) *Supervisor {
	s.stops, s.losses, s.done = make(chan Stop), make(chan Loss), make(chan struct{})
	return s
}

// Blocked takes which port of another host gets no packets from this one, for a launcher that waits for it.
func (s *Supervisor) Blocked(why string) { s.blocked.Store(&why) }

// Stop takes a rank's request to end the job. It returns when Watch has received it, or has returned.
func (s *Supervisor) Stop(want Stop) { tell(s, s.stops, want) }

// Lost takes the loss of a rank. It returns when Watch has received it, or has returned.
func (s *Supervisor) Lost(l Loss) { tell(s, s.losses, l) }

func tell[T any](s *Supervisor, events chan<- T, event T) {
	select {
	case events <- event:
	case <-s.done:
	}
}

// Interruption is why the command was stopped.
type Interruption struct {
	Reason string
	Status int    // of the job; 0 means the command's own status
	Lost   string // a loss or failure that came after the command was told to end for another reason
}

// watch is the state of Watch.
type watch struct {
	*Supervisor
	why Interruption

	failed    failure
	failedAt  time.Time
	impatient <-chan time.Time // the deadline of the command after failed
	dead      map[int]int      // statuses of failed remote shells of the launcher at the last check, by process
	idle      time.Time
	stuck     <-chan time.Time // the deadline of the command after idle
	left      farewell
	lull      <-chan time.Time // the deadline of all other ranks after left
	told      int              // the launcher that was logged for left
	force     <-chan time.Time // SIGKILL is due

	begunAt     time.Time        // when the launcher started its latest daemon
	silent      <-chan time.Time // the daemon should have connected to it
	silenceTold bool
}

// Watch handles events while the command runs, until ctx ends. It returns the first reason for which the command was
// stopped: the request of a rank, a lost rank, or a failed daemon of a launcher that did not end by itself. Watch is
// called once.
func (s *Supervisor) Watch(ctx context.Context) Interruption {
	defer close(s.done)
	w := watch{Supervisor: s}
	var look <-chan time.Time
	if w.isLauncher() {
		look = time.Tick(zombieInterval)
	}
	for {
		select {
		case <-ctx.Done():
			return w.why
		case w.failed = <-s.Sessions.fails:
			w.failedAt, w.impatient = time.Now(), time.After(w.failed.timeout)
		case <-w.impatient:
			w.abortAfterFailure()
		case <-look:
			w.lookForZombies()
		case <-w.force:
			s.Hard(syscall.SIGKILL)
		case w.idle = <-s.Sessions.idle:
			w.stuck = time.After(idleTimeout)
		case <-w.stuck:
			w.endStuck()
		case w.left = <-s.Sessions.done:
			w.lull = time.After(idleTimeout)
		case <-w.lull:
			w.tellLull()
		case w.begunAt = <-s.Sessions.starts:
			if !w.silenceTold {
				w.silent = time.After(silenceTime)
			}
		case <-w.silent:
			w.tellSilence()
		case want := <-s.stops:
			s.Log.Warn("a rank wants the job to stop", "phase", "wait", "peer", want.Name, "reason", want.Reason)
			w.end(s.Gently, want.Signal, Interruption{Reason: want.Reason})
		case l := <-s.losses:
			s.Log.Error("a rank is lost", "phase", "wait", "peer", l.Name, "rank", l.Rank, "reason", l.Reason)
			w.abort(Interruption{Reason: l.String(), Status: s.Sessions.statuses.Lost})
		}
	}
}

func (s *Supervisor) isLauncher() bool { return IsLauncher(s.Line[0]) }

// end tells the command to end, unless it was told before.
func (w *watch) end(pass func(os.Signal), sig int, because Interruption) {
	if w.why.Reason != "" {
		return
	}
	w.why = because
	pass(EndSignal(sig))
}

// abort ends a command that cannot go on: it has nothing left to save, and a launcher may not end without its daemons.
func (w *watch) abort(because Interruption) {
	if w.why.Reason != "" { // the command was told to end, and its Grace runs
		if w.why.Status == 0 && w.why.Lost == "" {
			w.why.Lost = because.Reason
		}
		return
	}
	w.end(w.Hard, 0, because)
	if w.isLauncher() {
		w.force = time.After(launcherEndTime)
	}
}

// abortAfterFailure ends a launcher that did not end by itself after a failure. If a script started the launcher and
// the launcher has ended, the script goes on.
func (w *watch) abortAfterFailure() {
	if !w.isLauncher() && len(w.launchersSince(w.failedAt)) == 0 {
		w.impatient = nil
		return
	}
	w.Log.Error("the command does not end after a failure", "phase", "wait", "reason", w.failed.reason)
	w.abort(Interruption{Reason: w.failed.reason + ", and the command did not end by itself", Status: w.failed.status})
}

// lookForZombies finds a failed remote shell for which the launcher has not waited since the last check.
func (w *watch) lookForZombies() {
	if w.Sessions.now().watched { // on a busy machine it may take long to wait for a shell that it has killed
		return
	}
	all := w.Processes()
	now := failedChildren(all, launchersBefore(all, math.MaxInt64))
	for pid, status := range now {
		if before, ok := w.dead[pid]; ok && before == status {
			reason := fmt.Sprintf("the launcher's remote shell ended with status %d", status)
			w.Sessions.fail(failure{reason, 0, w.Sessions.statuses.Lost})
			break
		}
	}
	w.dead = now
}

// endStuck kills the launchers that were started before all daemons ended and still run, unless new daemons were
// started: they only have to exit. Open MPI 5.0 may wait for itself at that point (openpmix/prrte#1607, #1839). A
// script goes on by itself.
func (w *watch) endStuck() {
	if w.Sessions.now().running > 0 {
		return
	}
	killed := false
	for _, pid := range w.launchersSince(w.idle) {
		w.Log.Error("killing a launcher that did not end after all its daemons had ended", "phase", "wait", "pid", pid)
		killed = w.Kill(pid, syscall.SIGKILL) == nil || killed
	}
	if killed && w.isLauncher() && w.why.Reason == "" {
		const reason = "the launcher did not end after all its daemons had ended"
		w.why = Interruption{Reason: reason, Status: w.Sessions.statuses.Lost}
	}
}

// tellLull logs that all ranks of a host have ended while others go on: MPICH does not end a job if the only rank of a
// host exits with an error, and the other ranks may wait for it for ever.
func (w *watch) tellLull() {
	if pids := w.launchersSince(w.left.at); len(pids) > 0 && pids[0] != w.told {
		w.told = pids[0]
		w.Log.Info("all ranks on a host have ended while others go on; "+
			"this launcher does not report whether one failed",
			"phase", "wait", "launcher", w.left.launcher, "peer", w.left.host, "ago", idleTimeout)
	}
}

// launchersSince returns the running launchers of this job that were started before a time.
func (s *Supervisor) launchersSince(at time.Time) []int {
	return launchersBefore(s.Processes(), s.SinceBoot()-time.Since(at))
}

// launchersBefore returns the MPI launchers of the job that were started before a time since the machine's boot.
func launchersBefore(job []Process, before time.Duration) (found []int) {
	for _, p := range job {
		if p.State != 'Z' && IsLauncher(p.Name) && p.Started <= before {
			found = append(found, p.PID)
		}
	}
	return found
}

// failedChildren returns the children of launchers that have failed and that their parent has not waited for, with
// their statuses: some launchers do not wait for their remote shells before the job ends.
func failedChildren(job []Process, launchers []int) map[int]int {
	found := make(map[int]int)
	for _, p := range job {
		if p.State != 'Z' || p.Exit == 0 || !slices.Contains(launchers, p.Parent) {
			continue
		}
		status := syscall.WaitStatus(p.Exit)
		if status.Signaled() {
			found[p.PID] = 128 + int(status.Signal())
		} else {
			found[p.PID] = status.ExitStatus()
		}
	}
	return found
}

// SinceBoot returns the time since the machine's boot, the clock of the start times of processes.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0 // no process was started before that
	}
	return time.Duration(ts.Nano())
}

// Ending is what is known when the command has ended.
type Ending struct {
	Result   Result
	Why      Interruption
	Launcher bool         // the command is a launcher, or ran one when it was told to stop
	OOMs     func() []OOM // asks all ranks, after a failure; may be nil
	// Absent returns a lost rank, and waits up to settle for one to be noticed; nil if no rank is lost.
	Absent func(settle time.Duration) *Loss
}

// Judge returns how the job ended. Events override the command's exit status if it hides them.
func (s *Supervisor) Judge(e Ending) Outcome {
	result, why, statuses := e.Result, e.Why, s.Sessions.statuses
	var ooms []OOM
	if e.OOMs != nil && (result.Status() != 0 || why.Status != 0) {
		ooms = e.OOMs()
	}
	o := s.Scene.Outcome(s.Line[0], result, ooms)
	if o.Hung { // what happened after that is a consequence
		o.Status = statuses.Lost
		return o
	}
	direct := s.isLauncher()
	seen := s.Sessions.now()
	lost := seen.lost
	if seen.unrun.program != "" && o.Status != 0 && result.Blame.Process == "" && result.Forwarded == 0 {
		o.Reason = seen.unrun.reason(s.Scene.find(seen.unrun.host)) + "; " + o.Reason
	}
	switch {
	case why.Status != 0:
		o.Status = why.Status
		if why.Status == statuses.Lost && result.Signal == syscall.SIGKILL {
			// The launcher may have named a failed rank before it hung and was killed.
			o.Status = cmp.Or(result.Blame.status(), why.Status)
		}
	case e.Launcher && result.Forwarded != 0:
		o.Status = result.JobStatus(true)
	case result.Forwarded != 0 && o.Status == 0: // it may have saved its work
	case direct && o.Status == 0 && lost != "": // Open MPI 5.0 exits with 0 if a host is lost
		o.Status, o.Reason = statuses.Lost, lost+"; "+o.Reason
	case direct && o.Status == 0 && result.LostDaemon: // it may have noticed the loss before paiinit
		if !s.lostMeanwhile(e, SettleTime, &o) {
			o.Status, o.Reason = statuses.Lost, "the launcher has lost a daemon; "+o.Reason
		}
	case direct && o.Status == 0 && s.Hosts > 1 && s.lostMeanwhile(e, 0, &o):
	case o.Status == 0 && why.Lost != "":
		o.Status, o.Reason = statuses.Lost, why.Lost+"; "+o.Reason
	case o.Status == 0:
		if partial := s.Reached(); partial != nil {
			return *partial
		}
	case why.Reason == "" && result.Forwarded == 0 && s.Hosts > 1: // it may have failed because a host is lost
		s.lostMeanwhile(e, SettleTime, &o)
	}
	if why.Reason != "" {
		o.Reason = why.Reason + "; " + o.Reason
	}
	o.Stopped = result.Forwarded != 0 && why.Status == 0
	return o
}

// lostMeanwhile makes the loss of a rank the outcome, and reports whether a rank is lost.
func (s *Supervisor) lostMeanwhile(e Ending, settle time.Duration, o *Outcome) bool {
	l := e.Absent(settle)
	if l != nil {
		o.Status, o.Reason = s.Sessions.statuses.Lost, l.String()+"; "+o.Reason
	}
	return l != nil
}
