package rendezvous

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
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

// Withdraw leaves the job before its launch. It stays until rank 0 has ended the job for all ranks, or ctx ends,
// because rank 0 may not have come yet. It returns how the job ended, and false if rank 0 was not told.
func (n *Node) Withdraw(ctx context.Context, o Outcome) (Outcome, bool) {
	type other struct {
		id   string
		find func(*Node) ([]netip.AddrPort, error)
	}
	var others []other
	early := false
	if !n.ask(func() {
		if early = n.lead == nil && (n.phase == Gathering || n.phase == Prepared); !early {
			return
		}
		n.cfg.Unfit, n.details.looking = &o, true // where ranks are agreed, it may become the coordinator
		n.own = &message{Type: ended, Outcome: &o}
		if n.up.wire != nil {
			n.up.wire.send(*n.own)
			return
		}
		for _, r := range n.find.heard {
			others = append(others, other{r.ID, placeAt(r.ID, r.Addr, false).find})
		}
		for _, p := range n.cfg.Peers {
			if !slices.ContainsFunc(others, func(o other) bool { return o.id == p.ID }) {
				others = append(others, other{p.ID, p.addrs})
			}
		}
	}) || !early {
		return o, false
	}
	telling, cancel := context.WithCancel(ctx)
	defer cancel()
	said := message{Type: ended, Record: &n.self, Outcome: &o}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, to := range others[:min(withdrawFan, len(others))] {
		wg.Go(func() {
			for b := (backoff{}); telling.Err() == nil; { // the other rank may be about to start
				addrs, err := to.find(n)
				for _, a := range addrs {
					if _, err = n.exchange(telling, to.id, a, said); err == nil {
						return
					}
				}
				n.log.Debug("telling another rank that this one leaves", "peer", to.id, "addrs", addrs, "err", err)
				select {
				case <-telling.Done():
				case <-time.After(b.wait()):
				}
			}
		})
	}
	select {
	case <-n.finished:
		return n.outcome, n.outcomeErr == nil
	case <-ctx.Done():
	case <-n.ctx.Done():
	}
	return o, false
}

// withdrawals are the messages of ranks that leave before the launch. Only the loop touches them.
type withdrawals struct {
	n     *Node
	heard map[string]message // by id; for rank 0
}

// hear notes that a rank leaves before the launch: the rank itself says so, or another rank passes it on.
func (s *withdrawals) hear(w *wire, m message) {
	r := m.Record
	if r == nil || m.Outcome == nil || r.validate() != nil || r.Nonce == s.n.self.Nonce {
		return
	}
	w.send(message{Type: doneAck})
	h, ok := s.n.find.heard[r.ID]
	if ok && h.Nonce != r.Nonce || s.n.phase != Gathering && s.n.phase != Prepared || s.n.isGathered() {
		return
	}
	if s.n.lead == nil {
		s.heard[r.ID] = message{Type: ended, Record: r, Outcome: m.Outcome}
		if s.n.up.wire != nil {
			s.n.up.wire.send(s.heard[r.ID])
		}
		return
	}
	o := *m.Outcome
	o.Reason = fmt.Sprintf("%s: %s", r.ID, o.Reason)
	time.AfterFunc(s.n.cfg.scaled(withdrawDelay), func() {
		s.n.post(func() {
			if s.n.lead == nil || s.n.phase != Gathering && s.n.phase != Prepared {
				return
			}
			if t := s.n.lead.targets[r.ID]; t != nil && t.rec != nil && t.rec.Nonce != r.Nonce {
				return
			}
			s.n.setGathered(Roster{}, &EndedError{o})
		})
	})
}
