package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
)

// Clearing says which processes [Clear] ends, and how long they have.
type Clearing struct {
	// First is the first process: the parent of this process, and PID 1 or a child subreaper.
	First int
	// Spared returns children of this process that are not the job's, such as the sessions of people. It is called
	// before and after each reading of /proc, so sessions may begin and end meanwhile. If a child may start meanwhile,
	// the caller holds the lock that Spared takes while it starts and registers the child. It may be nil.
	Spared func() []int
	// Deadline is when SIGKILL follows SIGTERM. If it has passed, or is zero, the processes get SIGKILL at once.
	Deadline time.Time
}

// Cleared describes what Clear has done.
type Cleared struct {
	Ended  int           // processes of the job that were found alive and are gone
	Killed int           // those of them that got SIGKILL
	Took   time.Duration // until /proc showed none
}

// Clear ends every process of the job in this container, and returns when /proc shows none: the tree of the launched
// command, the sessions of launchers' daemons, and everything that the first process has adopted, such as double-forked
// processes. New sessions, process groups and environments make no difference. Zombies do not count, unless a thread of
// theirs still runs.
//
// If the first process is PID 1, every process of the PID namespace belongs to the job, except
//   - this process and the first one,
//   - the children that Spared returns, and their descendants,
//   - processes whose parent is outside the namespace (kubectl exec, docker exec), and their descendants,
//   - orphans, and their descendants, if they are in a session (setsid(2)) of a process that is spared by the rules
//     above. The session of this process does not count, because the job's processes are in it as well.
//
// If the first process is a child subreaper, its descendants belong to the job, with the same exceptions. What cannot
// be told apart is ended: a daemon that has left the session of a person, or is the last process of such a session.
//
// Until the deadline, each process gets SIGTERM, and SIGCONT if it is stopped. A process that is found later gets them
// too, but not while its parent lives and has got SIGTERM: the parent may be saving its work by it. After the deadline
// all get SIGKILL, and so does at once each process that is found later. If processes start others faster than they can
// be killed, all are stopped first: stopped processes start none, and keep their places in a limit of processes.
//
// The error names the processes that are left, with the reason, if some are left 10 s after the deadline, or when ctx
// ends. Clear also fails if /proc is missing or belongs to another PID namespace. In these cases a process of the job
// may be alive. Clear cannot see processes that /proc hides from this user (hidepid, proc(5)).
func Clear(ctx context.Context, c Clearing) (Cleared, error) {
	return newClear(c).run(ctx)
}

func newClear(c Clearing) *clearing {
	return &clearing{
		Clearing: c, self: os.Getpid(), fsys: proc.System{}, timeout: clearTimeout,
		open: unix.PidfdOpen, signal: unix.PidfdSendSignal, kill: unix.Kill,
		targets: make(map[identity]*target), spared: make(map[identity]bool),
	}
}

const (
	clearTimeout  = 10 * time.Second       // after the deadline: how long killed processes may take to end
	shortestPause = time.Millisecond       // before /proc is read again; it doubles each time
	longestPause  = 500 * time.Millisecond // because reading /proc takes time
	mostDescribed = 8                      // processes in the error
)

// clearing is one call of Clear.
type clearing struct {
	Clearing
	self    int
	fsys    fs.FS // /proc
	timeout time.Duration
	open    func(pid, flags int) (pidfd int, err error)
	signal  func(pidfd int, sig unix.Signal, info *unix.Siginfo, flags int) error
	kill    func(pid int, sig unix.Signal) error

	targets map[identity]*target // every process of the job that was found
	spared  map[identity]bool    // every process that was spared: it stays so if its parent ends
	pidfds  *pidfds
	pause   time.Duration
	killed  bool // all processes that were found have got SIGKILL
	forking bool // more were found after that
}

// identity tells a process from a later one with the same number.
type identity struct {
	pid     int
	started time.Duration
}

func identityOf(p proc.Process) identity { return identity{p.PID, p.Started} }

// target is a process of the job.
type target struct {
	pidfd                  int  // -1 if it is not open
	asked, stopped, killed bool // it got SIGTERM, SIGSTOP, SIGKILL
	// copied is the name of a process that may have got SIGTERM between fork and exec: if it has another name later, it
	// has lost the signal, because its parent's handler ran in it, or exec discarded that.
	copied string
	failed error
}

func (c *clearing) run(ctx context.Context) (done Cleared, err error) {
	began := time.Now()
	limit := began
	if c.Deadline.After(began) {
		limit = c.Deadline
	}
	limit = limit.Add(c.timeout)
	if c.pidfds, err = newPidfds(ctx); err != nil {
		return done, fmt.Errorf("ending the processes of the job: %w", err)
	}
	defer c.pidfds.close()
	for {
		found, err := c.look(limit)
		done = c.count(found.job)
		done.Took = time.Since(began)
		switch {
		case err != nil:
		case len(found.job) == 0:
			return done, nil
		case ctx.Err() != nil:
			err = fmt.Errorf("%w; %s", context.Cause(ctx), c.describe(found.job))
		case c.killed && time.Now().After(limit):
			err = fmt.Errorf("after %s: %s", done.Took.Round(10*time.Millisecond), c.describe(found.job))
		}
		if err != nil {
			return done, fmt.Errorf("ending the processes of the job: %w", err)
		}
		switch now := time.Now(); {
		case now.Before(c.Deadline):
			again := c.ask(found.job)
			c.wait(ctx, c.Deadline, len(found.job), again)
		case !c.end(found):
			// While the kernel cannot end a process, others may start more.
			c.wait(ctx, limit, len(found.job), true)
		}
	}
}

// count counts the processes that have ended.
func (c *clearing) count(left []proc.Process) (done Cleared) {
	living := make(map[identity]bool, len(left))
	for _, p := range left {
		living[identityOf(p)] = true
	}
	for id, t := range c.targets {
		if living[id] {
			continue
		}
		done.Ended++
		if t.killed {
			done.Killed++
		}
	}
	return done
}

// ask sends SIGTERM to processes that have not got it. It continues stopped ones, which do not handle it before. It
// reports whether some may lose the signal.
func (c *clearing) ask(job []proc.Process) (mayLose bool) {
	all := make(map[int]proc.Process, len(job))
	asked := make(map[int]bool, len(job)) // before this call
	for _, p := range job {
		all[p.PID] = p
		t, ok := c.targets[identityOf(p)]
		asked[p.PID] = ok && t.asked
	}
	mayServe := func(p proc.Process) bool { // an ancestor may be saving its work by it
		up := p.Parent
		for range job { // at most one step per process, in case of a circle
			if asked[up] {
				return true
			}
			up = all[up].Parent
		}
		return false
	}
	for _, p := range job {
		t := c.target(p)
		if t.copied != "" && t.copied != p.Name || !t.asked && !mayServe(p) {
			t.asked, t.copied = true, ""
			if p.Name == all[p.Parent].Name {
				t.copied = p.Name
			}
			c.send(p, t, unix.SIGTERM)
		}
		if t.asked && p.State == 'T' {
			c.send(p, t, unix.SIGCONT)
		}
		mayLose = mayLose || t.copied != ""
	}
	return mayLose
}

// end sends SIGKILL to all processes. If more are found after that, it stops all first; it then reports that it must be
// called again at once, because the stopped ones may have started further ones.
func (c *clearing) end(found found) (again bool) {
	if !c.killed {
		c.pause = 0
	}
	for _, p := range found.job {
		c.forking = c.forking || c.killed && c.targets[identityOf(p)] == nil
	}
	if c.forking && c.stop(found) {
		return true
	}
	c.killed = true
	for _, p := range found.job {
		t := c.target(p)
		t.killed = true
		c.send(p, t, unix.SIGKILL)
	}
	return false
}

// stop stops all processes that are not stopped yet, and reports whether there were any.
func (c *clearing) stop(found found) (any bool) {
	groups := make(map[int]bool)
	// The newest process first: of a chain, in which each process starts the next one and ends, only that one is left.
	for _, p := range slices.Backward(found.job) {
		t := c.target(p)
		if t.stopped {
			continue
		}
		t.stopped, any = true, true
		// A signal to a whole group also reaches the processes that its members are just starting.
		if p.Group > 1 && !found.shared[p.Group] && !groups[p.Group] { // kill(-1) would signal everything
			groups[p.Group] = true
			_ = c.kill(-p.Group, unix.SIGSTOP)
		}
		c.send(p, t, unix.SIGSTOP)
	}
	return any
}

// target returns the target for a process, and opens its pidfd if possible.
func (c *clearing) target(p proc.Process) *target {
	id := identityOf(p)
	t, ok := c.targets[id]
	if !ok {
		t = &target{pidfd: -1}
		c.targets[id] = t
	}
	if t.pidfd >= 0 || c.pidfds.full() {
		return t
	}
	if fd, err := c.open(p.PID, 0); err == nil && (!c.lives(id) || !c.pidfds.add(fd, t)) {
		_ = unix.Close(fd)
	}
	return t
}

// lives reports whether the number still belongs to the process that was found.
func (c *clearing) lives(id identity) bool {
	now, err := proc.Read(c.fsys, id.pid)
	return err == nil && now.Started == id.started
}

// send signals a process, unless it has ended meanwhile.
func (c *clearing) send(p proc.Process, t *target, sig unix.Signal) {
	t.failed = unix.ENOSYS
	if t.pidfd >= 0 {
		t.failed = c.signal(t.pidfd, sig, nil, 0)
	}
	if errors.Is(t.failed, unix.ENOSYS) || errors.Is(t.failed, unix.EPERM) { // an old kernel, or a seccomp profile
		t.failed = nil
		if c.lives(identityOf(p)) {
			t.failed = c.kill(p.PID, sig)
		}
	}
	if errors.Is(t.failed, unix.ESRCH) {
		t.failed = nil
	}
}

// wait waits until all of n processes have ended, at most until the given time. When the first one ends, it waits only
// for a pause more, because that process may have left orphans. It waits for a pause only, too, if the caller wants to
// look again soon, or if it does not see all ends.
func (c *clearing) wait(ctx context.Context, until time.Time, n int, soon bool) {
	c.pause = min(max(2*c.pause, shortestPause), longestPause)
	shorten := func() {
		if end := time.Now().Add(c.pause); end.Before(until) {
			until = end
		}
	}
	soon = soon || c.pidfds.len() < n
	if soon {
		shorten()
	}
	for c.pidfds.await(ctx, until) && c.pidfds.len() > 0 {
		if !soon {
			soon = true
			shorten()
		}
	}
}

// describe names processes, with the reasons why they are left.
func (c *clearing) describe(left []proc.Process) string {
	var each []string
	for _, p := range left[:min(len(left), mostDescribed)] {
		why := "it has not ended"
		t := c.targets[identityOf(p)]
		switch {
		case t != nil && errors.Is(t.failed, unix.EPERM):
			why = "it belongs to another user: " + t.failed.Error()
		case t != nil && t.failed != nil:
			why = t.failed.Error()
		case p.State == 'D':
			why = "the kernel cannot end it during a system call"
		case t != nil && t.killed:
			why = "it has not ended after SIGKILL"
		}
		each = append(each, fmt.Sprintf("%d (%s, state %c): %s", p.PID, strings.ToValidUTF8(p.Name, "?"), p.State, why))
	}
	text := fmt.Sprintf("%d left: %s", len(left), strings.Join(each, "; "))
	if more := len(left) - len(each); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}
