package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// MPI launchers give their ranks one second between SIGTERM and SIGKILL, and horovodrun gives mpirun less than that.
// Open MPI 4.1 can be told another time, and then waits for it whole, and about twice, whenever any rank fails
// (measured: 3 to 4 s by default, 8 to 10 s when told 3 s). So the ranks get the signal from the paiinit of their own
// host, and the time of --grace to save their work; the launcher ends when they have, or is told to end for the last
// of that time.

// launcherTime is what a launcher needs to end once it was told to.
const launcherTime = 3 * time.Second

// gentle stops a launcher by its ranks first.
type gentle struct {
	c         *container
	hard      func(os.Signal) // to the launcher itself
	soft      func(os.Signal) // to its ranks, on all hosts
	launchers func() []int    // that run now: the command itself, or what it has started

	mu     sync.Mutex
	told   bool // the command, or its ranks, know that they are to end
	asked  bool // this container was asked itself
	begun  bool // the ranks were told first
	ranked bool // a launcher was running when the command was told to end
	timers []*time.Timer
	cancel func() // stops waiting for the launchers below the command; nil: nothing waits
}

// own is the way of this container's signals. Kubernetes tells every container of a job that it ends: the first signal
// here after another rank's request says the same again, and the command is not told twice.
func (g *gentle) own(sig os.Signal) {
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

// wish is the way of what another rank was asked to do.
func (g *gentle) wish(sig os.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.told {
		g.pass(sig)
	}
}

// abort is the way of what leaves nothing to be saved.
func (g *gentle) abort(sig os.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = true
	g.hard(sig)
}

// The processes to which a signal for the command goes (--signal).
const (
	signalLeader = "leader" // COMMAND, through shells
	signalGroup  = "group"  // all of its process group
)

// ends says whether launch ends a command that was given the signal.
func ends(sig os.Signal) bool {
	return sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGQUIT
}

// pass has a first SIGTERM go to the ranks everywhere, and what repeats it as well: a launcher that gets a second
// signal kills its ranks at once. Everything else, and SIGTERM where there are no ranks or no time for them, goes to
// the command itself. The caller holds the lock.
func (g *gentle) pass(sig os.Signal) {
	g.told = g.told || ends(sig)
	if g.begun && ends(sig) {
		g.soft(sig)
		return
	}
	var below []int
	if ends(sig) && g.launchers != nil {
		below = g.launchers()
	}
	if ends(sig) {
		g.ranked = g.ranked || len(below) > 0 || launch.StartsRanks(g.c.settings.command)
	}
	if sig != syscall.SIGTERM || !g.ranked || g.c.grace < 2*launcherTime {
		g.hard(sig)
		return
	}
	g.begun = true
	if !launch.StartsRanks(g.c.settings.command) {
		// A script gets the signal as soon as its launcher has ended: otherwise it would go on to the end of its
		// commands.
		g.cancel = whenEnded(below, func() { g.hard(syscall.SIGTERM) })
	}
	g.c.log.Info("the ranks are told to end, the launcher later", "phase", "wait", "grace", g.c.grace-launcherTime)
	g.soft(sig)
	g.timers = append(g.timers,
		time.AfterFunc(g.c.grace-launcherTime, func() { g.hard(syscall.SIGTERM) }),
		time.AfterFunc(g.c.grace, func() { g.hard(syscall.SIGKILL) }))
}

// end forgets what was to come. It returns whether a launcher was running when the command was told to end.
func (g *gentle) end() bool {
	g.mu.Lock()
	ranked, cancel := g.ranked, g.cancel
	for _, t := range g.timers {
		t.Stop()
	}
	g.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	return ranked
}

// rankLaunchers finds the launchers of ranks among the processes of the job: what horovodrun, deepspeed or a script
// have started, and these themselves.
func (c *container) rankLaunchers() (found []int) {
	proc, all, job := c.jobProcesses()
	for _, pid := range job {
		line := commandLine(proc, pid)
		p := all[pid]
		if p.state != 'Z' && (launch.IsLauncher(p.name) || launch.StartsRanks(line)) && !launch.AsksVersion(line) {
			found = append(found, pid)
		}
	}
	return found
}

// whenEnded calls f when all of these processes, which may be no children of this one, have ended. The caller calls
// cancel once; after that f is not running. It does nothing where the kernel has no pidfd_open(2).
func whenEnded(pids []int, f func()) (cancel func()) {
	var fds []unix.PollFd
	closeAll := func() {
		for _, p := range fds {
			_ = unix.Close(int(p.Fd))
		}
	}
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case errors.Is(err, unix.ESRCH):
			continue // it has ended meanwhile
		case err != nil:
			closeAll()
			return func() {}
		}
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		closeAll()
		return func() {}
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		defer closeAll()
		for len(fds) > 0 {
			waiting := append(slices.Clone(fds), unix.PollFd{Fd: int32(stop), Events: unix.POLLIN})
			_, err := unix.Poll(waiting, -1)
			if err != nil && !errors.Is(err, unix.EINTR) || waiting[len(fds)].Revents != 0 {
				return
			}
			for i, p := range waiting[:len(fds)] {
				if p.Revents != 0 {
					_ = unix.Close(int(p.Fd))
					fds = slices.Delete(fds, i, i+1)
					break
				}
			}
		}
		f()
	})
	return func() {
		_, _ = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		wait.Wait()
		_ = unix.Close(stop)
	}
}

// stopAllRanks signals the ranks in all containers.
func (c *container) stopAllRanks(sig os.Signal) {
	n := sig.(syscall.Signal) // as all that the kernel knows
	c.node.Order(int(n), "the ranks are told to end")
	c.stopRanks(n)
}

// stopRanks signals the ranks that a launcher of this job has started in this container.
func (c *container) stopRanks(sig syscall.Signal) {
	proc, all, job := c.jobProcesses()
	for _, r := range ranks(proc, all, job, c.agent.Environ) {
		_ = syscall.Kill(r, sig) // it may have ended meanwhile
	}
}

// ranks finds what launchers have started as ranks among the processes of the job: those with a rank's variable and a
// parent without one; a variable of the container itself, in environ, makes no rank. For a rank that leads a process
// group, the number is that of the whole group: -pid.
func ranks(proc fs.FS, all processes, job []int, environ []string) (found []int) {
	inherited := func(name string) bool { return lookup(environ, name) != "" }
	marks := slices.DeleteFunc(launch.RankVariables(), inherited)
	marked := make(map[int]bool)
	for _, pid := range job { // a parent comes before its children
		has := variables(proc, pid)
		marked[pid] = slices.ContainsFunc(marks, func(name string) bool { return has[name] })
		if !marked[pid] || marked[all[pid].parent] {
			continue
		}
		if all[pid].group == pid {
			pid = -pid
		}
		found = append(found, pid)
	}
	slices.Sort(found)
	return found
}

// agreed is the roster of the commit.
func (c *container) agreed() rendezvous.Roster {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.roster
}

// awaitEnd waits on every rank but 0 until the job has ended, and tells the ranks of the launcher here when they are to end.
func (c *container) awaitEnd(ctx context.Context) (rendezvous.Outcome, error) {
	if err := c.writeHosts(c.agreed()); err != nil {
		c.log.Warn("this rank has no host list", "phase", "wait", "err", err)
	}
	done := make(chan struct{})
	var told sync.WaitGroup
	defer told.Wait()
	defer close(done)
	told.Go(func() {
		for {
			select {
			case <-done:
				return
			case s := <-c.node.Stops():
				c.log.Info("the ranks here are told to end", "phase", "wait", "signal", signalName(s.Signal))
				c.stopRanks(syscall.Signal(s.Signal))
			}
		}
	})
	return c.node.Wait(ctx)
}
