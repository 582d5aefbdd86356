package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

// finder finds the other containers, by gossip and by the names of the environment. Only the loop touches heard and
// seeds.
type finder struct {
	n     *Node
	net   *gossip
	names names
	heard map[string]Record // by id: containers that gossip takes for alive
	seeds []seedState
}

// onGossip notes which containers gossip takes for alive. Gossip wakes the dialling goroutines; it never decides.
func (f *finder) onGossip(r Record, alive bool) {
	old, known := f.heard[r.ID]
	switch {
	case alive:
		f.heard[r.ID] = r
		if said, ok := f.n.withdrawals.heard[r.ID]; ok && said.Record.Nonce != r.Nonce {
			delete(f.n.withdrawals.heard, r.ID) // its container was started again
		}
		if f.n.lead != nil && !f.n.isGathered() {
			f.n.lead.addStart(&r, nil)
		}
	case known && old.Nonce == r.Nonce:
		delete(f.heard, r.ID)
	}
	f.elect()
}

// onKnock has rank 0 dial a rank that has knocked, and acknowledges the knock. A packet may arrive late, or twice, and
// so says nothing once the ranks are settled.
func (f *finder) onKnock(r *Record) {
	if f.n.lead == nil || f.n.isGathered() || r.validate() != nil || r.Nonce == f.n.self.Nonce {
		return
	}
	if f.n.lead.addStart(r, nil) {
		return // another start of it is connected
	}
	if t := f.n.lead.targets[r.ID]; t != nil && t.rec != nil && t.rec.Nonce == r.Nonce {
		return // it is connected by now
	}
	if err := f.net.tell(r.Addr, message{Type: lead, Record: &f.n.self}); err != nil {
		f.n.log.Debug("acknowledging a knock", "peer", r.ID, "addr", r.Addr, "err", err)
	}
}

// onPromise notes that rank 0 has acknowledged a knock, and dials this rank.
func (u *uplink) onPromise(r *Record) {
	if u.n.lead == nil && r.Rank == 0 && r.Nonce != u.n.self.Nonce {
		u.promised = time.Now()
	}
}

// elect makes this container the coordinator if no container is declared rank 0, gossip tells of as many as the job
// has, and this one comes first in the order. Two coordinators cannot both commit, because each tries every container
// that it knows (isWhole).
func (f *finder) elect() {
	if f.n.self.Rank >= 0 || f.n.isGathered() || f.n.phase != Gathering || len(f.heard)+1 < f.n.cfg.Size {
		return // a container that has acknowledged a roster may be part of a launch
	}
	for _, r := range f.heard {
		if r.Rank == 0 || r.before(&f.n.self) < 0 {
			return
		}
	}
	f.n.becomeCoordinator()
}

// resolveSeed resolves a seed again and again until the job is gathered.
func (f *finder) resolveSeed(i int) {
	var b backoff
	for {
		s := f.n.cfg.Seeds[i]
		addrs, err := f.names.find(f.n.ctx, s.Host)
		f.n.post(func() {
			st := &f.seeds[i]
			st.asked, st.err = true, err
			var dns *net.DNSError
			st.told = st.told || err == nil || errors.As(err, &dns) && dns.IsNotFound
			for _, a := range addrs {
				if ap := netip.AddrPortFrom(a, uint16(s.Port)); !slices.Contains(st.addrs, ap) {
					st.addrs = append(st.addrs, ap)
				}
			}
			if f.n.lead != nil {
				f.n.lead.onSeed(i)
			}
		})
		select {
		case <-f.n.ctx.Done():
			return
		case <-f.n.gathered:
			return
		case <-time.After(b.wait()):
		}
	}
}

// onSeed has rank 0 dial the addresses of a seed that belong to no known container.
func (c *coordinator) onSeed(i int) {
	if c.n.lead != c || c.n.isGathered() {
		return
	}
	for _, a := range c.n.find.seeds[i].addrs {
		if a != c.n.self.Addr && !c.knownAddr(a) {
			c.addTarget("@"+a.String(), nil, a)
		}
	}
	c.tryPrepare()
}

func (c *coordinator) knownAddr(a netip.AddrPort) bool {
	if nonce := c.at[a]; nonce == c.n.self.Nonce || c.knows(nil, nonce) {
		return true
	}
	for _, r := range c.n.find.heard {
		if r.Addr == a {
			return true
		}
	}
	for _, t := range c.targets {
		if t.rec != nil && t.rec.Addr == a {
			return true
		}
	}
	return false
}

// joinOthers exchanges gossip states with rank 0 and two other ranks, in parallel, until rank 0 is connected; after
// that it joins now and then a container not heard yet, while any is missing. Before the first join it knocks at rank
// 0, and while rank 0 answers it joins nothing: the connection from rank 0 is all that a rank needs, and exchanging the
// state of many ranks costs both sides milliseconds of processors that rank 0 may share.
func (f *finder) joinOthers() {
	if f.n.self.Rank != 0 && f.knock() {
		return
	}
	b, factor, later := backoff{}, 0, 1 // ranks to be agreed find each other by gossip alone
	if f.n.self.Rank >= 0 {             // rank 0 dials by itself, too
		b = backoff{next: 5 * joinHead, most: f.spread(rejoinInterval)}
		factor, later = lateFactor, lateFactor
	}
	for pause := time.Duration(0); f.n.pace.sleepFor(f.n.ctx, f.n.gathered, pause, factor); factor = later {
		var to []place
		connected := false
		if !f.n.ask(func() {
			connected = f.n.up.wire != nil || f.n.self.Rank == 0 || f.n.isGathered()
			if connected && pause == 0 || !connected && f.n.up.isCalled() {
				return
			}
			to = f.joinTargets(connected, pause == 0)
		}) {
			return
		}
		var wg sync.WaitGroup
		for _, p := range to {
			wg.Go(func() { f.join(p) })
		}
		wg.Wait()
		if pause = b.wait(); connected {
			pause = f.spread(rejoinInterval)
		}
	}
}

// spread returns a random interval of at least d/2 for work that every rank does, so that all ranks together do it
// about 50 times a second.
func (f *finder) spread(d time.Duration) time.Duration {
	d = max(d, time.Duration(f.n.cfg.Size)*20*time.Millisecond)
	return d/2 + rand.N(d)
}

// isCalled reports whether rank 0 is connected, or has acknowledged a knock a moment ago and will connect.
func (u *uplink) isCalled() bool {
	return u.wire != nil || !u.promised.IsZero() && time.Since(u.promised) < promiseTime
}

// promiseTime is how long a rank waits for rank 0 after rank 0 has acknowledged a knock.
const promiseTime = 5 * time.Second

// knock sends announcements to rank 0 while rank 0 is not connected. It returns soon after the first one, when gossip
// may be joined, and reports true if there is nothing to join any more.
func (f *finder) knock() (over bool) {
	i := slices.IndexFunc(f.n.cfg.Peers, func(p Peer) bool { return p.Rank == 0 })
	if i < 0 {
		return false
	}
	f.n.wg.Go(func() {
		b := backoff{next: 2 * joinHead, most: promiseTime / 2}
		for {
			connected := false
			if !f.n.ask(func() { connected = f.n.up.wire != nil }) {
				return
			}
			if !connected {
				addrs, err := f.n.cfg.Peers[i].addrs(f.n) // resolving its name may take long
				for _, a := range addrs {
					err = errors.Join(err, f.net.knock(a, &f.n.self))
				}
				if err != nil {
					f.n.log.Debug("knocking at rank 0", "addrs", addrs, "err", err)
				}
			}
			if !sleep(f.n.ctx, f.n.gathered, b.wait()) {
				return
			}
		}
	})
	return !f.n.pace.sleep(f.n.ctx, f.n.gathered, joinHead)
}

// join exchanges gossip states with the first address of a place that answers.
func (f *finder) join(p place) {
	addrs, err := p.find(f.n)
	for _, a := range addrs {
		if err = f.net.join(a); err == nil {
			return
		}
	}
	f.n.log.Debug("gossip join", "addrs", addrs, "err", err)
}

// joinHead is how long rank 0 may take to dial a rank that has knocked, before that rank joins gossip.
const joinHead = 50 * time.Millisecond

// manyJoins is the largest job whose ranks join rank 0: memberlist serves 128 joins at a time, each with the whole
// list.
const manyJoins = 128

// joinTargets picks the containers to join. At first rank 0 is joined in any case: that another rank told of rank 0
// does not mean that rank 0 has heard of this one.
func (f *finder) joinTargets(connected, first bool) []place {
	if f.n.cfg.Size > 0 && len(f.heard)+1 >= f.n.cfg.Size && !first {
		return nil
	}
	var zero, rest []place
	for _, p := range f.n.cfg.Peers {
		_, heard := f.heard[p.ID]
		switch {
		case heard && (!first || p.Rank != 0):
		case p.Rank == 0 && f.n.cfg.Size > manyJoins: // it would send each of them the whole list
		case p.Rank == 0:
			zero = append(zero, place{p.ID, p.addrs, true, p.Host})
		case !f.mayAsk(p):
		default:
			rest = append(rest, place{p.ID, p.addrs, false, p.Host})
		}
	}
	for _, a := range f.silentSeeds() {
		rest = append(rest, placeAt("", a, false))
	}
	rand.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	most := 2
	if len(zero) == 0 {
		most = 3
	}
	if connected {
		most = 1
	}
	return append(zero, rest[:min(most, len(rest))]...)
}

// lookForLeader finds out why rank 0 does not connect. A call that reaches rank 0 costs it a login, so calls become
// rarer while they find nothing else; calls that reach nothing cost little.
func (u *uplink) lookForLeader() {
	const first, again = 250 * time.Millisecond, time.Second
	b := backoff{next: again, most: 8 * again}
	pause := max(first, u.n.cfg.AskAfter)
	for {
		// All ranks may be waiting for the same rank 0: together they call it at most about 200 times a second.
		if !u.n.pace.sleep(u.n.ctx, u.n.gathered, pause+rand.N(time.Duration(u.n.cfg.Size+1)*5*time.Millisecond)) {
			return
		}
		pause = again
		called := false
		if !u.n.ask(func() { called = u.isCalled() }) {
			return
		}
		if called {
			continue
		}
		reached, err := u.lookOnce()
		if err != nil {
			u.leaveIncompatible(err)
		}
		if reached {
			pause = b.wait()
		} else {
			b.next = again
		}
	}
}

// lookOnce announces this container at all places where rank 0 may be, at once, and notes why rank 0 does not connect.
// hopeless is a reason that waiting does not mend. reached reports that a login was begun at one of the places.
func (u *uplink) lookOnce() (reached bool, hopeless error) {
	places, sure := u.leaderPlaces()
	if len(places) == 0 {
		return false, nil
	}
	type found struct {
		addr   netip.AddrPort
		answer message
		err    error
	}
	results := make([][]found, len(places))
	var wg sync.WaitGroup
	for i, p := range places {
		wg.Go(func() {
			addrs, err := p.find(u.n)
			if err != nil {
				results[i] = []found{{err: err}}
			}
			for _, a := range addrs {
				answer, err := u.n.exchange(u.n.ctx, p.id, a, message{Type: announce, Record: &u.n.self})
				f := found{a, answer, err}
				for range portTries {
					next, ok := nextPort(a, err)
					if !ok || !p.sure {
						break
					}
					a = next
					answer, err = u.n.exchange(u.n.ctx, p.id, a, message{Type: announce, Record: &u.n.self})
					if err == nil {
						f = found{a, answer, nil}
					}
				}
				results[i] = append(results[i], f)
			}
		})
	}
	wg.Wait()
	others, ours := 0, false
	var other error // the container that answers in place of rank 0
	var resolved time.Time
	var reason error
	var outcome *Outcome
	var leader *Record
	for i, p := range places {
		for _, f := range results[i] {
			// A login that was cut off by its timeout has cost as much as a complete one.
			login := f.err == nil || errors.Is(f.err, ErrOtherContainer) || errors.Is(f.err, context.DeadlineExceeded)
			reached = reached || (p.sure || !sure) && f.addr.IsValid() && login
			incompatible := isIncompatible(f.err)
			switch {
			case !p.sure && sure:
			case f.addr.IsValid() && f.err == nil:
				ours = true
			case incompatible, errors.Is(f.err, ErrOtherJob):
				others++
				other, resolved = fmt.Errorf("%v: %w", f.addr, f.err), p.resolved(u.n)
			}
			switch {
			case !f.addr.IsValid():
				if p.sure || reason == nil {
					reason = f.err
				}
			case f.err == nil && p.sure:
				reason = fmt.Errorf("%v: %w", f.addr, errSilent)
			case f.err == nil: // this container may know more than the next
			case p.sure, incompatible, errors.Is(f.err, ErrOtherJob): // of the other containers nothing is known
				reason = fmt.Errorf("%v: %w", f.addr, f.err)
			}
			switch f.answer.Type {
			case done:
				outcome = f.answer.Outcome
			case lead:
				leader = f.answer.Record
			}
		}
	}
	u.n.ask(func() {
		u.lookErr = reason
		if leader != nil && leader.validate() == nil && leader.Nonce != u.n.self.Nonce {
			u.rumour = leader
		}
		switch {
		case ours || u.wire != nil:
			u.foreign.met(nil, resolved)
			u.incompatible = nil
		// rank 0, or all that answer, and none of them shares our secret and job
		case sure || others == len(places) && len(u.n.find.heard) == 0:
			u.foreign.met(cmp.Or(other, reason, errSilent), resolved)
			if isIncompatible(other) {
				u.incompatible = other
			}
		}
		switch {
		case u.wire != nil || u.n.phase != Gathering:
		case outcome != nil:
			u.n.end(*outcome)
			u.n.setFinished(*outcome, nil)
		case u.foreign.proven:
			err := u.foreign.proof()
			hopeless = (&MissingError{Present: 1 + len(u.n.find.heard), Size: u.n.cfg.Size, Missing: []Missing{{
				Rank: 0, Name: "rank 0", Reason: explain(err), incompatible: err, proof: err,
			}}}).end()
		}
	})
	return reached, hopeless
}

// leaveIncompatible ends the wait of a container whose secret or job differs from rank 0's, after rank 0 had the time
// to connect here again and find the same.
func (u *uplink) leaveIncompatible(err error) {
	select {
	case <-u.n.ctx.Done():
	case <-u.n.gathered:
	case <-time.After(foreignLinger):
		u.n.post(func() {
			if u.wire == nil && u.n.phase == Gathering && u.foreign.proven {
				u.n.setGathered(Roster{}, err)
			}
		})
	}
}

// place is an address or a name where rank 0 may be.
type place struct {
	id   string
	find func(*Node) ([]netip.AddrPort, error)
	sure bool   // rank 0 itself should answer there
	host string // "" = an address
}

// resolved returns when the addresses that find returns were resolved.
func (p place) resolved(n *Node) time.Time {
	if p.host == "" {
		return time.Now()
	}
	return n.find.names.answered(p.host)
}

// leaderPlaces returns where to look for rank 0: where the environment or another container says that it is; if it is
// not there, at two other ranks, which may be connected to it, or at a few silent addresses of the seeds. It returns
// none if rank 0 is connected.
func (u *uplink) leaderPlaces() (places []place, sure bool) {
	u.n.ask(func() {
		if u.wire != nil || u.n.lead != nil || u.n.phase == Running || u.n.phase == Ended {
			return
		}
		for _, p := range u.n.cfg.Peers {
			if p.Rank == 0 {
				places, sure = append(places, place{p.ID, p.addrs, true, p.Host}), true
			}
		}
		if r := u.rumour; r != nil {
			places, sure = append(places, placeAt(r.ID, r.Addr, true)), true
		}
		if sure && (u.lookErr == nil || errors.Is(u.lookErr, errSilent)) {
			return
		}
		var rest []place
		for _, p := range u.n.cfg.Peers {
			if p.Rank != 0 && u.n.find.mayAsk(p) {
				rest = append(rest, place{p.ID, p.addrs, false, p.Host})
			}
		}
		rand.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
		places = append(places, rest[:min(2, len(rest))]...)
		if len(places) > 0 {
			return
		}
		// The first in the order leads.
		if u.n.cfg.Size > 0 && len(u.n.find.heard) > 0 && len(u.n.find.heard)+1 >= u.n.cfg.Size {
			heard := slices.Collect(maps.Values(u.n.find.heard))
			first := slices.MinFunc(heard, func(a, b Record) int { return a.before(&b) })
			for i, r := range []Record{first, heard[rand.N(len(heard))]} {
				if i == 0 || r.ID != first.ID {
					places = append(places, placeAt(r.ID, r.Addr, false))
				}
			}
		}
		for _, a := range u.n.find.silentSeeds() {
			if len(places) < 4 {
				places = append(places, placeAt("", a, false))
			}
		}
	})
	return places, sure
}

// mayAsk reports whether a rank may resolve the name of another one. While the name of rank 0 may be enough, other
// names wait: lookups of names that the DNS does not know yet keep it from learning them.
func (f *finder) mayAsk(p Peer) bool {
	if _, err := netip.ParseAddr(p.Host); err == nil || time.Since(f.n.begin) > latestAgain {
		return true
	}
	return !slices.ContainsFunc(f.n.cfg.Peers, func(p Peer) bool { return p.Rank == 0 })
}

func placeAt(id string, a netip.AddrPort, sure bool) place {
	return place{id, func(*Node) ([]netip.AddrPort, error) { return []netip.AddrPort{a}, nil }, sure, ""}
}

// addrs resolves the address of a peer.
func (p Peer) addrs(n *Node) ([]netip.AddrPort, error) {
	found, err := n.find.names.find(n.ctx, p.Host)
	var out []netip.AddrPort
	for _, a := range found {
		out = append(out, netip.AddrPortFrom(a, uint16(p.Port)))
	}
	return out, err
}

// silentSeeds returns the addresses of the seeds at which no known container is.
func (f *finder) silentSeeds() []netip.AddrPort {
	known := map[netip.AddrPort]bool{f.n.self.Addr: true}
	for _, r := range f.heard {
		known[r.Addr] = true
	}
	var out []netip.AddrPort
	for _, s := range f.seeds {
		for _, a := range s.addrs {
			if !known[a] {
				out = append(out, a)
			}
		}
	}
	return out
}

var errSilent = errors.New("it answers, but has not called back yet")

// missing lists the ranks that are absent, by what this rank knows.
func (n *Node) missing() []Missing {
	if n.phase == Running || n.phase == Ended {
		return nil
	}
	if n.lead == nil {
		return n.up.missing()
	}
	return n.lead.missing()
}

// missing lists the ranks that are not registered.
func (c *coordinator) missing() []Missing {
	var out []Missing
	for i := range c.n.cfg.Peers {
		p := &c.n.cfg.Peers[i]
		t := c.targets[p.ID]
		if t != nil && t.rec == nil {
			out = append(out, c.missingAt(t, p.Rank, p.ID))
		}
	}
	// Then those that the environment does not list: what answered at the seeds' addresses, then the number that is
	// left.
	count := c.n.cfg.Size - c.present() - len(out)
	keys := make([]string, 0, len(c.targets))
	for k, t := range c.targets {
		if t.peer == nil && t.rec == nil {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if count == 0 {
			break
		}
		t := c.targets[k]
		out = append(out, c.missingAt(t, -1, c.nameOf(t)))
		count--
	}
	if count > 0 {
		name := "1 rank"
		if count > 1 {
			name = fmt.Sprintf("%d ranks", count)
		}
		out = append(out, Missing{Rank: -1, Name: name, Reason: c.n.find.seedReason()})
	}
	if len(out) == 0 {
		return c.unsettled()
	}
	return out
}

func (c *coordinator) missingAt(t *target, rank int, name string) Missing {
	return Missing{Rank: rank, Name: name, Reason: c.reason(t), incompatible: t.incompatible, proof: t.foreign.proof()}
}

// missing lists the ranks that rank 0 told, or what gossip and calls have found.
func (u *uplink) missing() []Missing {
	if u.wire != nil && u.waits {
		return u.awaited
	}
	var out []Missing
	var incompatible error
	if u.wire == nil {
		incompatible = u.incompatible
	}
	if u.wire == nil {
		m := Missing{Rank: 0, Name: "rank 0", Reason: "never heard", incompatible: incompatible}
		for _, p := range u.n.cfg.Peers {
			if p.Rank == 0 {
				m.Name = p.ID
			}
		}
		switch {
		case incompatible != nil && !isIncompatible(u.lookErr):
			m.Reason = fmt.Sprintf("%s; now %s", explain(u.incompatible), explain(u.lookErr))
		case u.lookErr != nil:
			m.Reason = explain(u.lookErr)
		case len(u.n.cfg.Seeds) > 0:
			m.Reason = u.n.find.seedReason()
		}
		out = append(out, m)
	}
	for _, p := range u.n.cfg.Peers {
		if _, ok := u.n.find.heard[p.ID]; !ok && p.Rank != 0 {
			// Gossip needs the secret, so another secret explains why nothing is heard.
			out = append(out, Missing{
				Rank: p.Rank, Name: p.ID, Reason: "not heard by gossip", incompatible: incompatible,
			})
		}
	}
	return out
}

// stillLooks is why the launch waits for a rank that is present.
const stillLooks = "it is here, and still looks at its devices"

// lookers lists the ranks that are present and have not told their fabric yet.
func (c *coordinator) lookers() (out []Missing) {
	if c.n.looking {
		out = append(out, Missing{Rank: c.n.self.Rank, Name: c.n.self.ID, Reason: stillLooks})
	}
	for _, t := range c.targets {
		if t.rec != nil && t.looking {
			out = append(out, Missing{Rank: t.rec.Rank, Name: t.rec.ID, Reason: stillLooks})
		}
	}
	sort.Slice(out, func(a, b int) bool {
		return cmp.Or(cmp.Compare(uint(out[a].Rank), uint(out[b].Rank)), cmp.Compare(out[a].Name, out[b].Name)) < 0
	})
	return out
}

func (n *Node) missingError() *MissingError {
	e := &MissingError{Size: n.cfg.Size, Missing: n.missing()}
	switch {
	case n.lead != nil:
		late := n.lead.lookers()
		e.Present, e.Missing = n.lead.present()-len(late), append(e.Missing, late...)
	case n.up.wire != nil && n.up.waits:
		e.Present = n.up.present
	default:
		e.Present = 1 + len(n.find.heard)
	}
	return e
}

func (c *coordinator) reason(t *target) string {
	r, heard := c.n.find.heard[t.key]
	switch {
	case t.incompatible != nil && !isIncompatible(t.err):
		return fmt.Sprintf("%s; now %s", explain(t.incompatible), explain(t.err))
	case t.err != nil && heard:
		return fmt.Sprintf("heard by gossip from %v, but %s", r.Addr, explain(t.err))
	case t.err != nil:
		return explain(t.err)
	case heard:
		return fmt.Sprintf("heard by gossip from %v, not connected yet", r.Addr)
	}
	return "never heard"
}

func (f *finder) seedReason() string {
	var parts []string
	for i, s := range f.seeds {
		name := f.n.cfg.Seeds[i].Host
		switch {
		case s.err != nil:
			parts = append(parts, explain(s.err))
		case len(s.addrs) == 1:
			parts = append(parts, fmt.Sprintf("%s has 1 address", name))
		case s.asked:
			parts = append(parts, fmt.Sprintf("%s has %d addresses", name, len(s.addrs)))
		}
	}
	if len(parts) == 0 {
		return "never heard"
	}
	return "never heard: " + strings.Join(parts, ", ")
}

// explain turns the error of a dial into words for people.
func explain(err error) string {
	var dns *net.DNSError
	var at string
	if err == nil {
		return "no reason is known"
	}
	if head, _, ok := strings.Cut(err.Error(), ": "); ok {
		if ap, perr := netip.ParseAddrPort(head); perr == nil {
			at = ap.String() + ": "
		}
	}
	switch {
	case isElse(err), errors.Is(err, errSilent):
		return err.Error()
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("name %s does not resolve", dns.Name)
	case errors.As(err, &dns):
		return fmt.Sprintf("name %s cannot be resolved: %s", dns.Name, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return at + "connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return at + "no route to host"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		return at + "connection closed by the other side"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return at + "no answer"
	}
	return err.Error()
}

// OwnAddr returns the address of this machine by which other machines most likely reach it.
func OwnAddr() (netip.Addr, error) { return ownAddr(nil, nil) }

// ownAddr returns the address at which other containers most likely reach this one: the source address that the kernel
// uses to reach a peer with a known address, otherwise the first address of an interface that is up and is neither
// loopback nor link-local.
func ownAddr(peers []Peer, seeds []Seed) (netip.Addr, error) {
	var hosts []string
	for _, p := range peers {
		hosts = append(hosts, p.Host)
	}
	for _, s := range seeds {
		hosts = append(hosts, s.Host)
	}
	for _, h := range hosts {
		a, err := netip.ParseAddr(h)
		if err != nil {
			continue
		}
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
		if err != nil {
			continue
		}
		local := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		_ = c.Close()
		if !local.IsUnspecified() {
			return local.WithZone(""), nil
		}
	}
	ifs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	var six, loop netip.Addr
	for _, ifa := range ifs {
		n, ok := ifa.(*net.IPNet)
		if !ok {
			continue
		}
		a, ok := netip.AddrFromSlice(n.IP)
		a = a.Unmap()
		switch {
		case !ok || a.IsLinkLocalUnicast():
		case a.IsLoopback():
			if !loop.IsValid() {
				loop = a
			}
		case a.Is4():
			return a, nil
		case !six.IsValid():
			six = a
		}
	}
	if six.IsValid() {
		return six, nil
	}
	if loop.IsValid() {
		return loop, nil // other machines cannot reach it; a job of one rank does not need that
	}
	return netip.Addr{}, errors.New("no interface has an address")
}
