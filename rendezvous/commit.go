package rendezvous

import (
	"cmp"
	"errors"
	"log/slog"
	"net/netip"
)

// tryPrepare sends the roster once every rank is present and has told everything that the launch needs.
func (c *coordinator) tryPrepare() {
	if c.n.phase != Gathering || c.n.isGathered() || !c.isComplete() {
		return
	}
	if c.n.cfg.Unfit != nil {
		c.n.setGathered(&EndedError{*c.n.cfg.Unfit})
		return
	}
	if !c.isWhole() || c.n.looking {
		return
	}
	records := []Record{c.n.current}
	reached := map[string]netip.AddrPort{c.n.self.Nonce: c.reachedAt()}
	for t, rank := range c.chosen() {
		if t.looking {
			return // the fabric is judged across all ranks
		}
		r := *t.rec
		reached[r.Nonce] = r.Addr
		if r.Rank = rank; rank < 0 {
			r.Addr = t.said
		}
		r.Uptime = 0 // of the registration
		records = append(records, r)
	}
	if c.awaitsNotes() || c.isFenced() {
		return
	}
	members, err := assign(records, c.ranks())
	if err != nil {
		c.n.setGathered(&ConflictError{err})
		return
	}
	for i := range members {
		m := &members[i]
		if at := reached[m.Nonce]; m.Nonce == c.n.self.Nonce && m.Addr.Addr() != at.Addr() {
			m.Network = "" // Network belongs to another address
		}
		m.Addr = reached[m.Nonce]
		if t := c.targets[m.ID]; t != nil && t.peer != nil && t.peer.Decided {
			m.Slots = t.peer.Slots
		}
	}
	if members[0].Nonce != c.n.self.Nonce {
		return // a container that comes first registered before it heard of all others; it will lead
	}
	c.epoch++
	r := Roster{Epoch: c.epoch, Hash: hashMembers(members), Members: members, Arrival: c.arrival(members)}
	if c.n.cfg.Verify != nil {
		if o := c.n.cfg.Verify(r); o != nil {
			c.n.setGathered(&EndedError{*o})
			return
		}
	}
	if !c.n.enter(Prepared) {
		return
	}
	c.n.roster = r
	c.acks = 0
	m := message{Type: prepare, Epoch: r.Epoch, Roster: &r}
	c.whole, _ = m.encode() // cannot fail: the message holds only a roster
	for i := range r.Members {
		if t := c.targets[r.Members[i].ID]; t != nil && t.rec != nil {
			t.acked, t.told = 0, ""
			t.link.send(c.prepareFor(&r, i))
		}
	}
	timeout := c.n.cfg.scaled(ackTimeout) << min(c.unacked, maxAckDoublings)
	c.n.after(timeout, func() { c.onAckTimeout(r.Epoch) })
	c.tryLaunch()
}

// reachedAt returns the address at which the other ranks reach this container. Without one from the environment, the
// address was guessed from an interface; most local ends of the connections correct the guess.
func (c *coordinator) reachedAt() netip.AddrPort {
	if !c.n.guessed {
		return c.n.self.Addr
	}
	counts := make(map[netip.Addr]int)
	best := c.n.self.Addr.Addr()
	better := func(a, b netip.Addr) bool { // a rank on this host may have connected over loopback
		if a.IsLoopback() != b.IsLoopback() {
			return b.IsLoopback()
		}
		return cmp.Or(cmp.Compare(counts[a], counts[b]), b.Compare(a)) > 0
	}
	for _, t := range c.targets {
		if t.rec != nil && t.link != nil && t.link.local.IsValid() {
			counts[t.link.local]++
		}
	}
	for a := range counts {
		if counts[best] == 0 || better(a, best) {
			best = a
		}
	}
	return netip.AddrPortFrom(best, c.n.self.Addr.Port())
}

// Rank 0 sends the roster itself to up to starTable ranks. In a larger job it sends it to rank 1 only and tells every
// other rank where to fetch it, so that no rank sends it to more than tableFan others.
const (
	starTable = 1000
	tableFan  = 64
)

func (c *coordinator) prepareFor(r *Roster, rank int) message {
	m := message{Type: prepare, Epoch: r.Epoch, whole: c.whole}
	if len(r.Members) > c.n.cfg.starTable && rank > 1 {
		p := &r.Members[1+(rank-2)/tableFan]
		m.whole, m.Hash, m.Parent = nil, r.Hash, &parentRank{p.ID, p.Addr}
	}
	return m
}

// onAckTimeout drops the ranks that have not acknowledged the roster; their next registration starts a new epoch.
func (c *coordinator) onAckTimeout(epoch uint64) {
	if c.n.lead != c || c.n.phase != Prepared || c.n.roster.Epoch != epoch {
		return
	}
	c.unacked++
	for _, t := range c.targets {
		if t.rec != nil && t.acked != epoch {
			// On overloaded processors a healthy job may need a second try.
			level := slog.LevelDebug
			if c.unacked > maxAckDoublings {
				level = slog.LevelWarn
			}
			c.n.log.Log(c.ctx, level, "a rank does not acknowledge the roster", "peer", c.nameOf(t), "epoch", epoch)
			w := t.link
			// void what this connection still brings
			c.unregister(t, w, errors.New("it did not acknowledge the roster in time"))
			w.abort()
		}
	}
}

// tryLaunch commits once every rank holds the roster. It happens once.
func (c *coordinator) tryLaunch() {
	if c.acks < len(c.n.roster.Members)-1 {
		return
	}
	if !c.n.enter(Running) {
		return
	}
	noteFirst(&c.n.ownTimes.Committed)
	c.n.setGathered(nil) // rank 0 does not wait until every rank has been told
	for _, t := range c.targets {
		if t.rec == nil {
			c.forget(t)
		}
	}
	c.n.calls.resume()
	c.tellSpares()
	// The first ranks must know of the launch, because a restarted rank 0 learns of it from them.
	c.sendGo(1, 1+witnesses)
	if c.n.cfg.GoDelay <= 0 || len(c.n.roster.Members) <= 1+witnesses {
		c.tellGo()
		return
	}
	c.n.after(c.n.cfg.GoDelay, c.tellGo)
}

// tellGo sends go to the ranks that have not been told yet.
func (c *coordinator) tellGo() {
	if c.n.lead != c || c.n.phase != Running || c.goSent {
		return
	}
	c.goSent = true
	c.sendGo(1+witnesses, len(c.n.roster.Members))
	c.n.find.end()
}

// sendGo tells the ranks below end; a rank without a connection is told when it is back.
func (c *coordinator) sendGo(first, end int) {
	for rank := first; rank < end; rank++ {
		if t := c.byRank(rank); t != nil && t.rec != nil && t.link != nil {
			t.link.send(message{Type: launched, Epoch: c.n.roster.Epoch})
		}
	}
}

// Launched tells rank 0 that the command runs: it ends Config.GoDelay. Where ranks share processors it ends it a moment
// later, because all the other commands that start at once would keep a processor from the command.
func (n *Node) Launched() {
	n.post(func() {
		switch {
		case n.lead == nil:
			return
		case n.pace.waited() < lateEnough:
			n.lead.tellGo()
		default:
			n.after(n.cfg.GoDelay/5, n.lead.tellGo)
		}
		noteFirst(&n.ownTimes.Launched)
	})
}
