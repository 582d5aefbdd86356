package rendezvous

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// A rank that must leave before the launch tells rank 0, which ends the job for all ranks. If rank 0 has not come yet,
// other ranks keep the message and pass it on:
//
//	a rank that leaves                 some other ranks                  rank 0
//	   ended(record, outcome)  ------->  keep it, by id and nonce
//	                  <--------------  done-ack
//	                                     ended(record, outcome)  ------->  ends the job before its launch,
//	                                                                       unless a later start of that rank
//	                                                                       registers within 2 s
//
// The message is about one start of a container: a later start has another nonce, which makes it void.
//
// If rank 0 has launched, and could not tell the rank yet, the message is a request to end the job.
//
// In a later generation, a container that gets SIGTERM leaves alone, and the other ranks wait for its next start. One
// that does not know yet that it is in a later generation sends ended as above, and gets done with its own outcome.

// withdrawFan is how many other ranks a leaving rank tells.
const withdrawFan = 8

// withdrawDelay is how long rank 0 waits for a later start of a rank that leaves.
const withdrawDelay = 2 * time.Second

// Withdraw leaves the job before its launch. It stays until rank 0, which may not have come yet, has ended the job for
// all ranks, or ctx ends. It reports whether rank 0 was told, and whether this container, which SIGTERM has ended,
// leaves alone, because the job has been launched before and waits for its next start.
func (n *Node) Withdraw(ctx context.Context, o Outcome) (told, alone bool) {
	var others []Peer
	early := false
	if !n.ask(func() {
		if early = n.lead == nil && (n.phase == Gathering || n.phase == Prepared); !early {
			return
		}
		n.cfg.Unfit, n.looking = &o, true // where ranks are agreed, it may become the coordinator
		n.own = &message{Type: ended, Name: n.self.Nonce, Outcome: &o}
		if o.Stopped {
			n.own.Signal = o.Status - 128
		}
		if n.up.send(*n.own) {
			return
		}
		for _, r := range n.find.heard {
			others = append(others, peerAt(r.ID, -1, r.Addr))
		}
		for _, p := range n.cfg.Peers {
			if _, heard := n.find.heard[p.ID]; !heard {
				others = append(others, p)
			}
		}
	}) || !early {
		return false, false
	}
	telling, cancel := context.WithCancel(ctx)
	said := message{Type: ended, Record: &n.self, Outcome: &o}
	leaves := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, to := range others[:min(withdrawFan, len(others))] {
		wg.Go(func() {
			for b := (backoff{}); ; { // the other rank may be about to start
				addrs, err := to.addrs(n)
				for _, a := range addrs {
					var answer message
					answer, err = n.exchange(telling, to.ID, a, said)
					switch {
					case err != nil:
						continue
					case answer.Type == done:
						once.Do(func() { close(leaves) })
					}
					return
				}
				n.log.Debug("telling another rank that this one leaves", "peer", to.ID, "addrs", addrs, "err", err)
				if !sleep(telling, nil, b.wait()) {
					return
				}
			}
		})
	}
	select {
	case <-n.finished:
		return n.outcomeErr == nil, n.outcomeErr == nil && n.outcome == o
	case <-leaves:
		return true, true
	case <-ctx.Done():
	case <-n.ctx.Done():
	}
	return false, false
}

// leaves reports whether SIGTERM has ended the container, as a scheduler ends one that it replaces.
func (o *Outcome) leaves() bool { return o.Stopped && o.Status == 128+int(syscall.SIGTERM) }

// goesOnWithout reports whether only the container ends that leaves before a launch with this outcome. The job has been
// launched before.
func (n *Node) goesOnWithout(o *Outcome) bool {
	return n.restarts() && (n.Generation() > 1 || n.phase == Running) && n.phase != Ended && o.leaves()
}

// answerWithdrawal answers a rank that leaves before the launch.
func (n *Node) answerWithdrawal(w *wire, m message) {
	if m.Outcome != nil && n.goesOnWithout(m.Outcome) {
		w.send(message{Type: done, Last: true, Outcome: m.Outcome})
		return
	}
	n.onWithdrawal(m)
	w.send(message{Type: doneAck})
}

// onWithdrawal notes that a rank leaves before the launch: the rank itself says so, or another rank passes it on.
func (n *Node) onWithdrawal(m message) {
	r := m.Record
	if r == nil || m.Outcome == nil || r.validate() != nil || r.Nonce == n.self.Nonce || n.goesOnWithout(m.Outcome) {
		return
	}
	h, ok := n.find.heard[r.ID]
	if ok && h.Nonce != r.Nonce || n.phase != Gathering && n.phase != Prepared || n.isGathered() {
		return
	}
	if n.lead == nil {
		n.withdrawn[r.ID] = message{Type: ended, Record: r, Outcome: m.Outcome}
		n.up.send(n.withdrawn[r.ID])
		return
	}
	o := *m.Outcome
	o.Reason = fmt.Sprintf("%s: %s", r.display(), o.Reason)
	n.after(n.cfg.scaled(withdrawDelay), func() {
		if n.lead == nil || n.phase != Gathering && n.phase != Prepared || n.goesOnWithout(m.Outcome) {
			return
		}
		if t := n.lead.targets[r.ID]; t != nil && t.rec != nil && t.rec.Nonce != r.Nonce {
			return
		}
		n.setGathered(&EndedError{o})
	})
}

// onStop handles the request of a rank to end the job.
func (c *coordinator) onStop(t *target, w *wire, m message) {
	is := fmt.Sprint(m.Name, " ", m.Signal)
	if is == t.request {
		return
	}
	t.request = is
	s := Stop{Name: c.nameOf(t), Signal: m.Signal, Reason: m.Reason}
	if c.n.phase == Running {
		t.leaves = c.n.cfg.Rejoin && s.Leaves()
		offer(c.n.stops, s) // sixteen may wait
		return
	}
	status := c.n.cfg.Status.Retry
	if s.Signal > 0 {
		status = 128 + s.Signal
	}
	o := Outcome{Status: status, Reason: s.Reason, Stopped: s.Signal > 0}
	if c.letGo(t, w, o) {
		return
	}
	o.Reason = fmt.Sprintf("%s: %s", s.Name, s.Reason)
	c.n.setGathered(&EndedError{o})
}

// letGo lets a rank that was stopped between two launches end alone, and waits for its next start. It reports false if
// the job must end.
func (c *coordinator) letGo(t *target, w *wire, o Outcome) bool {
	if !c.n.goesOnWithout(&o) {
		return false
	}
	c.n.log.Info("a rank leaves before the launch", "peer", c.nameOf(t), "reason", o.Reason)
	w.send(message{Type: done, Last: true, Outcome: &o})
	c.n.after(c.n.cfg.scaled(doneAckTimeout), w.abort) // it may be frozen
	c.unregister(t, w, fmt.Errorf("its next start has not come: %s", o.Reason))
	c.admit()
	return true
}
