package rendezvous

import (
	"context"
	"fmt"
	"sync"
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

// withdrawFan is how many other ranks a leaving rank tells.
const withdrawFan = 8

// withdrawDelay is how long rank 0 waits for a later start of a rank that leaves.
const withdrawDelay = 2 * time.Second

// Withdraw leaves the job before its launch. It stays until rank 0, which may not have come yet, has ended the job for
// all ranks, or ctx ends. It reports false if rank 0 was not told.
func (n *Node) Withdraw(ctx context.Context, o Outcome) bool {
	var others []Peer
	early := false
	if !n.ask(func() {
		if early = n.lead == nil && (n.phase == Gathering || n.phase == Prepared); !early {
			return
		}
		n.cfg.Unfit, n.looking = &o, true // where ranks are agreed, it may become the coordinator
		n.own = &message{Type: ended, Outcome: &o}
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
		return false
	}
	telling, cancel := context.WithCancel(ctx)
	said := message{Type: ended, Record: &n.self, Outcome: &o}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, to := range others[:min(withdrawFan, len(others))] {
		wg.Go(func() {
			for b := (backoff{}); ; { // the other rank may be about to start
				addrs, err := to.addrs(n)
				for _, a := range addrs {
					if _, err = n.exchange(telling, to.ID, a, said); err == nil {
						return
					}
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
		return n.outcomeErr == nil
	case <-ctx.Done():
	case <-n.ctx.Done():
	}
	return false
}

// onWithdrawal notes that a rank leaves before the launch: the rank itself says so, or another rank passes it on.
func (n *Node) onWithdrawal(w *wire, m message) {
	r := m.Record
	if r == nil || m.Outcome == nil || r.validate() != nil || r.Nonce == n.self.Nonce {
		return
	}
	w.send(message{Type: doneAck})
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
		if n.lead == nil || n.phase != Gathering && n.phase != Prepared {
			return
		}
		if t := n.lead.targets[r.ID]; t != nil && t.rec != nil && t.rec.Nonce != r.Nonce {
			return
		}
		n.setGathered(&EndedError{o})
	})
}
