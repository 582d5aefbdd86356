package launch

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The exit status of a launcher is not enough: a launcher may hang when one of its daemons has failed or when all of
// them have ended, and it may exit with 0 although it has lost a daemon or has never used the other hosts. The sessions
// by which it reached the other hosts tell more.

const (
	// idleTimeout: a launcher whose daemons have all ended may still have to write what the ranks printed.
	idleTimeout = 10 * time.Second
	// zombieInterval is how often children of the launcher are looked at that it may not look at itself.
	zombieInterval = 5 * time.Second
	// SettleTime is how long after the command has failed a rank may still turn out to be gone.
	SettleTime = 300 * time.Millisecond
)

// Supervisor watches a command on rank 0 that is a launcher, or may start one, has it ended when it cannot go on, and
// judges its end. It is fed by events: those of the [Sessions], and those of the methods Stop and Lost.
type Supervisor struct {
	// Line is the command line, Self the name of this host, and Hosts the number of hosts.
	Line  []string
	Self  string
	Hosts int
	// Own is the job's own environment, Environ that of the command.
	Own, Environ []string
	// AllowPartial accepts a launcher that does not use the hosts that it was asked for.
	AllowPartial bool
	Log          *slog.Logger

	Sessions *Sessions
	Asks     *Asks

	// Processes lists the processes of the job in this container, and SinceBoot is the clock of their start times.
	Processes func() []Process
	SinceBoot func() time.Duration
	// Hard signals the command, Gently goes to its ranks first; Kill is kill(2).
	Hard, Gently func(os.Signal)
	Kill         func(pid int, sig syscall.Signal) error

	stops  chan Stop
	losses chan Loss
	done   chan struct{} // closed when Watch has returned
}

// Supervise completes a Supervisor: its methods may be called from now on.
func Supervise(s Supervisor) *Supervisor {
	s.stops, s.losses, s.done = make(chan Stop), make(chan Loss), make(chan struct{})
	return &s
}

// Stop says that a rank wants the job to end. It waits until Watch hears of it, or has returned.
func (s *Supervisor) Stop(want Stop) {
	select {
	case s.stops <- want:
	case <-s.done:
	}
}

// Lost says that a rank is lost. It waits until Watch hears of it, or has returned.
func (s *Supervisor) Lost(l Loss) {
	select {
	case s.losses <- l:
	case <-s.done:
	}
}

// Interruption is why the command was stopped, and the status of the job then; 0 = what the command itself says.
type Interruption struct {
	Reason string
	Status int
	Lost   string // what made it impossible to go on, after the command was told to end for another reason
}

// watch is the state of Watch.
type watch struct {
	*Supervisor
	why Interruption

	failed    failure
	failedAt  time.Time
	impatient <-chan time.Time // the command should have ended after failed
	dead      map[int]int      // agents of the launcher, and their statuses, when it was last looked
	idle      time.Time
	stuck     <-chan time.Time // the command should have ended after idle
	left      farewell
	lull      <-chan time.Time // all other ranks should have ended after left
	told      int              // the launcher that was logged for left
	force     <-chan time.Time // SIGKILL is due
}

// Watch hears events while the command runs, until ctx ends. It returns the first reason why the command was stopped: a
// rank that wants it, a lost rank, or a daemon of the launcher that had failed while the launcher did not end.
//
// A request to stop goes to the ranks first; what cannot go on is ended at once. Watch is called once.
func (s *Supervisor) Watch(ctx context.Context) Interruption {
	defer close(s.done)
	w := watch{Supervisor: s}
	look := time.NewTicker(zombieInterval)
	defer look.Stop()
	if !w.isLauncher() {
		look.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			return w.why
		case w.failed = <-s.Sessions.fails:
			w.failedAt, w.impatient = time.Now(), time.After(w.failed.timeout)
		case <-w.impatient:
			w.abortAfterFailure()
		case <-look.C:
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
	if sig <= 0 {
		sig = int(syscall.SIGTERM)
	}
	pass(syscall.Signal(sig))
}

// abort ends a command that cannot go on: nothing is left to be saved, and a launcher may not end without its daemons.
func (w *watch) abort(because Interruption) {
	if w.why.Reason != "" { // the command was told to end, and has its time for that
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

// abortAfterFailure ends a launcher that has not ended by itself after a failure. Where a script had started the
// launcher, and the launcher has ended, the script goes on.
func (w *watch) abortAfterFailure() {
	if !w.isLauncher() && len(w.launchersSince(w.failedAt)) == 0 {
		w.impatient = nil
		return
	}
	w.Log.Error("the command does not end after a failure", "phase", "wait", "reason", w.failed.reason)
	w.abort(Interruption{Reason: w.failed.reason + ", and the command did not end by itself", Status: w.failed.status})
}

// lookForZombies finds a remote shell that has failed, and that the launcher has not waited for since the last look.
func (w *watch) lookForZombies() {
	if w.Sessions.isWatched() {
		return
	}
	all := w.Processes()
	now := unnoticed(all, launchersBefore(all, math.MaxInt64))
	for pid, status := range now {
		if before, ok := w.dead[pid]; ok && before == status {
			reason := fmt.Sprintf("the launcher's remote shell ended with status %d", status)
			w.Sessions.fail(failure{reason, 0, w.Sessions.statuses.Lost})
			break
		}
	}
	w.dead = now
}

// endStuck ends a launcher that is still there although all its daemons have ended, unless it has started daemons
// again. A script goes on by itself.
func (w *watch) endStuck() {
	running, _, _ := w.Sessions.now()
	if running > 0 || !w.killStuck() || !w.isLauncher() {
		return
	}
	if w.why.Reason == "" {
		w.why = Interruption{
			Reason: "the launcher did not end after all its daemons had ended", Status: w.Sessions.statuses.Lost,
		}
	}
}

// killStuck ends the launchers of this job that were started before its daemons ended, and are still there: all that is
// left for them to do is to exit. Open MPI 5.0 may wait for itself there (openpmix/prrte#1607, #1839).
func (w *watch) killStuck() bool {
	killed := false
	for _, pid := range w.launchersSince(w.idle) {
		w.Log.Error("killing a launcher that did not end after all its daemons had ended", "phase", "wait", "pid", pid)
		killed = w.Kill(pid, syscall.SIGKILL) == nil || killed
	}
	return killed
}

// tellLull logs that all ranks of a host have ended while others go on: MPICH does not end a job when a rank that is
// alone on its host exits with an error, and the others may wait for it for ever.
func (w *watch) tellLull() {
	if pids := w.launchersSince(w.left.at); len(pids) > 0 && pids[0] != w.told {
		w.told = pids[0]
		w.Log.Info("all ranks on a host have ended while others go on; this launcher does not report whether one failed",
			"phase", "wait", "launcher", w.left.launcher, "peer", w.left.host, "ago", idleTimeout)
	}
}

// launchersSince finds the launchers of this job that were there at a time already.
func (s *Supervisor) launchersSince(at time.Time) []int {
	return launchersBefore(s.Processes(), s.SinceBoot()-time.Since(at))
}

// launchersBefore finds the MPI launchers of the job that were started before a time since the machine's boot.
func launchersBefore(job []Process, before time.Duration) (found []int) {
	for _, p := range job {
		if p.State != 'Z' && IsLauncher(p.Name) && p.Started <= before {
			found = append(found, p.PID)
		}
	}
	return found
}

// unnoticed finds children of launchers that have failed and that their parent has not waited for, with their statuses:
// some launchers do not look at their remote shells before the job ends.
func unnoticed(job []Process, launchers []int) map[int]int {
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

// SinceBoot is the clock of the start times of processes.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0 // then nothing was started before
	}
	return time.Duration(ts.Nano())
}

// Ending is what is known when the command has ended.
type Ending struct {
	Result Result
	Why    Interruption
	// Launcher says that the command is a launcher, or was running one when it was told to stop.
	Launcher bool
	// OOMKills is how many processes the kernel has killed for lack of memory on this host.
	OOMKills int
	// Absent asks for a rank that is gone, and for that long waits for one to turn out to be; nil: none is.
	Absent func(settle time.Duration) *Loss
}

// Judge says how the job ended: by what the command said, and by what is known better.
func (s *Supervisor) Judge(e Ending) Outcome {
	result, why, statuses := e.Result, e.Why, s.Sessions.statuses
	o := Outcome{Status: result.Status(), Reason: FirstCause(0, s.Line[0], result, e.OOMKills)}
	direct := s.isLauncher()
	_, lost, _ := s.Sessions.now()
	announced, known := announcedStatus(result.Tail)
	switch {
	case why.Status == statuses.Lost && result.Signal == syscall.SIGKILL && known:
		o.Status = announced // a launcher that said why it ends, and did not
	case why.Status != 0:
		o.Status = why.Status
	case e.Launcher && result.Forwarded != 0:
		o.Status = result.JobStatus(true)
	case result.Forwarded != 0 && o.Status == 0: // it may have saved its work
	case direct && o.Status == 0 && lost != "":
		// Open MPI 5.0 says 0 when a host goes away.
		o = Outcome{Status: statuses.Lost, Reason: lost + "; " + o.Reason}
	case direct && o.Status == 0 && s.Hosts > 1 && s.lostMeanwhile(e, 0, &o):
	case o.Status == 0 && why.Lost != "":
		o = Outcome{Status: statuses.Lost, Reason: why.Lost + "; " + o.Reason}
	case o.Status == 0:
		if partial := s.Reached(); partial != nil {
			return *partial
		}
	case why.Reason == "" && result.Forwarded == 0 && s.Hosts > 1:
		// A launcher that failed because a host went away says so in its own words and with its own status.
		s.lostMeanwhile(e, SettleTime, &o)
	}
	if why.Reason != "" {
		o.Reason = why.Reason + "; " + o.Reason
	}
	return o
}

// lostMeanwhile makes a lost rank the outcome, if there is one.
func (s *Supervisor) lostMeanwhile(e Ending, settle time.Duration, o *Outcome) bool {
	l := e.Absent(settle)
	if l != nil {
		*o = Outcome{Status: s.Sessions.statuses.Lost, Reason: l.String() + "; " + o.Reason}
	}
	return l != nil
}
