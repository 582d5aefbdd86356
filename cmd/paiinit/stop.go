package main

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// MPI launchers give their ranks one second between SIGTERM and SIGKILL. Open MPI 4.1 can be told another time, and then waits
// for it whole, and about twice, whenever any rank fails (measured: 3 to 4 s by default, 8 to 10 s when told 3 s). So the
// ranks get the signal from the paiinit of their own host, and the time of --grace to save their work; the launcher ends
// when they have, or is told to end for the last of that time.

// launcherTime is what a launcher needs to end once it was told to.
const launcherTime = 3 * time.Second

// gentle stops a launcher by its ranks first.
type gentle struct {
	c    *container
	hard func(os.Signal) // to the launcher itself

	mu     sync.Mutex
	told   bool // the command, or its ranks, know that they are to end
	asked  bool // this container was asked itself
	begun  bool // the ranks were told first
	timers []*time.Timer
}

// own is the way of this container's signals. Who ends a whole job, as Kubernetes does, tells every container: the first one here
// that comes after another rank's wish says the same again, and is no reason to hurry.
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

// ends says whether launch ends a command that was given the signal.
func ends(sig os.Signal) bool {
	return sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGQUIT
}

// pass has a first SIGTERM go to the ranks everywhere; whatever else, and SIGTERM where there is no time or nobody to give it to,
// goes to the command itself. The caller holds the lock.
func (g *gentle) pass(sig os.Signal) {
	g.told = g.told || ends(sig)
	if sig != syscall.SIGTERM || g.begun || g.c.grace < 2*launcherTime || !launch.IsLauncher(g.c.settings.command[0]) {
		g.hard(sig)
		return
	}
	g.begun = true
	g.c.log.Info("the ranks are told to end, the launcher later", "phase", "wait", "grace", g.c.grace-launcherTime)
	g.c.node.Order(int(syscall.SIGTERM), "the ranks are told to end")
	g.c.stopRanks(syscall.SIGTERM)
	for _, d := range []time.Duration{g.c.grace - launcherTime, g.c.grace} { // the second one ends it by force
		g.timers = append(g.timers, time.AfterFunc(d, func() { g.hard(syscall.SIGTERM) }))
	}
}

// end forgets what was to come. It returns whether the ranks were told to end.
func (g *gentle) end() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.timers {
		t.Stop()
	}
	return g.begun
}

// stopRanks signals the ranks that a launcher of this job has started in this container.
func (c *container) stopRanks(sig syscall.Signal) {
	for _, r := range ranksHere(os.DirFS("/proc"), "PAIINIT_AGENT="+c.state.path(socketName)) {
		_ = syscall.Kill(r, sig) // it may have ended meanwhile
	}
}

// ranksHere finds what launchers have started as ranks: processes that have a variable in their environment and one of those
// that tell a rank who it is, with a parent that has not. A rank that leads a process group is told with all of it: -pid.
func ranksHere(proc fs.FS, variable string) (ranks []int) {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil
	}
	type process struct{ parent, group int }
	found := make(map[int]process)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environ, err := fs.ReadFile(proc, e.Name()+"/environ")
		if err != nil {
			continue
		}
		ours, rank := false, false
		for kv := range bytes.SplitSeq(environ, []byte{0}) {
			name, _, _ := strings.Cut(string(kv), "=")
			ours = ours || string(kv) == variable
			rank = rank || slices.Contains([]string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}, name)
		}
		if !ours || !rank {
			continue
		}
		stat, err := fs.ReadFile(proc, e.Name()+"/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // state, parent, process group (proc(5))
		if len(fields) < 3 {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		group, errGroup := strconv.Atoi(fields[2])
		if err == nil && errGroup == nil {
			found[pid] = process{parent, group}
		}
	}
	for pid, p := range found {
		if _, child := found[p.parent]; child {
			continue
		}
		if p.group == pid {
			pid = -pid
		}
		ranks = append(ranks, pid)
	}
	slices.Sort(ranks)
	return ranks
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
