package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// coordinator is rank 0's view of the other ranks. Only the loop touches it, but for the goroutines that dial.
type coordinator struct {
	n *Node

	targets        map[string]*target // by id; an address of a seed is "@address" until its container has named itself
	registered     int                // targets that are registered
	acks           int                // acknowledgements of the current roster
	packed         []byte             // the current roster, packed
	whole          []byte             // the encoded message with that roster
	epoch          uint64
	unacked        int  // epochs in which a rank did not acknowledge in time
	goSent         bool // to every rank
	ending         bool
	leaving        bool               // every rank has been told
	untold         []string           // ranks that have not acknowledged the end
	tellsLateRanks bool               // a rank that connects now is still told how the job ended
	absentWaiters  []chan struct{}    // closed when the state that Absent waits for changes
	barriers       map[string]barrier // by name
	judging        bool               // judgeSurplus is waiting for answers
	due            time.Time          // from then on the launch no longer waits for silent addresses
	lingers        bool               // every missing rank has another secret or job, and has time to find the same

	at     map[netip.AddrPort]string // nonces of known containers that answered at other addresses
	ctx    context.Context
	cancel context.CancelFunc
}

// target is one container that rank 0 dials, keeps a connection to, and dials again when the connection is lost.
type target struct {
	key  string // only the loop touches it
	id   string // the container that must answer; "" = any
	peer *Peer
	wake chan struct{} // capacity 1: gossip has told an address, dial without waiting for the back-off
	ctx  context.Context
	drop context.CancelFunc

	mu        sync.Mutex
	announced netip.AddrPort // address by gossip

	// Only the loop touches the fields below.
	link    *wire
	rec     *Record        // as registered; nil = not present
	said    netip.AddrPort // its own guess, which all ranks know: ranks to be agreed are ordered by it
	looking bool           // its record has no Fabric yet
	acked   uint64         // epoch that it has acknowledged
	told    string         // the list of missing ranks that it was sent last
	err     error          // of the last attempt to connect
	begun   time.Time      // when it became known, or was lost before the launch
	tried   bool           // a dial has failed since begun
	spare   *message       // its registration, if it came when all ranks were present
	met     string         // nonce of the container that answers at a seed's address and has not registered yet
	rival   bool           // it answers, but follows another coordinator
	since   time.Time      // when its connection was lost
	gone    bool           // after the launch: it cannot come back
	doneAck bool
	endSent time.Time // when the outcome was sent over link
	ended   bool      // its command has ended
	// The last question for its clock, see Node.Align.
	clockCall  uint64
	clockSent  time.Time
	clockHeard chan<- reading  // nil = answered
	changed    time.Time       // when it was last connected or lost
	released   map[uint64]bool // calls whose release it has not acknowledged
	// incompatible is the last ErrOtherSecret or ErrOtherVersion, until another container answers. The container may
	// have left since: it finds the same when it calls rank 0, and ends.
	incompatible error
	foreign      foreign
}

func (n *Node) becomeCoordinator() {
	if n.lead != nil || n.isGathered() {
		return
	}
	ctx, cancel := context.WithCancel(n.ctx)
	lead := &coordinator{
		n: n, targets: make(map[string]*target), at: make(map[netip.AddrPort]string), ctx: ctx, cancel: cancel,
	}
	n.lead = lead
	if n.up.wire != nil {
		n.up.wire.abort() // a coordinator that comes later in the order: it will follow this one
		n.up.wire = nil
	}
	n.log.Debug("this container coordinates the launch", "size", n.cfg.Size)
	for i := range n.cfg.Peers {
		n.lead.addTarget(n.cfg.Peers[i].ID, &n.cfg.Peers[i], netip.AddrPort{})
	}
	for _, r := range n.find.heard {
		n.lead.addTarget(r.ID, nil, r.Addr)
	}
	for i := range n.find.seeds {
		n.lead.onSeed(i)
	}
	if n.cfg.Size > 1 {
		n.wg.Go(func() { lead.tellWaiting(ctx) })
	}
	n.lead.tryPrepare()
}

// stepDown leaves the coordination to a container that comes earlier in the order. It is only possible before the
// launch.
func (c *coordinator) stepDown() {
	for _, t := range c.targets {
		t.drop()
		if t.link != nil {
			t.link.abort()
		}
	}
	c.cancel()
	c.n.lead = nil
	c.n.enter(Gathering)
}

func (c *coordinator) addTarget(key string, peer *Peer, announced netip.AddrPort) *target {
	if t, ok := c.targets[key]; ok {
		if announced.IsValid() {
			t.moveTo(announced)
		}
		return t
	}
	// A seed's address that is being dialled may be the same container, and two connections to one rank end each other.
	if t, ok := c.targets["@"+announced.String()]; ok && t.rec == nil && announced.IsValid() {
		t.rouse()
		return t
	}
	t := &target{key: key, peer: peer, wake: make(chan struct{}, 1), announced: announced, begun: time.Now()}
	if !strings.HasPrefix(key, "@") {
		t.id = key
	}
	t.ctx, t.drop = context.WithCancel(c.ctx)
	c.targets[key] = t
	c.n.wg.Go(func() { c.keep(t) })
	return t
}

// keep dials a target until the job is over, and serves each connection to its end.
func (c *coordinator) keep(t *target) {
	var b backoff
	for {
		served, err := c.reach(t)
		if t.ctx.Err() != nil {
			return
		}
		c.n.post(func() { c.onUnreachable(t, err, served) })
		if served {
			b.reset()
		}
		select {
		case <-t.ctx.Done():
			return
		case <-t.wake:
			b.reset()
		case <-time.After(b.wait()):
		}
	}
}

// reach dials the addresses of a target and serves the first connection to its end.
func (c *coordinator) reach(t *target) (served bool, err error) {
	addrs, err := c.candidates(t)
	if err != nil || len(addrs) == 0 {
		return false, err
	}
	rwc, addr, err := c.dialAny(t, addrs)
	if err != nil {
		return false, err
	}
	return true, c.serve(t, rwc, addr)
}

// dialAny dials the addresses in order, the next one as soon as one fails or stays silent: a container behind a NAT
// announces an unreachable address, and the environment's address may be outdated. It dials an address that gossip
// brings meanwhile at once, because an unrelated program may hold the port, accept, and stay silent for all of
// callTimeout. If another program or a container of another job answers, the target may listen on the next port.
func (c *coordinator) dialAny(t *target, addrs []netip.AddrPort) (io.ReadWriteCloser, netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(t.ctx, callTimeout+time.Duration(c.n.cfg.Size)*callShare)
	defer cancel()
	type result struct {
		rwc  io.ReadWriteCloser
		addr netip.AddrPort
		err  error
	}
	results := make(chan result)
	var err error
	started, ended, above := 0, 0, 0
	dialNext := func() {
		a := addrs[started]
		started++
		c.n.wg.Go(func() {
			rwc, err := c.n.cfg.Dial(ctx, t.id, a)
			results <- result{rwc, a, err}
		})
	}
	woken := false
	dialNext()
	for ended < len(addrs) {
		var next <-chan time.Time
		if started < len(addrs) {
			next = time.After(nextAddress)
		}
		select {
		case <-next:
			dialNext()
		case <-t.wake:
			if a := t.heardAt(); a.IsValid() && !slices.Contains(addrs, a) {
				addrs = slices.Insert(addrs, started, a)
				dialNext()
			} else {
				woken = true
			}
		case r := <-results:
			ended++
			if r.err == nil {
				open := started - ended
				c.n.wg.Go(func() { // close the connections that succeed later
					for range open {
						if r := <-results; r.err == nil {
							_ = r.rwc.Close()
						}
					}
				})
				return r.rwc, r.addr, nil
			}
			// The error of the first address tells most, unless another container of the job answered at a later one.
			if err == nil || r.addr == addrs[0] || isIncompatible(r.err) {
				err = fmt.Errorf("%v: %w", r.addr, r.err)
			}
			if next, ok := nextPort(r.addr, r.err); ok && above < portTries && !slices.Contains(addrs, next) {
				above++
				addrs = slices.Insert(addrs, started, next)
			}
			if started < len(addrs) {
				dialNext()
			}
		}
	}
	if woken { // keep dials again at once
		t.rouse()
	}
	return nil, netip.AddrPort{}, err
}

// heardAt returns the address that gossip tells; it is invalid if gossip has told none.
func (t *target) heardAt() netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.announced
}

// moveTo stores an address that gossip tells and has it dialled without waiting for the back-off.
func (t *target) moveTo(a netip.AddrPort) {
	t.mu.Lock()
	t.announced = a
	t.mu.Unlock()
	t.rouse()
}

func (t *target) rouse() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// candidates returns the addresses of a target: the announced one, then those of the environment.
func (c *coordinator) candidates(t *target) ([]netip.AddrPort, error) {
	var addrs []netip.AddrPort
	if announced := t.heardAt(); announced.IsValid() {
		addrs = append(addrs, announced)
	}
	if t.peer == nil {
		return addrs, nil
	}
	found, err := t.peer.addrs(c.n)
	if err != nil && len(addrs) == 0 {
		return nil, err
	}
	for _, a := range found {
		if !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs, nil
}

// patience extends the timeout d of a small job by the size: logins of all ranks at once, 2 ms each, keep rank 0 busy,
// and ranks may share its processors.
func (cfg *Config) patience(d time.Duration) time.Duration {
	return d + min(time.Duration(cfg.Size)*20*time.Millisecond, 20*time.Second)
}

func (c *coordinator) serve(t *target, rwc io.ReadWriteCloser, addr netip.AddrPort) error {
	self := c.n.self
	w := newWire(rwc, &self)
	defer w.close()
	defer context.AfterFunc(t.ctx, w.abort)()
	silent := time.AfterFunc(c.n.cfg.patience(registerTimeout), w.abort)
	defer silent.Stop()
	c.n.post(func() { c.greet(t, w) })
	err := w.read(func(m message) error {
		var said netip.AddrPort
		if m.Type == register && m.Record != nil {
			silent.Stop()
			if m.Record.Addr.Addr() != addr.Addr() {
				m.Record.Network = "" // Network belongs to another address
			}
			said, m.Record.Addr = m.Record.Addr, addr // the address that worked counts
		}
		if !c.n.post(func() {
			if said.IsValid() {
				w.said = said
			}
			c.onTarget(t, w, m)
		}) {
			return errEnded
		}
		return nil
	})
	c.n.post(func() { c.onLost(t, w, err) })
	return err
}

func (c *coordinator) onUnreachable(t *target, err error, served bool) {
	if c.n.lead != c || c.targets[t.key] != t {
		return
	}
	if !served {
		t.err, t.tried, t.rival = err, true, false
		if isIncompatible(err) {
			if t.incompatible == nil {
				what := "a container with another secret answers"
				if errors.Is(err, ErrOtherVersion) {
					what = "a container with another version of paiinit answers"
				}
				c.n.log.Warn(what, "peer", c.nameOf(t), "reason", explain(err))
			}
			t.incompatible = err
		}
		resolved := time.Now()
		if t.peer != nil {
			resolved = c.n.find.names.answered(t.peer.Host)
		}
		t.foreign.met(err, resolved)
		if !t.since.IsZero() && isGone(err) {
			t.gone = true
		}
		c.wakeAbsentWaiters()
		c.checkEnd()
	}
	c.checkForeign(false)
	c.tryPrepare()
}

// isGone reports whether err means that the container has left its address, rather than that the address is slow.
func isGone(err error) bool {
	return isElse(err) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// checkForeign ends the wait when every missing rank has another secret or belongs to another job. These ranks get time
// to find the same first.
func (c *coordinator) checkForeign(lingered bool) {
	if c.n.phase != Gathering || c.n.isGathered() {
		return
	}
	e := &MissingError{Present: c.present(), Size: c.n.cfg.Size, Missing: c.n.missing()}
	switch err := e.end(); {
	case err == nil:
	case lingered:
		c.n.setGathered(Roster{}, err)
	case !c.lingers:
		c.lingers = true
		c.n.wg.Go(func() {
			// They may share processors with this rank, and look for rank 0 less often where processors are short.
			c.n.pace.sleep(c.n.ctx, c.n.gathered, foreignLinger)
			c.n.post(func() {
				if c.n.lead == c {
					c.lingers = false
					c.checkForeign(true)
				}
			})
		})
	}
}

func (c *coordinator) onTarget(t *target, w *wire, m message) {
	if c.n.lead != c || c.targets[t.key] != t {
		w.abort()
		return
	}
	switch m.Type {
	case register:
		c.onRegister(t, w, m)
		return
	case ping:
		w.send(message{Type: pong})
		return
	case pong:
		c.n.probes.answered(w, true)
		return
	case refuse:
		if m.Record != nil && m.Record.Nonce == c.n.self.Nonce {
			c.sameAs(t, c.n.self.Nonce) // a seed's address that is our own
			return
		}
		if c.rivals(m.Record) {
			c.onRival(m.Record)
			return
		}
		c.unregister(t, w, errors.New(m.Reason))
		t.rival = true
		w.abort()
		return
	case lead:
		c.onMet(t, w, m)
		return
	case done: // from a job that has all its ranks
		if c.n.self.Rank < 0 && m.Outcome != nil && t.link != w {
			c.n.setGathered(Roster{}, &EndedError{*m.Outcome})
		}
		return
	}
	if t.link != w {
		return
	}
	switch m.Type {
	case ack:
		if c.n.phase == Prepared && t.acked != m.Epoch && m.Epoch == c.n.roster.Epoch && m.Hash == c.n.roster.Hash {
			t.acked = m.Epoch
			c.acks++
			c.tryLaunch()
		}
	case fetch: // another rank did not have the roster
		if c.n.phase == Prepared && m.Hash == c.n.roster.Hash {
			w.send(message{Type: prepare, Epoch: c.n.roster.Epoch, packed: c.packed})
		}
	case stop:
		s := Stop{Name: c.nameOf(t), Signal: m.Signal, Reason: m.Reason}
		if c.n.phase == Running {
			select {
			case c.n.stops <- s:
			default: // sixteen requests wait already
			}
			return
		}
		status := c.n.cfg.Status.Retry
		if s.Signal > 0 {
			status = 128 + s.Signal
		}
		c.n.setGathered(Roster{}, &EndedError{Outcome{Status: status, Reason: fmt.Sprintf("%s: %s", s.Name, s.Reason)}})
	case ended:
		if m.Record != nil {
			c.n.withdrawals.hear(w, m)
			return
		}
		c.onEnded(t, m)
	case clock:
		t.onClock(m)
	case inquiry:
		c.onInquiry(w, m)
	case arrive:
		c.onArrive(t, m)
	case leave:
		c.takeBack(t.key, m.Call, m.Name)
	case released:
		delete(t.released, m.Call)
	case announce:
		c.n.onAnnounce(nil, m.Record)
	case doneAck:
		t.doneAck = true
		c.checkEnd()
	}
}

func (c *coordinator) onRegister(t *target, w *wire, m message) {
	r := m.Record
	if r == nil || r.validate() != nil {
		t.err = errors.New("it sent a record that cannot be used")
		w.abort()
		return
	}
	if t.id == "" && t.rec == nil && t.key != r.ID {
		// The container at a seed's address has named itself, or was replaced by another one: the target gets its name.
		if known, ok := c.targets[r.ID]; ok {
			if known.link == nil && known.rec == nil {
				known.moveTo(t.heardAt())
			}
			c.sameAs(t, r.Nonce)
			return
		}
		delete(c.targets, t.key)
		t.key = r.ID
		c.targets[t.key] = t
	} else if r.ID != t.key {
		t.err = fmt.Errorf("it says that it is %s", r.ID)
		w.abort()
		return
	}
	switch {
	case t.link == w && t.rec != nil && t.rec.Nonce == r.Nonce: // more about the same start
		t.rec, t.said, t.looking = r, w.said, m.Looking
		if (c.n.phase == Prepared || c.n.phase == Running) && c.n.cfg.Late != nil {
			c.n.cfg.Late(*r)
		}
		c.tryPrepare()
		return
	case c.n.phase == Running || c.n.phase == Ended:
		c.onReturn(t, w, m)
		return
	case m.State == Running, m.State == Ended:
		reason := fmt.Sprintf("%s runs a launch of an earlier rank 0, which is gone", r.ID)
		c.n.setGathered(Roster{}, &EndedError{Outcome{c.n.cfg.Status.Retry, reason}})
		return
	case m.Size != 0 && m.Size != c.n.cfg.Size:
		c.n.setGathered(Roster{}, &ConflictError{fmt.Errorf(
			"%s at %v was told that the job has %d ranks, %s that it has %d",
			r.ID, r.Addr, m.Size, c.n.self.ID, c.n.cfg.Size)})
		if t.link == nil {
			t.link = w // it is told how the job ends
		}
		return
	case t.rec == nil && c.present() >= c.n.cfg.Size && r.Rank < 0:
		c.onSpare(t, w, m)
		return
	case t.rec == nil && c.present() >= c.n.cfg.Size:
		// One of them may be dead without a lost connection, and this container its successor. If not, it learns so
		// when it asks after the launch.
		t.err = fmt.Errorf("the job has %d ranks and all of them are here", c.n.cfg.Size)
		c.n.log.Debug("one container too many", "peer", r.ID, "addr", r.Addr, "reason", t.err)
		w.abort()
		return
	}
	if t.link != nil && t.link != w {
		t.link.abort()
	}
	first := t.rec == nil
	if first {
		c.registered++
	}
	t.changed = time.Now()
	t.link, t.rec, t.err, t.incompatible, t.acked, t.told = w, r, nil, nil, 0, ""
	t.said = w.said
	t.spare, t.met, t.rival = nil, "", false
	t.foreign = foreign{}
	t.looking = m.Looking
	if first {
		c.n.log.Info("heard of a rank", "phase", "gather", "peer", r.ID, "addr", r.Addr,
			"present", c.present(), "size", c.n.cfg.Size, "elapsed", time.Since(c.n.begin).Round(time.Microsecond))
	}
	if c.n.phase == Prepared {
		c.n.enter(Gathering) // the current roster holds an earlier start of this rank
	}
	c.tryPrepare()
}

// onReturn handles a registration after the launch: a rank whose connection came back, or its next start.
func (c *coordinator) onReturn(t *target, w *wire, m message) {
	member, ok := c.memberOf(t)
	switch {
	case c.n.phase == Ended && c.ending:
		if t.link != nil && t.link != w {
			t.link.abort()
		}
		t.link = w
		c.tellEnd(t)
	case !ok:
		w.send(c.n.roster.noPlace(c.n.cfg.Status.Conflict))
	case member.Nonce != m.Record.Nonce:
		replace := func() {
			w.send(c.tooLate())
			c.lose(t, "its container was started again")
		}
		if m.Record.Addr == member.Addr { // the first start would have answered there
			replace()
			return
		}
		c.contest(t, member.Record, m.Record, w.send, replace)
	default:
		if t.link != nil && t.link != w {
			t.link.abort()
		}
		c.dropArrivals(t)
		t.link, t.since, t.gone, t.err, t.changed = w, time.Time{}, false, nil, time.Now()
		c.wakeAbsentWaiters()
		if m.State != Running && m.State != Ended { // it missed go, or has followed another rank 0 since
			w.send(message{Type: prepare, Epoch: c.n.roster.Epoch, packed: c.packed})
		}
		w.send(message{Type: launched, Epoch: c.n.roster.Epoch})
		if c.n.order != nil {
			w.send(*c.n.order)
		}
		c.n.log.Info("control connection is back", "peer", member.Alias, "rank", member.Rank)
	}
}

// noPlace, tooLate and lastWord are the answers to a container that has no part in the launch any more.
func (r *Roster) noPlace(status int) message {
	return message{Type: done, Last: true, Outcome: &Outcome{Status: status, Reason: fmt.Sprintf(
		"the job has %d ranks and all of them are here: this container is one too many", len(r.Members))}}
}

func (c *coordinator) tooLate() message {
	return message{Type: done, Last: true, Outcome: &Outcome{
		Status: c.n.cfg.Status.Retry, Reason: "the job runs already without this start of the container",
	}}
}

func (c *coordinator) lastWord() message {
	o := c.n.outcome
	return message{Type: done, Outcome: &o, Last: c.tellsLateRanks}
}

func (c *coordinator) memberOf(t *target) (Member, bool) {
	i := slices.IndexFunc(c.n.roster.Members, func(m Member) bool { return m.ID == t.key })
	if i < 0 {
		return Member{}, false
	}
	return c.n.roster.Members[i], true
}

// present counts the ranks that hold a control connection, including this one.
func (c *coordinator) present() int { return 1 + c.registered }

// tryPrepare sends the roster as soon as it is complete: every rank is present and has told everything that the launch
// needs.
func (c *coordinator) tryPrepare() {
	if c.n.phase != Gathering || c.n.isGathered() || c.present() != c.n.cfg.Size {
		return
	}
	if c.n.cfg.Unfit != nil {
		c.n.setGathered(Roster{}, &EndedError{*c.n.cfg.Unfit})
		return
	}
	if !c.isWhole() {
		return
	}
	if c.n.looking {
		return
	}
	records := []Record{c.n.record()}
	reached := map[string]netip.AddrPort{c.n.self.Nonce: c.reachedAt()}
	for _, t := range c.targets {
		switch {
		case t.rec == nil:
		case t.looking:
			return // the fabric is judged across all ranks
		default:
			r := *t.rec
			reached[r.Nonce] = r.Addr
			if r.Rank < 0 {
				r.Addr = t.said
			}
			records = append(records, r)
		}
	}
	members, err := assign(records, c.n.cfg.Size)
	if err != nil {
		c.n.setGathered(Roster{}, &ConflictError{err})
		return
	}
	for i := range members {
		m := &members[i]
		if at := reached[m.Nonce]; m.Nonce == c.n.self.Nonce && m.Addr.Addr() != at.Addr() {
			m.Network = "" // Network belongs to another address
		}
		m.Addr = reached[m.Nonce]
	}
	if members[0].Nonce != c.n.self.Nonce {
		return // a container that comes first registered before it heard of all others; it will lead
	}
	c.epoch++
	r := Roster{Epoch: c.epoch, Hash: hashMembers(members), Members: members}
	if c.n.cfg.Verify != nil {
		if o := c.n.cfg.Verify(r); o != nil {
			c.n.setGathered(Roster{}, &EndedError{*o})
			return
		}
	}
	if !c.n.enter(Prepared) {
		return
	}
	c.n.roster = r
	c.acks, c.packed = 0, r.pack()
	m := message{Type: prepare, Epoch: r.Epoch, packed: c.packed}
	c.whole, _ = m.encode() // cannot fail: the message holds only a roster
	for i := range r.Members {
		if t := c.targets[r.Members[i].ID]; t != nil && t.rec != nil {
			t.acked, t.told = 0, ""
			t.link.send(c.prepareFor(&r, i))
		}
	}
	timeout := c.n.cfg.patience(ackTimeout) << min(c.unacked, maxPatience)
	time.AfterFunc(timeout, func() { c.n.post(func() { c.onAckTimeout(r.Epoch) }) })
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
			c.n.log.Warn("a rank does not acknowledge the roster", "peer", c.nameOf(t), "epoch", epoch)
			w := t.link
			// void what this connection still brings
			c.unregister(t, w, errors.New("it did not acknowledge the roster in time"))
			w.abort()
		}
	}
}

// tryLaunch commits once every rank holds the roster. It happens once.
func (c *coordinator) tryLaunch() {
	if c.acks < c.registered {
		return
	}
	if !c.n.enter(Running) {
		return
	}
	c.n.setGathered(c.n.roster, nil) // rank 0 does not wait until every rank has been told
	for _, t := range c.targets {
		if t.rec == nil {
			c.forget(t)
		}
	}
	c.n.calls.resume()
	// The first ranks must know of the launch, because a restarted rank 0 learns of it from them.
	for i := 1; i <= min(witnesses, len(c.n.roster.Members)-1); i++ {
		c.sendGo(c.targets[c.n.roster.Members[i].ID])
	}
	if c.n.cfg.GoDelay <= 0 || len(c.n.roster.Members) <= 1+witnesses {
		c.tellGo()
		return
	}
	time.AfterFunc(c.n.cfg.GoDelay, func() { c.n.post(c.tellGo) })
}

// tellGo sends go to the ranks that have not been told yet.
func (c *coordinator) tellGo() {
	if c.n.lead != c || c.n.phase != Running || c.goSent {
		return
	}
	c.goSent = true
	for i := witnesses + 1; i < len(c.n.roster.Members); i++ {
		c.sendGo(c.targets[c.n.roster.Members[i].ID])
	}
	c.n.find.end()
}

// sendGo tells one rank; a rank without a connection is told when it is back.
func (c *coordinator) sendGo(t *target) {
	if t != nil && t.rec != nil && t.link != nil {
		t.link.send(message{Type: launched, Epoch: c.n.roster.Epoch})
	}
}

// Launched tells rank 0 that the command runs: it ends Config.GoDelay.
func (n *Node) Launched() {
	n.post(func() {
		if n.lead != nil {
			n.lead.tellGo()
		}
	})
}

func (c *coordinator) forget(t *target) {
	delete(c.targets, t.key)
	if t.rec != nil {
		c.registered--
	}
	t.drop()
	if t.link != nil {
		t.link.abort()
	}
}

func (c *coordinator) onLost(t *target, w *wire, err error) {
	c.n.probes.answered(w, false)
	if c.n.lead != c || t.link != w {
		return
	}
	switch c.n.phase {
	case Gathering, Prepared:
		if t.spare != nil {
			c.dropSpare(t, err)
			return
		}
		c.n.log.Warn("a rank went away before the launch", "peer", c.nameOf(t), "reason", explain(err))
		c.unregister(t, w, fmt.Errorf("it was here, but its connection ended: %w", err))
		c.admit()
	case Running:
		c.dropArrivals(t)
		t.link, t.since, t.err = nil, time.Now(), err
		t.changed = t.since
		c.wakeAbsentWaiters()
		c.n.log.Warn("control connection lost", "peer", c.nameOf(t), "reason", explain(err))
		since, grace := t.since, c.n.cfg.grace(err)
		c.n.wg.Go(func() { c.judge(t, since, grace) })
	case Ended:
		t.link, t.since, t.err = nil, time.Now(), err
		if t.doneAck {
			t.drop() // it has left
		}
		c.checkEnd()
	}
}

// grace is how long a lost control connection may take to come back. A connection that timed out has used up part of
// it.
func (cfg *Config) grace(cause error) time.Duration {
	if errors.Is(cause, syscall.ETIMEDOUT) {
		return min(silentGrace, cfg.LossGrace)
	}
	return cfg.LossGrace
}

// judge decides whether a rank whose control connection was lost is lost: it does not come back, and no other rank sees
// it. Nothing listens on a port that refuses, so judge waits less for it than for a silent one.
func (c *coordinator) judge(t *target, since time.Time, grace time.Duration) {
	for wait := min(refusalGrace, grace); ; {
		select {
		case <-t.ctx.Done():
			return
		case <-time.After(wait):
		}
		var m Member
		away, due := false, time.Since(since) >= grace
		if !c.n.ask(func() {
			m, away = c.memberOf(t)
			away = away && c.n.phase == Running && t.since.Equal(since)
			due = due || t.gone
		}) || !away {
			return
		}
		wait = max(grace-time.Since(since), time.Second)
		if !due {
			continue
		}
		view := c.n.askOthers(t.ctx, m, lookTimeout+lookTimeout/2)
		c.n.post(func() {
			switch {
			case c.n.phase != Running || !t.since.Equal(since):
			case view.Alive:
				c.n.log.Warn("a rank is out of reach, but others see it",
					"peer", m.Alias, "rank", m.Rank, "reason", explain(t.err))
			default:
				c.lose(t, fmt.Sprintf("its control connection has been lost for %v (%s)%s",
					time.Since(since).Round(100*time.Millisecond), explain(t.err), view.Reason))
			}
		})
	}
}

// unregister removes a rank before the launch and voids the current roster.
func (c *coordinator) unregister(t *target, w *wire, reason error) {
	t.err = reason
	if t.link != w || c.n.phase != Gathering && c.n.phase != Prepared {
		return
	}
	if t.rec != nil {
		c.registered--
	}
	t.begun, t.tried = time.Now(), false
	t.link, t.rec, t.acked, t.changed = nil, nil, 0, time.Now()
	c.n.enter(Gathering)
}

func (c *coordinator) lose(t *target, reason string) {
	m, ok := c.memberOf(t)
	if !ok {
		return
	}
	t.gone = t.link == nil // Finish does not wait for it
	select {
	case c.n.losses <- Loss{Rank: m.Rank, Name: m.Alias, Reason: reason}:
	default: // the first losses decide
	}
}

// Absent returns the ranks that have no control connection and that other ranks do not see either. Rank 0 calls it when
// its command has failed, because a lost rank is the likelier cause. A killed container may lose its processes before
// its paiinit, so Absent waits for settle for connections to end, then for grace for lost ones to come back, and then
// asks other ranks, unless grace is 0. It does not wait for ranks whose address refuses or cannot be routed to.
func (n *Node) Absent(ctx context.Context, settle, grace time.Duration) []Loss {
	if lead := n.leading(); lead != nil {
		return lead.absent(ctx, settle, grace)
	}
	return nil
}

// leading returns the coordinator for callers outside the loop; nil = another rank leads, or the node is closed.
func (n *Node) leading() (lead *coordinator) {
	n.ask(func() { lead = n.lead })
	return lead
}

func (c *coordinator) absent(ctx context.Context, settle, grace time.Duration) []Loss {
	settled := time.NewTimer(settle)
	defer settled.Stop()
	patience := time.NewTimer(settle + grace)
	defer patience.Stop()
	for {
		found := make(map[int]absentee) // by rank
		waiting := false
		changed := make(chan struct{})
		if !c.n.ask(func() {
			for _, t := range c.targets {
				if m, ok := c.memberOf(t); ok && t.link == nil {
					waiting = waiting || !t.gone
					found[m.Rank] = absentee{m, t.gone, "its control connection is lost (" + explain(t.err) + ")"}
				}
			}
			c.absentWaiters = append(c.absentWaiters, changed)
		}) {
			return nil
		}
		absent := make([]absentee, 0, len(found))
		for _, rank := range slices.Sorted(maps.Keys(found)) {
			absent = append(absent, found[rank])
		}
		enough := patience.C
		switch {
		case len(absent) == 0:
			enough = settled.C
		case !waiting:
			return losses(absent)
		}
		select {
		case <-changed:
		case <-enough:
			if grace > 0 {
				absent = c.unseen(ctx, absent)
			}
			return losses(absent)
		case <-ctx.Done():
			return losses(absent)
		}
	}
}

// absentee is a rank that is not connected to rank 0.
type absentee struct {
	member Member
	gone   bool
	reason string
}

// unseen drops the ranks that other ranks see.
func (c *coordinator) unseen(ctx context.Context, absent []absentee) []absentee {
	alive := make([]bool, len(absent))
	var wg sync.WaitGroup
	for i, a := range absent {
		if !a.gone {
			wg.Go(func() { alive[i] = c.n.askOthers(ctx, a.member, lookTimeout+lookTimeout/2).Alive })
		}
	}
	wg.Wait()
	var out []absentee
	for i, a := range absent {
		if alive[i] {
			c.n.log.Warn("a rank is out of reach, but others see it",
				"peer", a.member.Alias, "rank", a.member.Rank, "reason", a.reason)
			continue
		}
		out = append(out, a)
	}
	return out
}

func losses(absent []absentee) (out []Loss) {
	for _, a := range absent {
		out = append(out, Loss{Rank: a.member.Rank, Name: a.member.Alias, Reason: a.reason})
	}
	return out
}

// wakeAbsentWaiters wakes Absent when a connection comes, ends, or is given up.
func (c *coordinator) wakeAbsentWaiters() {
	for _, changed := range c.absentWaiters {
		close(changed)
	}
	c.absentWaiters = nil
}

// Finish tells every rank how the job ended and waits until each rank has acknowledged it or is known to be gone, until
// ctx ends at the latest. It waits 5 s for a connected rank, which may be frozen and will read the outcome later, and
// 15 s for a rank whose connection is lost. Rank 0 calls it, and leaves last. Before the launch it tells the ranks that
// are connected, and those that connect within patience.
func (n *Node) Finish(ctx context.Context, o Outcome, patience time.Duration) error {
	if !n.ask(func() {
		if n.lead == nil || n.phase == Ended {
			n.setFinished(o, nil)
			return
		}
		n.lead.tellGo() // ranks that were not told go would take the job for one that was never launched
		n.end(o)
		n.lead.ending, n.lead.tellsLateRanks = true, patience > 0
		if patience > 0 {
			time.AfterFunc(patience, func() {
				n.post(func() {
					n.lead.tellsLateRanks = false // a coordinator that ends the job does not step down (onHello)
					n.lead.checkEnd()
				})
			})
		}
		for _, t := range n.lead.targets {
			if t.link != nil {
				n.lead.tellEnd(t)
			}
		}
		n.lead.checkEnd()
	}) {
		return fmt.Errorf("rendezvous: telling the end of the job: %w", errEnded)
	}
	ctx, cancel := context.WithTimeout(ctx, doneTimeout)
	defer cancel()
	select {
	case <-n.finished:
	case <-ctx.Done():
		n.ask(func() {
			if n.lead != nil { // otherwise there was no rank to tell, and ctx ended at the same moment
				n.lead.sendBye()
			}
		})
		select {
		case <-n.finished:
		case <-n.ctx.Done():
		}
	}
	var names []string
	var bug *BugError
	n.ask(func() {
		if n.lead != nil {
			names = n.lead.untold
		}
		errors.As(n.outcomeErr, &bug)
	})
	if bug != nil {
		return bug
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("rendezvous: %s did not acknowledge the end of the job", strings.Join(names, ","))
}

// tellEnd sends the outcome to a rank that is connected.
func (c *coordinator) tellEnd(t *target) {
	t.endSent = time.Now()
	t.link.send(c.lastWord())
	time.AfterFunc(c.n.cfg.patience(doneAckTimeout), func() { c.n.post(c.checkEnd) })
}

// GiveUp keeps Finish from waiting for a rank that Absent has returned: it finds out by itself.
func (n *Node) GiveUp(rank int) {
	n.ask(func() {
		if n.lead == nil {
			return
		}
		for _, t := range n.lead.targets {
			if m, ok := n.lead.memberOf(t); ok && m.Rank == rank && t.link == nil {
				t.gone = true
			}
		}
	})
}

// pending reports whether rank 0 still waits for this rank to acknowledge the end of the job.
func (c *coordinator) pending(t *target) bool {
	switch {
	case t.doneAck || t.gone:
		return false
	case t.link != nil:
		return time.Since(t.endSent) < c.n.cfg.patience(doneAckTimeout)
	}
	_, member := c.memberOf(t)
	return member && t.rec != nil
}

func (c *coordinator) checkEnd() {
	if c.n.lead != c || !c.ending {
		return
	}
	told := 0
	for _, t := range c.targets {
		if c.pending(t) {
			return
		}
		if t.doneAck {
			told++
		}
	}
	if c.tellsLateRanks && told < c.n.cfg.Size-1 {
		return
	}
	c.sendBye()
}

// sendBye lets the other ranks leave, and ends rank 0 when they have left.
func (c *coordinator) sendBye() {
	left, first := true, !c.leaving && c.untold == nil
	for _, t := range c.targets {
		if first && !t.doneAck && (t.link != nil || c.pending(t)) {
			c.untold = append(c.untold, c.nameOf(t))
			slices.Sort(c.untold)
		}
		if t.link == nil {
			continue
		}
		left = false
		if !c.leaving {
			t.link.send(message{Type: bye})
		}
	}
	o := c.n.outcome
	switch {
	case left:
		c.n.setFinished(o, nil)
	case !c.leaving:
		c.leaving = true
		time.AfterFunc(linger, func() { c.n.post(func() { c.n.setFinished(o, nil) }) })
	}
}

// tellWaiting tells the other ranks which ranks are missing, so that each of them can log it.
func (c *coordinator) tellWaiting(ctx context.Context) {
	// Every rank wakes up to read it: at most about 100 a second, and before they report next.
	pause := min(max(time.Second, time.Duration(c.n.cfg.Size)*10*time.Millisecond), 5*time.Second)
	for c.n.pace.sleep(ctx, c.n.gathered, pause) {
		c.n.post(func() {
			if c.n.lead != c || c.n.phase != Gathering {
				return
			}
			e := c.n.missingError()
			e.Missing = shorten(e.Missing)
			text := e.Error()
			for _, t := range c.targets {
				if t.rec != nil && t.told != text {
					t.told = text
					t.link.send(message{Type: waiting, Missing: e.Missing, Present: e.Present})
				}
			}
		})
	}
}

// nameOf returns the name for people: the identifier of a container without an index says nothing to them.
func (c *coordinator) nameOf(t *target) string {
	if m, ok := c.memberOf(t); ok {
		return m.Alias
	}
	if r := t.rec; r != nil && r.ID == r.Nonce {
		return fmt.Sprintf("%s at %s", cmp.Or(r.Role, "the container"), r.Addr.Addr())
	}
	return strings.TrimPrefix(t.key, "@")
}
