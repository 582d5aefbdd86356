package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// ownLauncher is the launcher of this container. On rank 0 it also compares the launchers of all ranks.
type ownLauncher struct {
	answer   chan string        // receives the launcher's version
	cancel   context.CancelFunc // cancels the version query
	versions launch.Versions    // of the launchers of all ranks
}

// askLauncher queries the launcher's version in the background, which takes less time than starting this container.
func (c *container) askLauncher(ctx context.Context) {
	c.launcher.answer = make(chan string, 1)
	switch {
	case c.mayComeLater(): // tellLauncher queries it
	case c.job.Size == 1, c.exec == execAll:
		c.launcher.answer <- ""
	default:
		ctx, c.launcher.cancel = context.WithCancel(ctx)
		c.serve.Go(func() { c.launcher.answer <- launch.Identify(ctx, c.settings.command, c.agent.Environ, true) })
	}
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
	if !c.mayComeLater() && !c.launcher.versions.Awaited() {
		return
	}
	c.serve.Go(func() {
		var found string
		if c.mayComeLater() {
			if !c.node.Rest(ctx, deferUntilLaunched) {
				return
			}
			found = launch.Identify(ctx, c.settings.command, c.agent.Environ, false)
		} else {
			found = <-c.launcher.answer // close cancels the query
		}
		if launch.Known(found) {
			c.log.Debug("launcher", "phase", "listen", "launcher", found)
			c.node.SetLaunch(found)
		}
		c.launcher.versions.Own(launch.Found{Host: c.node.Self().ID, Launchers: found}, c.log)
	})
}

// found returns the launcher's version, "" if the query takes longer than versionWait. With --require-same-launcher it
// waits without limit.
func (l *ownLauncher) found(id *identity) string {
	if id.mayComeLater() {
		return ""
	}
	var late <-chan time.Time
	if !id.sameLauncher {
		t := time.NewTimer(versionWait)
		defer t.Stop()
		late = t.C
	}
	select {
	case found := <-l.answer:
		if found != "" {
			id.log.Debug("launcher", "phase", "listen", "launcher", found)
		}
		return found
	case <-late:
		l.versions.Await()
		return ""
	}
}

// hearLate compares a launcher that a rank has announced after the check with rank 0's, once both are known.
func (l *ownLauncher) hearLate(r rendezvous.Record, log *slog.Logger) {
	l.versions.Late(launch.Found{Host: r.ID, Launchers: r.Launch}, log)
}

// check compares the launchers' versions, because daemons of different versions may be incompatible.
func (l *ownLauncher) check(id *identity, r rendezvous.Roster) *rendezvous.Outcome {
	if r.Members[0].Launch == "" && l.versions.Awaited() {
		for _, m := range r.Members[1:] {
			if m.Launch != "" {
				l.hearLate(m.Record, id.log)
			}
		}
		return nil
	}
	all := make([]launch.Found, len(r.Members))
	for i := range r.Members {
		all[i] = launch.Found{Host: r.Members[i].Alias, Launchers: r.Members[i].Launch}
	}
	refused := launch.CheckVersions(all, id.sameLauncher, id.exec == execRank0, id.log)
	if refused == "" {
		return nil
	}
	return &rendezvous.Outcome{Status: statusUnmendable, Reason: refused}
}
