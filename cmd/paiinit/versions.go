package main

import (
	"context"
	"time"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// askLauncher finds out which launcher this container has while it gets ready, which takes longer than the answer.
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
const versionWait = 50 * time.Millisecond

// lastFirst delays work that rank 0 does not need: if this container is the last to come, the job is launched by
// then.
const lastFirst = 100 * time.Millisecond

// mayComeLater reports whether rank 0 may hear of this container's launcher after this container has registered: a host
// with several of them takes 10 ms to say their versions, and the job would wait for the last container.
func (c *container) mayComeLater() bool {
	return c.job.Rank > 0 && c.exec != execAll && !c.sameLauncher
}

// tellLauncher passes on what the launcher of this container says when that is not known before this container is
// announced: where rank 0 may hear it later, the launcher is asked only now.
func (c *container) tellLauncher(ctx context.Context) {
	if !c.mayComeLater() && !c.versions.Awaited() {
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
		t := time.NewTimer(versionWait)
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
		c.versions.Await()
		return ""
	}
}

// hearOwn compares the launcher of this container, when it answers late, with the launchers that have answered before it.
func (c *container) hearOwn(id, found string) {
	c.versions.Own(launch.Found{Host: id, Launchers: found}, c.log)
}

// hearLate compares a launcher that was not known in time for the check with rank 0's, as soon as both are known.
func (c *container) hearLate(r rendezvous.Record) {
	c.versions.Late(launch.Found{Host: r.ID, Launchers: r.Launch}, c.log)
}

// checkLaunchers looks for launchers of different versions: their daemons may not understand each other.
func (c *container) checkLaunchers(r rendezvous.Roster) *rendezvous.Outcome {
	if r.Members[0].Launch == "" && c.versions.Awaited() {
		for _, m := range r.Members[1:] {
			if m.Launch != "" {
				c.hearLate(m.Record)
			}
		}
		return nil
	}
	all := make([]launch.Found, len(r.Members))
	for i := range r.Members {
		all[i] = launch.Found{Host: r.Members[i].Alias, Launchers: r.Members[i].Launch}
	}
	refused := launch.CheckVersions(all, c.sameLauncher, c.exec == execRank0, c.log)
	if refused == "" {
		return nil
	}
	return &rendezvous.Outcome{Status: statusUnmendable, Reason: refused}
}
