package rendezvous

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Display returns the name of a rank for people: its container's own name, with role and index beside it:
// "proj-worker-2 (worker-1)". A name that ends in role and index, such as "pi-worker-1", says both.
func Display(own, alias string) string {
	if own == "" || own == alias || strings.HasSuffix(own, "-"+alias) {
		return cmp.Or(own, alias)
	}
	return own + " (" + alias + ")"
}

// DisplayAt returns the name of a rank for people, with its address: "proj-worker-2 (worker-1, 10.0.0.7)".
func DisplayAt(own, alias string, addr netip.Addr) string {
	name := Display(own, alias)
	if head, paired := strings.CutSuffix(name, ")"); paired {
		return fmt.Sprintf("%s, %v)", head, addr)
	}
	return fmt.Sprintf("%s (%v)", name, addr)
}

// Display returns the name of a rank for people.
func (m Member) Display() string { return Display(m.Own, m.Alias) }

// display returns the name of a container for people before its rank is known. An id without an index is a nonce, which
// says nothing to them.
func (r *Record) display() string {
	switch {
	case r.ID != r.Nonce:
		return Display(r.Own, r.ID)
	case r.Own != "":
		return r.Own
	}
	return fmt.Sprintf("%s at %s", cmp.Or(r.Role, "the container"), r.Addr.Addr())
}

// display returns the name of a container for people, as the environment predicts it.
func (p *Peer) display() string { return Display(p.Own, p.ID) }

// gaps names the ranks that the environment does not list, if the ranks that are present leave only these: all of one
// role, numbered as their ranks. It returns nil if it cannot tell. Compose calls the rank 3 of a service proj-worker-4.
func (c *coordinator) gaps(count int) (out []Missing) {
	self := &c.n.current
	taken := map[int]bool{}
	own, counts := cutNumber(self.Own)
	counts = counts && strings.ContainsAny(own.stem[len(own.stem)-1:], "-_") // else it may be a random hostname
	sole := func(r *Record) bool { return r.Rank >= 0 && r.Role == self.Role && r.Index == r.Rank }
	if count <= 0 || !sole(self) {
		return nil
	}
	taken[self.Rank] = true
	for _, t := range c.targets {
		switch {
		case t.rec == nil:
			return nil // it may be any of them
		case !sole(t.rec):
			return nil
		}
		taken[t.rec.Rank] = true
		counts = counts && own.write(t.rec.Rank-self.Rank, t.rec.Rank-self.Rank) == t.rec.Own
	}
	if c.n.cfg.Size-len(taken) != count {
		return nil
	}
	for rank := range c.n.cfg.Size {
		if taken[rank] {
			continue
		}
		m := Missing{Rank: rank, alias: MakeID(self.Role, rank, ""), Reason: c.n.find.seedReason()}
		if counts {
			m.own = own.write(rank-self.Rank, rank-self.Rank)
		}
		m.Name = Display(m.own, m.alias)
		out = append(out, m)
	}
	return out
}

// askName asks once for the own name of the container at a seed's address: people know it by that.
func (c *coordinator) askName(t *target) {
	addr, err := netip.ParseAddrPort(strings.TrimPrefix(t.key, "@"))
	if err != nil || t.asked || c.n.cfg.NameOf == nil {
		return
	}
	t.asked = true
	c.n.wg.Go(func() {
		name := c.n.cfg.NameOf(t.ctx, addr.Addr())
		c.n.post(func() { t.own = name })
	})
}

// SetName adds the container's own name to this container's record; the roster holds it if it comes in time.
func (n *Node) SetName(name string) {
	n.post(func() {
		if n.phase == Gathering && name != n.current.Own {
			n.current.Own = name
			n.amend()
		}
	})
}

// roundTrip returns the round trip of a connection that can tell it; 0 = unknown.
func (w *wire) roundTrip() time.Duration {
	if w == nil {
		return 0
	}
	if c, ok := w.rwc.(interface{ RoundTrip() time.Duration }); ok {
		return c.RoundTrip()
	}
	return 0
}
