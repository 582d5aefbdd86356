package rendezvous

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
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
		b = backoff{next: 5 * joinDelay, most: f.spread(rejoinInterval)}
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

// knock sends announcements to rank 0 while rank 0 is not connected. It returns soon after the first one, when gossip
// may be joined, and reports true if there is nothing to join any more.
func (f *finder) knock() (over bool) {
	i := slices.IndexFunc(f.n.cfg.Peers, func(p Peer) bool { return p.Rank == 0 })
	if i < 0 {
		return false
	}
	f.n.wg.Go(func() {
		b := backoff{next: 2 * joinDelay, most: promiseTime / 2}
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
	return !f.n.pace.sleep(f.n.ctx, f.n.gathered, joinDelay)
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

// joinDelay is how long rank 0 may take to dial a rank that has knocked, before that rank joins gossip.
const joinDelay = 50 * time.Millisecond

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

// mayAsk reports whether a rank may resolve the name of another one. While the name of rank 0 may be enough, other
// names wait: lookups of names that the DNS does not know yet keep it from learning them.
func (f *finder) mayAsk(p Peer) bool {
	if _, err := netip.ParseAddr(p.Host); err == nil || time.Since(f.n.begin) > latestAgain {
		return true
	}
	return !slices.ContainsFunc(f.n.cfg.Peers, func(p Peer) bool { return p.Rank == 0 })
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
