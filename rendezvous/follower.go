package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
)

// uplink is what a rank other than 0 knows of rank 0. Only the loop touches it.
type uplink struct {
	wire    *wire
	leader  *Record
	waits   bool      // rank 0 has said for whom
	missing []Missing // as it said it last
	present int
	lookErr error   // of the last look at rank 0
	rumour  *Record // of rank 0, as others tell
	foreign foreign // what answers in place of rank 0
	// stranger is the last ErrOtherSecret at rank 0's address, until rank 0 itself answers. It outlives foreign, which
	// a refused connection resets: the other container may exit before this one has dialled it twice.
	stranger error

	promised time.Time // when rank 0 has acknowledged a knock

	children []child // who wait for the table
}

type child struct {
	w    *wire
	hash string
}

// Accept serves a control connection that came in, to its end. It is how rank 0 reaches this container.
func (n *Node) Accept(ctx context.Context, rwc io.ReadWriteCloser, remote net.Addr) {
	w := newWire(rwc, nil)
	defer w.close()
	defer context.AfterFunc(ctx, w.abort)()
	defer context.AfterFunc(n.ctx, w.abort)()
	err := w.read(func(m message) error {
		if !n.post(func() { n.onMessage(w, m, remote) }) {
			return errEnded
		}
		return nil
	})
	n.post(func() { n.onUplinkLost(w, err) })
}

func (n *Node) onMessage(w *wire, m message, remote net.Addr) {
	switch m.Type {
	case hello:
		n.greeted(w, m, remote)
		return
	case here:
		n.onHere(w, m.Record)
		return
	case look:
		n.onLook(w, m)
		return
	case fetch:
		n.onFetch(w, m)
		return
	case ended: // of a rank that leaves
		n.onFarewell(w, m)
		return
	case ping:
		w.send(message{Type: pong})
		return
	case pong:
		n.onProbed(w, true)
		return
	}
	if n.up.wire != w {
		return
	}
	switch m.Type {
	case refuse:
		w.abort()
	case waiting:
		n.up.waits, n.up.missing, n.up.present = true, m.Missing, m.Present
		if n.phase == Prepared {
			n.enter(Gathering) // the roster is void: rank 0 waits for somebody again
			n.elect()
		}
	case prepare:
		n.onPrepare(w, m)
	case launched:
		if n.phase == Prepared && m.Epoch == n.roster.Epoch {
			n.enter(Running)
			n.endGossip()
			n.setGathered(n.roster, nil)
		}
		if n.phase == Running && m.Epoch == n.roster.Epoch {
			w.send(message{Type: started, Epoch: m.Epoch})
			n.resumeCalls()
		}
	case stop:
		n.onOrder(m)
	case clock:
		w.send(message{Type: clock, Call: m.Call, Clock: int64(time.Since(n.begin))})
	case release:
		w.send(message{Type: released, Call: m.Call})
		n.onRelease(m.Call)
	case answer:
		n.onAnswer(m)
	case done:
		if m.Outcome == nil {
			return
		}
		w.send(message{Type: doneAck})
		if n.phase != Ended {
			n.end(*m.Outcome)
		}
		if n.outcome != *m.Outcome {
			return // the first word counts
		}
		if m.Last {
			n.depart(w)
			return
		}
		time.AfterFunc(doneTimeout+linger, func() { n.post(func() { n.depart(w) }) })
	case bye:
		if n.phase == Ended {
			n.depart(w)
		}
	}
}

// depart lets this rank end. The outcome may let the process end: what was sent goes first.
func (n *Node) depart(w *wire) {
	if n.outcomeErr != nil {
		return
	}
	o := n.outcome
	n.wg.Go(func() {
		w.flush()
		n.post(func() { n.setFinished(o, nil) })
	})
}

// greeted asks first where a second container greets that says it is rank 0: the first one whether it still answers,
// and then the second one, whose greeting may have been on its way since before its death.
func (n *Node) greeted(w *wire, m message, remote net.Addr) {
	r, first := m.Record, n.up.leader
	if n.self.Rank == 0 {
		first = &n.self
	}
	if r == nil || r.validate() != nil || r.Rank != 0 || first == nil || first.Rank != 0 || r.Nonce == first.Nonce ||
		n.self.Rank != 0 && n.up.wire == nil {
		n.onHello(w, m, remote)
		return
	}
	both := func(alive bool) {
		if !alive {
			w.abort()
			return
		}
		w.send(message{Type: refuse, Record: first, Reason: bothLead(first, r).Error()})
		switch {
		case n.self.Rank == 0:
			n.onRival(r)
		case n.up.wire != nil && n.phase != Running && n.phase != Ended:
			n.up.wire.send(message{Type: here, Record: r})
		}
	}
	if n.self.Rank == 0 {
		n.probe(w, both)
		return
	}
	n.probe(n.up.wire, func(alive bool) {
		if !alive {
			n.onHello(w, m, remote)
			return
		}
		n.probe(w, both)
	})
}

// onHello answers whoever dialled. Only one container may lead: the one that the environment, or the order, says.
func (n *Node) onHello(w *wire, m message, remote net.Addr) {
	r := m.Record
	self := n.self
	if r == nil || r.validate() != nil {
		w.send(message{Type: refuse, Reason: "the greeting holds no record that can be used"})
		return
	}
	if n.isLate(w, r) {
		return
	}
	switch {
	case r.Nonce == n.self.Nonce:
		w.send(message{Type: refuse, Record: &self, Reason: "this is the container itself"})
		return
	case n.self.Rank == 0, n.lead != nil && (n.lead.ending || n.isGathered() || n.self.before(r) < 0 && r.Rank != 0):
		w.send(message{Type: refuse, Record: &self, Reason: fmt.Sprintf("%s leads already", n.self.ID)})
		if r.Rank < 0 && n.lead != nil && !n.lead.ending && !n.isGathered() {
			n.addStart(r, nil) // it steps down when it is greeted, and counts here
		}
		return
	case n.lead != nil:
		n.stepDown()
	}
	if n.phase == Prepared && n.roster.Members[0].Nonce != r.Nonce {
		if leader := &n.roster.Members[0]; leader.ID != r.ID { // it must step down first, or be gone, which ends the job
			w.send(message{Type: refuse, Record: &self, Reason: fmt.Sprintf("%s has acknowledged the roster of %s", n.self.ID, leader.ID)})
			return
		}
		n.giveUp(n.leaderLost("its container was started again"))
	}
	if (n.phase == Running || n.phase == Ended && len(n.roster.Members) > 0) && n.roster.Members[0].Nonce != r.Nonce {
		// A rank 0 that was started again: it learns that it comes too late, and has no word in how this ends.
		w.send(n.registration(r))
		return
	}
	if n.up.wire != nil && n.up.wire != w {
		n.up.wire.abort()
	}
	if n.phase != Running {
		n.log.Debug("rank 0 is connected", "peer", r.ID, "remote", remote, "elapsed", time.Since(n.begin).Round(time.Microsecond))
	}
	n.up.wire, n.up.leader, n.up.stranger = w, r, nil
	answer := n.registration(r)
	if m.Epoch != uint64(n.cfg.Size) {
		answer.Size = n.cfg.Size // 0 = not known here
	}
	w.send(answer)
	if n.own != nil {
		w.send(n.ownEnd())
	}
	for _, f := range n.farewells {
		w.send(f)
	}
}

// registration is what rank 0, who has greeted with its record, is told of this container.
func (n *Node) registration(greeting *Record) message {
	self := n.record()
	return message{Type: register, ref: greeting, Record: &self, State: n.phase, Epoch: n.roster.Epoch, Looking: n.looking}
}

func (n *Node) onPrepare(w *wire, m message) {
	switch {
	case n.phase == Running || n.phase == Ended:
		return
	case m.Roster == nil && m.Parent != nil && m.Hash == n.roster.Hash && n.roster.Epoch == m.Epoch:
		// It was asked for already, and has come.
	case m.Roster == nil && m.Parent != nil:
		n.enter(Gathering)
		n.wg.Go(func() { n.fetchTable(w, m) })
		return
	case m.Roster == nil:
		return
	}
	r := m.Roster
	if r == nil {
		r = &n.roster
	}
	if err := r.verify(&n.self); err != nil {
		w.send(message{Type: refuse, Reason: err.Error()})
		return
	}
	if n.cfg.share != nil {
		r.Members = n.cfg.share(r.Members)
	}
	if !n.enter(Prepared) {
		return
	}
	n.roster = *r
	w.send(message{Type: ack, Epoch: n.roster.Epoch, Hash: n.roster.Hash})
	for _, c := range n.up.children {
		n.onFetch(c.w, message{Type: fetch, Hash: c.hash})
	}
	n.up.children = nil
}

// fetchTable asks another rank for the table that rank 0 speaks of, and rank 0 when that one does not have it.
func (n *Node) fetchTable(w *wire, m message) {
	ctx, cancel := context.WithTimeout(n.ctx, fetchTimeout)
	defer cancel()
	answer, err := n.exchange(ctx, m.Parent.ID, m.Parent.Addr, message{Type: fetch, Hash: m.Hash})
	n.post(func() {
		switch {
		case n.up.wire != w:
		case err == nil && answer.Type == table && answer.Roster != nil && answer.Roster.Hash == m.Hash && answer.Roster.verify(&n.self) == nil:
			answer.Roster.Epoch = m.Epoch
			n.onPrepare(w, message{Type: prepare, Epoch: m.Epoch, Roster: answer.Roster})
		default:
			n.log.Debug("another rank does not have the table", "peer", m.Parent.ID, "err", err)
			w.send(message{Type: fetch, Hash: m.Hash})
		}
	})
}

// onFetch gives the table to another rank, as soon as it is here.
func (n *Node) onFetch(w *wire, m message) {
	switch {
	case m.Hash == n.roster.Hash && m.Hash != "":
		w.send(message{Type: table, packed: n.roster.pack()})
	case n.phase == Gathering || n.phase == Prepared:
		n.up.children = append(n.up.children[max(0, len(n.up.children)-2*tableFan):], child{w, m.Hash})
	}
}

func (n *Node) onUplinkLost(w *wire, err error) {
	n.onProbed(w, false)
	if n.up.wire != w {
		return
	}
	n.up.wire = nil
	switch n.phase {
	case Prepared, Running: // one that is prepared may have missed the word
		n.log.Warn("control connection to rank 0 lost", "reason", explain(err))
		n.wg.Go(func() { n.awaitReturn(err) })
	case Ended:
		if n.outcomeErr == nil { // else it has given up, and stays only to say so
			n.wg.Go(func() { n.confirm(w) })
		}
	}
}

// awaitReturn gives rank 0 the grace time to come back. Two refusals in a row mean that its process is gone: nobody listens on
// its port any more, or somebody else does. Before it is given up the others are asked: one of them may see it, or know how the job ended.
func (n *Node) awaitReturn(cause error) {
	begin, grace := time.Now(), n.grace(cause)
	refused := 0
	var asked chan word
	var b backoff
	for {
		away := false
		var leader Member
		if !n.ask(func() {
			if away = n.up.wire == nil && (n.phase == Prepared || n.phase == Running); away {
				leader = n.roster.Members[0]
			}
		}) || !away {
			return
		}
		if asked == nil && time.Since(begin)+lookTimeout > grace { // both at the same time
			heard := make(chan word, 1)
			n.wg.Go(func() { heard <- n.askOthers(n.ctx, leader, lookTimeout+lookTimeout/2) })
			asked = heard
		}
		ctx, cancel := context.WithTimeout(n.ctx, lookTimeout)
		answer, err := n.exchange(ctx, leader.ID, leader.Addr, message{Type: here, Record: &n.self})
		cancel()
		if err != nil {
			cause = err
		}
		refused++
		if !errors.Is(err, syscall.ECONNREFUSED) && !isElse(err) {
			refused = 0
		}
		void := answer.Type == lead && answer.Name == leader.Nonce && (answer.Record == nil || answer.Record.Nonce != leader.Nonce) // it has stepped down
		known := word{Alive: true}
		switch {
		case answer.Record != nil && answer.Record.Nonce != leader.Nonce: // its successor
			refused += 2
			cause = errors.New("its container was started again")
		}
		switch {
		case answer.Type == done && answer.Outcome != nil && refused == 0:
			known.Outcome = answer.Outcome
		case refused >= 2, time.Since(begin) > grace:
			if asked != nil {
				known, asked = <-asked, nil
			} else {
				known = n.askOthers(n.ctx, leader, linger/2)
			}
			void = void || known.Void && !known.Alive && known.Outcome == nil
			if !known.Alive && !void {
				known = n.verdict(n.ctx, leader, known.Outcome)
			}
		}
		n.post(func() {
			if void && n.up.wire == nil && n.phase == Prepared && n.roster.Members[0].Nonce == leader.Nonce {
				n.enter(Gathering) // it has not launched
				n.elect()
			}
			n.onWord(known, cause)
		})
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(b.wait()):
		}
	}
}

// leaderLost says that rank 0 is gone. A rank that has acknowledged the roster cannot know whether rank 0 has launched: all
// acknowledgements may have come, and nobody been told. It does not follow a successor, who would launch a second time.
func (n *Node) leaderLost(reason string) *LostError {
	const unsure = "; it may have launched"
	if n.phase == Prepared && !strings.Contains(reason, unsure) {
		reason += unsure
	}
	return &LostError{Reason: reason}
}

// onWord acts on what the others know of rank 0, unless it is back meanwhile.
func (n *Node) onWord(known word, cause error) {
	if n.up.wire != nil || n.phase != Prepared && n.phase != Running {
		return
	}
	switch {
	case known.Outcome != nil:
		n.end(*known.Outcome)
		o := n.outcome
		time.AfterFunc(linger, func() { n.post(func() { n.setFinished(o, nil) }) }) // somebody may still ask
	case known.Alive:
	default:
		err := n.leaderLost(explain(cause) + known.Reason)
		if known.First {
			n.giveUp(err)
			return
		}
		n.setFinished(Outcome{}, err)
		n.setGathered(Roster{}, err)
	}
}
