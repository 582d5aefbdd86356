package rendezvous

import (
	"errors"
	"fmt"
	"net/netip"
)

// Two containers may claim the same rank: a restarted one whose predecessor is not known to be dead, or one too many by
// a mistake in the environment. The answer of the first one over its connection tells which.

// probe holds the functions to call with the answer of one ping.
type probe struct {
	then []func(alive bool)
}

// probe finds out whether the process at the other end of a connection still answers. The loop calls then with the
// result; a timeout and the end of the connection count as no.
func (n *Node) probe(w *wire, then func(alive bool)) {
	if p := n.probes[w]; p != nil {
		p.then = append(p.then, then)
		return
	}
	p := &probe{then: []func(bool){then}}
	n.probes[w] = p
	w.send(message{Type: ping})
	n.after(n.cfg.scaled(probeTimeout), func() {
		if n.probes[w] == p {
			n.answered(w, false)
		}
	})
}

func (n *Node) answered(w *wire, alive bool) {
	if p := n.probes[w]; p != nil {
		delete(n.probes, w)
		for _, then := range p.then {
			then(alive)
		}
	}
}

// contest decides between a registered start of a rank and another start, r. The registered start keeps its place if it
// answers, and r is refused. Otherwise contest calls succeed.
func (c *coordinator) contest(t *target, first Record, r *Record, reply func(message), succeed func()) {
	decide := func(alive bool) {
		switch {
		case c.n.lead != c:
		case c.n.phase == Ended:
			if c.ending {
				reply(dismissal(c.n.outcome.Status, c.n.outcome.Reason))
			}
		case !alive:
			succeed()
		default:
			c.warnSecond(r, first.Addr)
			t.mu.Lock()
			t.announced = first.Addr
			t.mu.Unlock()
			reply(dismissal(c.n.cfg.Status.Conflict, fmt.Sprintf("%s is taken: the container at %v has this rank "+
				"and answers; the second container at %v is not part of the job", r.ID, first.Addr, r.Addr)))
		}
	}
	if t.link != nil {
		c.n.probe(t.link, decide)
		return
	}
	c.n.wg.Go(func() {
		a, err := c.n.exchangeWithin(lookTimeout, first.ID, first.Addr, message{Type: announce, Record: &c.n.self})
		c.n.post(func() { decide(err == nil && a.Type == lead && a.Name == first.Nonce) })
	})
}

// warnSecond logs that the container r is refused, because the one at first has its rank and answers.
func (c *coordinator) warnSecond(r *Record, first netip.AddrPort) {
	c.n.refused.warn(r.ID+" "+r.Addr.Addr().String(), "a second container claims a rank that is present",
		"peer", r.display(), "addr", r.Addr, "first", first)
}

// noReply is the reply to a container that was announced by gossip or by another rank: there is no connection to it.
func noReply(message) {}

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
		reply(message{Type: lead, Record: &c.n.self})
	})
	return true
}

// rivals reports whether the environments of a record's sender and of this container both say that it is rank 0.
func (c *coordinator) rivals(r *Record) bool {
	return r != nil && c.n.self.Rank == 0 && r.Rank == 0 && r.Nonce != c.n.self.Nonce
}

// onRival ends the job before its launch: one rank is missing and will not come, because its container claims rank 0.
// In a later generation this container is rank 0, whatever the other one says, and the other one alone ends.
func (c *coordinator) onRival(r *Record) {
	if c.n.continues() {
		c.warnSecond(r, c.n.self.Addr)
		return
	}
	c.n.setGathered(&ConflictError{bothClaim(&c.n.self, r)})
}
