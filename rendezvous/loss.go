package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"
)

func (c *coordinator) onLost(t *target, w *wire, err error) {
	c.n.answered(w, false)
	if c.n.lead != c || t.link != w {
		return
	}
	switch c.n.phase {
	case Gathering, Prepared:
		if t.spare != nil {
			t.dropSpare(err)
			c.tryPrepare()
			return
		}
		c.n.log.Warn("a rank went away before the launch", "peer", c.nameOf(t), "reason", explain(err))
		c.unregister(t, w, fmt.Errorf("it was here, but its connection ended: %w", err))
		c.admit()
	case Running:
		c.dropArrivals(t)
		t.link, t.since, t.err = nil, time.Now(), err
		t.changed = t.since
		m, ok := c.memberOf(t)
		if !ok && c.n.cfg.Spares > 0 {
			t.rec = nil
			c.n.log.Info("a spare is out of reach", "peer", c.nameOf(t), "reason", explain(err))
			return
		}
		if ok && c.n.cfg.Rejoin { // its name may already lead to its next start
			t.moveTo(m.Addr)
		}
		c.wakeAbsentWaiters()
		c.n.log.Warn("control connection lost", "peer", c.nameOf(t), "reason", explain(err))
		since, grace := t.since, graceAfter(err)
		c.n.wg.Go(func() { c.judge(t, since, grace) })
	case Ended:
		t.link, t.since, t.err = nil, time.Now(), err
		if t.doneAck {
			t.drop() // it has left
		}
		c.checkEnd()
	}
}

// graceAfter is how long a lost control connection may take to come back.
func graceAfter(cause error) time.Duration {
	if errors.Is(cause, syscall.ETIMEDOUT) {
		return silentGrace
	}
	return lossGrace
}

func (cfg *Config) refusalGrace() time.Duration {
	if cfg.Rejoin {
		return rejoinGrace
	}
	return refusalGrace
}

// judge decides whether a rank whose control connection was lost is lost: it does not come back, and no other rank sees
// it. Nothing listens on a port that refuses, so judge waits less for it than for a silent one.
func (c *coordinator) judge(t *target, since time.Time, grace time.Duration) {
	for wait := min(c.n.cfg.refusalGrace(), grace); sleep(t.ctx, nil, wait); {
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
		view := c.n.askOthers(t.ctx, m, askTimeout)
		c.n.post(func() {
			switch {
			case c.n.phase != Running || !t.since.Equal(since):
			case view.Alive:
				c.n.warnUnreachable(m, explain(t.err))
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
	t.gone = t.link == nil                                                   // Finish does not wait for it
	offer(c.n.losses, Loss{Rank: m.Rank, Name: m.Display(), Reason: reason}) // the first losses decide
	c.checkCleared()
}

func (n *Node) warnUnreachable(m Member, reason string) {
	n.log.Warn("a rank is out of reach, but others see it", "peer", m.Display(), "rank", m.Rank, "reason", reason)
}

// Absent returns the ranks that have no control connection and that other ranks do not see either. Rank 0 calls it when
// its command has failed, because a lost rank is the likelier cause. A killed container may lose its processes before
// its paiinit, so Absent waits for settle for connections to end, then for grace for lost ones to come back, and then
// asks other ranks, unless grace is 0. It does not wait for ranks whose address refuses or cannot be routed to.
func (n *Node) Absent(ctx context.Context, settle, grace time.Duration) []Loss {
	c := n.leading()
	if c == nil {
		return nil
	}
	settled, deadline := time.After(settle), time.After(settle+grace)
	for {
		var absent []absentee
		var changed chan struct{}
		waiting := false
		if !n.ask(func() {
			for _, t := range c.targets {
				if m, ok := c.memberOf(t); ok && t.link == nil {
					waiting = waiting || !t.gone
					reason := "its control connection is lost (" + explain(t.err) + ")"
					absent = append(absent, absentee{m, t.gone, reason})
				}
			}
			changed = c.changed
		}) {
			return nil
		}
		slices.SortFunc(absent, func(a, b absentee) int { return a.member.Rank - b.member.Rank })
		enough := deadline
		switch {
		case len(absent) == 0:
			enough = settled
		case !waiting:
			return c.lost(ctx, absent, false)
		}
		ask := false
		select {
		case <-changed:
			continue
		case <-enough:
			ask = grace > 0
		case <-ctx.Done():
		}
		return c.lost(ctx, absent, ask)
	}
}

// absentee is a rank that is not connected to rank 0.
type absentee struct {
	member Member
	gone   bool
	reason string
}

// lost returns the absent ranks; with ask, it first asks other ranks and leaves out the ranks that these still see.
func (c *coordinator) lost(ctx context.Context, absent []absentee, ask bool) (out []Loss) {
	alive := make([]bool, len(absent))
	var wg sync.WaitGroup
	for i, a := range absent {
		if ask && !a.gone {
			wg.Go(func() { alive[i] = c.n.askOthers(ctx, a.member, askTimeout).Alive })
		}
	}
	wg.Wait()
	for i, a := range absent {
		if alive[i] {
			c.n.warnUnreachable(a.member, a.reason)
		} else {
			out = append(out, Loss{Rank: a.member.Rank, Name: a.member.Display(), Reason: a.reason})
		}
	}
	return out
}

// wakeAbsentWaiters wakes Absent when a connection comes, ends, or is given up.
func (c *coordinator) wakeAbsentWaiters() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// GiveUp keeps Finish from waiting for a rank that Absent has returned: it finds out by itself.
func (n *Node) GiveUp(rank int) {
	n.ask(func() {
		if n.lead == nil {
			return
		}
		if t := n.lead.byRank(rank); t != nil && t.link == nil {
			t.gone = true
		}
	})
}
