package rendezvous

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// Where ranks are agreed, the size alone does not tell which containers the job has. There may be more of them than
// ranks, by a mistake in the environment, and then several sets of that size. So a coordinator commits only what holds
// every container that it knows of: it has tried all of them, and every address of the seeds, and counts what answers.

// agrees reports whether this coordinator gives ranks that the environment does not tell.
func (n *Node) agrees() bool {
	if n.cfg.Size == 1 {
		return false
	}
	if n.self.Rank < 0 {
		return true
	}
	for _, t := range n.lead.targets {
		if t.rec != nil && t.rec.Rank < 0 {
			return true
		}
	}
	return false
}

// isWhole reports whether the ranks that are here are all containers of the job. What it waits for calls tryPrepare
// again.
func (n *Node) isWhole() bool {
	if !n.agrees() {
		return true
	}
	if due := n.triedBy(); time.Now().Before(due) {
		if !due.Equal(n.lead.due) {
			n.lead.due = due
			time.AfterFunc(time.Until(due), func() {
				n.post(func() {
					if n.lead != nil {
						n.tryPrepare()
					}
				})
			})
		}
		return false
	}
	for _, t := range n.lead.targets {
		if t.spare != nil {
			n.judgeSurplus()
			return false
		}
	}
	return len(n.unsettled()) == 0
}

// triedBy is when every address that is known has answered, or has had the time to.
func (n *Node) triedBy() (due time.Time) {
	for _, s := range n.seeds {
		if !s.told {
			due = n.begin.Add(dialTimeout)
		}
	}
	for _, t := range n.lead.targets {
		if at := t.begun.Add(dialTimeout); t.rec == nil && t.spare == nil && !t.tried && at.After(due) {
			due = at
		}
	}
	return due
}

// unsettled is what keeps as many containers as the job has from being the job: a role without a container, or a
// container that answers and is with another coordinator.
func (n *Node) unsettled() (out []Missing) {
	if !n.agrees() {
		return nil
	}
	roles := map[string]bool{n.self.Role: true}
	for _, t := range n.lead.targets {
		switch {
		case t.rec != nil:
			roles[t.rec.Role] = true
		case t.rival:
			out = append(out, Missing{Rank: -1, Name: n.nameOf(t), Reason: n.reason(t)})
		}
	}
	sort.Slice(out, func(a, b int) bool { return out[a].Name < out[b].Name })
	for i, s := range n.cfg.Seeds {
		if s.Role == "" || roles[s.Role] {
			continue
		}
		reason := "no container of this role is here"
		if err := n.seeds[i].err; err != nil {
			reason = explain(err)
		}
		out = append(out, Missing{Rank: -1, Name: s.Role, Reason: reason})
	}
	return out
}

// greet begins a connection to a target. A second greeting would end the first one's connection, so where other
// containers are known already, the one at a seed's address, which may be one of them at its other address, is asked
// first who it is.
func (n *Node) greet(t *target, w *wire) {
	self := n.self
	if t.id == "" && n.lead != nil && len(n.lead.targets) > 1 && t.rec == nil {
		w.send(message{Type: here, Record: &self})
		return
	}
	w.send(message{Type: hello, Record: &self, Epoch: uint64(n.cfg.Size)})
}

// onMet hears who answers at a seed's address.
func (n *Node) onMet(t *target, w *wire, m message) {
	nonce := m.Name
	if nonce == "" && m.Record != nil {
		nonce = m.Record.Nonce
	}
	if n.knows(t, nonce) {
		n.sameAs(t, nonce)
		return
	}
	t.met = nonce
	self := n.self
	w.send(message{Type: hello, Record: &self, Epoch: uint64(n.cfg.Size)})
}

// knows reports whether another target than t is the container with that nonce, and has not failed.
func (n *Node) knows(t *target, nonce string) bool {
	if nonce == "" {
		return false
	}
	for _, o := range n.lead.targets {
		switch {
		case o == t || o.err != nil:
		case o.rec != nil && o.rec.Nonce == nonce, o.spare != nil && o.spare.Record.Nonce == nonce, o.met == nonce,
			n.heard[o.key].Nonce == nonce:
			return true
		}
	}
	return false
}

// sameAs drops the target of an address that belongs to a container which is known by another one.
func (n *Node) sameAs(t *target, nonce string) {
	n.lead.at[t.heardAt()] = nonce
	n.forget(t)
	n.tryPrepare()
}

// onSpare is a container that registers when all ranks are here. One of these may be gone without a word, and this one
// come in its place.
func (n *Node) onSpare(t *target, w *wire, m message) {
	if t.link != nil && t.link != w {
		t.link.abort()
	}
	t.link, t.spare, t.err, t.stranger, t.met, t.rival, t.foreign = w, &m, nil, nil, "", false, foreign{}
	if n.phase == Prepared {
		n.enter(Gathering) // the roster on its way does not hold all
	}
	n.tryPrepare()
}

func (n *Node) dropSpare(t *target, reason error) {
	t.link, t.spare, t.err, t.begun, t.tried = nil, nil, reason, time.Now(), false
	n.tryPrepare()
}

// judgeSurplus asks every container that is connected whether it still answers: only living containers can be too many.
func (n *Node) judgeSurplus() {
	c := n.lead
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
		n.probe(w, func(alive bool) {
			left--
			if n.lead != c || n.isGathered() {
				return
			}
			if !alive && t.link == w {
				silent := errors.New("it does not answer, and another container has come")
				if t.spare != nil {
					t.link, t.spare, t.err, t.begun, t.tried = nil, nil, silent, time.Now(), false
				} else {
					n.unregister(t, w, silent)
				}
				w.abort()
			}
			if left == 0 {
				c.judging = false
				n.admit()
				n.onSurplus(asked)
			}
		})
	}
}

// admit gives places that are free again to containers that came when there was none.
func (n *Node) admit() {
	for _, t := range n.lead.targets {
		if t.spare != nil && n.present() < n.cfg.Size {
			m := *t.spare
			t.spare = nil
			n.onRegister(t, t.link, m)
		}
	}
}

// onSurplus ends the job on all containers that are connected if there are more of them than ranks; asked are those
// that have answered.
func (n *Node) onSurplus(asked map[*target]*wire) {
	all := []Record{n.self}
	surplus := false
	for _, t := range n.lead.targets {
		if t.rec == nil && t.spare == nil {
			continue
		}
		if asked[t] != t.link { // it came meanwhile
			n.tryPrepare()
			return
		}
		r := t.rec
		if t.spare != nil {
			r, surplus = t.spare.Record, true
		}
		all = append(all, *r)
	}
	if !surplus || len(all) <= n.cfg.Size || time.Now().Before(n.triedBy()) {
		n.tryPrepare()
		return
	}
	sort.Slice(all, func(a, b int) bool { return all[a].before(&all[b]) < 0 })
	var over []string
	for _, r := range all[n.cfg.Size:] {
		name := r.ID
		if r.ID == r.Nonce {
			name = r.Role
		}
		over = append(over, strings.TrimSpace(fmt.Sprintf("%s at %v", name, r.Addr.Addr())))
	}
	n.setGathered(Roster{}, &ConflictError{fmt.Errorf("the job has %d ranks, but %d containers are here; too many: %s",
		n.cfg.Size, len(all), strings.Join(over, ", "))})
}

// isLate answers a container that would lead, but was not there when this job was launched: it has no part in it. It
// reports false where there is no such launch, or rank 0 may be gone, and this its next start.
func (n *Node) isLate(w *wire, r *Record) bool {
	isMember := func(m Member) bool { return m.ID == r.ID }
	if r.Rank >= 0 || n.phase != Running || slices.ContainsFunc(n.roster.Members, isMember) {
		return false
	}
	switch {
	case n.lead != nil:
		w.send(n.noPlace())
	case n.up.wire != nil:
		n.probe(n.up.wire, func(alive bool) {
			if alive {
				w.send(n.noPlace())
			} else {
				w.send(n.registration(r))
			}
		})
	default:
		return false
	}
	return true
}
