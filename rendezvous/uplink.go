package rendezvous

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"
)

// uplink is a rank's view of rank 0, and its connection to it. Only the loop touches it.
type uplink struct {
	n *Node

	wire    *wire
	leader  *Record
	text    []byte   // of rank 0's greeting
	spares  int      // containers without a rank, by the greeting
	idle    bool     // this is one of them, and the job runs
	request *message // to end the job, before the launch
	told    *message // which ranks are missing, by rank 0; nil = it has not told yet
	lookErr error    // of the last call to rank 0
	dialled attempts // calls to rank 0
	rumour  *Record  // rank 0's record, as another rank told it
	foreign foreign  // the containers that answer in place of rank 0
	// incompatible is the last ErrOtherSecret or ErrOtherVersion at rank 0's address, until rank 0 itself answers. A
	// refused connection resets foreign, but not this: the other container may exit before it was dialled twice.
	incompatible error

	lost       time.Time // when the connection ended
	leaderGone bool      // the process of rank 0 has ended
	lastLeader *Record   // rank 0 of the last generation; nil = there is none, or it did not answer

	promised time.Time // when rank 0 acknowledged an announcement
	// What rank 0 said last of its dials to this container.
	blocked   error
	blockedAt time.Time

	announced uint64   // epoch of the last roster
	children  []func() // answers to ranks that wait for the roster
	table     []byte   // the encoded answer to them; nil = not encoded yet
}

// send sends a message to rank 0. It reports false if rank 0 is not connected.
func (u *uplink) send(m message) bool {
	if u.wire == nil {
		return false
	}
	u.wire.send(m)
	return true
}

// onMessage answers what any container may ask, and passes on what only rank 0 may say.
func (n *Node) onMessage(w *wire, m message, remote net.Addr) {
	switch m.Type {
	case hello:
		n.up.greeted(w, m, remote)
	case announce:
		n.onAnnounce(w, m)
	case look:
		n.onLook(w, m)
	case fetch:
		n.up.onFetch(w, m)
	case ended: // a rank leaves
		n.answerWithdrawal(w, m)
	case ping:
		w.send(message{Type: pong})
	case pong:
		n.answered(w, true)
	default:
		if n.up.wire == w {
			n.up.onMessage(w, m)
		}
	}
}

// onMessage handles the messages of rank 0.
func (u *uplink) onMessage(w *wire, m message) {
	switch m.Type {
	case refuse:
		w.abort()
	case waiting:
		u.told = &m
		if u.n.phase == Prepared {
			u.n.enter(Gathering) // the roster is void: rank 0 waits for a rank again
			u.n.find.elect()
		}
	case idle:
		u.onIdle(m)
	case prepare:
		u.idle = false
		u.onPrepare(w, m)
	case launched:
		if u.n.phase == Prepared && m.Epoch == u.n.roster.Epoch {
			u.n.enter(Running)
			u.n.find.end()
			u.n.setGathered(nil)
			u.table = nil // every rank has the roster
		}
		if u.n.phase == Running && m.Epoch == u.n.roster.Epoch {
			w.send(message{Type: started, Epoch: m.Epoch})
			u.n.calls.resume()
		}
	case stop:
		u.onOrder(m)
	case again:
		u.onAgain(m)
	case next:
		u.onNext()
	case clock:
		w.send(message{
			Type: clock, Call: m.Call, Clock: int64(time.Since(u.n.begin)), Now: time.Now(), Kills: u.n.kills(),
		})
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
			return // the first outcome counts
		}
		if m.Last {
			u.depart(w)
			return
		}
		u.n.after(doneTimeout+linger, func() { u.depart(w) })
	case bye:
		if u.n.phase == Ended {
			u.depart(w)
		}
	}
}

// depart lets this rank end. It first waits until everything was sent, because the outcome may end the process.
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

// greeted handles a greeting, which may be one of a second container that claims rank 0. It first asks the first rank 0
// whether it still answers, then the second one, which may have died after it sent the greeting.
func (u *uplink) greeted(w *wire, m message, remote net.Addr) {
	if u.contendsWithLast(m.Record) {
		u.askLastLeader(w, m, remote)
		return
	}
	if u.isOver(w, m) {
		return
	}
	r, first := m.Record, u.leader
	if u.isOutrun(w, r) {
		return
	}
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
		w.send(message{Type: refuse, Record: first, Reason: bothClaim(first, r).Error()})
		if u.n.self.Rank == 0 {
			u.n.lead.onRival(r)
			return
		}
		// The first rank 0 ends this rank as soon as it knows, and no other rank tells the second one.
		u.n.wg.Go(func() {
			w.flush()
			u.n.post(func() {
				if u.n.phase != Running && u.n.phase != Ended {
					u.send(message{Type: announce, Record: r})
				}
			})
		})
	}
	if u.n.self.Rank == 0 {
		u.n.probe(w, both)
		return
	}
	u.n.probe(u.wire, func(alive bool) {
		if !alive {
			u.onHello(w, m, remote)
			return
		}
		u.n.probe(w, both)
	})
}

// onHello answers a greeting. Only one container may lead, as the environment or the order determines.
func (u *uplink) onHello(w *wire, m message, remote net.Addr) {
	r, self := m.Record, &u.n.self
	if r == nil || r.validate() != nil {
		w.send(message{Type: refuse, Reason: "the greeting holds no record that can be used"})
		return
	}
	if u.isLate(w, r) {
		return
	}
	switch {
	case r.Nonce == self.Nonce:
		w.send(message{Type: refuse, Record: self, Reason: "this is the container itself"})
		return
	case self.Rank < 0 && r.Rank < 0 && u.n.lead != nil && u.n.lead.tellsLateRanks:
		o := u.n.outcome // it leads, and so would refuse this coordinator
		w.send(message{Type: done, Last: true, Outcome: &o})
		return
	case self.Rank == 0,
		u.n.lead != nil && (u.n.lead.ending || u.n.isGathered() || self.before(*r) < 0 && r.Rank != 0):
		w.send(message{Type: refuse, Record: self, Reason: fmt.Sprintf("%s leads already", self.ID)})
		if r.Rank < 0 && u.n.lead != nil && !u.n.lead.ending && !u.n.isGathered() {
			u.n.lead.addStart(r, noReply) // it steps down when it is greeted, and counts as present
		}
		return
	case u.n.lead != nil:
		u.n.lead.stepDown()
	}
	if u.n.phase == Prepared && u.n.roster.Members[0].Nonce != r.Nonce {
		// it must step down first; if it is gone, the job ends
		if leader := &u.n.roster.Members[0]; leader.ID != r.ID {
			reason := fmt.Sprintf("%s has acknowledged the roster of %s", self.ID, leader.ID)
			w.send(message{Type: refuse, Record: self, Reason: reason})
			return
		}
		u.giveUp(u.leaderLost("its container was started again"))
		if u.n.restarts() {
			u.isOver(w, m) // rank 0 waits for the next start of this container
			return
		}
	}
	if (u.n.phase == Running || u.n.phase == Ended && len(u.n.roster.Members) > 0) &&
		u.n.roster.Members[0].Nonce != r.Nonce {
		// A restarted rank 0 learns from this that it is too late. It does not decide how the job ends.
		w.send(u.registration(r))
		return
	}
	if u.wire != nil && u.wire != w {
		u.wire.abort()
	}
	if u.n.phase != Running {
		u.n.log.Debug("rank 0 is connected", "peer", r.display(), "remote", remote,
			"elapsed", time.Since(u.n.begin).Round(time.Microsecond))
	}
	if u.n.phase == Gathering && m.generation() < u.n.Generation() {
		u.n.resetGeneration() // this rank had adopted the generation of another start of rank 0
	}
	u.wire, u.leader, u.incompatible, u.text = w, r, nil, m.Text
	u.spares = m.Spares
	u.wanted(m)
	answer := u.registration(r)
	if m.Epoch != uint64(u.n.cfg.Size) {
		answer.Size = u.n.cfg.Size // 0 = not known to this rank
	}
	answer.Looking = answer.Looking || u.n.notes[Preflight] != nil
	w.send(answer)
	if u.n.command.runs {
		w.send(message{Type: works})
	}
	if u.n.own != nil {
		u.n.sendOwn()
	}
	if u.request != nil && u.n.phase == Gathering { // it may have been lost with the connection
		w.send(*u.request)
	}
	u.sendNotes(r)
	for _, f := range u.n.withdrawn {
		w.send(f)
	}
}

// registration answers the greeting of a rank 0 with what this container says of itself.
func (u *uplink) registration(greeting *Record) message {
	current := u.n.current
	current.Uptime = u.n.cfg.uptime()
	m := message{
		Type: register, ref: greeting, Record: &current, Looking: u.n.looking,
		State: u.n.phase, Epoch: u.n.roster.Epoch,
	}
	u.addSuccession(&m, greeting)
	return m
}

func (u *uplink) onPrepare(w *wire, m message) {
	u.announced = m.Epoch
	switch {
	case u.n.phase == Running || u.n.phase == Ended:
		return
	case m.Roster == nil && m.Parent != nil && m.Hash == u.n.roster.Hash && u.n.roster.Epoch == m.Epoch:
		// This rank has fetched it already.
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
	if err := r.verify(&u.n.self, u.spares > 0); err != nil {
		w.send(message{Type: refuse, Reason: err.Error()})
		return
	}
	if !u.n.enter(Prepared) {
		return
	}
	u.n.roster, u.table = *r, nil
	u.n.roster.Arrival = Arrival{Wait: time.Since(u.n.begin)}
	w.send(message{Type: ack, Epoch: u.n.roster.Epoch, Hash: u.n.roster.Hash})
	for _, answer := range u.children {
		answer()
	}
	u.children = nil
}

// fetchTable asks another rank for the roster that rank 0 has announced, and rank 0 if that rank does not have it.
func (u *uplink) fetchTable(w *wire, m message) {
	question := message{Type: fetch, Hash: m.Hash}
	answer, err := u.n.exchangeWithin(fetchTimeout, m.Parent.ID, m.Parent.Addr, question)
	u.n.post(func() {
		switch {
		case u.wire != w || u.announced != m.Epoch: // rank 0 has announced another one since
		case err == nil && answer.Type == table && answer.Roster != nil && answer.Roster.Hash == m.Hash &&
			answer.Roster.verify(&u.n.self, u.spares > 0) == nil:
			answer.Roster.Epoch = m.Epoch
			u.onPrepare(w, message{Type: prepare, Epoch: m.Epoch, Roster: answer.Roster})
		default:
			u.n.log.Debug("another rank does not have the table", "peer", m.Parent.ID, "err", err)
			w.send(message{Type: fetch, Hash: m.Hash})
		}
	})
}

// onFetch sends the roster to another rank, as soon as this rank has it.
func (u *uplink) onFetch(w *wire, m message) {
	switch {
	case m.Hash == u.n.roster.Hash && m.Hash != "":
		if u.table == nil { // up to tableFan ranks ask at the same moment
			m := message{Type: table, Roster: &u.n.roster}
			u.table, _ = m.encode() // cannot fail: the message holds only a roster
		}
		w.send(message{Type: table, whole: u.table})
	case u.n.phase == Gathering || u.n.phase == Prepared:
		u.children = append(u.children[max(0, len(u.children)-2*tableFan):], func() { u.onFetch(w, m) })
	}
}

func (u *uplink) onLost(w *wire, err error) {
	u.n.answered(w, false)
	if u.wire != w {
		return
	}
	u.wire, u.lost = nil, time.Now()
	u.deserted()
	switch u.n.phase {
	case Gathering:
		u.n.resetGeneration()
	case Prepared, Running: // a rank that is prepared may have missed go
		u.n.log.Warn("control connection to rank 0 lost", "reason", explain(err))
		u.n.wg.Go(func() { u.awaitReturn(err) })
	case Ended:
		if u.n.outcomeErr == nil { // otherwise it has given up, and stays only to say so
			u.n.wg.Go(func() { u.confirm(w) })
		}
	}
}

// awaitReturn gives rank 0 its grace time to come back. Two refusals in a row mean that its process is gone. Before
// this rank gives it up, it asks other ranks, which may see rank 0 or know how the job ended.
func (u *uplink) awaitReturn(cause error) {
	begin, grace := time.Now(), graceAfter(cause)
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
		if asked == nil && time.Since(begin)+lookTimeout > grace { // so that the answers are there when the grace ends
			heard := make(chan peerView, 1)
			u.n.wg.Go(func() { heard <- u.n.askOthers(u.n.ctx, leader, askTimeout) })
			asked = heard
		}
		question := u.n.announcement()
		answer, err := u.n.exchangeWithin(lookTimeout, leader.ID, leader.Addr, question)
		if err != nil {
			cause = err
		}
		refused++
		if !errors.Is(err, syscall.ECONNREFUSED) && !isElse(err) {
			refused = 0
		}
		// It has stepped down.
		void := answer.Type == lead && answer.Name == leader.Nonce &&
			(answer.Record == nil || answer.Record.Nonce != leader.Nonce)
		if answer.Record != nil && answer.Record.Nonce != leader.Nonce { // its next start
			refused += 2
			cause = errStartedAgain
		}
		known := peerView{Alive: true}
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
				known = u.verdict(leader, known.Outcome)
			}
		}
		gone := refused > 0 && answer.Name != leader.Nonce
		u.n.post(func() {
			u.leaderGone = gone
			if void && u.wire == nil && u.n.phase == Prepared && u.n.roster.Members[0].Nonce == leader.Nonce {
				u.n.enter(Gathering) // it has not launched
				u.n.resetGeneration()
				u.n.find.elect()
			}
			u.onPeerView(known, cause)
		})
		if !sleep(u.n.ctx, nil, b.wait()) {
			return
		}
	}
}

// leaderLost returns the error of a rank that has lost rank 0. A rank that has acknowledged the roster does not follow
// the next start of rank 0, which would launch a second time if only go was lost.
func (u *uplink) leaderLost(reason string) *LostError {
	const unsure = "; it may have launched"
	if u.n.phase == Prepared && !strings.Contains(reason, unsure) {
		reason += unsure
	}
	return &LostError{Reason: reason}
}

// onPeerView acts on what other ranks know of rank 0, unless rank 0 is back.
func (u *uplink) onPeerView(known peerView, cause error) {
	if u.wire != nil || u.n.phase != Prepared && u.n.phase != Running {
		return
	}
	switch {
	case known.Outcome != nil:
		u.n.end(*known.Outcome)
		u.n.finishSoon(u.n.outcome, nil)
	case known.Alive:
	default:
		err := u.leaderLost(explain(cause) + known.Reason)
		if known.First {
			u.giveUp(err)
		} else {
			u.n.setFinished(Outcome{}, err)
		}
	}
}
