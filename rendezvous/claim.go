package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Two containers may claim the same rank: a restarted one whose predecessor is not known to be dead, or one too many by
// a mistake in the environment. Only the process at the other end of the first one's connection can tell which, so it
// is asked over that connection.

// probes are the pings without an answer. Only the loop touches them.
type probes struct {
	n    *Node
	open map[*wire]*probe
}

// probe holds the functions to call with the answer of one ping.
type probe struct {
	then []func(alive bool)
}

// ask finds out whether the process at the other end of a connection still answers. The loop calls then with the
// result; a timeout and the end of the connection count as no.
func (q *probes) ask(w *wire, then func(alive bool)) {
	if p := q.open[w]; p != nil {
		p.then = append(p.then, then)
		return
	}
	p := &probe{then: []func(bool){then}}
	q.open[w] = p
	w.send(message{Type: ping})
	time.AfterFunc(q.n.cfg.scaled(probeTimeout), func() {
		q.n.post(func() {
			if q.open[w] == p {
				q.answered(w, false)
			}
		})
	})
}

func (q *probes) answered(w *wire, alive bool) {
	p := q.open[w]
	if p == nil {
		return
	}
	delete(q.open, w)
	for _, then := range p.then {
		then(alive)
	}
}

// contest decides between a registered start of a rank and another start, r. The registered start keeps its place if it
// answers, and r is refused. Otherwise contest calls succeed.
func (c *coordinator) contest(t *target, first Record, r *Record, reply func(message), succeed func()) {
	decide := func(alive bool) {
		switch {
		case c.n.lead != c:
		case c.n.phase == Ended:
			if o := c.n.outcome; reply != nil && c.ending {
				reply(message{Type: done, Last: true, Outcome: &o})
			}
		case !alive:
			succeed()
		default:
			c.n.log.Warn("a second container claims a rank that is present",
				"peer", r.ID, "addr", r.Addr, "first", first.Addr)
			t.mu.Lock()
			t.announced = first.Addr
			t.mu.Unlock()
			if reply != nil {
				reason := fmt.Sprintf("%s is taken: the container at %v has this rank and answers; "+
					"this second one at %v has no part in the job", r.ID, first.Addr, r.Addr)
				reply(message{Type: done, Last: true, Outcome: &Outcome{c.n.cfg.Status.Conflict, reason}})
			}
		}
	}
	if t.link != nil {
		c.n.probes.ask(t.link, decide)
		return
	}
	c.n.wg.Go(func() {
		ctx, cancel := context.WithTimeout(c.n.ctx, lookTimeout)
		defer cancel()
		a, err := c.n.exchange(ctx, first.ID, first.Addr, message{Type: announce, Record: &c.n.self})
		c.n.post(func() { decide(err == nil && a.Type == lead && a.Name == first.Nonce) })
	})
}

// addStart has rank 0 dial a start of a container before the launch. If another start of that container is connected,
// addStart reports true and asks that one first; reply then tells the result to the new one.
func (c *coordinator) addStart(r *Record, reply func(message)) (asked bool) {
	t := c.targets[r.ID]
	if t == nil || t.link == nil || t.rec == nil || t.rec.Nonce == r.Nonce {
		c.addTarget(r.ID, nil, r.Addr)
		return false
	}
	w := t.link
	c.contest(t, *t.rec, r, reply, func() {
		if c.n.isGathered() {
			return
		}
		if t.link == w {
			c.unregister(t, w, errors.New("it does not answer, and another start of its container has come"))
			w.abort()
		}
		c.addTarget(r.ID, nil, r.Addr)
		if reply != nil {
			self := c.n.self
			reply(message{Type: lead, Record: &self})
		}
	})
	return true
}

// rivals reports whether the sender of a record claims rank 0 as this container does. Only the environment gives that
// claim: where ranks are agreed, one of the two steps down.
func (c *coordinator) rivals(r *Record) bool {
	return r != nil && c.n.self.Rank == 0 && r.Rank == 0 && r.Nonce != c.n.self.Nonce
}

// onRival ends the job before its launch: one rank is missing and will not come, because its container claims rank 0.
func (c *coordinator) onRival(r *Record) {
	if !c.n.isGathered() {
		self := c.n.self
		c.n.setGathered(Roster{}, &ConflictError{bothLead(&self, r)})
	}
}

func bothLead(a, b *Record) error {
	return fmt.Errorf("%s at %v and %s at %v both say that they are rank 0", a.ID, a.Addr, b.ID, b.Addr)
}
