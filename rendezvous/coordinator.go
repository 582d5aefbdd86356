package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// coordinator is rank 0's view of the other ranks. Only the loop touches it, but for the goroutines that dial.
type coordinator struct {
	n *Node

	targets        map[string]*target // by id; an address of a seed is "@address" until its container has named itself
	registered     int                // targets that are registered
	last           *target            // that registered last
	acks           int                // acknowledgements of the current roster
	whole          []byte             // the encoded message with the current roster
	epoch          uint64
	unacked        int  // epochs in which a rank did not acknowledge in time
	goSent         bool // to every rank
	ending         bool
	leaving        bool               // every rank has been told
	untold         []string           // ranks that have not acknowledged the end
	tellsLateRanks bool               // a rank that connects now is still told how the job ended
	changed        chan struct{}      // closed and replaced when a connection comes, ends, or is given up
	barriers       map[string]barrier // by name
	judging        bool               // judgeSurplus is waiting for answers
	spareDue       time.Time          // when a spare may take a place that is free
	due            time.Time          // from then on the launch no longer waits for silent addresses
	lingers        bool               // every missing rank has another secret or job, and has time to find the same
	notesDue       time.Time          // until then the launch waits for the facts of the ranks
	notesOf        int                // registrations when notesDue was set
	registrations  int                // of all starts of all ranks

	// Until then processes of the last generation may run: of its rank 0, and of ranks that have not outlived it.
	zeroOver, restOver, fenced time.Time

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
	resolved  time.Time      // when its name was resolved first

	// Only the loop touches the fields below.
	link      *wire
	rec       *Record        // as registered; nil = not present
	said      netip.AddrPort // its own guess, which all ranks know: ranks to be agreed are ordered by it
	looking   bool           // its record has no Fabric yet
	acked     uint64         // epoch that it has acknowledged
	told      string         // the list of missing ranks that it was sent last
	err       error          // of the last attempt to connect
	begun     time.Time      // when it became known, or was lost before the launch
	tried     bool           // a dial has failed since begun
	spare     *message       // its registration, if it came when all ranks were present
	met       string         // nonce of the container that answers at a seed's address and has not registered yet
	own       string         // name of the container at a seed's address (Config.NameOf)
	asked     bool           // for own
	rival     bool           // it answers, but follows another coordinator
	since     time.Time      // when its connection was lost
	gone      bool           // after the launch: it cannot come back
	leaves    bool           // it ends with this generation
	successor *Record        // next start of its container, after it was lost
	doneAck   bool
	endSent   time.Time // when the outcome was sent over link
	works     bool      // its command runs, or has ended
	ended     bool      // its command has ended
	// The last question for its clock, see Node.Align.
	clockCall  uint64
	clockSent  time.Time
	clockHeard chan<- reading  // nil = answered
	changed    time.Time       // when it was last connected or lost
	released   map[uint64]bool // calls whose release it has not acknowledged
	// incompatible is the last ErrOtherSecret or ErrOtherVersion, until another container answers. The container may
	// have left since: it finds the same when it calls rank 0, and ends.
	incompatible error
	request      string // start and signal of the last request to end the job
	foreign      foreign
	events       Times
	noted        string // nonce of the start whose facts are here
	preflight    bool   // its preflight has begun
	survives     bool   // it has outlived the last rank 0

	failed  time.Time // when the last attempt had failed
	dialled attempts
	caller  caller
}

func (n *Node) becomeCoordinator() {
	if n.lead != nil || n.isGathered() {
		return
	}
	ctx, cancel := context.WithCancel(n.ctx)
	lead := &coordinator{
		n: n, ctx: ctx, cancel: cancel, changed: make(chan struct{}),
		targets: make(map[string]*target), barriers: make(map[string]barrier), at: make(map[netip.AddrPort]string),
	}
	n.lead = lead
	n.pace.lead()
	if n.up.wire != nil {
		n.up.wire.abort() // a coordinator that comes later in the order: it will follow this one
		n.up.wire = nil
		n.resetGeneration()
	}
	n.log.Debug("this container coordinates the launch", "size", n.cfg.Size)
	for i := range n.cfg.Peers {
		lead.addTarget(n.cfg.Peers[i].ID, &n.cfg.Peers[i], n.cfg.Peers[i].At)
	}
	for _, r := range n.find.heard {
		lead.addTarget(r.ID, nil, r.Addr)
	}
	for i := range n.find.seeds {
		lead.onSeed(i)
	}
	if n.cfg.Size > 1 {
		n.wg.Go(lead.tellWaiting)
	}
	lead.tryPrepare()
}

// stepDown leaves the coordination, before the launch, to a container that comes earlier in the order.
func (c *coordinator) stepDown() {
	for _, t := range c.targets {
		t.drop()
		t.dropLink(nil)
	}
	c.cancel()
	c.n.lead = nil
	c.n.enter(Gathering)
}

// scaled extends the timeout d of a small job by the size: logins of all ranks at once, 2 ms each, keep rank 0 busy,
// and ranks may share its processors.
func (cfg *Config) scaled(d time.Duration) time.Duration {
	return d + min(time.Duration(cfg.Size)*20*time.Millisecond, 20*time.Second)
}

func (c *coordinator) onTarget(t *target, w *wire, m message) {
	if c.n.lead != c || c.targets[t.key] != t {
		w.abort()
		return
	}
	if (m.Type == stop || m.Type == ended) && t.link == w && c.isSpare(t) {
		c.onSpareLeaves(t, w, m)
		return
	}
	switch m.Type {
	case register:
		c.onRegister(t, w, m)
	case ping:
		w.send(message{Type: pong})
	case pong:
		c.n.answered(w, true)
	case refuse:
		switch {
		case m.Generation > c.n.Generation() && c.n.phase == Running:
			c.onOvertaken(t, w, m.Reason)
		case m.Last && c.n.phase == Gathering:
			c.onOutrun(t, m.Reason)
		case m.Record != nil && m.Record.Nonce == c.n.self.Nonce:
			c.sameAs(t, c.n.self.Nonce) // a seed's address that is our own
		case c.rivals(m.Record) && !c.n.continues():
			c.onRival(m.Record)
		default:
			c.unregister(t, w, errors.New(m.Reason))
			t.rival = true
			w.abort()
		}
	case lead:
		c.onMet(t, w, m)
	case done: // from a job that has all its ranks
		if c.n.self.Rank < 0 && m.Outcome != nil && t.link != w {
			c.n.setGathered(&EndedError{*m.Outcome})
		}
	default:
		if t.link == w || m.Type == stop && c.n.phase == Running && c.n.cfg.Rejoin { // it waits for its place
			c.onLinked(t, w, m)
		}
	}
}

// onLinked handles the messages of a rank that is registered.
func (c *coordinator) onLinked(t *target, w *wire, m message) {
	switch m.Type {
	case ack:
		if c.n.phase == Prepared && t.acked != m.Epoch && m.Epoch == c.n.roster.Epoch && m.Hash == c.n.roster.Hash {
			t.acked = m.Epoch
			c.acks++
			t.events.Committed = time.Now()
			c.tryLaunch()
		}
	case started:
		noteFirst(&t.events.Launched)
	case fetch: // another rank did not have the roster
		if c.n.phase == Prepared && m.Hash == c.n.roster.Hash {
			w.send(message{Type: prepare, Epoch: c.n.roster.Epoch, whole: c.whole})
		}
	case stop:
		c.onStop(t, w, m)
	case ended:
		if m.Record != nil {
			c.n.onWithdrawal(m)
		} else {
			c.onEnded(t, m)
		}
	case works:
		t.works = true
	case cleared:
		c.onCleared(t, m)
	case clock:
		t.onClock(m)
	case note:
		c.onNote(t, m)
	case inquiry:
		c.onInquiry(w, m)
	case arrive:
		c.onArrive(t, m)
	case leave:
		c.takeBack(t.key, m.Call, m.Name)
	case released:
		delete(t.released, m.Call)
	case announce:
		c.n.onAnnounce(nil, m)
	case doneAck:
		t.doneAck = true
		noteFirst(&t.events.Ended)
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
	case c.mayFindOut(t, w, m):
		return
	case m.State == Running, m.State == Ended:
		c.n.setGathered(&EndedError{c.earlier(r)})
		return
	case m.generation() != c.n.Generation() || m.Fence != nil && w.greeted != c.n.Generation():
		c.onOtherGeneration(t, w, m)
		return
	case m.Size != 0 && m.Size != c.n.cfg.Size:
		c.n.setGathered(&ConflictError{fmt.Errorf("%s at %v was told that the job has %d ranks, %s that it has %d",
			r.display(), r.Addr, m.Size, c.n.self.display(), c.n.cfg.Size)})
		if t.link == nil {
			t.link = w // it is told how the job ends
		}
		return
	case t.rec == nil && r.Rank < 0 && c.isEarly():
		c.putOff(w)
		return
	case t.rec == nil && c.present() >= c.n.cfg.Size && r.Rank < 0:
		c.onSpare(t, w, m)
		return
	case t.rec == nil && c.present() >= c.n.cfg.Size:
		// One of them may be dead without a lost connection, and this container its successor. If not, it learns so
		// when it asks after the launch.
		t.err = fmt.Errorf("the job has %d ranks and all of them are here", c.n.cfg.Size)
		c.n.log.Debug("one container too many", "peer", r.display(), "addr", r.Addr, "reason", t.err)
		w.abort()
		return
	}
	t.dropLink(w)
	c.registrations++
	first := t.rec == nil
	c.last, t.dialled = t, attempts{}
	t.changed = time.Now()
	t.link, t.rec, t.err, t.incompatible, t.acked, t.told = w, r, nil, nil, 0, ""
	t.said = w.said
	t.spare, t.met, t.rival = nil, "", false
	t.foreign = foreign{}
	t.looking = m.Looking
	t.noteRegistered(r)
	c.noteFence(t, m.Fence)
	if first {
		c.registered++
		c.n.log.Debug("heard of a rank", "phase", "gather", "peer", r.display(), "addr", r.Addr,
			"present", c.present(), "size", c.n.cfg.Size, "elapsed", time.Since(c.n.begin).Round(time.Microsecond))
	}
	if c.n.phase == Prepared && !c.isAside(t) {
		c.n.enter(Gathering) // the current roster holds an earlier start of this rank
	}
	c.tryPrepare()
}

// onReturn handles a registration after the launch: a rank whose connection came back, or its next start.
func (c *coordinator) onReturn(t *target, w *wire, m message) {
	member, ok := c.memberOf(t)
	switch {
	case c.n.phase == Ended && c.ending:
		t.dropLink(w)
		t.link = w
		c.tellEnd(t)
	case m.generation() > c.n.Generation():
		c.onOvertaken(t, w, "it goes on without this rank 0")
	case !ok && c.n.cfg.Spares > 0:
		c.keepSpare(t, w, m.Record)
	case !ok && c.mayRejoin():
		c.putOff(w)
	case !ok:
		w.send(c.n.noPlace())
	case member.Nonce != m.Record.Nonce:
		replace := func() {
			if c.n.cfg.Rejoin {
				c.keepSuccessor(t, m.Record)
				c.putOff(w)
			} else {
				w.send(c.n.tooLate())
			}
			c.lose(t, "its container was started again")
		}
		if m.Record.Addr == member.Addr { // the first start would have answered there
			replace()
			return
		}
		if t.leaves && t.link != nil {
			c.keepSuccessor(t, m.Record)
			c.putOff(w)
			return
		}
		c.contest(t, member.Record, m.Record, w.send, replace)
	default:
		t.dropLink(w)
		c.dropArrivals(t)
		t.link, t.since, t.gone, t.err, t.changed = w, time.Time{}, false, nil, time.Now()
		c.wakeAbsentWaiters()
		if m.State != Running && m.State != Ended { // it missed go, or has followed another rank 0 since
			w.send(message{Type: prepare, Epoch: c.n.roster.Epoch, whole: c.whole})
		}
		w.send(message{Type: launched, Epoch: c.n.roster.Epoch})
		if c.n.order != nil {
			w.send(*c.n.order)
		}
		if c.n.clearing.order != nil {
			w.send(*c.n.clearing.order)
		}
		c.n.log.Info("control connection is back", "peer", member.Display(), "rank", member.Rank)
	}
}

// dismissal answers a container that has no part in the launch.
func dismissal(status int, reason string) message {
	return message{Type: done, Last: true, Outcome: &Outcome{Status: status, Reason: reason}}
}

func (n *Node) noPlace() message {
	return dismissal(n.cfg.Status.Conflict, fmt.Sprintf(
		"the job has %d ranks and all of them are here: this container is one too many", len(n.roster.Members)))
}

func (n *Node) tooLate() message {
	return dismissal(n.cfg.Status.Retry, "the job runs already without this start of the container")
}

func (c *coordinator) memberOf(t *target) (Member, bool) {
	return c.n.roster.find(func(m Member) bool { return m.ID == t.key })
}

// byRank returns the target of another rank of the roster; nil = there is none.
func (c *coordinator) byRank(rank int) *target {
	if rank < 1 || rank >= len(c.n.roster.Members) {
		return nil
	}
	return c.targets[c.n.roster.Members[rank].ID]
}

// dropLink ends the connection of a target, unless it is w.
func (t *target) dropLink(w *wire) {
	if t.link != nil && t.link != w {
		t.link.abort()
	}
}

// present counts the ranks that hold a control connection, including this one.
func (c *coordinator) present() int { return 1 + c.registered }

func (c *coordinator) forget(t *target) {
	delete(c.targets, t.key)
	if t.rec != nil {
		c.registered--
	}
	t.drop()
	t.dropLink(nil)
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
	aside := c.isAside(t)
	t.link, t.rec, t.acked, t.changed = nil, nil, 0, time.Now()
	if !aside {
		c.n.enter(Gathering)
	}
}

// leading returns the coordinator for callers outside the loop; nil = another rank leads, or the node is closed.
func (n *Node) leading() (lead *coordinator) {
	n.ask(func() { lead = n.lead })
	return lead
}

// tellWaiting tells the other ranks which ranks are missing, so that each of them can log it.
func (c *coordinator) tellWaiting() {
	// Every rank wakes up to read it: at most about 100 a second, and before they report next.
	pause := min(max(time.Second, time.Duration(c.n.cfg.Size)*10*time.Millisecond), 5*time.Second)
	for c.n.pace.sleep(c.ctx, c.n.gathered, pause) {
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
		return m.Display()
	}
	switch {
	case t.rec != nil:
		return t.rec.display()
	case t.peer != nil:
		return t.peer.display()
	}
	return Display(t.own, strings.TrimPrefix(t.key, "@"))
}
