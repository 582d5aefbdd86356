package rendezvous

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"
)

// Standing is the state of one rank for people.
type Standing string

// The standings of a rank.
const (
	Present Standing = "present" // rank 0 holds a control connection to it
	Heard   Standing = "heard"   // gossip tells of it; only a rank that is not connected to rank 0 says so
	Absent  Standing = "missing" // it has not come yet
	Spare   Standing = "spare"   // the job runs without it, and rank 0 holds a control connection to it
	Lost    Standing = "lost"    // it was present at the launch, and its control connection has ended
)

// RankStatus is one rank as rank 0 sees it. Of a rank that never came, only the environment's data is known.
type RankStatus struct {
	Rank     int       `json:"rank"`          // -1 = to be agreed
	Alias    string    `json:"alias"`         // as in Member; an address, or "3 ranks", for ranks without a name
	Own      string    `json:"own,omitempty"` // the container's own name, for Display; "" = it has no other one
	Host     string    `json:"host"`          // address, or its name in the environment; may be empty
	Port     int       `json:"port"`          // 0 = unknown
	Standing Standing  `json:"state"`
	Reason   string    `json:"reason"` // why it is missing or lost, or why the launch waits for it
	Since    time.Time `json:"since"`  // of this standing
	Slots    int       `json:"slots"`  // -1 = unknown
	GPUs     int       `json:"gpus"`   // -1 = unknown
	Fabric   []byte    `json:"fabric"` // as in Record
	// RTT is the shortest round trip of rank 0's control connection that the kernel has measured lately; 0 = unknown.
	RTT time.Duration `json:"rtt,omitempty"`
}

// Status is the state of the rendezvous.
type Status struct {
	Phase Phase     // of this container
	Since time.Time // of Phase
	Epoch uint64    // of the roster that this container holds; 0 = none
	Hash  string
	Ranks []RankStatus // by rank; unknown ranks and spares come last
	Leads bool         // this container is rank 0, or coordinates the launch: it knows the state of all ranks
	// Deadline is when rank 0 gives up waiting for ranks; zero = never, or all are present.
	Deadline time.Time
	Outcome  *Outcome // of the job; nil = it has not ended, or this container does not know how
	Spare    bool     // the job runs without this container, which waits until it is needed
	// Unready is why the job is not ready, as Node.Unready returns it; "" = it is ready, or only rank 0 knows.
	Unready string
}

// statusTimeout is how long Status waits for rank 0 before it returns what this rank knows.
const statusTimeout = 2 * time.Second

// View returns the state of the rendezvous by what this container knows.
func (n *Node) View() (s Status) {
	n.ask(func() {
		s = Status{
			Phase: n.phase, Since: n.entered, Leads: n.lead != nil,
			Epoch: n.roster.Epoch, Hash: n.roster.Hash, Ranks: n.ranks(), Deadline: n.deadline(),
			Spare: n.up.idle && n.phase == Gathering,
		}
		s.Unready, _ = n.unready()
		if n.phase == Ended && n.outcomeErr == nil {
			s.Outcome = new(n.outcome)
		}
	})
	return s
}

// Status returns View with the ranks as rank 0 sees them, if rank 0 is connected.
func (n *Node) Status(ctx context.Context) Status {
	s := n.View()
	if s.Phase == Ended {
		return s
	}
	if a, ok := n.calls.inquire(ctx, message{}); ok {
		s.Ranks, s.Deadline, s.Unready = a.Ranks, a.Deadline, a.Reason
	}
	return s
}

// deadline returns when this container gives up waiting for ranks; zero = it does not.
func (n *Node) deadline() time.Time {
	if n.phase != Gathering {
		return time.Time{}
	}
	return n.limit
}

// inquire asks rank 0 a question, see inquiry; false = no answer in time.
func (k *calls) inquire(ctx context.Context, q message) (message, bool) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var call uint64
	answer := make(chan message, 1)
	if !k.n.ask(func() {
		if k.n.lead == nil && k.n.up.wire != nil {
			k.last++
			call = k.last
			k.asked[call] = answer
			q.Type, q.Call = inquiry, call
			k.n.up.send(q)
		}
	}) || call == 0 {
		return message{}, false
	}
	defer k.n.post(func() { delete(k.asked, call) })
	select {
	case m := <-answer:
		return m, true
	case <-ctx.Done():
	case <-k.n.ctx.Done():
	}
	return message{}, false
}

// ranks lists all ranks by what this container knows.
func (n *Node) ranks() []RankStatus {
	var out []RankStatus
	switch {
	case n.lead != nil && n.phase != Gathering && len(n.roster.Members) > 0:
		for _, m := range n.roster.Members {
			out = append(out, n.lead.memberStatus(m))
		}
		for _, t := range n.lead.targets {
			if t.rec != nil && n.lead.isSpare(t) {
				s := recordStatus(t.rec, t.rec.statusAlias(), Spare, t.changed)
				s.Rank, s.RTT = -1, t.link.roundTrip()
				out = append(out, s)
			}
		}
	case n.phase == Running || n.phase == Ended:
		for _, m := range n.roster.Members {
			s := recordStatus(&m.Record, m.Alias, Present, n.begin)
			if n.phase == Running && n.up.wire == nil && m.Rank == 0 {
				s.Standing, s.Reason, s.Since = Lost, "the control connection to it is lost", n.up.lost
			}
			out = append(out, s)
		}
	default:
		out = append(out, presentStatus(&n.current, n.examines(), n.begin))
		if n.lead != nil {
			for _, t := range n.lead.targets {
				if t.rec != nil {
					s := presentStatus(t.rec, t.examines(), t.changed)
					s.RTT = t.link.roundTrip()
					out = append(out, s)
				}
			}
		} else {
			for _, r := range n.find.heard {
				out = append(out, recordStatus(&r, r.statusAlias(), Heard, n.begin))
			}
		}
		peers := make(map[string]*Peer, len(n.cfg.Peers))
		for i := range n.cfg.Peers {
			peers[n.cfg.Peers[i].display()] = &n.cfg.Peers[i]
		}
		for _, m := range n.missing() {
			out = append(out, n.missingStatus(m, peers[m.Name]))
		}
	}
	slices.SortFunc(out, func(a, b RankStatus) int { // by rank; -1, unknown, comes last
		return cmp.Or(cmp.Compare(uint(a.Rank), uint(b.Rank)), cmp.Compare(a.Alias, b.Alias))
	})
	return out
}

// presentStatus describes a container that is present, before the ranks are agreed.
func presentStatus(r *Record, examines string, since time.Time) RankStatus {
	s := recordStatus(r, r.statusAlias(), Present, since)
	s.Reason = examines
	return s
}

// statusAlias returns the id of a container whose rank is not agreed yet, or its name for people where that is a nonce.
func (r *Record) statusAlias() string {
	if r.ID == r.Nonce {
		return r.display()
	}
	return r.ID
}

func recordStatus(r *Record, alias string, is Standing, since time.Time) RankStatus {
	s := RankStatus{
		Rank: r.Rank, Alias: alias, Own: r.Own, Port: int(r.Addr.Port()), Standing: is, Since: since,
		Slots: r.Slots, GPUs: r.GPUs, Fabric: r.Fabric,
	}
	if r.Addr.Addr().IsValid() {
		s.Host = r.Addr.Addr().String()
	}
	return s
}

// memberStatus describes a member of the roster as rank 0 sees it.
func (c *coordinator) memberStatus(m Member) RankStatus {
	s := recordStatus(&m.Record, m.Alias, Present, c.n.begin)
	if t, ok := c.targets[m.ID]; ok {
		s.Since = t.changed
		if t.link == nil && !t.doneAck {
			s.Standing, s.Reason = Lost, explain(t.err)
		}
		s.RTT = t.link.roundTrip()
	}
	return s
}

// missingStatus describes a missing rank. p is what the environment says of it; nil = nothing.
func (n *Node) missingStatus(m Missing, p *Peer) RankStatus {
	s := RankStatus{Rank: m.Rank, Alias: m.Name, Standing: Absent, Reason: m.Reason, Slots: -1, GPUs: -1}
	s.Since = n.begin
	if m.alias != "" {
		s.Alias, s.Own = m.alias, m.own
	}
	if p != nil {
		s.Alias, s.Own, s.Host, s.Port = p.ID, p.Own, p.Host, p.Port
	}
	if n.lead != nil {
		if t, ok := n.lead.targets[s.Alias]; ok && !t.changed.IsZero() {
			s.Since = t.changed
		}
	}
	if ap, err := netip.ParseAddrPort(s.Alias); err == nil {
		s.Host, s.Port = ap.Addr().String(), int(ap.Port())
	}
	return s
}

// onInquiry answers a rank that asks.
func (c *coordinator) onInquiry(w *wire, m message) {
	a := message{Type: answer, Call: m.Call}
	switch {
	case m.Timed:
		a.Times, a.Now = c.n.times(), time.Now()
	case m.Name == "":
		if a.Reason, _ = c.n.unready(); !m.Brief {
			a.Ranks, a.Deadline, a.Now = c.n.ranks(), c.n.deadline(), time.Now()
		}
		a.Ready = a.Reason == ""
	default:
		a.Missing = c.notAt(m.Name)
	}
	w.send(a)
}

// maxSkewError is how much the kept difference between rank 0's clock and ours may be wrong: one of them may be set.
const maxSkewError = 2 * time.Second

// localize converts the times in an answer to this container's clock: rank 0's may be hours away. It keeps the
// difference, so that the same moment is the same in each answer, however long the answer took.
func (k *calls) localize(m *message) {
	skew := time.Until(m.Now)
	if k.skewOf != k.n.up.wire || (skew-k.skew).Abs() > maxSkewError {
		k.skew, k.skewOf = skew, k.n.up.wire
	}
	for i := range m.Ranks {
		m.Ranks[i].Since = m.Ranks[i].Since.Add(-k.skew)
	}
	for i := range m.Times {
		m.Times[i].shift(func(at time.Time) time.Time { return at.Add(-k.skew) })
	}
	if !m.Deadline.IsZero() {
		m.Deadline = m.Deadline.Add(-k.skew)
	}
}

func (k *calls) onAnswer(m message) {
	if !m.Now.IsZero() {
		k.localize(&m)
	}
	if c, ok := k.asked[m.Call]; ok {
		delete(k.asked, m.Call)
		c <- m
	}
}
