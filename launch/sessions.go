package launch

import (
	"cmp"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"time"
)

// shellFailureTimeout is how long a command may take to end after the failure of a remote shell that started no daemon.
const shellFailureTimeout = 10 * time.Second

// Statuses are the exit statuses of a job whose command does not report what went wrong.
type Statuses struct {
	Lost   int // for a lost rank or daemon: a retry may help
	Unused int // for a launcher that did not use the job's hosts, or was told to use others: a retry does not help
}

// Sessions holds what rank 0 knows about the sessions by which a launcher reached other hosts, for a [Supervisor].
type Sessions struct {
	statuses Statuses
	fails    chan failure   // the first failure of a daemon
	idle     chan time.Time // when the last running daemon ended
	done     chan farewell  // the latest daemon that ended with status 0 and with its ranks
	starts   chan time.Time // when the latest daemon was started

	mu   sync.Mutex
	seen seen
}

// seen is what the sessions have shown until now.
type seen struct {
	reached map[string]bool // the hosts on which a command was started; true: more than a probe
	hosts   int             // the number of hosts with daemons, as the launcher reports it
	tree    bool            // daemons start an unknown number of further daemons
	watched bool            // the launcher of a daemon watches its remote shells itself
	running int             // running daemons that stay in their session until the job ends
	lost    string          // the first daemon whose session was lost
	unrun   notRun          // the first daemon that a host could not run

	open     int  // running daemons that stay in their session
	detached bool // a daemon has left its session
}

// NewSessions returns Sessions without any event.
func NewSessions(statuses Statuses) *Sessions {
	return &Sessions{
		statuses: statuses, fails: make(chan failure, 1), idle: make(chan time.Time, 1), done: make(chan farewell, 1),
		starts: make(chan time.Time, 1),
		seen:   seen{reached: make(map[string]bool)},
	}
}

func (s *Sessions) now() seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.seen
	now.reached = maps.Clone(now.reached)
	return now
}

// farewell says when all ranks of a host ended. The daemon that reports it exits with 0, whatever their statuses were.
type farewell struct {
	host, launcher string
	at             time.Time
}

// notRun is a daemon that the shell of a host could not run: its launcher is missing there, or not in PATH. Launchers
// report this by a text that is the same for all failures at their start, without the host.
type notRun struct {
	program, host string
	status        int // 126 or 127
}

// reason says which daemon could not be run on a host.
func (n notRun) reason(place string) string {
	if n.status == statusNotFound {
		return n.program + " was not found on " + place
	}
	return n.program + " cannot be executed on " + place
}

// failure is a reason to end the command.
type failure struct {
	reason  string
	timeout time.Duration // how long the command may take to end by itself
	status  int           // of the job if it does not
}

func (s *Sessions) fail(f failure) {
	select {
	case s.fails <- f:
	default: // the first one decides
	}
}

// Begun takes the start of a command on another host.
func (s *Sessions) Begun(host, command string) {
	d, _ := DaemonOf(command)
	s.begun(host, d, isProbe(command))
}

func (s *Sessions) begun(host string, daemon Daemon, probe bool) {
	l := daemon.launcher()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := &s.seen
	now.reached[host] = now.reached[host] || !probe
	now.hosts = max(now.hosts, daemon.Hosts)
	now.tree = now.tree || daemon.tree()
	now.watched = now.watched || daemon.Program != "" && !l.MissesFailures
	if !daemon.Detached && l.DaemonsStay {
		now.running++
	}
	switch {
	case daemon.Program == "":
		return
	case daemon.Detached:
		now.detached = true
	default:
		now.open++
	}
	latest(s.starts, time.Now())
}

// daemons returns the number of running daemons that stay in their session, and whether others have left it.
func (s *Sessions) daemons() (open int, detached bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.open, s.seen.detached
}

func (s *Sessions) closed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.open--
}

// Failure describes a command on another host that could not be started, or whose session was lost.
type Failure struct {
	Host, Command string
	Stage         string // the step that failed
	Unknown       bool   // no container of the job has this host name
	Running       bool   // the command was running
}

// Failed takes a failure. An unknown host name counts only if the launcher would not notice the failure itself: a
// person may have mistyped it.
func (s *Sessions) Failed(f Failure) {
	d, ok := DaemonOf(f.Command)
	l := d.launcher()
	reason := fmt.Sprintf("the remote shell to %s failed (%s)", f.Host, f.Stage)
	failed := failure{reason, shellFailureTimeout, s.statuses.Lost}
	if ok {
		failed.timeout = l.FailureTimeout
	}
	switch {
	case f.Unknown && !l.MissesFailures:
		return
	case f.Unknown:
		failed.status = s.statuses.Unused
		failed.reason = fmt.Sprintf("the launcher was told to use %s, which is not a container of this job", f.Host)
	case f.Running && ok && !d.Detached:
		s.closed()
		s.lose(fmt.Sprintf("the launcher's daemon on %s was lost", f.Host), l.DaemonsStay)
	}
	s.fail(failed)
}

// Ended takes the end of a command on another host, with its status as a shell reports it. A failed daemon is a failure
// of the job if its launcher may not notice it. Every other launcher ends by itself, and a failed script of the user
// does not matter.
func (s *Sessions) Ended(host, command string, status int, signal syscall.Signal) {
	d, ok := DaemonOf(command)
	if ok && signal == 0 && (status == statusCannotExecute || status == statusNotFound) {
		s.couldNotRun(notRun{d.Program, host, status})
	}
	if !ok || d.Detached {
		return
	}
	s.closed()
	l := d.launcher()
	switch {
	case l.DaemonsStay:
		s.ended()
	case !l.MissesFailures:
	case status == 0:
		s.mu.Lock()
		defer s.mu.Unlock()
		latest(s.done, farewell{host, l.Name, time.Now()})
	default:
		reason := fmt.Sprintf("the launcher's proxy on %s ended with status %d", host, status)
		f := failure{reason, l.FailureTimeout, s.statuses.Lost}
		if signal == 0 && status < 128 {
			f.status = status // the status of its ranks
		}
		s.fail(f)
	}
}

func (s *Sessions) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.running--
	if s.seen.running <= 0 {
		latest(s.idle, time.Now())
	}
}

func (s *Sessions) couldNotRun(d notRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen.unrun.program == "" {
		s.seen.unrun = d
	}
}

// latest replaces the value in a channel of capacity 1. Calls must not overlap.
func latest[T any](c chan T, value T) {
	select {
	case <-c:
	default:
	}
	c <- value
}

func (s *Sessions) lose(reason string, counted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if counted {
		s.seen.running--
	}
	s.seen.lost = cmp.Or(s.seen.lost, reason)
}
