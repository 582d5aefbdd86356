package rendezvous

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Where ranks are agreed, the size alone does not tell which containers belong to the job. By a mistake in the
// environment there may be more containers than ranks, and then several sets of that size. So a coordinator commits
// only a set that holds every container that it knows of: it has dialled all of them, and every address of the seeds.

// agrees reports whether this coordinator assigns ranks that the environment does not tell.
func (c *coordinator) agrees() bool {
	switch {
	case c.n.cfg.Size == 1:
		return false
	case c.n.self.Rank < 0:
		return true
	}
	for _, t := range c.targets {
		if t.rec != nil && t.rec.Rank < 0 {
			return true
		}
	}
	return false
}

// isWhole reports whether the registered ranks are all containers of the job. If not, it sees to another tryPrepare.
func (c *coordinator) isWhole() bool {
	if !c.agrees() {
		return true
	}
	if due := c.triedBy(); time.Now().Before(due) {
		if !due.Equal(c.due) {
			c.due = due
			c.n.after(time.Until(due), func() {
				if c.n.lead == c {
					c.tryPrepare()
				}
			})
		}
		return false
	}
	for _, t := range c.targets {
		if t.spare != nil {
			c.judgeSurplus()
			return false
		}
	}
	return len(c.unsettled()) == 0
}

// triedBy returns when every known address has answered, or has had the time to.
func (c *coordinator) triedBy() (due time.Time) {
	for _, s := range c.n.find.seeds {
		if !s.told {
			due = c.n.begin.Add(dialTimeout)
		}
	}
	for _, t := range c.targets {
		if at := t.begun.Add(dialTimeout); t.rec == nil && t.spare == nil && !t.tried && at.After(due) {
			due = at
		}
	}
	return due
}

// unsettled lists roles without a container, and containers that follow another coordinator.
func (c *coordinator) unsettled() (out []Missing) {
	if !c.agrees() {
		return nil
	}
	roles := map[string]bool{c.n.self.Role: true}
	for _, t := range c.targets {
		switch {
		case t.rec != nil:
			roles[t.rec.Role] = true
		case t.rival:
			out = append(out, Missing{Rank: -1, Name: c.nameOf(t), Reason: c.reason(t)})
		}
	}
	slices.SortFunc(out, Missing.compare)
	for i, s := range c.n.cfg.Seeds {
		if s.Role == "" || roles[s.Role] {
			continue
		}
		reason := "no container of this role is here"
		if err := c.n.find.seeds[i].err; err != nil {
			reason = explain(err)
		}
		out = append(out, Missing{Rank: -1, Name: s.Role, Reason: reason})
	}
	return out
}

// greet begins a connection to a target. A second greeting would end the connection of the first, so a container at a
// seed's address, which may be a known one at another address, is first asked who it is.
func (c *coordinator) greet(t *target, w *wire) {
	t.noteHeard()
	if t.id == "" && c.n.lead == c && len(c.targets) > 1 && t.rec == nil {
		w.send(message{Type: announce, Record: &c.n.self})
	} else {
		w.send(c.hello())
	}
}

func (c *coordinator) hello() message {
	m := message{Type: hello, Record: &c.n.self, Epoch: uint64(c.n.cfg.Size), Spares: c.n.cfg.Spares}
	if m.Text = c.n.cfg.Text; c.n.Generation() > 1 {
		m.Generation = c.n.Generation()
	}
	return m
}

// onMet handles the answer of a container at a seed's address.
func (c *coordinator) onMet(t *target, w *wire, m message) {
	nonce := m.Name
	if nonce == "" && m.Record != nil {
		nonce = m.Record.Nonce
	}
	if c.knows(t, nonce) {
		c.sameAs(t, nonce)
		return
	}
	t.met = nonce
	w.send(c.hello())
}

// knows reports whether another target than t is the container with that nonce, and has not failed.
func (c *coordinator) knows(t *target, nonce string) bool {
	if nonce == "" {
		return false
	}
	for _, o := range c.targets {
		switch {
		case o == t || o.err != nil:
		case o.rec != nil && o.rec.Nonce == nonce, o.spare != nil && o.spare.Record.Nonce == nonce, o.met == nonce,
			c.n.find.heard[o.key].Nonce == nonce:
			return true
		}
	}
	return false
}

// sameAs drops the target of an address whose container is known by another address.
func (c *coordinator) sameAs(t *target, nonce string) {
	c.at[t.heardAt()] = nonce
	c.forget(t)
	c.tryPrepare()
}

// onSpare keeps a container that registers when all ranks are present: it may be the next start of a dead one.
func (c *coordinator) onSpare(t *target, w *wire, m message) {
	m.Record.Uptime = 0 // it may register much later
	t.dropLink(w)
	t.link, t.spare, t.err, t.incompatible, t.met, t.rival, t.foreign = w, &m, nil, nil, "", false, foreign{}
	if c.n.phase == Prepared {
		c.n.enter(Gathering) // the current roster does not hold all
	}
	c.tryPrepare()
}

func (t *target) dropSpare(reason error) {
	t.link, t.spare, t.err, t.begun, t.tried = nil, nil, reason, time.Now(), false
}

// judgeSurplus asks every connected container whether it still answers: only living containers can be too many.
func (c *coordinator) judgeSurplus() {
	if c.judging {
		return
	}
	c.judging = true
	asked := make(map[*target]*wire)
	for _, t := range c.targets {
		if t.link != nil && (t.rec != nil || t.spare != nil) {
			asked[t] = t.link
		}
	}
	left := len(asked)
	for t, w := range asked {
		c.n.probe(w, func(alive bool) {
			left--
			if c.n.lead != c || c.n.isGathered() {
				return
			}
			if !alive && t.link == w {
				silent := errors.New("it does not answer, and another container has come")
				if t.spare != nil {
					t.dropSpare(silent)
				} else {
					c.unregister(t, w, silent)
				}
				w.abort()
			}
			if left == 0 {
				c.judging = false
				c.admit()
				c.onSurplus(asked)
			}
		})
	}
}

// admit registers containers that came when all ranks were present, if places are free again.
func (c *coordinator) admit() {
	for _, t := range c.targets {
		if t.spare != nil && c.present() < c.n.cfg.Size {
			m := *t.spare
			t.spare = nil
			c.onRegister(t, t.link, m)
		}
	}
}

// onSurplus ends the job if more containers than ranks are connected and have all answered; asked holds these.
func (c *coordinator) onSurplus(asked map[*target]*wire) {
	all := []Record{c.n.self}
	for _, t := range c.targets {
		if t.rec == nil && t.spare == nil {
			continue
		}
		if asked[t] != t.link { // it came meanwhile
			c.tryPrepare()
			return
		}
		r := t.rec
		if t.spare != nil {
			r = t.spare.Record
		}
		all = append(all, *r)
	}
	if len(all) <= c.n.cfg.Size || time.Now().Before(c.triedBy()) {
		c.tryPrepare()
		return
	}
	slices.SortFunc(all, Record.before)
	var over []string
	for _, r := range all[c.n.cfg.Size:] {
		name := r.ID
		if r.ID == r.Nonce {
			name = r.Role
		}
		over = append(over, strings.TrimSpace(fmt.Sprintf("%s at %v", name, r.Addr.Addr())))
	}
	c.n.setGathered(&ConflictError{fmt.Errorf("the job has %d ranks, but %d containers are here; too many: %s",
		c.n.cfg.Size, len(all), strings.Join(over, ", "))})
}

// isLate refuses a coordinator that is not in the roster of this launched job. It reports false if there is no launch,
// or if the coordinator may be the next start of rank 0.
func (u *uplink) isLate(w *wire, r *Record) bool {
	isMember := func(m Member) bool { return m.ID == r.ID }
	if r.Rank >= 0 || u.n.phase != Running || slices.ContainsFunc(u.n.roster.Members, isMember) {
		return false
	}
	reply := func(alive bool) {
		if alive {
			w.send(u.n.noPlace())
		} else {
			w.send(u.registration(r))
		}
	}
	switch {
	case u.n.lead != nil:
		reply(true)
	case u.wire != nil:
		u.n.probe(u.wire, reply)
	default:
		return false
	}
	return true
}
