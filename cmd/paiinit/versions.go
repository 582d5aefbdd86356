package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// ownLauncher is the launcher of this container, and on rank 0 what is compared with it.
type ownLauncher struct {
	answer   chan string // what the launcher says of its version
	cancel   context.CancelFunc
	versions launch.Versions // of the launchers of all ranks
}

// askLauncher finds out which launcher this container has while it gets ready, which takes longer than the answer.
func (c *container) askLauncher(ctx context.Context) {
	c.launcher.answer = make(chan string, 1)
	switch {
	case c.mayComeLater(): // tellLauncher asks
	case c.job.Size == 1, c.exec == execAll:
		c.launcher.answer <- ""
	default:
		ctx, c.launcher.cancel = context.WithCancel(ctx)
		c.serve.Go(func() { c.launcher.answer <- launch.Identify(ctx, c.settings.command, c.agent.Environ, true) })
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
func (id *identity) mayComeLater() bool {
	return id.job.Rank > 0 && id.exec != execAll && !id.sameLauncher
}

// tellLauncher passes on what the launcher of this container says when that is not known before this container is
// announced: where rank 0 may hear it later, the launcher is asked only now.
func (c *container) tellLauncher(ctx context.Context) {
	if !c.mayComeLater() && !c.launcher.versions.Awaited() {
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
			found = <-c.launcher.answer // close ends it
		}
		if launch.Known(found) {
			c.log.Debug("launcher", "phase", "listen", "launcher", found)
			c.node.SetLaunch(found)
		}
		c.launcher.versions.Own(launch.Found{Host: c.node.Self().ID, Launchers: found}, c.log)
	})
}

// found is the answer, "" if it does not come in time and --require-same-launcher does not wait for it.
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

// hearLate compares a launcher that was not known in time for the check with rank 0's, as soon as both are known.
func (l *ownLauncher) hearLate(r rendezvous.Record, log *slog.Logger) {
	l.versions.Late(launch.Found{Host: r.ID, Launchers: r.Launch}, log)
}

// check looks for launchers of different versions: their daemons may not understand each other.
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
