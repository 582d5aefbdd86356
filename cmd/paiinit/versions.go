package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// askLauncher finds out which launcher this container has, while it is getting ready: the answer takes less time than that.
func (c *container) askLauncher(ctx context.Context) {
	c.launcher = make(chan string, 1)
	switch {
	case c.mayComeLater(): // tellLauncher asks
	case c.job.Size == 1, c.exec == execAll:
		c.launcher <- ""
	default:
		ctx, c.unask = context.WithCancel(ctx)
		c.serve.Go(func() { c.launcher <- launch.Identify(ctx, c.settings.command, c.agent.Environ, true) })
	}
}

// A launcher that takes longer to say its version (a cold file system, a wrapper script) holds up no launch;
// tellLauncher passes its answer on.
const launcherPatience = 50 * time.Millisecond

// lastFirst is how long after the start that is put off which rank 0 does not need: if this container is the last to come, the job is launched by then.
const lastFirst = 100 * time.Millisecond

// mayComeLater says whether rank 0 may hear of this container's launcher after this container has registered: a host with several of them
// takes 10 ms to say their versions, and the job would wait for some of them if this container is the last to come.
func (c *container) mayComeLater() bool {
	return c.job.Rank > 0 && c.exec != execAll && !c.sameLauncher
}

// tellLauncher passes on what the launcher of this container says when that is not known before this container is
// announced: where rank 0 may hear it later, the launcher is asked only now.
func (c *container) tellLauncher(ctx context.Context) {
	if !c.mayComeLater() && !c.versions.awaited() {
		return
	}
	c.serve.Go(func() {
		var found string
		if c.mayComeLater() {
			if !c.node.Rest(ctx, lastFirst) {
				return
			}
			found = launch.Identify(ctx, c.settings.command, c.agent.Environ, false)
		} else {
			found = <-c.launcher // close ends it
		}
		if launch.Known(found) {
			c.log.Debug("launcher", "phase", "listen", "launcher", found)
			c.node.SetLaunch(found)
		}
		c.hearOwn(c.node.Self().ID, found)
	})
}

// launcherFound is the answer, "" if it does not come in time and --require-same-launcher does not wait for it.
func (c *container) launcherFound() string {
	if c.mayComeLater() {
		return ""
	}
	var late <-chan time.Time
	if !c.sameLauncher {
		t := time.NewTimer(launcherPatience)
		defer t.Stop()
		late = t.C
	}
	select {
	case found := <-c.launcher:
		if found != "" {
			c.log.Debug("launcher", "phase", "listen", "launcher", found)
		}
		return found
	case <-late:
		c.versions.await()
		return ""
	}
}

// versions is what rank 0 compares the launchers of the other ranks with. The answers may come in any order, and after
// the launch.
type versions struct {
	mu       sync.Mutex
	awaiting bool                // rank 0's own launcher has not answered yet
	early    []rendezvous.Record // of the ranks whose launchers have
	own      rendezvous.Record
	warned   []string // what differs and has been said
}

func (v *versions) await() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.awaiting = true
}

func (v *versions) awaited() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.awaiting
}

// hearOwn compares the launcher of this container, when it answers late, with the launchers that have
// answered before it.
func (c *container) hearOwn(id, found string) {
	c.versions.mu.Lock()
	defer c.versions.mu.Unlock()
	c.versions.awaiting = false
	c.versions.own = rendezvous.Record{ID: id, Launch: found}
	for _, r := range c.versions.early {
		c.compareLauncher(r)
	}
	c.versions.early = nil
}

// hearLate compares a launcher that was not known in time for the check with rank 0's, as soon as both are known.
func (c *container) hearLate(r rendezvous.Record) {
	c.versions.mu.Lock()
	defer c.versions.mu.Unlock()
	if c.versions.awaiting {
		c.versions.early = append(c.versions.early, r)
		return
	}
	c.compareLauncher(r)
}

// compareLauncher warns once of launchers that are the same as each other: many may come late. The caller holds the
// lock.
func (c *container) compareLauncher(r rendezvous.Record) {
	own := c.versions.own
	differ := launch.Differ([]string{own.ID, r.ID}, []string{own.Launch, r.Launch}, false)
	if differ == "" || slices.Contains(c.versions.warned, r.Launch) {
		return
	}
	c.versions.warned = append(c.versions.warned, r.Launch)
	c.log.Warn(differ, "phase", "check", "hint", "--require-same-launcher makes this an error")
}

// checkLaunchers looks for launchers of different versions: their daemons may not understand each other.
func (c *container) checkLaunchers(r rendezvous.Roster) *rendezvous.Outcome {
	if r.Members[0].Launch == "" && c.versions.awaited() {
		for _, m := range r.Members[1:] {
			if m.Launch != "" {
				c.hearLate(m.Record)
			}
		}
		return nil
	}
	var hosts, found []string
	for i, m := range r.Members {
		if m.Launch != "" || i == 0 || c.sameLauncher {
			hosts, found = append(hosts, m.Alias), append(found, m.Launch)
		}
	}
	differ := launch.Differ(hosts, found, c.sameLauncher)
	switch {
	case differ == "" && c.sameLauncher && c.exec == execRank0 && len(found) > 1 && !launch.Known(found[0]):
		return &rendezvous.Outcome{Status: statusUnmendable,
			Reason: "--require-same-launcher: " + hosts[0] + " has no launcher of a known version"}
	case differ == "":
		return nil
	case c.sameLauncher:
		return &rendezvous.Outcome{Status: statusUnmendable, Reason: differ}
	}
	c.log.Warn(differ, "phase", "check", "hint", "--require-same-launcher makes this an error")
	return nil
}
