package main

import (
	"context"
	"slices"
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

// A launcher that takes longer to say its version (a cold file system, a wrapper script) holds up no launch.
const launcherPatience = 50 * time.Millisecond

// lastFirst is how long after the start that is put off which rank 0 does not need: if this container is the last to come, the job is launched by then.
const lastFirst = 100 * time.Millisecond

// mayComeLater says whether rank 0 may hear of this container's launcher after this container has registered: a host with several of them
// takes 10 ms to say their versions, and the job would wait for some of them if this container is the last to come.
func (c *container) mayComeLater() bool {
	return c.job.Rank > 0 && c.exec != execAll && !c.sameLauncher
}

// tellLauncher asks the launcher of which rank 0 may hear later, and tells it.
func (c *container) tellLauncher(ctx context.Context) {
	if !c.mayComeLater() {
		return
	}
	c.serve.Go(func() {
		select {
		case <-time.After(lastFirst):
		case <-ctx.Done():
			return
		}
		if found := launch.Identify(ctx, c.settings.command, c.agent.Environ, false); found != "" {
			c.log.Debug("launcher", "phase", "listen", "launcher", found)
			c.node.SetLaunch(found)
		}
	})
}

// launcherFound is the answer, "" if it does not come in time and nobody insists on it.
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
		return ""
	}
}

// hearLate compares a launcher that was not known in time for the check with rank 0's. Of those that are the same it speaks once: many may
// come late. The rendezvous calls it for one rank after the other.
func (c *container) hearLate(first, r rendezvous.Record) {
	differ := launch.Differ([]string{first.ID, r.ID}, []string{first.Launch, r.Launch})
	if differ == "" || slices.Contains(c.late, r.Launch) {
		return
	}
	c.late = append(c.late, r.Launch)
	c.log.Warn(differ, "phase", "check", "hint", "--require-same-launcher makes this an error")
}

// checkLaunchers looks for launchers of different versions: their daemons may not understand each other.
func (c *container) checkLaunchers(r rendezvous.Roster) *rendezvous.Outcome {
	var hosts, found []string
	for i, m := range r.Members {
		if m.Launch != "" || i == 0 || c.sameLauncher {
			hosts, found = append(hosts, m.Alias), append(found, m.Launch)
		}
	}
	differ := launch.Differ(hosts, found)
	switch {
	case differ == "" && c.sameLauncher && c.exec == execRank0 && len(found) > 1 && found[0] == "":
		return &rendezvous.Outcome{Status: statusUnmendable, Reason: "--require-same-launcher: " + hosts[0] + " has no launcher of a known version"}
	case differ == "":
		return nil
	case c.sameLauncher:
		return &rendezvous.Outcome{Status: statusUnmendable, Reason: differ}
	}
	c.log.Warn(differ, "phase", "check", "hint", "--require-same-launcher makes this an error")
	return nil
}
