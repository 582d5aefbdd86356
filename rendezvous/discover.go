package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// onGossip notes who is heard. Gossip wakes whoever dials; it never decides.
func (n *Node) onGossip(r Record, alive bool) {
	old, known := n.heard[r.ID]
	switch {
	case alive:
		n.heard[r.ID] = r
		if n.lead != nil && !n.isGathered() {
			n.addTarget(r.ID, nil, r.Addr)
		}
	case known && old.Nonce == r.Nonce:
		delete(n.heard, r.ID)
	}
	n.elect()
}

// onKnock has rank 0 call who has knocked. A packet may come late, or again, and so says nothing of anybody once the ranks are settled.
func (n *Node) onKnock(r *Record) {
	if n.lead != nil && !n.isGathered() && r.validate() == nil && r.Nonce != n.self.Nonce {
		n.addTarget(r.ID, nil, r.Addr)
	}
}

// elect makes this container the coordinator when nobody is declared rank 0, everybody is heard, and it comes first in the
// order. Two that disagree cannot both commit: each of them would need the other's acknowledgement.
func (n *Node) elect() {
	if n.self.Rank >= 0 || n.isGathered() || n.phase != Gathering || len(n.heard)+1 != n.cfg.Size {
		return // who has acknowledged a roster, may be part of a launch
	}
	for _, r := range n.heard {
		if r.Rank == 0 || r.before(&n.self) < 0 {
			return
		}
	}
	n.becomeCoordinator()
}

// resolveSeed asks for the addresses of a seed again and again until the job is gathered.
func (n *Node) resolveSeed(i int) {
	var b backoff
	for {
		s := n.cfg.Seeds[i]
		addrs, err := n.names.find(n.ctx, s.Host)
		n.post(func() {
			st := &n.seeds[i]
			st.asked, st.err = true, err
			for _, a := range addrs {
				if ap := netip.AddrPortFrom(a, uint16(s.Port)); !slices.Contains(st.addrs, ap) {
					st.addrs = append(st.addrs, ap)
				}
			}
			n.onSeed(i)
		})
		select {
		case <-n.ctx.Done():
			return
		case <-n.gathered:
			return
		case <-time.After(b.wait()):
		}
	}
}

// onSeed has rank 0 dial the addresses of a seed that nobody known uses.
func (n *Node) onSeed(i int) {
	if n.lead == nil || n.isGathered() {
		return
	}
	for _, a := range n.seeds[i].addrs {
		if a != n.self.Addr && !n.knownAddr(a) {
			n.addTarget("@"+a.String(), nil, a)
		}
	}
}

func (n *Node) knownAddr(a netip.AddrPort) bool {
	for _, r := range n.heard {
		if r.Addr == a {
			return true
		}
	}
	for _, t := range n.lead.targets {
		if t.rec != nil && t.rec.Addr == a {
			return true
		}
	}
	return false
}

// joinOthers exchanges gossip states with rank 0 and two others, in parallel, until rank 0 is connected; after that now
// and then with one that is not heard yet, for as long as somebody is not. Before that it knocks at rank 0, whose call is all that it takes:
// a state of many ranks takes each side a millisecond.
func (n *Node) joinOthers() {
	n.knock()
	var b backoff
	for {
		var to []place
		connected := false
		if !n.ask(func() {
			connected = n.up.wire != nil || n.self.Rank == 0 || n.isGathered()
			to = n.joinTargets(connected)
		}) {
			return
		}
		var wg sync.WaitGroup
		for _, p := range to {
			wg.Go(func() { n.join(p) })
		}
		wg.Wait()
		pause := b.wait()
		if connected {
			pause = rejoinInterval
		}
		select {
		case <-n.ctx.Done():
			return
		case <-n.gathered:
			return
		case <-time.After(pause):
		}
	}
}

// knock tells rank 0 that this container is here, and gives it a moment to call.
func (n *Node) knock() {
	i := slices.IndexFunc(n.cfg.Peers, func(p Peer) bool { return p.Rank == 0 })
	if i < 0 {
		return
	}
	n.wg.Go(func() { // to find its address may take longer
		addrs, err := n.cfg.Peers[i].addrs(n)
		for _, a := range addrs {
			err = errors.Join(err, n.net.knock(a, &n.self))
		}
		if err != nil {
			n.log.Debug("knocking at rank 0", "addrs", addrs, "err", err)
		}
	})
	select {
	case <-n.ctx.Done():
	case <-n.gathered:
	case <-time.After(joinHead):
	}
}

// join exchanges states at the first address of a place that answers.
func (n *Node) join(p place) {
	addrs, err := p.find(n)
	for _, a := range addrs {
		if err = n.net.join(a); err == nil {
			return
		}
	}
	n.log.Debug("gossip join", "addrs", addrs, "err", err)
}

// joinHead is how long rank 0 may take to call who has knocked, before that one joins gossip.
const joinHead = 50 * time.Millisecond

// manyJoins is the size from which on rank 0 is not joined: memberlist serves 128 at a time, each with the whole list.
const manyJoins = 128

// joinTargets picks whom to join.
func (n *Node) joinTargets(connected bool) []place {
	if n.cfg.Size > 0 && len(n.heard)+1 >= n.cfg.Size {
		return nil
	}
	var first, rest []place
	for _, p := range n.cfg.Peers {
		_, heard := n.heard[p.ID]
		switch {
		case heard:
		case p.Rank == 0 && n.cfg.Size > manyJoins: // it would answer each of them with all the others
		case p.Rank == 0:
			first = append(first, place{p.ID, p.addrs, true})
		case !n.mayAsk(p):
		default:
			rest = append(rest, place{p.ID, p.addrs, false})
		}
	}
	for _, a := range n.silentSeeds() {
		rest = append(rest, placeAt("", a, false))
	}
	rand.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	most := 2
	if len(first) == 0 {
		most = 3
	}
	if connected {
		most = 1
	}
	return append(first, rest[:min(most, len(rest))]...)
}

// lookForLeader finds out why rank 0 does not call while it does not.
func (n *Node) lookForLeader() {
	const first, again = 250 * time.Millisecond, time.Second
	// All ranks may be waiting for the same rank 0: it is not asked more than about 200 times per second.
	spread := func() time.Duration { return rand.N(time.Duration(n.cfg.Size+1) * 5 * time.Millisecond) }
	t := time.NewTimer(max(first, n.cfg.AskAfter) + spread())
	defer t.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.gathered:
			return
		case <-t.C:
		}
		if e := n.lookOnce(); e != nil {
			n.leaveAsStranger(e)
		}
		t.Reset(again + spread())
	}
}

// lookOnce calls at the places where rank 0 may be, all at once, and says that this container is here. What it meets is the
// reason why rank 0 does not call; the result is one that waiting does not mend.
func (n *Node) lookOnce() (hopeless *MissingError) {
	places, sure := n.leaderPlaces()
	if len(places) == 0 {
		return nil
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
			addrs, err := p.find(n)
			if err != nil {
				results[i] = []found{{err: err}}
			}
			for _, a := range addrs {
				answer, err := n.exchange(n.ctx, p.id, a, message{Type: here, Record: &n.self})
				results[i] = append(results[i], found{a, answer, err})
			}
		})
	}
	wg.Wait()
	strangers := 0
	var reason error
	var outcome *Outcome
	var leader *Record
	for i, p := range places {
		for _, f := range results[i] {
			secret := errors.Is(f.err, ErrOtherSecret)
			if secret && (p.sure || !sure) {
				strangers++
			}
			switch {
			case !f.addr.IsValid():
				if p.sure || reason == nil {
					reason = f.err
				}
			case f.err == nil && p.sure:
				reason = fmt.Errorf("%v: %w", f.addr, errSilent)
			case f.err == nil: // who else answers may know more
			case p.sure, secret, errors.Is(f.err, ErrOtherJob): // who else does not answer may be anybody
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
	n.ask(func() {
		n.up.lookErr = reason
		if leader != nil && leader.validate() == nil && leader.Nonce != n.self.Nonce {
			n.up.rumour = leader
		}
		switch {
		case n.up.wire != nil || n.phase != Gathering:
		case outcome != nil:
			n.phase, n.outcome = Ended, *outcome
			n.setFinished(*outcome, nil)
		// Rank 0 itself, or everybody who answers, has another secret, and nobody shares ours.
		case strangers > 0 && (sure || strangers == len(places)) && len(n.heard) == 0:
			hopeless = &MissingError{Present: 1, Size: n.cfg.Size,
				Missing: []Missing{{Rank: 0, Name: "rank 0", Reason: explain(reason), secret: true}}}
		}
	})
	return hopeless
}

// leaveAsStranger ends the wait of a container that has another secret than everybody else, once rank 0 has called here, too, and knows why
// this rank is missing: it may have called last before this container listened.
func (n *Node) leaveAsStranger(e *MissingError) {
	select {
	case <-n.ctx.Done():
	case <-n.gathered:
	case <-time.After(2 * longestPause): // the call takes its time, too
		n.post(func() {
			if n.up.wire == nil && n.phase == Gathering && len(n.heard) == 0 {
				n.setGathered(Roster{}, e)
			}
		})
	}
}

// place is where rank 0 may be.
type place struct {
	id   string
	find func(*Node) ([]netip.AddrPort, error)
	sure bool // it is rank 0 that should answer there
}

// leaderPlaces says where to look for rank 0: where the environment or another container says that it is; when it is not found
// there, at two others, who may be connected to it; or else at a few addresses of the seeds from which nobody was heard.
// There are none while there is nothing to look for.
func (n *Node) leaderPlaces() (places []place, sure bool) {
	n.ask(func() {
		if n.up.wire != nil || n.lead != nil || n.phase == Running || n.phase == Ended {
			return
		}
		for _, p := range n.cfg.Peers {
			if p.Rank == 0 {
				places, sure = append(places, place{p.ID, p.addrs, true}), true
			}
		}
		if r := n.up.rumour; r != nil {
			places, sure = append(places, placeAt(r.ID, r.Addr, true)), true
		}
		if sure && (n.up.lookErr == nil || errors.Is(n.up.lookErr, errSilent)) {
			return
		}
		var rest []place
		for _, p := range n.cfg.Peers {
			if p.Rank != 0 && n.mayAsk(p) {
				rest = append(rest, place{p.ID, p.addrs, false})
			}
		}
		rand.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
		places = append(places, rest[:min(2, len(rest))]...)
		if len(places) > 0 {
			return
		}
		for _, a := range n.silentSeeds() {
			if len(places) < 4 {
				places = append(places, placeAt("", a, false))
			}
		}
	})
	return places, sure
}

// mayAsk keeps a rank from asking for the names of others while that of rank 0 may be enough: many that ask for names that the DNS
// does not know yet keep it from learning them.
func (n *Node) mayAsk(p Peer) bool {
	if _, err := netip.ParseAddr(p.Host); err == nil || time.Since(n.begin) > latestAgain {
		return true
	}
	return !slices.ContainsFunc(n.cfg.Peers, func(p Peer) bool { return p.Rank == 0 })
}

func placeAt(id string, a netip.AddrPort, sure bool) place {
	return place{id, func(*Node) ([]netip.AddrPort, error) { return []netip.AddrPort{a}, nil }, sure}
}

// addrs resolves the address of a peer.
func (p Peer) addrs(n *Node) ([]netip.AddrPort, error) {
	found, err := n.names.find(n.ctx, p.Host)
	var out []netip.AddrPort
	for _, a := range found {
		out = append(out, netip.AddrPortFrom(a, uint16(p.Port)))
	}
	return out, err
}

// silentSeeds are the addresses of the seeds from which nobody was heard.
func (n *Node) silentSeeds() []netip.AddrPort {
	known := map[netip.AddrPort]bool{n.self.Addr: true}
	for _, r := range n.heard {
		known[r.Addr] = true
	}
	var out []netip.AddrPort
	for _, s := range n.seeds {
		for _, a := range s.addrs {
			if !known[a] {
				out = append(out, a)
			}
		}
	}
	return out
}

var errSilent = errors.New("it answers, but has not called back yet")

// missing lists who is not there, by what this rank knows.
func (n *Node) missing() []Missing {
	if n.phase == Running || n.phase == Ended {
		return nil
	}
	if n.lead == nil {
		return n.missingBelow()
	}
	var out []Missing
	listed := 0
	for i := range n.cfg.Peers {
		p := &n.cfg.Peers[i]
		listed++
		t := n.lead.targets[p.ID]
		if t != nil && t.rec == nil {
			out = append(out, Missing{Rank: p.Rank, Name: p.ID, Reason: n.reason(t), secret: t.stranger != nil})
		}
	}
	// Those that the environment does not list: what was met at the seeds' addresses, then the number that is left.
	count := n.cfg.Size - n.present() - len(out)
	keys := make([]string, 0, len(n.lead.targets))
	for k, t := range n.lead.targets {
		if t.peer == nil && t.rec == nil {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if count == 0 {
			break
		}
		t := n.lead.targets[k]
		out = append(out, Missing{Rank: -1, Name: n.nameOf(t), Reason: n.reason(t), secret: t.stranger != nil})
		count--
	}
	if count > 0 {
		name := "1 rank"
		if count > 1 {
			name = fmt.Sprintf("%d ranks", count)
		}
		out = append(out, Missing{Rank: -1, Name: name, Reason: n.seedReason()})
	}
	return out
}

// missingBelow is the view of a rank other than 0.
func (n *Node) missingBelow() []Missing {
	if n.up.wire != nil && n.up.waits {
		return n.up.missing
	}
	var out []Missing
	if n.up.wire == nil {
		m := Missing{Rank: 0, Name: "rank 0", Reason: "never heard"}
		for _, p := range n.cfg.Peers {
			if p.Rank == 0 {
				m.Name = p.ID
			}
		}
		switch {
		case n.up.lookErr != nil:
			m.Reason = explain(n.up.lookErr)
		case len(n.cfg.Seeds) > 0:
			m.Reason = n.seedReason()
		}
		out = append(out, m)
	}
	for _, p := range n.cfg.Peers {
		if _, ok := n.heard[p.ID]; !ok && p.Rank != 0 {
			out = append(out, Missing{Rank: p.Rank, Name: p.ID, Reason: "not heard by gossip"})
		}
	}
	return out
}

// stillLooks is why a rank that is there is waited for.
const stillLooks = "it is here, and still looks at its devices"

// lookers lists who is there, and has not said all that the launch waits for.
func (n *Node) lookers() (out []Missing) {
	if n.looking {
		out = append(out, Missing{Rank: n.self.Rank, Name: n.self.ID, Reason: stillLooks})
	}
	for _, t := range n.lead.targets {
		if t.rec != nil && t.looking {
			out = append(out, Missing{Rank: t.rec.Rank, Name: t.rec.ID, Reason: stillLooks})
		}
	}
	slices.SortFunc(out, func(a, b Missing) int {
		return cmp.Or(cmp.Compare(uint(a.Rank), uint(b.Rank)), strings.Compare(a.Name, b.Name))
	})
	return out
}

func (n *Node) missingError() *MissingError {
	e := &MissingError{Size: n.cfg.Size, Missing: n.missing()}
	switch {
	case n.lead != nil:
		late := n.lookers()
		e.Present, e.Missing = n.present()-len(late), append(e.Missing, late...)
	case n.up.wire != nil && n.up.waits:
		e.Present = n.up.present
	default:
		e.Present = 1 + len(n.heard)
	}
	return e
}

func (n *Node) reason(t *target) string {
	r, heard := n.heard[t.key]
	switch {
	case t.stranger != nil && !errors.Is(t.err, ErrOtherSecret):
		return fmt.Sprintf("%s; now %s", explain(t.stranger), explain(t.err))
	case t.err != nil && heard:
		return fmt.Sprintf("heard by gossip from %v, but %s", r.Addr, explain(t.err))
	case t.err != nil:
		return explain(t.err)
	case heard:
		return fmt.Sprintf("heard by gossip from %v, not connected yet", r.Addr)
	}
	return "never heard"
}

func (n *Node) seedReason() string {
	var parts []string
	for i, s := range n.seeds {
		name := n.cfg.Seeds[i].Host
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

// explain turns the error of a way of reaching somebody into the words of a person.
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

// ownAddr is the address that others most likely reach this container at: the one the kernel would send from to a peer whose
// address is known, else the first address of an interface that is up and is neither loopback nor link-local.
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
		return loop, nil // nobody else can reach it; a job of one rank does not mind
	}
	return netip.Addr{}, errors.New("no interface has an address")
}
