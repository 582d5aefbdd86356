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
	n *Node

	wire    *wire
	leader  *Record
	waits   bool      // rank 0 has said for whom
	awaited []Missing // as it said it last
	present int
	lookErr error   // of the last look at rank 0
	rumour  *Record // of rank 0, as others tell
	foreign foreign // what answers in place of rank 0
	// incompatible is the last ErrOtherSecret at rank 0's address, until rank 0 itself answers. It outlives foreign, which
	// a refused connection resets: the other container may exit before this one has dialled it twice.
	incompatible error

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
	n.post(func() { n.up.onLost(w, err) })
}

// onMessage answers what any container may ask; the rest is for the rank of rank 0.
func (n *Node) onMessage(w *wire, m message, remote net.Addr) {
	switch m.Type {
	case hello:
		n.up.greeted(w, m, remote)
		return
	case announce:
		n.onHere(w, m.Record)
		return
	case look:
		n.onLook(w, m)
		return
	case fetch:
		n.up.onFetch(w, m)
		return
	case ended: // of a rank that leaves
		n.farewells.hear(w, m)
		return
	case ping:
		w.send(message{Type: pong})
		return
	case pong:
		n.probes.answered(w, true)
		return
	}
	n.up.onMessage(w, m)
}

// onMessage hears rank 0.
func (u *uplink) onMessage(w *wire, m message) {
	if u.wire != w {
		return
	}
	switch m.Type {
	case refuse:
		w.abort()
	case waiting:
		u.waits, u.awaited, u.present = true, m.Missing, m.Present
		if u.n.phase == Prepared {
			u.n.enter(Gathering) // the roster is void: rank 0 waits for somebody again
			u.n.find.elect()
		}
	case prepare:
		u.onPrepare(w, m)
	case launched:
		if u.n.phase == Prepared && m.Epoch == u.n.roster.Epoch {
			u.n.enter(Running)
			u.n.find.end()
			u.n.setGathered(u.n.roster, nil)
		}
		if u.n.phase == Running && m.Epoch == u.n.roster.Epoch {
			w.send(message{Type: started, Epoch: m.Epoch})
			u.n.calls.resume()
		}
	case stop:
		u.onOrder(m)
	case clock:
		w.send(message{Type: clock, Call: m.Call, Clock: int64(time.Since(u.n.begin))})
	case release:
		w.send(message{Type: released, Call: m.Call})
		u.n.calls.onRelease(m.Call)
	case answer:
		u.n.calls.onAnswer(m)
	case done:
		if m.Outcome == nil {
			return
		}
		w.send(message{Type: doneAck})
		if u.n.phase != Ended {
			u.n.end(*m.Outcome)
		}
		if u.n.outcome != *m.Outcome {
			return // the first word counts
		}
		if m.Last {
			u.depart(w)
			return
		}
		time.AfterFunc(doneTimeout+linger, func() { u.n.post(func() { u.depart(w) }) })
	case bye:
		if u.n.phase == Ended {
			u.depart(w)
		}
	}
}

// depart lets this rank end. The outcome may let the process end: what was sent goes first.
func (u *uplink) depart(w *wire) {
	if u.n.outcomeErr != nil {
		return
	}
	o := u.n.outcome
	u.n.wg.Go(func() {
		w.flush()
		u.n.post(func() { u.n.setFinished(o, nil) })
	})
}

// greeted asks first where a second container greets that says it is rank 0: the first one whether it still answers,
// and then the second one, whose greeting may have been on its way since before its death.
func (u *uplink) greeted(w *wire, m message, remote net.Addr) {
	r, first := m.Record, u.leader
	if u.n.self.Rank == 0 {
		first = &u.n.self
	}
	if r == nil || r.validate() != nil || r.Rank != 0 || first == nil || first.Rank != 0 || r.Nonce == first.Nonce ||
		u.n.self.Rank != 0 && u.wire == nil {
		u.onHello(w, m, remote)
		return
	}
	both := func(alive bool) {
		if !alive {
			w.abort()
			return
		}
		w.send(message{Type: refuse, Record: first, Reason: bothLead(first, r).Error()})
		switch {
		case u.n.self.Rank == 0:
			u.n.lead.onRival(r)
		case u.wire != nil && u.n.phase != Running && u.n.phase != Ended:
			u.wire.send(message{Type: announce, Record: r})
		}
	}
	if u.n.self.Rank == 0 {
		u.n.probes.ask(w, both)
		return
	}
	u.n.probes.ask(u.wire, func(alive bool) {
		if !alive {
			u.onHello(w, m, remote)
			return
		}
		u.n.probes.ask(w, both)
	})
}

// onHello answers whoever dialled. Only one container may lead: the one that the environment, or the order, says.
func (u *uplink) onHello(w *wire, m message, remote net.Addr) {
	r := m.Record
	self := u.n.self
	if r == nil || r.validate() != nil {
		w.send(message{Type: refuse, Reason: "the greeting holds no record that can be used"})
		return
	}
	if u.isLate(w, r) {
		return
	}
	switch {
	case r.Nonce == u.n.self.Nonce:
		w.send(message{Type: refuse, Record: &self, Reason: "this is the container itself"})
		return
	case u.n.self.Rank == 0, u.n.lead != nil && (u.n.lead.ending || u.n.isGathered() || u.n.self.before(r) < 0 && r.Rank != 0):
		w.send(message{Type: refuse, Record: &self, Reason: fmt.Sprintf("%s leads already", u.n.self.ID)})
		if r.Rank < 0 && u.n.lead != nil && !u.n.lead.ending && !u.n.isGathered() {
			u.n.lead.addStart(r, nil) // it steps down when it is greeted, and counts here
		}
		return
	case u.n.lead != nil:
		u.n.lead.stepDown()
	}
	if u.n.phase == Prepared && u.n.roster.Members[0].Nonce != r.Nonce {
		if leader := &u.n.roster.Members[0]; leader.ID != r.ID { // it must step down first, or be gone, which ends the job
			w.send(message{Type: refuse, Record: &self, Reason: fmt.Sprintf("%s has acknowledged the roster of %s", u.n.self.ID, leader.ID)})
			return
		}
		u.giveUp(u.leaderLost("its container was started again"))
	}
	if (u.n.phase == Running || u.n.phase == Ended && len(u.n.roster.Members) > 0) && u.n.roster.Members[0].Nonce != r.Nonce {
		// A rank 0 that was started again: it learns that it comes too late, and has no word in how this ends.
		w.send(u.registration(r))
		return
	}
	if u.wire != nil && u.wire != w {
		u.wire.abort()
	}
	if u.n.phase != Running {
		u.n.log.Debug("rank 0 is connected", "peer", r.ID, "remote", remote, "elapsed", time.Since(u.n.begin).Round(time.Microsecond))
	}
	u.wire, u.leader, u.incompatible = w, r, nil
	answer := u.registration(r)
	if m.Epoch != uint64(u.n.cfg.Size) {
		answer.Size = u.n.cfg.Size // 0 = not known here
	}
	w.send(answer)
	if u.n.own != nil {
		w.send(u.n.own.sentAt(time.Since(u.n.begin)))
	}
	for _, f := range u.n.farewells.heard {
		w.send(f)
	}
}

// registration is what rank 0, who has greeted with its record, is told of this container.
func (u *uplink) registration(greeting *Record) message {
	self := u.n.record()
	return message{Type: register, ref: greeting, Record: &self, State: u.n.phase, Epoch: u.n.roster.Epoch, Looking: u.n.looking}
}

func (u *uplink) onPrepare(w *wire, m message) {
	switch {
	case u.n.phase == Running || u.n.phase == Ended:
		return
	case m.Roster == nil && m.Parent != nil && m.Hash == u.n.roster.Hash && u.n.roster.Epoch == m.Epoch:
		// It was asked for already, and has come.
	case m.Roster == nil && m.Parent != nil:
		u.n.enter(Gathering)
		u.n.wg.Go(func() { u.fetchTable(w, m) })
		return
	case m.Roster == nil:
		return
	}
	r := m.Roster
	if r == nil {
		r = &u.n.roster
	}
	if err := r.verify(&u.n.self); err != nil {
		w.send(message{Type: refuse, Reason: err.Error()})
		return
	}
	if u.n.cfg.share != nil {
		r.Members = u.n.cfg.share(r.Members)
	}
	if !u.n.enter(Prepared) {
		return
	}
	u.n.roster = *r
	w.send(message{Type: ack, Epoch: u.n.roster.Epoch, Hash: u.n.roster.Hash})
	for _, c := range u.children {
		u.onFetch(c.w, message{Type: fetch, Hash: c.hash})
	}
	u.children = nil
}

// fetchTable asks another rank for the table that rank 0 speaks of, and rank 0 when that one does not have it.
func (u *uplink) fetchTable(w *wire, m message) {
	ctx, cancel := context.WithTimeout(u.n.ctx, fetchTimeout)
	defer cancel()
	answer, err := u.n.exchange(ctx, m.Parent.ID, m.Parent.Addr, message{Type: fetch, Hash: m.Hash})
	u.n.post(func() {
		switch {
		case u.wire != w:
		case err == nil && answer.Type == table && answer.Roster != nil && answer.Roster.Hash == m.Hash && answer.Roster.verify(&u.n.self) == nil:
			answer.Roster.Epoch = m.Epoch
			u.onPrepare(w, message{Type: prepare, Epoch: m.Epoch, Roster: answer.Roster})
		default:
			u.n.log.Debug("another rank does not have the table", "peer", m.Parent.ID, "err", err)
			w.send(message{Type: fetch, Hash: m.Hash})
		}
	})
}

// onFetch gives the table to another rank, as soon as it is here.
func (u *uplink) onFetch(w *wire, m message) {
	switch {
	case m.Hash == u.n.roster.Hash && m.Hash != "":
		w.send(message{Type: table, packed: u.n.roster.pack()})
	case u.n.phase == Gathering || u.n.phase == Prepared:
		u.children = append(u.children[max(0, len(u.children)-2*tableFan):], child{w, m.Hash})
	}
}

func (u *uplink) onLost(w *wire, err error) {
	u.n.probes.answered(w, false)
	if u.wire != w {
		return
	}
	u.wire = nil
	switch u.n.phase {
	case Prepared, Running: // one that is prepared may have missed the word
		u.n.log.Warn("control connection to rank 0 lost", "reason", explain(err))
		u.n.wg.Go(func() { u.awaitReturn(err) })
	case Ended:
		if u.n.outcomeErr == nil { // else it has given up, and stays only to say so
			u.n.wg.Go(func() { u.confirm(w) })
		}
	}
}

// awaitReturn gives rank 0 the grace time to come back. Two refusals in a row mean that its process is gone: nobody listens on
// its port any more, or somebody else does. Before it is given up the others are asked: one of them may see it, or know how the job ended.
func (u *uplink) awaitReturn(cause error) {
	begin, grace := time.Now(), u.n.cfg.grace(cause)
	refused := 0
	var asked chan peerView
	var b backoff
	for {
		away := false
		var leader Member
		if !u.n.ask(func() {
			if away = u.wire == nil && (u.n.phase == Prepared || u.n.phase == Running); away {
				leader = u.n.roster.Members[0]
			}
		}) || !away {
			return
		}
		if asked == nil && time.Since(begin)+lookTimeout > grace { // both at the same time
			heard := make(chan peerView, 1)
			u.n.wg.Go(func() { heard <- u.n.askOthers(u.n.ctx, leader, lookTimeout+lookTimeout/2) })
			asked = heard
		}
		ctx, cancel := context.WithTimeout(u.n.ctx, lookTimeout)
		answer, err := u.n.exchange(ctx, leader.ID, leader.Addr, message{Type: announce, Record: &u.n.self})
		cancel()
		if err != nil {
			cause = err
		}
		refused++
		if !errors.Is(err, syscall.ECONNREFUSED) && !isElse(err) {
			refused = 0
		}
		void := answer.Type == lead && answer.Name == leader.Nonce && (answer.Record == nil || answer.Record.Nonce != leader.Nonce) // it has stepped down
		known := peerView{Alive: true}
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
				known = u.n.askOthers(u.n.ctx, leader, linger/2)
			}
			void = void || known.Void && !known.Alive && known.Outcome == nil
			if !known.Alive && !void {
				known = u.verdict(u.n.ctx, leader, known.Outcome)
			}
		}
		u.n.post(func() {
			if void && u.wire == nil && u.n.phase == Prepared && u.n.roster.Members[0].Nonce == leader.Nonce {
				u.n.enter(Gathering) // it has not launched
				u.n.find.elect()
			}
			u.onPeerView(known, cause)
		})
		select {
		case <-u.n.ctx.Done():
			return
		case <-time.After(b.wait()):
		}
	}
}

// leaderLost says that rank 0 is gone. A rank that has acknowledged the roster cannot know whether rank 0 has launched: all
// acknowledgements may have come, and nobody been told. It does not follow a successor, who would launch a second time.
func (u *uplink) leaderLost(reason string) *LostError {
	const unsure = "; it may have launched"
	if u.n.phase == Prepared && !strings.Contains(reason, unsure) {
		reason += unsure
	}
	return &LostError{Reason: reason}
}

// onPeerView acts on what the others know of rank 0, unless it is back meanwhile.
func (u *uplink) onPeerView(known peerView, cause error) {
	if u.wire != nil || u.n.phase != Prepared && u.n.phase != Running {
		return
	}
	switch {
	case known.Outcome != nil:
		u.n.end(*known.Outcome)
		o := u.n.outcome
		time.AfterFunc(linger, func() { u.n.post(func() { u.n.setFinished(o, nil) }) }) // somebody may still ask
	case known.Alive:
	default:
		err := u.leaderLost(explain(cause) + known.Reason)
		if known.First {
			u.giveUp(err)
			return
		}
		u.n.setFinished(Outcome{}, err)
		u.n.setGathered(Roster{}, err)
	}
}
