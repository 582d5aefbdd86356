package rendezvous

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Times are the events of one rank, by rank 0's clock. Zero = it has not happened, or rank 0 does not know.
type Times struct {
	Rank      int       `json:"rank"`               // -1 = to be agreed
	Name      string    `json:"alias"`              // as in Member, or as rank 0 calls a container that is missing
	Started   time.Time `json:"started,omitzero"`   // Config.Started, which the rank registers as Record.Uptime
	Resolved  time.Time `json:"resolved,omitzero"`  // rank 0 has resolved its name
	Heard     time.Time `json:"heard,omitzero"`     // rank 0 first knew of it: gossip, its announcement, its answer
	Reachable time.Time `json:"reachable,omitzero"` // its control connection was up
	Committed time.Time `json:"committed,omitzero"` // it has acknowledged the roster; on rank 0: all ranks have
	Launched  time.Time `json:"launched,omitzero"`  // it was told to go; on rank 0: the command was started
	Session   time.Time `json:"session,omitzero"`   // a launcher's first session, as Node.Session was told
	Ended     time.Time `json:"ended,omitzero"`     // its command ended, it knew the outcome, or it was lost
	Lost      bool      `json:"lost,omitempty"`
	Reason    string    `json:"reason,omitempty"` // why it is missing or lost
}

// noteHeard notes the first sign of a container.
func (t *target) noteHeard() { noteFirst(&t.events.Heard) }

// noteResolved notes when the name of a target was resolved first.
func (t *target) noteResolved(addrs []netip.AddrPort) {
	if len(addrs) == 0 {
		return
	}
	if _, err := netip.ParseAddr(t.peer.Host); err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	noteFirst(&t.resolved)
}

// noteRegistered notes a new connection and the start of the container: Uptime needs no comparison of clocks.
func (t *target) noteRegistered(r *Record) {
	now := time.Now()
	t.events.Started, t.events.Reachable = time.Time{}, now
	if r.Uptime > 0 {
		t.events.Started = now.Add(-time.Duration(r.Uptime) * time.Millisecond)
	}
	t.noteHeard()
	if t.events.Heard.Before(t.events.Started) { // an earlier start of the container was heard of
		t.events.Heard = t.events.Started
	}
}

// noteFirst sets a time that counts only once.
func noteFirst(at *time.Time) {
	if at.IsZero() {
		*at = time.Now()
	}
}

// Session notes, on rank 0, a session of a launcher on the rank with that id; the first one counts.
func (n *Node) Session(id string) {
	n.post(func() {
		if n.lead == nil || n.phase != Running {
			return
		}
		if t := n.lead.targets[id]; t != nil {
			noteFirst(&t.events.Session)
		}
	})
}

// Times returns the events of all ranks as rank 0 knows them, in this container's time of day. If rank 0 is not
// connected, it returns those of this container.
func (n *Node) Times(ctx context.Context) (out []Times) {
	leads := false
	n.ask(func() { out, leads = n.times(), n.lead != nil })
	if leads {
		return out
	}
	if a, ok := n.calls.inquire(ctx, message{Timed: true}); ok {
		return a.Times
	}
	return out
}

// times lists the events of all ranks, in rank order.
func (n *Node) times() []Times {
	own := n.ownTimes
	own.Rank, own.Name, own.Started = n.self.Rank, n.self.ID, n.cfg.Started
	if m, ok := n.roster.Self(n.self.Nonce); ok {
		own.Rank, own.Name = m.Rank, m.Alias
	}
	if n.lead != nil {
		own.Heard, own.Reachable = n.begin, n.begin
	}
	out := append([]Times{own}, n.lead.times()...)
	slices.SortFunc(out, func(a, b Times) int { // by rank; -1, unknown, comes last
		return cmp.Or(cmp.Compare(uint(a.Rank), uint(b.Rank)), strings.Compare(a.Name, b.Name))
	})
	now := time.Now()
	for i := range out { // the time of day may have been set since: all times follow from one reading of it
		out[i].shift(func(at time.Time) time.Time { return now.Add(at.Sub(now)) })
	}
	return out
}

// times lists the events of the other ranks.
func (c *coordinator) times() (out []Times) {
	if c == nil {
		return nil
	}
	if (c.n.phase == Running || c.n.phase == Ended) && len(c.n.roster.Members) > 0 {
		for _, m := range c.n.roster.Members {
			if t := c.targets[m.ID]; t != nil {
				e := t.timesAs(m.Rank, m.Alias)
				if t.link == nil && !t.doneAck && !t.since.IsZero() {
					e.Lost, e.Reason, e.Ended = true, explain(t.err), t.since
				}
				out = append(out, e)
			}
		}
		return out
	}
	named := make(map[string]*target)
	for _, t := range c.targets {
		if named[t.key], named[c.nameOf(t)] = t, t; t.rec != nil {
			out = append(out, t.timesAs(t.rec.Rank, c.nameOf(t)))
		}
	}
	for _, m := range c.missing() {
		e := Times{Rank: m.Rank, Name: m.Name}
		if t := named[m.Name]; t != nil && t.rec == nil {
			e = t.timesAs(m.Rank, m.Name)
		} else if t != nil {
			continue // present, and the launch waits for what it finds out about itself
		}
		e.Reason = m.Reason
		out = append(out, e)
	}
	return out
}

func (t *target) timesAs(rank int, name string) Times {
	e := t.events
	e.Rank, e.Name = rank, name
	t.mu.Lock()
	defer t.mu.Unlock()
	e.Resolved = t.resolved
	return e
}

// shift converts every time that is known.
func (e *Times) shift(to func(time.Time) time.Time) {
	for _, at := range []*time.Time{
		&e.Started, &e.Resolved, &e.Heard, &e.Reachable, &e.Committed, &e.Launched, &e.Session, &e.Ended,
	} {
		if !at.IsZero() {
			*at = to(*at)
		}
	}
}
