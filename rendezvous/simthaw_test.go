package rendezvous

import (
	"context"
	"math/rand/v2"
	"time"
)

// Freezes in the fault simulation. A frozen container runs nothing, and only its kernel acknowledges. When it goes on
// after a noticeable time, its command stays stopped until its generation is confirmed, as in cmd.

// simFrozen is the shortest freeze that cmd is sure to notice.
const simFrozen = 4 * time.Second

// span is a time in which a command does not run; zero to = until its end.
type span struct{ from, to time.Time }

func (p *span) holds(at time.Time) bool {
	return !at.Before(p.from) && (p.to.IsZero() || at.Before(p.to))
}

// freeze stops a container, with its timers, for a while.
func (s *sim) freeze(c *simInst, lasts time.Duration) {
	if s.isFrozen(c) { // by another fault
		return
	}
	s.mu.Lock()
	now := &span{from: time.Now()}
	c.frozen = append(c.frozen, now)
	s.mu.Unlock()
	s.net.pause(c.host, true)
	s.nodeOf(c).post(func() { _ = s.net.awake(context.Background(), c.host) })
	time.Sleep(lasts)
	noticed := lasts >= simFrozen && s.restarts != nil
	s.mu.Lock()
	now.to = time.Now()
	c.unconfirmed = c.unconfirmed || noticed
	s.mu.Unlock()
	s.net.pause(c.host, false)
	if noticed {
		s.thaw(c)
	}
}

func (s *sim) isFrozen(c *simInst) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(c.frozen) > 0 && c.frozen[len(c.frozen)-1].to.IsZero()
}

// thaw stops the command of a container that was frozen, until its generation is confirmed, and else ends it.
func (s *sim) thaw(c *simInst) {
	s.mu.Lock()
	var a *simAct
	if len(c.acts) > 0 && c.acts[len(c.acts)-1].over().IsZero() {
		a = c.acts[len(c.acts)-1]
	}
	if a == nil || a.generation != c.node.Generation() {
		s.mu.Unlock()
		return
	}
	held := &span{from: time.Now()}
	a.stopped = append(a.stopped, held)
	n := c.node
	s.mu.Unlock()
	err := n.Confirm(context.Background())
	s.mu.Lock()
	switch {
	case err == nil:
		held.to, c.unconfirmed = time.Now(), false
	case a.gone.IsZero() && !c.killed:
		a.gone = time.Now()
	}
	s.mu.Unlock()
	s.net.meet("a thawed rank " + map[bool]string{true: "goes on", false: "is ended"}[err == nil])
}

// isStill reports whether a command that is there at that time does nothing from then on: it is frozen or stopped, and
// ends so. It also excuses a command whose container was frozen around that time, too shortly to be noticed.
func (s *sim) isStill(c *simInst, a *simAct, at time.Time) bool {
	if a == nil {
		return false
	}
	for _, p := range c.frozen {
		if !p.to.IsZero() && p.to.Sub(p.from) < simFrozen && p.from.Before(at) && p.to.After(a.at) {
			return true
		}
	}
	spans := append(append([]*span{}, c.frozen...), a.stopped...)
	for end := a.over(); ; {
		var by *span
		for _, p := range spans {
			if p.holds(at) {
				by = p
			}
		}
		switch {
		case by == nil:
			return !end.IsZero() && !end.After(at)
		case by.to.IsZero():
			s.net.met["a frozen rank is fenced"]++
			return true
		}
		s.net.met["a frozen rank is fenced"]++
		at = by.to
	}
}

// addThaw composes containers, or machines, that are frozen for longer than the fence and then go on.
func (p *plan) addThaw(r *rand.Rand, horizon int) {
	if p.restarts == nil || p.who != declared || r.IntN(4) > 0 {
		return
	}
	if r.IntN(2) == 0 { // this fault alone
		p.faults = nil
	}
	for range []int{1, 1, 2}[r.IntN(3)] {
		f := fault{kind: "thaw", rank: r.IntN(p.size), power: r.IntN(4) > 0}
		f.zero = f.rank == 0
		longest := []time.Duration{time.Second, 30 * time.Second, 90 * time.Second}[r.IntN(3)]
		f.lasts = fenceTime + time.Duration(r.Int64N(int64(longest)))
		f.moves = f.power && r.IntN(4) > 0
		f.after = time.Duration(r.Int64N(int64(20 * time.Second)))
		p.drawMoment(r, &f, horizon)
		p.faults = append(p.faults, f)
	}
}
