package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

func (c *coordinator) onLost(t *target, w *wire, err error) {
	c.n.probes.answered(w, false)
	if c.n.lead != c || t.link != w {
		return
	}
	switch c.n.phase {
	case Gathering, Prepared:
		if t.spare != nil {
			c.dropSpare(t, err)
			return
		}
		c.n.log.Warn("a rank went away before the launch", "peer", c.nameOf(t), "reason", explain(err))
		c.unregister(t, w, fmt.Errorf("it was here, but its connection ended: %w", err))
		c.admit()
	case Running:
		c.dropArrivals(t)
		t.link, t.since, t.err = nil, time.Now(), err
		t.changed = t.since
		c.wakeAbsentWaiters()
		c.n.log.Warn("control connection lost", "peer", c.nameOf(t), "reason", explain(err))
		since, grace := t.since, c.n.cfg.grace(err)
		c.n.wg.Go(func() { c.judge(t, since, grace) })
	case Ended:
		t.link, t.since, t.err = nil, time.Now(), err
		if t.doneAck {
			t.drop() // it has left
		}
		c.checkEnd()
	}
}

// grace is how long a lost control connection may take to come back. A connection that timed out has used up part of
// it.
func (cfg *Config) grace(cause error) time.Duration {
	if errors.Is(cause, syscall.ETIMEDOUT) {
		return min(silentGrace, cfg.LossGrace)
	}
	return cfg.LossGrace
}

// judge decides whether a rank whose control connection was lost is lost: it does not come back, and no other rank sees
// it. Nothing listens on a port that refuses, so judge waits less for it than for a silent one.
func (c *coordinator) judge(t *target, since time.Time, grace time.Duration) {
	for wait := min(refusalGrace, grace); ; {
		select {
		case <-t.ctx.Done():
			return
		case <-time.After(wait):
		}
		var m Member
		away, due := false, time.Since(since) >= grace
		if !c.n.ask(func() {
			m, away = c.memberOf(t)
			away = away && c.n.phase == Running && t.since.Equal(since)
			due = due || t.gone
		}) || !away {
			return
		}
		wait = max(grace-time.Since(since), time.Second)
		if !due {
			continue
		}
		view := c.n.askOthers(t.ctx, m, lookTimeout+lookTimeout/2)
		c.n.post(func() {
			switch {
			case c.n.phase != Running || !t.since.Equal(since):
			case view.Alive:
				c.n.log.Warn("a rank is out of reach, but others see it",
					"peer", m.Alias, "rank", m.Rank, "reason", explain(t.err))
			default:
				c.lose(t, fmt.Sprintf("its control connection has been lost for %v (%s)%s",
					time.Since(since).Round(100*time.Millisecond), explain(t.err), view.Reason))
			}
		})
	}
}

func (c *coordinator) lose(t *target, reason string) {
	m, ok := c.memberOf(t)
	if !ok {
		return
	}
	t.gone = t.link == nil // Finish does not wait for it
	select {
	case c.n.losses <- Loss{Rank: m.Rank, Name: m.Alias, Reason: reason}:
	default: // the first losses decide
	}
}

// Absent returns the ranks that have no control connection and that other ranks do not see either. Rank 0 calls it when
// its command has failed, because a lost rank is the likelier cause. A killed container may lose its processes before
// its paiinit, so Absent waits for settle for connections to end, then for grace for lost ones to come back, and then
// asks other ranks, unless grace is 0. It does not wait for ranks whose address refuses or cannot be routed to.
func (n *Node) Absent(ctx context.Context, settle, grace time.Duration) []Loss {
	if lead := n.leading(); lead != nil {
		return lead.absent(ctx, settle, grace)
	}
	return nil
}

func (c *coordinator) absent(ctx context.Context, settle, grace time.Duration) []Loss {
	settled := time.NewTimer(settle)
	defer settled.Stop()
	deadline := time.NewTimer(settle + grace)
	defer deadline.Stop()
	for {
		found := make(map[int]absentee) // by rank
		waiting := false
		changed := make(chan struct{})
		if !c.n.ask(func() {
			for _, t := range c.targets {
				if m, ok := c.memberOf(t); ok && t.link == nil {
					waiting = waiting || !t.gone
					found[m.Rank] = absentee{m, t.gone, "its control connection is lost (" + explain(t.err) + ")"}
				}
			}
			c.absentWaiters = append(c.absentWaiters, changed)
		}) {
			return nil
		}
		absent := make([]absentee, 0, len(found))
		for _, rank := range slices.Sorted(maps.Keys(found)) {
			absent = append(absent, found[rank])
		}
		enough := deadline.C
		switch {
		case len(absent) == 0:
			enough = settled.C
		case !waiting:
			return losses(absent)
		}
		select {
		case <-changed:
		case <-enough:
			if grace > 0 {
				absent = c.unseen(ctx, absent)
			}
			return losses(absent)
		case <-ctx.Done():
			return losses(absent)
		}
	}
}

// absentee is a rank that is not connected to rank 0.
type absentee struct {
	member Member
	gone   bool
	reason string
}

// unseen drops the ranks that other ranks see.
func (c *coordinator) unseen(ctx context.Context, absent []absentee) []absentee {
	alive := make([]bool, len(absent))
	var wg sync.WaitGroup
	for i, a := range absent {
		if !a.gone {
			wg.Go(func() { alive[i] = c.n.askOthers(ctx, a.member, lookTimeout+lookTimeout/2).Alive })
		}
	}
	wg.Wait()
	var out []absentee
	for i, a := range absent {
		if alive[i] {
			c.n.log.Warn("a rank is out of reach, but others see it",
				"peer", a.member.Alias, "rank", a.member.Rank, "reason", a.reason)
			continue
		}
		out = append(out, a)
	}
	return out
}

func losses(absent []absentee) (out []Loss) {
	for _, a := range absent {
		out = append(out, Loss{Rank: a.member.Rank, Name: a.member.Alias, Reason: a.reason})
	}
	return out
}

// wakeAbsentWaiters wakes Absent when a connection comes, ends, or is given up.
func (c *coordinator) wakeAbsentWaiters() {
	for _, changed := range c.absentWaiters {
		close(changed)
	}
	c.absentWaiters = nil
}

// GiveUp keeps Finish from waiting for a rank that Absent has returned: it finds out by itself.
func (n *Node) GiveUp(rank int) {
	n.ask(func() {
		if n.lead == nil {
			return
		}
		for _, t := range n.lead.targets {
			if m, ok := n.lead.memberOf(t); ok && m.Rank == rank && t.link == nil {
				t.gone = true
			}
		}
	})
}
