package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A job with spares has more containers than ranks. All of them gather and are checked before the first launch. A spare
// then stays connected to rank 0 in Gathering, has no part in a commit, and so no part in the proof that a job launches
// once:
//
//	rank 0, generation g                       a spare
//	   hello(record, g, spares)  ------------>
//	                  <-----------------------  register(record)
//	   ...commit of the ranks...
//	   idle(size)  -------------------------->  waits without a deadline
//	rank 0, generation g+1
//	   hello(record, g+1, spares)  ---------->  as above; if a place is free:
//	   prepare  ----------------------------->  ...as every other rank...
//
// A container keeps its rank from one generation to the next. Rank 0 alone knows who has which: a lost container whose
// place was taken is a spare when it comes back. Rank 0 itself cannot be replaced in such a job. Its ranks no longer
// need each other to go on, so a rank 0 that is cut off could launch one half of the job, and its next start the other.

// Spares returns how many containers of the job have no rank, as far as this container knows.
func (n *Node) Spares() (count int) {
	n.ask(func() { count = max(n.cfg.Spares, n.up.spares) })
	return count
}

// ranks is the number of ranks in the job.
func (c *coordinator) ranks() int { return c.n.cfg.Size - c.n.cfg.Spares }

// fills reports whether spares may take places.
func (c *coordinator) fills() bool { return c.n.cfg.Spares > 0 && c.n.Generation() > 1 }

// seatOf returns the rank for which a container comes first, -1 if it has none.
func (c *coordinator) seatOf(t *target) int {
	rank := -1
	switch {
	case t.peer != nil:
		rank = t.peer.Rank
	case c.n.Generation() == 1 && t.rec != nil:
		rank = t.rec.Rank
	}
	if rank >= c.ranks() {
		return -1
	}
	return rank
}

// seating is who has which rank in a job with spares.
type seating struct {
	seats []*target // by rank; nil = no container is registered for it; seats[0], rank 0 itself, is always nil
	idle  []*target // spares without a place
	due   time.Time // when a spare takes a place that is free; zero = no spare waits for one
}

// seating finds out who has which rank. In the first generation spares take no place.
func (c *coordinator) seating() (s seating) {
	s.seats = make([]*target, c.ranks())
	holders := make([]*target, c.ranks()) // also those that are not here
	late := false                         // a spare that was connected has not come yet
	for _, t := range c.targets {
		rank := c.seatOf(t)
		if rank > 0 {
			holders[rank] = t
		}
		switch {
		case t.rec == nil || t.link == nil:
			late = late || rank < 0 && t.peer != nil && !t.peer.lost && !provesGone(t.err)
		case rank > 0:
			s.seats[rank] = t
		default:
			s.idle = append(s.idle, t)
		}
	}
	if c.n.Generation() == 1 {
		return s
	}
	slices.SortFunc(s.idle, func(a, b *target) int {
		return cmp.Or(cmp.Compare(uint(a.rec.Rank), uint(b.rec.Rank)), cmp.Compare(a.key, b.key))
	})
	soonest := c.n.begin
	if late {
		soonest = c.n.begin.Add(spareSettle)
	}
	for rank := 1; rank < len(s.seats) && len(s.idle) > 0; rank++ {
		if s.seats[rank] != nil {
			continue
		}
		due := c.n.begin
		if t := holders[rank]; t != nil {
			due = c.missedFrom(t)
		}
		due = later(due.Add(c.n.cfg.SpareAfter), soonest)
		if time.Now().Before(due) {
			if s.due.IsZero() || due.Before(s.due) {
				s.due = due
			}
			continue
		}
		s.seats[rank], s.idle = s.idle[0], s.idle[1:]
	}
	return s
}

// spareSettle is how long the lowest spare has the first claim on a place that is free.
const spareSettle = time.Second

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// rejoinGap bounds the time from the end of a generation until a container that was not lost registers in the next one.
// After that a spare may take its place. A shorter Timeout, which is the time for lost containers, bounds it too.
const rejoinGap = 10 * time.Second

func (c *coordinator) rejoinGap() time.Duration {
	if t := c.n.cfg.Timeout; t > 0 {
		return min(t, rejoinGap)
	}
	return rejoinGap
}

// missedFrom returns when a container that is not here counts as lost.
func (c *coordinator) missedFrom(t *target) time.Time {
	if t.peer.lost || provesGone(t.err) {
		return c.n.begin
	}
	if t.changed.After(c.n.begin) {
		return t.changed.Add(c.rejoinGap())
	}
	return c.n.begin.Add(c.rejoinGap())
}

// isEarly reports whether a container without a rank must wait, because the ranks of the last generation will come that
// are not here yet.
func (c *coordinator) isEarly() bool {
	if c.n.Generation() == 1 || c.n.cfg.Spares > 0 {
		return false
	}
	free := 0
	for _, t := range c.targets {
		switch {
		case t.rec != nil && t.rec.Rank < 0:
			free--
		case t.peer != nil && t.peer.Rank > 0 && t.rec == nil && !time.Now().Before(c.missedFrom(t)):
			free++
		}
	}
	return free <= 0
}

// isComplete reports whether the launch has all the containers that it needs. If a spare can take a place later, it
// sees to another tryPrepare.
func (c *coordinator) isComplete() bool {
	if !c.fills() {
		return c.present() == c.n.cfg.Size
	}
	s := c.seating()
	if !s.due.IsZero() && !s.due.Equal(c.spareDue) {
		c.spareDue = s.due
		c.n.extend(time.Until(s.due) + spareSettle) // --rejoin gives SpareAfter and Timeout the same value
		c.n.after(time.Until(s.due), func() {
			if c.n.lead == c {
				c.tryPrepare()
			}
		})
	}
	return s.free() == 0
}

// free counts the ranks without a container.
func (s *seating) free() (n int) {
	for _, t := range s.seats[1:] {
		if t == nil {
			n++
		}
	}
	return n
}

// chosen returns the containers of the next launch, and their ranks; -1 = to be agreed.
func (c *coordinator) chosen() map[*target]int {
	all := make(map[*target]int)
	if c.n.cfg.Spares == 0 {
		for _, t := range c.targets {
			if t.rec != nil {
				all[t] = t.rec.Rank
			}
		}
		return all
	}
	for rank, t := range c.seating().seats {
		if t != nil {
			all[t] = rank
		}
	}
	return all
}

// vacant lists the ranks of a later generation for which no container is registered, in a job with spares.
func (c *coordinator) vacant() (out []Missing) {
	s := c.seating()
	for rank, t := range s.seats {
		if t != nil || rank == 0 {
			continue
		}
		m := Missing{Rank: rank, Name: fmt.Sprintf("rank %d", rank), Reason: "no spare is left"}
		for _, p := range c.n.cfg.Peers {
			if o := c.targets[p.ID]; o != nil && p.Rank == rank {
				m = c.missingAt(o, rank, p.display())
			}
		}
		out = append(out, m)
	}
	return out
}

// markLost notes which ranks have not cleared this generation, or leave with it: a spare takes their place at once.
func (c *coordinator) markLost(peers []Peer) []Peer {
	for i := range peers {
		t := c.targets[peers[i].ID]
		_, cleared := c.n.clearing.by[peers[i].ID]
		peers[i].lost = !cleared || t != nil && t.leaves
	}
	return peers
}

// spares lists the containers without a rank, for the next generation.
func (c *coordinator) spares() (out []Peer) {
	add := func(p Peer) {
		listed := func(o Peer) bool { return o.ID == p.ID }
		if c.n.roster.holds(p.ID) || slices.ContainsFunc(out, listed) {
			return
		}
		t := c.targets[p.ID]
		if p.Rank, p.lost = -1, t == nil || t.link == nil; t != nil && t.rec != nil {
			p.At = t.rec.Addr
		}
		out = append(out, p)
	}
	for _, p := range c.n.cfg.Peers {
		add(p)
	}
	for id, t := range c.targets {
		if t.rec != nil {
			add(peerAt(id, -1, t.rec.Addr))
		}
	}
	return out
}

// isAside reports whether a prepared launch goes on although this container comes or goes.
func (c *coordinator) isAside(t *target) bool {
	if !c.fills() || c.n.phase != Prepared || c.seatOf(t) > 0 {
		return false
	}
	_, ok := c.memberOf(t)
	return !ok
}

// isSpare reports whether a container has no part in the launch of this generation, and waits for a place.
func (c *coordinator) isSpare(t *target) bool {
	if c.n.cfg.Spares == 0 || c.n.phase != Running && c.n.phase != Ended {
		return false
	}
	_, ok := c.memberOf(t)
	return !ok
}

// tellSpares tells the containers without a rank that the job runs.
func (c *coordinator) tellSpares() {
	for _, t := range c.targets {
		if t.link != nil && t.rec != nil && c.isSpare(t) {
			c.idle(t)
		}
	}
}

func (c *coordinator) idle(t *target) { t.link.send(message{Type: idle, Size: c.ranks()}) }

// keepSpare holds a container that registers while the job runs without it.
func (c *coordinator) keepSpare(t *target, w *wire, r *Record) {
	t.dropLink(w)
	t.link, t.rec, t.err, t.changed = w, r, nil, time.Now()
	c.idle(t)
}

// onSpareLeaves lets a spare end that was stopped while the job runs. The job goes on.
func (c *coordinator) onSpareLeaves(t *target, w *wire, m message) {
	if c.n.phase != Running {
		return // rank 0 is telling it how the job ended
	}
	o := Outcome{Status: c.n.cfg.Status.Retry, Reason: m.Reason}
	if m.Signal > 0 {
		o.Status = 128 + m.Signal
	}
	if m.Outcome != nil {
		o = *m.Outcome
	}
	c.n.log.Info("a spare leaves", "peer", c.nameOf(t), "reason", o.Reason)
	w.send(dismissal(o.Status, o.Reason))
}

// onIdle notes that the job runs without this container, which waits until it is needed.
func (u *uplink) onIdle(m message) {
	if u.n.phase == Prepared {
		u.n.enter(Gathering) // the launch goes on without it
	}
	if !u.idle {
		u.n.log.Info("this container is a spare", "phase", "gather", "size", m.Size)
	}
	u.idle, u.told = true, nil
	u.n.moveLimit(time.Time{})
}

// wanted notes that a generation gathers. How long a later one does, rank 0 alone knows, which tells the end to a
// container that was not in the last one.
func (u *uplink) wanted(m message) {
	u.idle = false
	if m.generation() > 1 && !u.n.continues() {
		u.n.moveLimit(time.Time{})
	}
}

// deserted gives a container that has lost rank 0 its Timeout, also if it is prepared: that launch may turn out to be
// void.
func (u *uplink) deserted() {
	u.idle = false
	if u.n.limit.IsZero() {
		u.n.extend(u.n.cfg.Timeout)
	}
}
