package rendezvous

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// finder finds the other containers, by gossip and by names. Only the loop touches heard and seeds.
type finder struct {
	n      *Node
	gossip *memberlist.Memberlist // nil = no gossip
	names  names
	heard  map[string]Record // by id: containers that gossip takes for alive
	seeds  []seedState
}

// onGossip notes which containers gossip takes for alive. Gossip wakes the dialling goroutines; it never decides.
func (f *finder) onGossip(r Record, alive bool) {
	old, known := f.heard[r.ID]
	switch {
	case alive:
		f.heard[r.ID] = r
		if said, ok := f.n.withdrawn[r.ID]; ok && said.Record.Nonce != r.Nonce {
			delete(f.n.withdrawn, r.ID) // its container was started again
		}
		if f.n.lead != nil && !f.n.isGathered() {
			f.n.lead.addStart(&r, noReply)
		}
	case known && old.Nonce == r.Nonce:
		delete(f.heard, r.ID)
	}
	f.elect()
}

// end stops gossip for good: the launch needs no other container, and gossip's timers would disturb the job.
func (f *finder) end() {
	if f.gossip != nil {
		f.n.wg.Go(func() { _ = f.gossip.Shutdown() })
	}
}

// onAnnouncement dials a rank that has announced itself, and acknowledges the packet, which may be late or a duplicate.
func (f *finder) onAnnouncement(r *Record) {
	if f.n.lead == nil || f.n.isGathered() || r.validate() != nil || r.Nonce == f.n.self.Nonce {
		return
	}
	if f.n.lead.addStart(r, noReply) {
		return // another start of it is connected
	}
	if t := f.n.lead.targets[r.ID]; t != nil && t.rec != nil && t.rec.Nonce == r.Nonce {
		return // it is connected by now
	}
	answer := message{Type: lead, Record: &f.n.self, Reason: f.n.lead.onCaller(r)}
	if err := f.tell(r.Addr, answer); err != nil {
		f.n.log.Debug("acknowledging an announcement", "peer", r.ID, "addr", r.Addr, "err", err)
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
		if r.Rank == 0 || r.before(f.n.self) < 0 {
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
			st.err = err
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
		if !sleep(f.n.ctx, f.n.gathered, b.wait()) {
			return
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
// that it joins now and then a container not heard yet, while any is missing. It first announces itself to rank 0, and
// while rank 0 answers it joins nothing: exchanging the state of many ranks costs both sides milliseconds of CPU.
func (f *finder) joinOthers() {
	if f.n.self.Rank != 0 && f.announce() {
		return
	}
	b, factor, later := backoff{}, 0, 1 // ranks to be agreed find each other by gossip alone
	if f.n.self.Rank >= 0 {             // rank 0 dials by itself, too
		b = backoff{next: 5 * joinDelay, most: f.spread(rejoinInterval)}
		factor, later = lateFactor, lateFactor
	}
	for pause := time.Duration(0); f.n.pace.sleepFor(f.n.ctx, f.n.gathered, pause, factor); factor = later {
		var to []Peer
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

// spread returns a random interval of at least d/2, so that all ranks together act about 50 times a second.
func (f *finder) spread(d time.Duration) time.Duration {
	d = max(d, time.Duration(f.n.cfg.Size)*20*time.Millisecond)
	return d/2 + rand.N(d)
}

// announce sends announcements to rank 0 while that is not connected. It returns soon after the first one, when gossip
// may be joined, and reports true if there is nothing to join any more.
func (f *finder) announce() (over bool) {
	zero := f.n.cfg.peerZero()
	if zero == nil {
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
				addrs, err := zero.addrs(f.n) // resolving its name may take long
				for _, a := range addrs {
					err = errors.Join(err, f.tell(a, f.n.announcement()))
				}
				if err != nil {
					f.n.log.Debug("announcing this rank to rank 0", "addrs", addrs, "err", err)
				}
			}
			if !sleep(f.n.ctx, f.n.gathered, b.wait()) {
				return
			}
		}
	})
	return !f.n.pace.sleep(f.n.ctx, f.n.gathered, joinDelay)
}

// join exchanges gossip states with the first address that answers, over TCP, bounded by memberlist's TCPTimeout.
func (f *finder) join(p Peer) {
	addrs, err := p.addrs(f.n)
	for _, a := range addrs {
		if _, err = f.gossip.Join([]string{a.String()}); err == nil {
			return
		}
	}
	f.n.log.Debug("gossip join", "addrs", addrs, "err", err)
}

// joinDelay is how long rank 0 may take to dial a rank that has announced itself, before that rank joins gossip.
const joinDelay = 50 * time.Millisecond

// manyJoins is the largest job whose ranks join rank 0, because memberlist serves 128 joins at a time.
const manyJoins = 128

// joinTargets picks the containers to join: at first also a rank 0 that was heard, because it may not know this rank.
func (f *finder) joinTargets(connected, first bool) []Peer {
	if f.n.cfg.Size > 0 && len(f.heard)+1 >= f.n.cfg.Size && !first {
		return nil
	}
	var zero, rest []Peer
	for _, p := range f.n.cfg.Peers {
		_, heard := f.heard[p.ID]
		switch {
		case heard && (!first || p.Rank != 0):
		case p.Rank == 0 && f.n.cfg.Size > manyJoins: // it would send each of them the whole list
		case p.Rank == 0:
			zero = append(zero, p)
		case f.mayAsk(p):
			rest = append(rest, p)
		}
	}
	for _, a := range f.silentSeeds() {
		rest = append(rest, peerAt("", -1, a))
	}
	most := 3 - min(1, len(zero))
	if connected {
		most = 1
	}
	return append(zero, some(rest, most)...)
}

// some returns up to n elements, at random. It changes the order of all.
func some[T any](all []T, n int) []T {
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(n, len(all))]
}

// mayAsk reports whether a rank may resolve the name of another one. While the name of rank 0 may be enough, other
// names wait: lookups of names that the DNS does not know yet keep it from learning them.
func (f *finder) mayAsk(p Peer) bool {
	_, err := netip.ParseAddr(p.Host)
	return err == nil || time.Since(f.n.begin) > latestAgain || f.n.cfg.peerZero() == nil
}

// peerZero returns rank 0 if the environment names it, otherwise nil.
func (cfg *Config) peerZero() *Peer {
	if i := slices.IndexFunc(cfg.Peers, func(p Peer) bool { return p.Rank == 0 }); i >= 0 {
		return &cfg.Peers[i]
	}
	return nil
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
