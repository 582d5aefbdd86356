package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Two containers may say that they are the same rank: a restarted one whose predecessor is not known to be dead yet, or
// one too many, by a mistake in the environment. Only the process at the other end of the first one's connection can
// tell: it is asked over it.

// probe is a question over a live connection, and the calls that wait for the answer.
type probe struct {
	then []func(alive bool)
}

// probe asks whether the process at the other end of a connection still answers. The loop calls then with the answer;
// no answer within the time limit, and the end of the connection, count as no.
func (n *Node) probe(w *wire, then func(alive bool)) {
	if p := n.probes[w]; p != nil {
		p.then = append(p.then, then)
		return
	}
	p := &probe{then: []func(bool){then}}
	n.probes[w] = p
	w.send(message{Type: ping})
	time.AfterFunc(n.patience(probeTimeout), func() {
		n.post(func() {
			if n.probes[w] == p {
				n.onProbed(w, false)
			}
		})
	})
}

func (n *Node) onProbed(w *wire, alive bool) {
	p := n.probes[w]
	if p == nil {
		return
	}
	delete(n.probes, w)
	for _, then := range p.then {
		then(alive)
	}
}

// contest decides between the start of a rank that has a part in the job and another one, r. The first keeps its place
// while it answers: the second is refused. Otherwise succeed is called.
func (n *Node) contest(t *target, first Record, r *Record, reply func(message), succeed func()) {
	decide := func(alive bool) {
		switch {
		case n.lead == nil:
		case n.phase == Ended:
			if o := n.outcome; reply != nil && n.lead.ending {
				reply(message{Type: done, Last: true, Outcome: &o})
			}
		case !alive:
			succeed()
		default:
			n.log.Warn("a second container claims a rank that is present",
				"peer", r.ID, "addr", r.Addr, "first", first.Addr)
			t.mu.Lock()
			t.announced = first.Addr
			t.mu.Unlock()
			if reply != nil {
				reason := fmt.Sprintf("%s is taken: the container at %v has this rank and answers; "+
					"this second one at %v has no part in the job", r.ID, first.Addr, r.Addr)
				reply(message{Type: done, Last: true, Outcome: &Outcome{Status: n.cfg.Status.Conflict, Reason: reason}})
			}
		}
	}
	if t.link != nil {
		n.probe(t.link, decide)
		return
	}
	n.wg.Go(func() {
		ctx, cancel := context.WithTimeout(n.ctx, lookTimeout)
		defer cancel()
		a, err := n.exchange(ctx, first.ID, first.Addr, message{Type: here, Record: &n.self})
		n.post(func() { decide(err == nil && a.Type == lead && a.Name == first.Nonce) })
	})
}

// addStart has rank 0 dial a start of a container that it has heard of before the launch. It reports true where another
// start of that container is connected, which is asked first; reply tells this one what came of it, if it waits for an
// answer.
func (n *Node) addStart(r *Record, reply func(message)) (asked bool) {
	t := n.lead.targets[r.ID]
	if t == nil || t.link == nil || t.rec == nil || t.rec.Nonce == r.Nonce {
		n.addTarget(r.ID, nil, r.Addr)
		return false
	}
	w := t.link
	n.contest(t, *t.rec, r, reply, func() {
		if n.isGathered() {
			return
		}
		if t.link == w {
			n.unregister(t, w, errors.New("it does not answer, and another start of its container has come"))
			w.abort()
		}
		n.addTarget(r.ID, nil, r.Addr)
		if reply != nil {
			self := n.self
			reply(message{Type: lead, Record: &self})
		}
	})
	return true
}

// rivals reports whether a container that speaks to this one claims rank 0 as this one does. Only the environment gives
// that claim: where ranks are agreed, one of the two steps down.
func (n *Node) rivals(r *Record) bool {
	return r != nil && n.self.Rank == 0 && r.Rank == 0 && r.Nonce != n.self.Nonce
}

// onRival ends the job before its launch: one of the ranks is missing, and will not come.
func (n *Node) onRival(r *Record) {
	if !n.isGathered() {
		self := n.self
		n.setGathered(Roster{}, &ConflictError{bothLead(&self, r)})
	}
}

func bothLead(a, b *Record) error {
	return fmt.Errorf("%s at %v and %s at %v both say that they are rank 0", a.ID, a.Addr, b.ID, b.Addr)
}
