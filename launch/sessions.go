package launch

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

// shellFailureTimeout is how long a command may take to end after the failure of a remote shell that started no daemon.
const shellFailureTimeout = 10 * time.Second

// Statuses are the exit statuses of a job whose command does not report what went wrong.
type Statuses struct {
	// Lost is for a lost rank or daemon: a retry may help.
	Lost int
	// Unused is for a launcher that did not use the job's hosts, or was told to use others: a retry does not help.
	Unused int
}

// Sessions holds what rank 0 knows about the sessions by which a launcher reached other hosts. Its methods Begun, Ended
// and Failed take the events; a [Supervisor] draws the conclusions.
type Sessions struct {
	statuses Statuses
	fails    chan failure   // the first failure of a daemon
	idle     chan time.Time // when the last running daemon ended
	done     chan farewell  // the latest daemon that ended with status 0 and with its ranks

	mu      sync.Mutex
	reached map[string]bool // hosts on which a command was started
	used    map[string]bool // hosts on which more than a probe was started
	hosts   int             // the number of hosts with daemons, as the launcher reports it
	tree    bool            // daemons start an unknown number of further daemons
	watched bool            // the launcher of a daemon notices failures itself
	running int             // running daemons that stay in their session until the job ends
	lost    string          // the first daemon whose session was lost
}

// NewSessions returns Sessions without any event.
func NewSessions(statuses Statuses) *Sessions {
	return &Sessions{
		statuses: statuses, fails: make(chan failure, 1), idle: make(chan time.Time, 1), done: make(chan farewell, 1),
		reached: make(map[string]bool), used: make(map[string]bool),
	}
}

// farewell says when all ranks of a host ended. The daemon that reports it exits with 0, whatever their statuses were.
type farewell struct {
	host, launcher string
	at             time.Time
}

// failure is a reason to end the command: how long it may take to end by itself, and the status of the job if it does
// not.
type failure struct {
	reason  string
	timeout time.Duration
	status  int
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
	s.reached[host] = true
	s.used[host] = s.used[host] || !probe
	s.hosts = max(s.hosts, daemon.Hosts)
	s.tree = s.tree || daemon.tree()
	s.watched = s.watched || daemon.Program != "" && !l.MissesFailures
	if !daemon.Detached && l.DaemonsStay {
		s.running++
	}
}

// Failure describes a command on another host that could not be started, or whose session was lost.
type Failure struct {
	Host, Command string
	// Stage is the step that failed.
	Stage string
	// Unknown says that no container of the job has this host name.
	Unknown bool
	// Running says that the command was running.
	Running bool
}

// Failed takes a failure. An unknown host name counts only if the launcher would not notice the failure itself: a
// person may have mistyped it.
func (s *Sessions) Failed(f Failure) {
	d, ok := DaemonOf(f.Command)
	l := d.launcher()
	failed := failure{
		fmt.Sprintf("the remote shell to %s failed (%s)", f.Host, f.Stage), shellFailureTimeout, s.statuses.Lost,
	}
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
		s.lose(fmt.Sprintf("the launcher's daemon on %s was lost", f.Host), l.DaemonsStay)
	}
	s.fail(failed)
}

// Ended takes the end of a command on another host, with its status as a shell reports it. A failed daemon is a failure
// of the job if its launcher may not notice it. Every other launcher ends by itself, and a failed script of the user
// does not matter.
func (s *Sessions) Ended(host, command string, status int, signal syscall.Signal) {
	d, ok := DaemonOf(command)
	if !ok || d.Detached {
		return
	}
	l := d.launcher()
	switch {
	case l.DaemonsStay:
		s.ended()
	case !l.MissesFailures:
	case status == 0:
		s.over(host, l.Name)
	default:
		reason := fmt.Sprintf("the launcher's proxy on %s ended with status %d", host, status)
		f := failure{reason, l.FailureTimeout, s.statuses.Lost}
		if signal == 0 && status < 128 {
			f.status = status // the status of its ranks
		}
		s.fail(f)
	}
}

// isWatched reports whether the launcher watches its remote shells itself. On a busy machine it may take long to wait
// for a remote shell that it has killed.
func (s *Sessions) isWatched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watched
}

func (s *Sessions) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.running > 0 {
		return
	}
	latest(s.idle, time.Now())
}

func (s *Sessions) over(host, launcher string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	latest(s.done, farewell{host, launcher, time.Now()})
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
		s.running--
	}
	if s.lost == "" {
		s.lost = reason
	}
}

func (s *Sessions) now() (running int, lost string, reached []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for host := range s.reached {
		reached = append(reached, host)
	}
	slices.Sort(reached)
	return s.running, s.lost, reached
}

// usedHosts returns the hosts on which more than a probe was started.
func (s *Sessions) usedHosts() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.used)
}

// told returns on how many hosts the launcher reports daemons, and whether daemons start an unknown number of others.
func (s *Sessions) told() (hosts int, tree bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosts, s.tree
}
