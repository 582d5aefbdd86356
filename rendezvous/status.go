package rendezvous

import (
	"cmp"
	"context"
	"net/netip"
	"sort"
	"time"
)

// Standing is how one rank is doing.
type Standing string

// The standings of a rank.
const (
	Present Standing = "present" // rank 0 holds a control connection to it
	Heard   Standing = "heard"   // gossip tells of it; only a rank that is not connected to rank 0 says so
	Absent  Standing = "missing" // it has not come yet
	Lost    Standing = "lost"    // it was there when the job was launched, and its control connection has ended
)

// RankStatus is one rank as rank 0 sees it. Of one that never came, only what the environment tells is known.
type RankStatus struct {
	Rank     int       `json:"rank"`  // -1 = to be agreed
	Alias    string    `json:"alias"` // as in Member; an address, or "3 ranks", for those that nobody named
	Host     string    `json:"host"`  // address, or the name by which the environment knows it; may be empty
	Port     int       `json:"port"`  // 0 = unknown
	Standing Standing  `json:"state"`
	Reason   string    `json:"reason"` // why it is missing or lost, or waited for although it is there
	Since    time.Time `json:"since"`  // of this standing
	Slots    int       `json:"slots"`  // -1 = unknown
	GPUs     int       `json:"gpus"`   // -1 = unknown
	Fabric   []byte    `json:"fabric"` // as in Record
}

// Status is where the rendezvous stands.
type Status struct {
	Phase Phase  // of this container
	Epoch uint64 // of the roster that this container holds, 0 without one
	Hash  string
	Ranks []RankStatus // by rank; those whose rank is not known come last
}

// askPatience is how long rank 0 may take to say what it sees, before a rank says what it knows itself.
const askPatience = 2 * time.Second

// View tells where the rendezvous stands, by what this container knows.
func (n *Node) View() Status {
	var s Status
	n.ask(func() {
		s = Status{Phase: n.phase, Epoch: n.roster.Epoch, Hash: n.roster.Hash, Ranks: n.ranks()}
	})
	return s
}

// Status is View with the ranks as rank 0 sees them, if it is connected.
func (n *Node) Status(ctx context.Context) Status {
	s := n.View()
	if s.Phase == Ended {
		return s
	}
	if a, ok := n.calls.inquire(ctx, ""); ok {
		s.Ranks = a.Ranks
		now := time.Now() // rank 0's clock may be hours away from ours
		for i := range s.Ranks {
			s.Ranks[i].Since = now.Add(s.Ranks[i].Since.Sub(a.Now))
		}
	}
	return s
}

// inquire asks rank 0 for the ranks, or for those that have not come to a barrier. It reports false where there is no rank 0
// to ask, or it does not answer.
func (k *calls) inquire(ctx context.Context, barrier string) (message, bool) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	var call uint64
	answer := make(chan message, 1)
	if !k.n.ask(func() {
		if k.n.lead == nil && k.n.up.wire != nil {
			k.last++
			call = k.last
			k.asked[call] = answer
			k.n.up.wire.send(message{Type: inquiry, Call: call, Name: barrier})
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

// ranks lists everybody, by what this container knows.
func (n *Node) ranks() []RankStatus {
	var out []RankStatus
	now := time.Now()
	switch {
	case n.lead != nil && n.phase != Gathering && len(n.roster.Members) > 0:
		for _, m := range n.roster.Members {
			out = append(out, n.lead.memberStatus(m))
		}
	case n.phase == Running || n.phase == Ended:
		for _, m := range n.roster.Members {
			s := recordStatus(&m.Record, m.Alias, Present, n.begin)
			if n.phase == Running && n.up.wire == nil && m.Rank == 0 {
				s.Standing, s.Reason, s.Since = Lost, "the control connection to it is lost", now
			}
			out = append(out, s)
		}
	default:
		self := n.record()
		out = append(out, presentStatus(&self, n.looking, n.begin))
		if n.lead != nil {
			for _, t := range n.lead.targets {
				if t.rec != nil {
					out = append(out, presentStatus(t.rec, t.looking, t.changed))
				}
			}
		} else {
			for _, r := range n.find.heard {
				out = append(out, recordStatus(&r, r.ID, Heard, n.begin))
			}
		}
		for _, m := range n.missing() {
			since := n.begin
			if n.lead != nil {
				if t, ok := n.lead.targets[m.Name]; ok && !t.changed.IsZero() {
					since = t.changed
				}
			}
			out = append(out, n.cfg.missingStatus(m, since))
		}
	}
	sort.Slice(out, func(a, b int) bool { // by rank; -1, unknown, comes last
		return cmp.Or(cmp.Compare(uint(out[a].Rank), uint(out[b].Rank)), cmp.Compare(out[a].Alias, out[b].Alias)) < 0
	})
	return out
}

// presentStatus is a container that is there, before the ranks are agreed.
func presentStatus(r *Record, looking bool, since time.Time) RankStatus {
	s := recordStatus(r, r.ID, Present, since)
	if looking {
		s.Reason = stillLooks
	}
	return s
}

func recordStatus(r *Record, alias string, is Standing, since time.Time) RankStatus {
	s := RankStatus{Rank: r.Rank, Alias: alias, Standing: is, Since: since, Slots: r.Slots, GPUs: r.GPUs, Fabric: r.Fabric, Port: int(r.Addr.Port())}
	if r.Addr.Addr().IsValid() {
		s.Host = r.Addr.Addr().String()
	}
	return s
}

// memberStatus is a member of the roster as rank 0 sees it.
func (c *coordinator) memberStatus(m Member) RankStatus {
	s := recordStatus(&m.Record, m.Alias, Present, c.n.begin)
	if t, ok := c.targets[m.ID]; ok {
		s.Since = t.changed
		if t.link == nil && !t.doneAck {
			s.Standing, s.Reason = Lost, explain(t.err)
		}
	}
	return s
}

func (cfg *Config) missingStatus(m Missing, since time.Time) RankStatus {
	s := RankStatus{Rank: m.Rank, Alias: m.Name, Standing: Absent, Reason: m.Reason, Since: since, Slots: -1, GPUs: -1}
	for _, p := range cfg.Peers {
		if p.ID == m.Name {
			s.Host, s.Port = p.Host, p.Port
		}
	}
	if ap, err := netip.ParseAddrPort(m.Name); err == nil {
		s.Host, s.Port = ap.Addr().String(), int(ap.Port())
	}
	return s
}

// onInquiry is rank 0's answer.
func (c *coordinator) onInquiry(w *wire, m message) {
	a := message{Type: answer, Call: m.Call}
	if m.Name == "" {
		a.Ranks, a.Now = c.n.ranks(), time.Now()
	} else {
		a.Missing = c.notAt(m.Name)
	}
	w.send(a)
}

func (k *calls) onAnswer(m message) {
	if c, ok := k.asked[m.Call]; ok {
		delete(k.asked, m.Call)
		c <- m
	}
}
