package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"
)

// Whether a rank is gone, and how the job ended if rank 0 cannot say so any more, is never decided on one view alone:
// up to three other ranks are asked, over connections opened for the question, so that no timer runs beside the job.

const witnesses = 3

// peerView is what other ranks know of a rank.
type peerView struct {
	Alive   bool
	Reason  string   // in brackets, to be appended to one's own
	Outcome *Outcome // of the job, if another rank was told
	First   bool     // it is this rank's own verdict, for which other ranks will ask
	Void    bool     // another rank has not acknowledged our roster, so rank 0 has not launched
}

// askOthers asks up to three ranks of the roster for their view of m; without an answer, m counts as not seen.
func (n *Node) askOthers(ctx context.Context, m Member, timeout time.Duration) peerView {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var others []Member
	var hash string
	question := message{Type: look, Record: &m.Record}
	n.ask(func() {
		hash, question.Generation = n.roster.Hash, n.asksFor()
		for _, o := range n.roster.Members {
			if o.Nonce == n.self.Nonce || o.Nonce == m.Nonce {
				continue
			}
			if n.lead != nil {
				if t := n.lead.targets[o.ID]; t == nil || t.link == nil {
					continue
				}
			}
			others = append(others, o)
		}
	})
	// The first ranks know most of the end of rank 0: they are asked for the verdict, and stay for it.
	first := 0
	if m.Rank == 0 {
		first = min(witnesses-1, len(others))
	}
	others = append(others[:first], some(others[first:], witnesses-first)...)
	answers := make([]message, len(others))
	var wg sync.WaitGroup
	for i, o := range others {
		wg.Go(func() {
			answers[i], _ = n.exchange(ctx, o.ID, o.Addr, question)
		})
	}
	wg.Wait()
	var w peerView
	for i, a := range answers {
		if a.Type != seen {
			continue
		}
		w.Alive = w.Alive || a.Alive
		w.Void = w.Void || a.Name == others[i].Nonce && (a.State == Gathering || a.State == Prepared && a.Hash != hash)
		if a.Outcome != nil {
			w.Outcome = a.Outcome
		}
		if w.Reason == "" && !a.Alive {
			w.Reason = fmt.Sprintf(", and %s does not see it either (%s)", others[i].Display(), a.Reason)
		}
	}
	return w
}

// verdict finds out how the job ended after rank 0 was lost before it had told every rank. All ranks must come to the
// same end, so the first rank of the roster that can be reached decides for all, by what it hears first: an outcome
// that a rank was told, or the question of a rank that was not. own is what this rank was told, if anything. A verdict
// without an outcome means that the job is lost.
func (u *uplink) verdict(leader Member, own *Outcome) peerView {
	var members []Member
	question := message{Type: look, Record: &leader.Record, Outcome: own, Last: true}
	u.n.ask(func() { members, question.Generation = u.n.roster.Members, u.n.asksFor() })
	if len(members) == 0 || members[0].Nonce != leader.Nonce {
		return peerView{Alive: true} // its next start has taken over
	}
	var reached []bool
	for i, o := range members[1:] {
		switch {
		case o.Nonce == u.n.self.Nonce:
			return peerView{Outcome: own, First: len(members) > 2}
		case i == judges:
			return peerView{Outcome: own}
		case i > 0 && reached == nil:
			reached = u.n.reachable(members[1:][:min(judges, len(members)-1)])
		}
		if i > 0 && !reached[i] {
			continue
		}
		a, err := u.n.exchangeWithin(askTimeout, o.ID, o.Addr, question)
		if err == nil && a.Type == seen && a.Name == o.Nonce { // a later start of it knows nothing
			reason := fmt.Sprintf(", and %s does not see it either (%s)", o.Display(), a.Reason)
			return peerView{Alive: a.Alive, Outcome: a.Outcome, Reason: reason}
		}
	}
	return peerView{Outcome: own}
}

// reachable dials all at once: a rank that is cut off from all of them would need seconds for each.
func (n *Node) reachable(members []Member) []bool {
	ctx, cancel := context.WithTimeout(n.ctx, lookTimeout)
	defer cancel()
	out := make([]bool, len(members))
	var wg sync.WaitGroup
	for i, o := range members {
		if o.Nonce == n.self.Nonce {
			break // it asks neither itself nor the ranks after it
		}
		wg.Go(func() { out[i] = n.cfg.try(ctx, &o.Record) == nil })
	}
	wg.Wait()
	return out
}

// try logs in to a container, and leaves at once.
func (cfg *Config) try(ctx context.Context, r *Record) error {
	rwc, err := cfg.Dial(ctx, r.ID, r.Addr)
	if err == nil {
		_ = rwc.Close()
	}
	return err
}

// judges is how many ranks are asked for a verdict.
const judges = 8

// confirm asks for the verdict after a rank 0 that told the outcome to this rank was lost before its bye.
func (u *uplink) confirm(w *wire) {
	var leader Member
	var own Outcome
	u.n.ask(func() {
		own = u.n.outcome
		if len(u.n.roster.Members) > 0 {
			leader = u.n.roster.Members[0]
		}
	})
	v := peerView{Outcome: &own}
	if leader.Nonce != "" {
		v = u.verdict(leader, &own)
	}
	u.n.post(func() {
		if !v.Alive && v.Outcome == nil {
			reason := "it ended before every rank knew how the job ended" + v.Reason
			u.n.setFinished(Outcome{}, &LostError{Reason: reason})
			return
		}
		u.n.after(linger, func() { u.depart(w) }) // other ranks may still ask for it
	})
}

// tellEnd adds how the job ended to an answer.
func (s *course) tellEnd(a *message) {
	if s.outcomeErr != nil {
		a.Reason = s.outcomeErr.Error()
		return
	}
	o := s.outcome
	a.Outcome = &o
}

// settle answers how the job ended if rank 0 does not answer. It runs in the loop.
func (u *uplink) settle(leader *Record, a *message) {
	switch {
	case u.n.phase == Ended:
		u.n.tellEnd(a)
	case u.wire != nil || !u.follows(leader):
		a.Alive = true
	default:
		u.giveUp(u.leaderLost(a.Reason))
	}
}

// follows reports whether this rank holds the roster of that rank 0.
func (u *uplink) follows(leader *Record) bool {
	return u.n.lead == nil && (u.n.phase == Prepared || u.n.phase == Running) &&
		len(u.n.roster.Members) > 0 && u.n.roster.Members[0].Nonce == leader.Nonce
}

// giveUp decides that the job is lost; this rank stays for a moment to answer ranks that ask for the verdict.
func (u *uplink) giveUp(err *LostError) {
	if !u.n.enter(Ended) {
		return
	}
	u.n.outcomeErr = err
	u.n.finishSoon(Outcome{}, err)
}

// finishSoon lets this rank leave after a moment, because other ranks may still ask it how the job ended.
func (n *Node) finishSoon(o Outcome, err error) { n.after(linger, func() { n.setFinished(o, err) }) }

// exchangeWithin is exchange with a shorter timeout.
func (n *Node) exchangeWithin(d time.Duration, id string, addr netip.AddrPort, m message) (message, error) {
	ctx, cancel := context.WithTimeout(n.ctx, d)
	defer cancel()
	return n.exchange(ctx, id, addr, m)
}

// exchange opens a control connection, sends one message and returns the first answer. No answer in time is an error; a
// container of this job that closes the connection without an answer is not.
func (n *Node) exchange(ctx context.Context, id string, addr netip.AddrPort, m message) (message, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout+LoginPatience(n.cfg.Size))
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	rwc, err := n.cfg.Dial(ctx, id, addr)
	if err != nil {
		return message{}, err
	}
	w := newWire(rwc, nil)
	w.share = n.cfg.share
	defer w.close()
	defer context.AfterFunc(ctx, w.abort)()
	w.send(m)
	var got message
	err = w.read(func(m message) error {
		got = m
		return errEnded
	})
	switch {
	case got.Type != 0 || errors.Is(err, io.EOF):
		return got, nil
	case ctx.Err() != nil:
		return got, context.Cause(ctx)
	}
	return got, err
}

// onLook answers whether this rank sees another one, and what it knows of the end.
func (n *Node) onLook(w *wire, m message) {
	r := m.Record
	if r == nil {
		w.abort()
		return
	}
	a := message{Type: seen, Name: n.self.Nonce, State: n.phase, Hash: n.roster.Hash}
	if m.generation() < n.Generation() {
		a.State = Ended // Gathering would say that the generation of the question was not launched
	}
	if m.Name != "" { // asks for this start, and for nothing that it would have to look at
		a.Alive = m.Name == n.self.Nonce && !n.hasLeft(m.generation())
		w.send(a)
		return
	}
	over := r.Rank == 0 && n.isOver(m.generation())
	asks := n.restarts()
	switch {
	case n.phase == Ended && !errors.Is(n.outcomeErr, ErrNext):
		n.tellEnd(&a)
	case m.Last && m.Outcome != nil && n.up.follows(r): // rank 0's outcome, passed on by another rank
		n.end(*m.Outcome)
		a.Outcome = m.Outcome
		n.finishSoon(n.outcome, nil)
	case over:
		a.Reason = "rank 0 goes on without this container"
	case n.phase == Ended: // rank 0 has begun the next generation
		a.Alive = true
	case n.lead != nil:
		t := n.lead.targets[r.ID]
		a.Alive = t != nil && t.link != nil
	case m.Last && !n.up.follows(r):
		a.Alive = true // its next start has taken over
	default:
		a.Alive = n.up.wire != nil && n.up.leader.Nonce == r.Nonce
	}
	if a.Alive || over || n.phase == Ended {
		w.send(a)
		return
	}
	n.wg.Go(func() {
		ctx, cancel := context.WithTimeout(n.ctx, lookTimeout)
		defer cancel()
		err := n.sees(ctx, r, m.Generation, asks)
		if a.Alive = err == nil; !a.Alive {
			a.Reason = explain(err)
			if m.Last {
				n.ask(func() {
					if n.up.follows(r) {
						n.up.leaderGone = provesGone(err)
					}
					n.up.settle(r, &a)
				})
			}
		}
		w.send(a)
	})
}

// announcement asks rank 0 to dial this container.
func (n *Node) announcement() message {
	m := message{Type: announce, Record: &n.self}
	if n.cfg.last != nil {
		m.Generation = n.cfg.Generation
	}
	return m
}

// onAnnounce handles an announcement: rank 0 dials its sender, any other rank passes it on and says where rank 0 is. w
// is nil if another rank has passed it on. A rank that claims to be rank 0 may have died since it announced itself, so
// it is passed on only when it has greeted and been asked (greeted).
func (n *Node) onAnnounce(w *wire, m message) {
	r := m.Record
	if r == nil || r.validate() != nil {
		return
	}
	reply := noReply
	if w != nil {
		reply = w.send
	}
	if n.lead == nil {
		if w != nil && n.phase != Ended && r.Rank != 0 {
			n.up.send(message{Type: announce, Record: r, Generation: m.Generation})
		}
		reply(message{Type: lead, Record: n.up.leader, Name: n.self.Nonce})
		return
	}
	t, blocked := n.lead.targets[r.ID], ""
	switch {
	case r.Nonce == n.self.Nonce:
		reply(message{Type: refuse, Record: &n.self, Reason: "this is the container itself"})
		return
	case n.phase == Gathering || n.phase == Prepared:
		if n.isGathered() {
			break // the job is about to end
		}
		if n.lead.rivals(r) {
			if w == nil { // the rank that passed it on has asked both
				n.lead.onRival(r)
			}
			break
		}
		if m.Generation > 1 {
			n.lead.preferSurvivor(r, m.Generation)
		}
		if n.lead.addStart(r, reply) {
			return
		}
		if w != nil {
			blocked = n.lead.onCaller(r)
		}
	case n.phase == Ended && n.lead.ending:
		o := n.outcome
		reply(message{Type: done, Record: &n.self, Outcome: &o, Last: true})
		return
	case n.phase == Running:
		m, ok := Member{}, false
		if t != nil {
			m, ok = n.lead.memberOf(t)
		}
		switch {
		case !ok && n.cfg.Spares > 0:
			if n.lead.addStart(r, reply) {
				return
			}
		case !ok && n.lead.mayRejoin():
		case !ok:
			reply(n.noPlace())
			return
		case m.Nonce != r.Nonce && t.leaves && t.link != nil:
			n.lead.keepSuccessor(t, r)
		case m.Nonce != r.Nonce:
			n.lead.contest(t, m.Record, r, reply, func() {
				answer := n.tooLate()
				if n.cfg.Rejoin {
					n.lead.keepSuccessor(t, r)
					answer = message{Type: lead}
				}
				answer.Record = &n.self
				reply(answer)
				n.lead.lose(t, "its container was started again")
			})
			return
		case t.link == nil:
			n.lead.addTarget(r.ID, nil, r.Addr)
		}
	}
	reply(message{Type: lead, Record: &n.self, Reason: blocked})
}
