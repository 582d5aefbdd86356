package launch

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

// shellFailureTimeout is how long a command may take to end after a remote shell has failed that started no daemon.
const shellFailureTimeout = 10 * time.Second

// Statuses are the exit statuses of a job whose command says nothing about what went wrong.
type Statuses struct {
	// Lost is for a rank or daemon that was lost: a retry may help.
	Lost int
	// Unused is for hosts of the job that a launcher did not use, or hosts outside the job that it was told to use: no
	// retry helps.
	Unused int
}

// Sessions is what rank 0 knows of the sessions by which a launcher has reached other hosts. Its methods Begun, Ended
// and Failed take the events; a [Supervisor] draws conclusions from them.
type Sessions struct {
	statuses Statuses
	fails    chan failure   // the first daemon that failed
	idle     chan time.Time // since when none of them runs any more; the latest
	done     chan farewell  // the last daemon that ended with status 0 together with its ranks

	mu      sync.Mutex
	reached map[string]bool // hosts on which something was started
	used    map[string]bool // those where it did more than look around
	hosts   int             // on how many the launcher says that it has daemons
	tree    bool            // daemons start others, and nothing tells how many
	watched bool            // the launcher of a daemon notices failures itself
	running int             // daemons that stay in their session until the job ends
	lost    string          // the first daemon whose session was lost
}

// NewSessions returns Sessions that have heard nothing.
func NewSessions(statuses Statuses) *Sessions {
	return &Sessions{
		statuses: statuses, fails: make(chan failure, 1), idle: make(chan time.Time, 1), done: make(chan farewell, 1),
		reached: make(map[string]bool), used: make(map[string]bool),
	}
}

// farewell says when all ranks of a host ended. A daemon that says it ends with 0 whatever their statuses were.
type farewell struct {
	host, launcher string
	at             time.Time
}

// failure is why the command should end, how long it may take to do so by itself, and the status of the job if it does
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

// Begun hears of a command that was started on another host.
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

// Failure is a command on another host that could not be started, or was lost.
type Failure struct {
	Host, Command string
	// Stage names what failed.
	Stage string
	// Unknown says that no container of the job has this name.
	Unknown bool
	// Running says that the command was running.
	Running bool
}

// Failed hears of a failure. A host name that a person mistyped does not count.
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

// Ended hears of a command on another host that has ended with a status, as a shell shows it. Where the launcher does
// not always notice that one of its daemons fails, that is a failure; every other launcher ends by itself then, and a
// script of the user's may fail as it likes.
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
			f.status = status // that of its ranks
		}
		s.fail(f)
	}
}

// isWatched reports whether the launcher looks after its remote shells itself. On a busy machine it may take long to
// wait for a remote shell that it has ended itself.
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

// latest replaces the value in a channel of capacity 1. Callers must not overlap.
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

// usedHosts are the hosts on which more than a probe was started.
func (s *Sessions) usedHosts() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.used)
}

// told is on how many hosts the launcher says that it has daemons, and whether these start others that nothing counts.
func (s *Sessions) told() (hosts int, tree bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosts, s.tree
}
