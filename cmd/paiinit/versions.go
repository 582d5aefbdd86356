package main

import (
	"context"
	"time"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// askLauncher queries the launcher's version in the background, which takes less time than starting this container.
func (c *container) askLauncher(ctx context.Context) {
	if c.mayComeLater() || c.job.Size == 1 || c.exec == execAll {
		return // tellLauncher queries it, or it does not matter
	}
	ctx, c.cancelVersionQuery = context.WithCancel(ctx)
	query := func() string { return launch.Identify(ctx, c.settings.command, c.agent.Environ, true) }
	c.serve.Go(c.versions.Ask(query))
}

// versionWait bounds how long the launch waits for a slow version query, such as one on a cold file system.
// tellLauncher announces a later answer.
const versionWait = 50 * time.Millisecond

// mayComeLater reports whether this container may announce its launcher after it has registered. Otherwise the job
// would wait for the version query of the last container.
func (id *identity) mayComeLater() bool {
	return id.job.Rank > 0 && id.exec != execAll && !id.sameLauncher
}

// tellLauncher announces this container's launcher in the background, if the registration did not include it. With
// mayComeLater it also starts the version query.
func (c *container) tellLauncher(ctx context.Context) {
	if !c.mayComeLater() && !c.versions.Awaited() {
		return
	}
	c.serve.Go(func() {
		if c.mayComeLater() {
			if !c.node().Rest(ctx, deferUntilLaunched) {
				return
			}
			query := func() string { return launch.Identify(ctx, c.settings.command, c.agent.Environ, false) }
			c.versions.Ask(query)()
		}
		found := c.versions.Answer(c.node().Self().ID, nil, c.log) // close cancels the query
		if launch.Known(found) {
			c.log.Debug("launcher", "phase", "listen", "launcher", found)
			c.node().SetLaunch(found)
		}
	})
}

// ownLauncher returns the launcher's version, "" if the query takes longer than versionWait. With
// --require-same-launcher it waits without limit. self is the ID of this container.
func (c *container) ownLauncher(self string) string {
	var tooLate <-chan time.Time
	if !c.sameLauncher {
		tooLate = time.After(versionWait)
	}
	found := c.versions.Answer(self, tooLate, c.log)
	if found != "" {
		c.log.Debug("launcher", "phase", "listen", "launcher", found)
	}
	return found
}

// hearLate compares a launcher that a rank has announced after the check with rank 0's, once both are known.
func (c *container) hearLate(r rendezvous.Record) {
	c.versions.Late(launch.Found{Host: r.ID, Launchers: r.Launch}, c.log)
}

// checkLaunchers compares the launchers' versions, because daemons of different versions may be incompatible.
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
		all[i] = launch.Found{Host: r.Members[i].Display(), Launchers: r.Members[i].Launch}
	}
	refused := launch.CheckVersions(all, c.sameLauncher, c.exec == execRank0, c.log)
	if refused == "" {
		return nil
	}
	return &rendezvous.Outcome{Status: statusUnmendable, Reason: refused}
}
