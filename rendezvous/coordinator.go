package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// coordinator is what rank 0 knows of the others. Only the loop touches it.
type coordinator struct {
	targets    map[string]*target // by id; those of seeds by "@address" until they have said who they are
	epoch      uint64
	strangers  time.Time // since when all missing ranks answer with another secret
	ending     bool
	latecomers bool            // somebody who comes now is still told how the job ended
	changed    []chan struct{} // of those who wait in Absent
	ctx        context.Context
	cancel     context.CancelFunc
}

// target is one container that rank 0 dials, keeps a connection to, and dials again when it is lost.
type target struct {
	key  string // the loop's own
	id   string // whom to dial; "" = whoever answers
	peer *Peer
	wake chan struct{} // capacity 1: an address was heard, do not wait out the back-off
	ctx  context.Context
	drop context.CancelFunc

	mu        sync.Mutex
	announced netip.AddrPort // by gossip

	// The loop's own.
	link    *wire
	rec     *Record   // as registered; nil = not present
	acked   uint64    // epoch
	told    string    // the last list of missing ranks that it was sent
	err     error     // of the last attempt to reach it
	since   time.Time // lost since
	gone    bool      // after the launch: it cannot be reached again
	doneAck bool
	// It answered with another secret, and has not been anybody else since. It may be gone by now: it learns the same
	// when it looks at rank 0, and ends.
	stranger error
}

func (n *Node) becomeCoordinator() {
	if n.lead != nil || n.isGathered() {
		return
	}
	ctx, cancel := context.WithCancel(n.ctx)
	n.lead = &coordinator{targets: make(map[string]*target), ctx: ctx, cancel: cancel}
	n.log.Debug("this container coordinates the launch", "size", n.cfg.Size)
	for i := range n.cfg.Peers {
		n.addTarget(n.cfg.Peers[i].ID, &n.cfg.Peers[i], netip.AddrPort{})
	}
	for _, r := range n.heard {
		n.addTarget(r.ID, nil, r.Addr)
	}
	for i := range n.seeds {
		n.onSeed(i)
	}
	if n.cfg.Size > 1 {
		n.wg.Go(func() { n.tellWaiting(ctx) })
	}
	n.tryPrepare()
}

// stepDown leaves the lead to a container that comes earlier in the order; only possible before the launch.
func (n *Node) stepDown() {
	for _, t := range n.lead.targets {
		t.drop()
		if t.link != nil {
			t.link.abort()
		}
	}
	n.lead.cancel()
	n.lead = nil
	n.phase = Gathering
}

func (n *Node) addTarget(key string, peer *Peer, announced netip.AddrPort) *target {
	c := n.lead
	if t, ok := c.targets[key]; ok {
		if announced.IsValid() {
			t.mu.Lock()
			t.announced = announced
			t.mu.Unlock()
			select {
			case t.wake <- struct{}{}:
			default:
			}
		}
		return t
	}
	t := &target{key: key, peer: peer, wake: make(chan struct{}, 1), announced: announced}
	if !strings.HasPrefix(key, "@") {
		t.id = key
	}
	t.ctx, t.drop = context.WithCancel(c.ctx)
	c.targets[key] = t
	n.wg.Go(func() { n.keep(t) })
	return t
}

// keep dials a target until the job is over, and serves the connection while it lives.
func (n *Node) keep(t *target) {
	var b backoff
	for {
		served, err := n.reach(t)
		if t.ctx.Err() != nil {
			return
		}
		n.post(func() { n.onUnreachable(t, err, served) })
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

// reach tries the addresses of a target, one after the other, and serves the first connection to its end.
func (n *Node) reach(t *target) (served bool, err error) {
	addrs, err := n.candidates(t)
	if err != nil {
		return false, err
	}
	for _, a := range addrs {
		ctx, cancel := context.WithTimeout(t.ctx, dialTimeout)
		rwc, derr := n.cfg.Dial(ctx, t.id, a)
		cancel()
		if derr == nil {
			return true, n.serve(t, rwc, a)
		}
		// The first address's reason is the telling one, unless a later one was answered by somebody.
		if err == nil || errors.Is(derr, ErrOtherSecret) {
			err = fmt.Errorf("%v: %w", a, derr)
		}
	}
	return false, err
}

// candidates are the addresses at which a target may be: what it says itself, then what the environment says.
func (n *Node) candidates(t *target) ([]netip.AddrPort, error) {
	t.mu.Lock()
	announced := t.announced
	t.mu.Unlock()
	var addrs []netip.AddrPort
	if announced.IsValid() {
		addrs = append(addrs, announced)
	}
	if t.peer == nil {
		return addrs, nil
	}
	found, err := t.peer.addrs(n)
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

func (n *Node) serve(t *target, rwc io.ReadWriteCloser, addr netip.AddrPort) error {
	w := newWire(rwc)
	defer w.close()
	defer context.AfterFunc(t.ctx, w.abort)()
	silent := time.AfterFunc(registerTimeout, w.abort)
	defer silent.Stop()
	self := n.self
	w.send(message{Type: hello, Record: &self})
	err := w.read(func(m message) error {
		if m.Type == register && m.Record != nil {
			silent.Stop()
			m.Record.Addr = addr // where it was reached counts, not where it believes to be
		}
		if !n.post(func() { n.onTarget(t, w, m) }) {
			return errEnded
		}
		return nil
	})
	n.post(func() { n.onLost(t, w, err) })
	return err
}

func (n *Node) onUnreachable(t *target, err error, served bool) {
	if n.lead == nil || n.lead.targets[t.key] != t {
		return
	}
	if !served {
		t.err = err
		if errors.Is(err, ErrOtherSecret) {
			if t.stranger == nil {
				n.log.Warn("a container with another secret answers", "peer", n.nameOf(t), "reason", explain(err))
			}
			t.stranger = err
		}
		if !t.since.IsZero() && isGone(err) {
			t.gone = true
		}
		n.stirred()
		n.checkEnd()
	}
	n.checkSecrets()
}

// isGone tells an address where nobody listens, or is, from one that is merely slow.
func isGone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// checkSecrets ends the wait when everybody else is there and the missing ranks have answered with another secret for a
// while: long enough for them to look at rank 0 and find out, too.
func (n *Node) checkSecrets() {
	if n.phase != Gathering || n.isGathered() {
		return
	}
	e := n.missingError()
	switch {
	case !e.OtherSecret():
		n.lead.strangers = time.Time{}
	case n.lead.strangers.IsZero():
		n.lead.strangers = time.Now()
	case time.Since(n.lead.strangers) > secretPatience:
		n.setGathered(Roster{}, e)
	}
}

func (n *Node) onTarget(t *target, w *wire, m message) {
	c := n.lead
	if c == nil || c.targets[t.key] != t {
		w.abort()
		return
	}
	if m.Type == register {
		n.onRegister(t, w, m)
		return
	}
	if m.Type == refuse {
		if m.Record != nil && m.Record.Nonce == n.self.Nonce {
			n.forget(t) // a seed's address that is our own
			return
		}
		n.unregister(t, w, errors.New(m.Reason))
		w.abort()
		return
	}
	if t.link != w {
		return
	}
	switch m.Type {
	case ack:
		if n.phase == Prepared && m.Epoch == n.roster.Epoch && m.Hash == n.roster.Hash {
			t.acked = m.Epoch
			n.tryLaunch()
		}
	case stop:
		s := Stop{Name: n.nameOf(t), Signal: m.Signal, Reason: m.Reason}
		if n.phase == Running {
			select {
			case n.stops <- s:
			default: // sixteen wishes are enough to be heard
			}
			return
		}
		status := 75
		if s.Signal > 0 {
			status = 128 + s.Signal
		}
		n.setGathered(Roster{}, &EndedError{Outcome{Status: status, Reason: fmt.Sprintf("%s: %s", s.Name, s.Reason)}})
	case doneAck:
		t.doneAck = true
		t.drop() // it leaves now, and is not dialled again
		n.checkEnd()
	}
}

func (n *Node) onRegister(t *target, w *wire, m message) {
	c := n.lead
	r := m.Record
	if r == nil || r.validate() != nil {
		t.err = errors.New("it sent a record that cannot be used")
		w.abort()
		return
	}
	if strings.HasPrefix(t.key, "@") {
		// A seed's address has said who it is: from now on it is a target of that name.
		if known, ok := c.targets[r.ID]; ok {
			t.mu.Lock()
			addr := t.announced
			t.mu.Unlock()
			if known.link == nil && known.rec == nil {
				known.mu.Lock()
				known.announced = addr
				known.mu.Unlock()
				select {
				case known.wake <- struct{}{}:
				default:
				}
			}
			n.forget(t)
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
	case n.phase == Running || n.phase == Ended:
		n.onReturn(t, w, m)
		return
	case m.State == Running:
		n.setGathered(Roster{}, &EndedError{Outcome{Status: 75, Reason: fmt.Sprintf("%s runs a launch of an earlier rank 0, which is gone", r.ID)}})
		return
	case t.rec == nil && n.present() >= n.cfg.Size:
		reason := fmt.Sprintf("the job has %d ranks and all of them are here", n.cfg.Size)
		n.log.Warn("one container too many", "peer", r.ID, "addr", r.Addr, "reason", reason)
		w.send(message{Type: done, Outcome: &Outcome{Status: 78, Reason: reason}})
		return
	}
	if t.link != nil && t.link != w {
		t.link.abort()
	}
	first := t.rec == nil
	t.link, t.rec, t.err, t.stranger, t.acked, t.told = w, r, nil, nil, 0, ""
	if first {
		n.log.Info("heard of a rank", "phase", "gather", "peer", r.ID, "addr", r.Addr, "present", n.present(), "size", n.cfg.Size,
			"elapsed", time.Since(n.begin).Round(time.Microsecond))
	}
	if n.phase == Prepared {
		n.phase = Gathering // the roster on its way holds an earlier start of this rank
	}
	n.tryPrepare()
}

// onReturn is a rank whose connection came back after the launch, or its successor.
func (n *Node) onReturn(t *target, w *wire, m message) {
	member, ok := n.memberOf(t)
	switch {
	case n.phase == Ended && n.lead.ending:
		t.link = w
		o := n.outcome
		w.send(message{Type: done, Outcome: &o})
	case !ok:
		w.send(message{Type: done, Outcome: &Outcome{Status: 78, Reason: fmt.Sprintf("the job has %d ranks and all of them are here", n.cfg.Size)}})
	case member.Nonce != m.Record.Nonce:
		w.send(message{Type: done, Outcome: &Outcome{Status: 75, Reason: "the job runs already without this start of the container"}})
		n.lose(t, "its container was started again")
	default:
		if t.link != nil && t.link != w {
			t.link.abort()
		}
		t.link, t.since, t.gone, t.err = w, time.Time{}, false, nil
		n.stirred()
		w.send(message{Type: launched, Epoch: n.roster.Epoch})
		n.log.Info("control connection is back", "peer", member.Alias, "rank", member.Rank)
	}
}

func (n *Node) memberOf(t *target) (Member, bool) {
	i := slices.IndexFunc(n.roster.Members, func(m Member) bool { return m.ID == t.key })
	if i < 0 {
		return Member{}, false
	}
	return n.roster.Members[i], true
}

// present counts the ranks that hold a control connection, this one included.
func (n *Node) present() int {
	p := 1
	for _, t := range n.lead.targets {
		if t.rec != nil {
			p++
		}
	}
	return p
}

// tryPrepare sends the roster out as soon as it is complete.
func (n *Node) tryPrepare() {
	if n.phase != Gathering || n.isGathered() || n.present() != n.cfg.Size {
		return
	}
	c := n.lead
	records := []Record{n.self}
	for _, t := range c.targets {
		if t.rec != nil {
			records = append(records, *t.rec)
		}
	}
	members, err := assign(records, n.cfg.Size)
	if err != nil {
		n.setGathered(Roster{}, &ConflictError{err})
		return
	}
	c.epoch++
	r := Roster{Epoch: c.epoch, Hash: hashMembers(members), Members: members}
	if n.cfg.Verify != nil {
		if o := n.cfg.Verify(r); o != nil {
			n.setGathered(Roster{}, &EndedError{*o})
			return
		}
	}
	n.roster, n.phase = r, Prepared
	for _, t := range c.targets {
		if t.rec != nil {
			t.acked = 0
			t.link.send(message{Type: prepare, Epoch: r.Epoch, Roster: &r})
		}
	}
	time.AfterFunc(ackTimeout, func() { n.post(func() { n.onAckTimeout(r.Epoch) }) })
	n.tryLaunch()
}

// onAckTimeout drops the ranks that have not acknowledged; their next registration starts a new epoch.
func (n *Node) onAckTimeout(epoch uint64) {
	if n.lead == nil || n.phase != Prepared || n.roster.Epoch != epoch {
		return
	}
	for _, t := range n.lead.targets {
		if t.rec != nil && t.acked != epoch {
			n.log.Warn("a rank does not acknowledge the roster", "peer", t.key, "epoch", epoch)
			t.link.abort()
		}
	}
}

// tryLaunch commits: every rank holds this roster. It happens once.
func (n *Node) tryLaunch() {
	for _, t := range n.lead.targets {
		if t.rec != nil && t.acked != n.roster.Epoch {
			return
		}
	}
	n.phase = Running
	for _, t := range n.lead.targets {
		switch {
		case t.rec != nil:
			t.link.send(message{Type: launched, Epoch: n.roster.Epoch})
		default:
			n.forget(t)
		}
	}
	n.setGathered(n.roster, nil)
}

func (n *Node) forget(t *target) {
	delete(n.lead.targets, t.key)
	t.drop()
	if t.link != nil {
		t.link.abort()
	}
}

func (n *Node) onLost(t *target, w *wire, err error) {
	if n.lead == nil || t.link != w {
		return
	}
	switch n.phase {
	case Gathering, Prepared:
		n.log.Warn("a rank went away before the launch", "peer", t.key, "reason", explain(err))
		n.unregister(t, w, fmt.Errorf("it was here, but its connection ended: %w", err))
	case Running:
		t.link, t.since, t.err = nil, time.Now(), err
		n.stirred()
		n.log.Warn("control connection lost", "peer", t.key, "reason", explain(err))
		since := t.since
		time.AfterFunc(n.cfg.LossGrace, func() {
			n.post(func() {
				if n.phase == Running && t.since.Equal(since) {
					n.lose(t, fmt.Sprintf("its control connection has been lost for %v (%s)", n.cfg.LossGrace, explain(t.err)))
				}
			})
		})
	case Ended:
		t.link, t.since, t.gone = nil, time.Now(), true
		n.checkEnd()
	}
}

// unregister takes a rank off the list before the launch; a roster on its way is void then.
func (n *Node) unregister(t *target, w *wire, reason error) {
	t.err = reason
	if t.link != w || n.phase != Gathering && n.phase != Prepared {
		return
	}
	t.link, t.rec, t.acked = nil, nil, 0
	n.phase = Gathering
}

func (n *Node) lose(t *target, reason string) {
	m, ok := n.memberOf(t)
	if !ok {
		return
	}
	select {
	case n.losses <- Loss{Rank: m.Rank, Name: m.Alias, Reason: reason}:
	default: // the first losses decide
	}
}

// Absent says which ranks have no control connection. Rank 0 asks it when the command has failed: a rank that went away is
// the likelier cause. A container that is killed may lose its processes before its paiinit, so for settle it waits for a
// connection to go; and then, for grace at most, for the lost ones to come back. A rank whose address refuses, or that cannot be
// routed to, is not waited for.
func (n *Node) Absent(ctx context.Context, settle, grace time.Duration) []Loss {
	settled := time.NewTimer(settle)
	defer settled.Stop()
	patience := time.NewTimer(settle + grace)
	defer patience.Stop()
	for {
		var absent []Loss
		waiting := false
		changed := make(chan struct{})
		if !n.ask(func() {
			if n.lead == nil {
				return
			}
			for _, t := range n.lead.targets {
				if m, ok := n.memberOf(t); ok && t.link == nil {
					waiting = waiting || !t.gone
					absent = append(absent, Loss{Rank: m.Rank, Name: m.Alias, Reason: "its control connection is lost (" + explain(t.err) + ")"})
				}
			}
			n.lead.changed = append(n.lead.changed, changed)
		}) {
			return nil
		}
		slices.SortFunc(absent, func(a, b Loss) int { return a.Rank - b.Rank })
		enough := patience.C
		switch {
		case len(absent) == 0:
			enough = settled.C
		case !waiting:
			return absent
		}
		select {
		case <-changed:
		case <-enough:
			return absent
		case <-ctx.Done():
			return absent
		}
	}
}

// stirred wakes those who wait for a connection to come, go, or be given up.
func (n *Node) stirred() {
	for _, c := range n.lead.changed {
		close(c)
	}
	n.lead.changed = nil
}

// Finish tells every rank how the job ended and waits until each has acknowledged it or is known to be gone, at most 15 s.
// Rank 0 calls it, and leaves last. Before the launch only the ranks that are there are told; patience is for how long
// rank 0 then stays to tell those that are still to come.
func (n *Node) Finish(ctx context.Context, o Outcome, patience time.Duration) error {
	if !n.ask(func() {
		if n.lead == nil || n.phase == Ended {
			n.setFinished(o, nil)
			return
		}
		n.phase, n.outcome = Ended, o
		n.lead.ending, n.lead.latecomers = true, patience > 0
		if patience > 0 {
			time.AfterFunc(patience, func() {
				n.post(func() {
					n.lead.latecomers = false // once it ends, nobody steps down
					n.checkEnd()
				})
			})
		}
		for _, t := range n.lead.targets {
			if t.link != nil {
				t.link.send(message{Type: done, Outcome: &o})
			}
		}
		n.checkEnd()
	}) {
		return fmt.Errorf("rendezvous: telling the end of the job: %w", errEnded)
	}
	ctx, cancel := context.WithTimeout(ctx, doneTimeout)
	defer cancel()
	select {
	case <-n.finished:
		return nil
	case <-ctx.Done():
		var names []string
		n.ask(func() {
			for _, t := range n.lead.targets {
				if n.pending(t) {
					names = append(names, t.key)
				}
			}
		})
		slices.Sort(names)
		return fmt.Errorf("rendezvous: %s did not acknowledge the end of the job: %w", strings.Join(names, ","), context.Cause(ctx))
	}
}

// pending says that the end of the job must still be acknowledged by this rank.
func (n *Node) pending(t *target) bool {
	if t.doneAck || t.gone {
		return false
	}
	_, member := n.memberOf(t)
	return t.link != nil || member && t.rec != nil
}

func (n *Node) checkEnd() {
	if !n.lead.ending {
		return
	}
	told := 0
	for _, t := range n.lead.targets {
		if n.pending(t) {
			return
		}
		if t.doneAck {
			told++
		}
	}
	if n.lead.latecomers && told < n.cfg.Size-1 {
		return
	}
	o := n.outcome
	n.setFinished(o, nil)
}

// tellWaiting keeps the others informed about who is missing, so that each of them can say it.
func (n *Node) tellWaiting(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.gathered:
			return
		case <-t.C:
			n.post(func() {
				if n.lead == nil || n.phase != Gathering {
					return
				}
				e := n.missingError()
				text := e.Error()
				for _, t := range n.lead.targets {
					if t.rec != nil && t.told != text {
						t.told = text
						t.link.send(message{Type: waiting, Missing: e.Missing, Present: e.Present})
					}
				}
			})
		}
	}
}

func (n *Node) nameOf(t *target) string {
	return strings.TrimPrefix(t.key, "@")
}
