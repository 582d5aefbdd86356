package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
)

// A launcher is not believed: it may hang when one of its daemons has failed, hang when all of them have ended, and say that
// all is well when it has lost one or has never used the other hosts. What is known better is known from the sessions by
// which it reached the other hosts.

const (
	// A launcher whose daemons have all ended may still have to write what the ranks printed.
	failurePatience = 10 * time.Second
	// zombieInterval is how often children of the launcher are looked at that it may not look at itself.
	zombieInterval = 5 * time.Second
)

// daemons is what rank 0 knows of the sessions by which the launcher reached other hosts.
type daemons struct {
	fails chan failure   // the first daemon that failed
	idle  chan time.Time // since when none of them runs any more; the latest
	done  chan farewell  // the last hydra proxy that ended with status 0

	mu      sync.Mutex
	reached map[string]bool // containers in which something was started
	used    map[string]bool // those where it did more than look around
	hosts   int             // on how many the launcher says that it has daemons
	tree    bool            // daemons start others, nobody knows how many
	watched bool            // a daemon was started that is not hydra's
	running int             // daemons of Open MPI that stay in their session: these end with the job, hydra's when their ranks have
	lost    string          // the first of either kind whose session was lost
}

func newDaemons() *daemons {
	return &daemons{fails: make(chan failure, 1), idle: make(chan time.Time, 1), done: make(chan farewell, 1),
		reached: make(map[string]bool), used: make(map[string]bool)}
}

// farewell says when all ranks of a host ended. A hydra proxy ends with 0 whatever their statuses were.
type farewell struct {
	host, launcher string
	at             time.Time
}

// failure is why the command should end, how long it may take to do so by itself, and the status of the job if it does not.
type failure struct {
	reason   string
	patience time.Duration
	status   int
}

func (d *daemons) fail(f failure) {
	select {
	case d.fails <- f:
	default: // the first one decides
	}
}

func (d *daemons) begun(host string, daemon launch.Daemon, probe bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reached[host] = true
	d.used[host] = d.used[host] || !probe
	d.hosts = max(d.hosts, daemon.Hosts)
	d.tree = d.tree || daemon.Tree()
	l := daemon.Launcher()
	d.watched = d.watched || daemon.Program != "" && !l.MissesFailures
	if !daemon.Detached && l.DaemonsStay {
		d.running++
	}
}

// isWatched reports whether the launcher looks after its remote shells itself, as all but hydra do. On a busy machine
// it may take long to wait for a remote shell that it has ended itself.
func (d *daemons) isWatched() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.watched
}

func (d *daemons) ended() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running--
	if d.running > 0 {
		return
	}
	latest(d.idle, time.Now())
}

func (d *daemons) over(host, launcher string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	latest(d.done, farewell{host, launcher, time.Now()})
}

// latest replaces the value in a channel of capacity 1. Callers must not overlap.
func latest[T any](c chan T, value T) {
	select {
	case <-c:
	default:
	}
	c <- value
}

func (d *daemons) lose(reason string, counted bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if counted {
		d.running--
	}
	if d.lost == "" {
		d.lost = reason
	}
}

func (d *daemons) now() (running int, lost string, reached []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for host := range d.reached {
		reached = append(reached, host)
	}
	slices.Sort(reached)
	return d.running, d.lost, reached
}

// usedHosts are the containers in which more than a probe was started.
func (d *daemons) usedHosts() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.used)
}

// told is on how many hosts the launcher says that it has daemons, and whether these start others that nobody counts.
func (d *daemons) told() (hosts int, tree bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hosts, d.tree
}

// onExec hears of a command that was started on another host.
func (c *container) onExec(t rsh.Target, command string) {
	d, _ := launch.DaemonOf(command)
	c.daemons.begun(t.Name, d, launch.Probe(command))
}

// onFailure hears of a command on another host that could not be started, or was lost.
func (c *container) onFailure(t rsh.Target, command, stage string, err error) {
	c.log.Warn("a remote command failed", "phase", "wait", "peer", t.Name, "stage", stage, "err", err)
	d, ok := launch.DaemonOf(command)
	f := failure{fmt.Sprintf("the remote shell to %s failed (%s)", t.Name, stage), failurePatience, statusRetry}
	l := d.Launcher()
	if ok {
		f.patience = l.Patience
	}
	switch {
	case stage == rsh.StageResolve && !l.MissesFailures:
		return // a name that somebody mistyped
	case stage == rsh.StageResolve:
		f.reason, f.status = fmt.Sprintf("the launcher was told to use %s, which is no container of this job", t.Name), statusUnmendable
	case stage == rsh.StageSession && ok && !d.Detached:
		c.daemons.lose(fmt.Sprintf("the launcher's daemon on %s was lost", t.Name), l.DaemonsStay)
	}
	c.daemons.fail(f)
}

// onExit hears of a command on another host that has ended. MPICH's hydra does not always notice when one of its proxies
// fails; every other launcher ends by itself then, and a script of the user's may fail as it likes.
func (c *container) onExit(t rsh.Target, command string, s rsh.Status) {
	d, ok := launch.DaemonOf(command)
	if !ok || d.Detached {
		return
	}
	l := d.Launcher()
	switch {
	case l.DaemonsStay:
		c.daemons.ended()
	case !l.MissesFailures:
	case s.Code == 0:
		c.daemons.over(t.Name, l.Name)
	default:
		f := failure{fmt.Sprintf("the launcher's proxy on %s ended with status %d", t.Name, s.Code), l.Patience, statusRetry}
		if s.Signal == 0 && s.Code < 128 {
			f.status = s.Code // that of its ranks
		}
		c.daemons.fail(f)
	}
}

// interruption is why the command was stopped, and the status of the job then; 0 = what the command itself says.
type interruption struct {
	reason string
	status int
	lost   string // what made it impossible to go on, after the command was told to end for another reason
}

// watch passes on what other ranks want while the command runs. It returns the first reason why the command was stopped: a
// wish of a rank, a lost rank, or a daemon of the launcher that had failed while the launcher did not end.
//
// A wish to stop goes the gentle way; what cannot go on is ended at once.
func (c *container) watch(ctx context.Context, hard, gently func(os.Signal)) (why interruption) {
	var failed failure
	var impatient, stuck <-chan time.Time
	var dead map[int]int // agents of the launcher, and their statuses, when it was last looked
	look := time.NewTicker(zombieInterval)
	defer look.Stop()
	if !launch.IsLauncher(c.settings.command[0]) {
		look.Stop()
	}
	var idle, failedAt time.Time
	var left farewell
	var lull <-chan time.Time
	var told int // the launcher that the line below was logged for
	end := func(pass func(os.Signal), sig int, because interruption) {
		if why.reason == "" {
			why = because
			pass(stopSignal(sig))
		}
	}
	var force <-chan time.Time
	abort := func(because interruption) { // there is nothing to be saved any more, and hydra may not end without its proxies
		if why.reason != "" {
			if why.status == 0 && why.lost == "" {
				why.lost = because.reason
			}
			return // the command was told to end, and has its time for that
		}
		end(hard, 0, because)
		if launch.IsLauncher(c.settings.command[0]) {
			force = time.After(launch.EndTime)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return why
		case failed = <-c.daemons.fails:
			failedAt, impatient = time.Now(), time.After(failed.patience)
		case <-impatient:
			if !launch.IsLauncher(c.settings.command[0]) && len(c.launchersSince(failedAt)) == 0 {
				impatient = nil
				break // it has ended by itself, and the script that had started it goes on
			}
			c.log.Error("the command does not end after a failure", "phase", "wait", "reason", failed.reason)
			abort(interruption{reason: failed.reason + ", and the command did not end by itself",
				status: failed.status})
		case <-look.C:
			if c.daemons.isWatched() {
				break
			}
			_, all, job := c.jobProcesses()
			now := unnoticed(all, launchers(all, job, math.MaxInt64))
			for pid, status := range now {
				if before, ok := dead[pid]; ok && before == status {
					c.daemons.fail(failure{fmt.Sprintf("the launcher's remote shell ended with status %d", status), 0, statusRetry})
					break
				}
			}
			dead = now
		case <-force:
			hard(syscall.SIGKILL)
		case idle = <-c.daemons.idle:
			stuck = time.After(failurePatience)
		case <-stuck:
			if running, _, _ := c.daemons.now(); running > 0 || !c.killStuck(idle) || !launch.IsLauncher(c.settings.command[0]) {
				break // it has started daemons again, or ended; or it is a script, which goes on by itself
			}
			if why.reason == "" {
				why = interruption{reason: "the launcher did not end when its daemons on all hosts had",
					status: statusRetry}
			}
		case left = <-c.daemons.done:
			lull = time.After(failurePatience)
		case <-lull:
			// MPICH does not end a job when a rank that is alone on its host exits with an error: the others may wait
			// for it for ever.
			if pids := c.launchersSince(left.at); len(pids) > 0 && pids[0] != told {
				told = pids[0]
				c.log.Info("all ranks on a host have ended, others go on; "+left.launcher+" does not tell whether one has failed",
					"phase", "wait", "peer", left.host, "ago", failurePatience)
			}
		case s := <-c.node.Stops():
			c.log.Warn("a rank wants the job to stop", "phase", "wait", "peer", s.Name, "reason", s.Reason)
			end(gently, s.Signal, interruption{reason: s.Reason})
		case l := <-c.node.Losses():
			c.log.Error("a rank is lost", "phase", "wait", "peer", l.Name, "rank", l.Rank, "reason", l.Reason)
			abort(interruption{reason: lossText(l), status: statusRetry})
		}
	}
}

// killStuck ends a launcher of this job that was started before its daemons ended, and is still there: all that is left for
// it to do is to exit. Open MPI 5.0 may wait for itself there (openpmix/prrte#1607, #1839).
func (c *container) killStuck(idle time.Time) bool {
	killed := false
	for _, pid := range c.launchersSince(idle) {
		c.log.Error("the launcher does not end, although its daemons on all hosts have", "phase", "wait", "pid", pid)
		killed = syscall.Kill(pid, syscall.SIGKILL) == nil || killed
	}
	return killed
}

// launchersSince finds the launchers of this job that were there at a time already.
func (c *container) launchersSince(at time.Time) []int {
	_, all, job := c.jobProcesses()
	return launchers(all, job, sinceBoot()-time.Since(at))
}

// launchers finds the MPI launchers of the job that were started before a time since the machine's boot.
func launchers(all processes, job []int, before time.Duration) (found []int) {
	for _, pid := range job {
		if p := all[pid]; p.state != 'Z' && launch.IsLauncher(p.name) && p.started <= before {
			found = append(found, pid)
		}
	}
	return found
}

// unnoticed finds children of launchers that have failed and that their parent has not waited for, with their statuses:
// hydra does not look at its remote shells before the job ends.
func unnoticed(all processes, launchers []int) map[int]int {
	found := make(map[int]int)
	for pid, p := range all {
		if p.state != 'Z' || p.exit == 0 || !slices.Contains(launchers, p.parent) {
			continue
		}
		status := syscall.WaitStatus(p.exit)
		if status.Signaled() {
			found[pid] = 128 + int(status.Signal())
		} else {
			found[pid] = status.ExitStatus()
		}
	}
	return found
}

func sinceBoot() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0 // then nothing was started before
	}
	return time.Duration(ts.Nano())
}

// judge says how the job ended: by what the command said, and by what is known better. launcher says that the command
// is a launcher, or was running one when it was told to stop.
func (c *container) judge(
	ctx context.Context, r rendezvous.Roster, environ []string, result launch.Result, why interruption, launcher bool,
) rendezvous.Outcome {
	name := c.settings.command[0]
	o := rendezvous.Outcome{Status: result.Status(), Reason: launch.FirstCause(0, name, result, oomKills(os.DirFS("/"))-c.oomKills)}
	direct := launch.IsLauncher(name)
	_, lost, _ := c.daemons.now()
	announced, known := launch.Announced(result.Tail)
	switch {
	case why.status == statusRetry && result.Signal == syscall.SIGKILL && known: // a launcher that said why it ends, and did not
		o.Status = announced
	case why.status != 0:
		o.Status = why.status
	case launcher && result.Forwarded != 0:
		o.Status = result.JobStatus(launcher)
	case result.Forwarded != 0 && o.Status == 0: // it may have saved its work
	case direct && o.Status == 0 && lost != "":
		// Open MPI 5.0 says 0 when a host goes away.
		o = rendezvous.Outcome{Status: statusRetry, Reason: lost + "; " + o.Reason}
	case direct && o.Status == 0 && len(r.Members) > 1 && c.lostMeanwhile(ctx, 0, &o):
	case o.Status == 0 && why.lost != "":
		o = rendezvous.Outcome{Status: statusRetry, Reason: why.lost + "; " + o.Reason}
	case o.Status == 0:
		if partial := c.checkReached(r, environ); partial != nil {
			return *partial
		}
	case why.reason == "" && result.Forwarded == 0 && len(r.Members) > 1:
		// A launcher that failed because a host went away says so in its own words and with its own status.
		c.lostMeanwhile(ctx, settle, &o)
	}
	if why.reason != "" {
		o.Reason = why.reason + "; " + o.Reason
	}
	if o.Status == statusRetry {
		// A rank that is away at this moment would come to the same end by itself, so nobody waits for it.
		for _, l := range c.node.Absent(context.WithoutCancel(ctx), 0, 0) {
			c.node.GiveUp(l.Rank)
		}
	}
	return o
}

// lostMeanwhile makes a lost rank the outcome, if there is one.
func (c *container) lostMeanwhile(ctx context.Context, settle time.Duration, o *rendezvous.Outcome) bool {
	absent := c.node.Absent(context.WithoutCancel(ctx), settle, absence)
	if len(absent) > 0 {
		*o = rendezvous.Outcome{Status: statusRetry, Reason: lossText(absent[0]) + "; " + o.Reason}
	}
	return len(absent) > 0
}

// slotsAsked are the slots of the hosts among which the launcher was to choose, by alias.
func (c *container) slotsAsked(ctx context.Context, request launch.Request) (map[string]int, error) {
	count := make(map[string]int)
	hostfile := request.Hostfile
	if request.HostfileOptional {
		if _, err := os.Stat(hostfile); err != nil {
			hostfile = ""
		}
	}
	switch {
	case request.Hosts != nil:
		for _, h := range request.Hosts {
			t, ok := c.resolve(ctx, h)
			if !ok {
				return nil, fmt.Errorf("%s is no container of this job", h)
			}
			count[t.Name]++
		}
	case hostfile != "":
		hosts, err := readHosts(hostfile)
		if err != nil {
			return nil, err
		}
		for _, h := range hosts {
			t, ok := c.resolve(ctx, h.Name)
			if !ok {
				return nil, fmt.Errorf("%s is no container of this job", h.Name)
			}
			count[t.Name] += h.Slots
		}
	default:
		members, _ := c.named()
		for i := range members {
			count[members[i].Alias] = c.slotsOf(members[i])
		}
	}
	for _, h := range request.Without {
		if t, ok := c.resolve(ctx, h); ok {
			delete(count, t.Name)
		}
	}
	return count, nil
}

// readHosts reads a host list in the form of Open MPI or of hydra.
func readHosts(name string) (hosts []hostfile.Host, err error) {
	b, err := os.ReadFile(filepath.Clean(name))
	if err != nil {
		return nil, err
	}
	if hosts, err = hostfile.Parse(bytes.NewReader(b), hostfile.OpenMPI); err != nil {
		hosts, err = hostfile.Parse(bytes.NewReader(b), hostfile.Hydra)
	}
	return hosts, err
}

// likelyCause says what may have kept a launcher from the other hosts.
func (c *container) likelyCause(environ []string) string {
	var own []string
	for _, v := range launch.Environment(launch.Setup{Hostfile: "/x", CountedHostfile: "/x", Agent: []string{"/x"}, AgentPath: "/x"}) {
		if value := lookup(environ, v.Name); value == "" && slices.ContainsFunc(c.agent.Environ, func(kv string) bool { return strings.HasPrefix(kv, v.Name+"=") }) ||
			value != "" && lookup(c.agent.Environ, v.Name) == value {
			own = append(own, v.Name+"="+value)
		}
	}
	if len(own) > 0 {
		return "The job's own environment has " + strings.Join(own, " ") + ", which wins over what the launcher needs here."
	}
	return "The launcher did not read the host list in its environment: an option or a configuration file of its own may have taken its place."
}
