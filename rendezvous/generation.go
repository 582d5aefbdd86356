package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
	"weak"
)

// A job that starts again in place runs through generations. A generation is one commit, by one Node on every rank;
// nothing of a node is reset. Between two generations stands a proven clear: rank 0 orders it, and every other rank
// reports that no process of the old generation is left in its container.
//
//	rank 0, generation g                       every other rank
//	   again(text)  ------------------------->  ends its processes (Clears), and reports it (Cleared)
//	                  <-----------------------  cleared(killed, took)
//	   ...until every rank has answered...
//	   next  -------------------------------->  Wait returns ErrNext; a node of generation g+1 starts
//	rank 0, generation g+1
//	   hello(record, g+1)  ------------------>  ...as in the first generation...
//
// Rank 0 repeats again to a rank whose connection comes back, and the rank repeats its answer. A greeting of generation
// g+1 also says that every rank has cleared: a rank that gets it before next goes on in the same way, and the
// connection waits for its new node (Succeed). A greeting of an earlier generation is refused.

// ErrNext reports that the generation has ended and rank 0 begins the next one. If this rank has requested a stop, rank
// 0 may not have read it: the caller requests it again from the next node.
var ErrNext = errors.New("the next generation begins")

// Cleared says how another rank has ended the processes of a generation.
type Cleared struct {
	Rank  int
	Name  string
	Ended int           // processes
	Took  time.Duration // from the order to the end of the last one
}

// clearing is the state of a generation that is about to end. On a rank other than 0 only order and answer are used.
type clearing struct {
	order  *message      // rank 0's; nil = the generation goes on
	since  time.Time     // of the order, on rank 0
	answer *message      // of this rank
	clears chan []byte   // receives the text of the order, once
	proven chan struct{} // on rank 0: closed when every rank has answered
	by     map[string]Cleared
	told   []*wire            // that next was sent over
	after  chan struct{}      // closed when next is set
	next   weak.Pointer[Node] // else whoever holds the node of the first generation would keep those of all
}

func newClearing() clearing {
	return clearing{
		clears: make(chan []byte, 1), proven: make(chan struct{}), by: make(map[string]Cleared),
		after: make(chan struct{}),
	}
}

// Clear orders every other rank to end the processes of this generation, and waits until each has reported that none is
// left. text reaches every rank as it is. Rank 0 calls it after the end of its own command. Losses and Stops go on
// meanwhile: the caller ends ctx if one of them ends the job. If Clear fails, Finish can still end the job.
func (n *Node) Clear(ctx context.Context, text []byte) ([]Cleared, error) {
	var proven chan struct{}
	n.ask(func() {
		if n.lead == nil || n.phase != Running || n.clearing.order != nil {
			return
		}
		n.lead.tellGo() // a rank that was not told go would take the order for one of another launch
		proven = n.clearing.proven
		n.clearing.order, n.clearing.since = &message{Type: again, Text: text}, time.Now()
		for _, t := range n.lead.targets {
			if t.link != nil {
				t.link.send(*n.clearing.order)
			}
		}
		n.lead.checkCleared()
	})
	if proven == nil {
		return nil, &BugError{"a generation that does not run, or is being cleared, cannot be cleared"}
	}
	select {
	case <-proven:
	case <-n.over:
		return nil, fmt.Errorf("clearing the generation: %w", errEnded)
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", n.uncleared(), context.Cause(ctx))
	}
	var all []Cleared
	n.ask(func() {
		for _, m := range n.roster.Members {
			if c, ok := n.clearing.by[m.ID]; ok {
				all = append(all, c)
			}
		}
	})
	return all, nil
}

// uncleared says which ranks have not cleared.
func (n *Node) uncleared() string {
	var names []string
	n.ask(func() {
		for _, m := range n.roster.Members {
			if _, ok := n.clearing.by[m.ID]; !ok && m.Nonce != n.self.Nonce {
				names = append(names, m.Display())
			}
		}
	})
	return "no report that the processes of the last generation have ended on " + strings.Join(names, ", ")
}

// Clears receives the text of rank 0's order to end the processes of this generation, once, on every rank but 0.
func (n *Node) Clears() <-chan []byte { return n.clearing.clears }

// Cleared reports to rank 0 that no process of this generation is left in this container.
func (n *Node) Cleared(ended int, took time.Duration) {
	n.ask(func() {
		if n.phase == Running && n.clearing.order != nil {
			n.clearing.answer = &message{Type: cleared, Kills: ended, After: int64(took)}
			n.up.send(*n.clearing.answer)
		}
	})
}

// Next tells every other rank, after Clear, that the next generation begins. Close waits until that is sent, for a
// second at the most; a rank that did not get it learns it from the greeting of the next generation.
func (n *Node) Next() {
	n.ask(func() {
		if n.lead == nil || !isClosed(n.clearing.proven) {
			return
		}
		for _, t := range n.lead.targets {
			if t.link != nil {
				t.link.send(message{Type: next})
				n.clearing.told = append(n.clearing.told, t.link)
			}
		}
		n.setFinished(Outcome{}, ErrNext)
	})
}

// awaitNext waits until next is sent.
func (n *Node) awaitNext() {
	ctx, cancel := context.WithTimeout(n.ctx, time.Second)
	defer cancel()
	var links []*wire
	n.ask(func() { links = n.clearing.told })
	var wg sync.WaitGroup
	for _, w := range links {
		wg.Go(func() {
			defer context.AfterFunc(ctx, w.abort)()
			w.flush()
		})
	}
	wg.Wait()
}

// Following returns the configuration of the next generation, in which every container keeps its rank and its address.
// It is valid once Gather has returned the roster. The caller sets its Timeout, which ends a job that has lost a
// container for good.
func (n *Node) Following() Config {
	cfg := n.cfg
	cfg.Generation = n.Generation() + 1
	cfg.Peers, cfg.Seeds, cfg.AskAfter = nil, nil, 0
	cfg.Fabric, cfg.Unfit, cfg.leader = nil, nil, nil
	hosts := make(map[string]*Peer) // a name may resolve to another address by now
	for i, p := range n.cfg.Peers {
		hosts[p.ID] = &n.cfg.Peers[i]
	}
	n.ask(func() {
		if cfg.NoteWait > 0 {
			cfg.notes = maps.Clone(n.notes)
		}
		cfg.Self = n.current
		for _, m := range n.roster.Members {
			if m.Nonce == n.self.Nonce {
				if cfg.Self.Addr.Addr() != m.Addr.Addr() {
					cfg.Self.Network = "" // it belongs to another address
				}
				cfg.Self.Rank, cfg.Self.Addr = m.Rank, m.Addr
				continue
			}
			p := Peer{ID: m.ID, Own: m.Own, Rank: m.Rank, Slots: m.Slots, Decided: true, At: m.Addr}
			if known := hosts[m.ID]; known != nil {
				p.Host, p.Port = known.Host, known.Port
			}
			if n.lead != nil && n.lead.targets[m.ID] != nil && n.lead.targets[m.ID].successor != nil {
				p.At = n.lead.targets[m.ID].successor.Addr
			}
			if p.Host == "" {
				p.Host, p.Port = m.Addr.Addr().String(), int(m.Addr.Port())
			}
			cfg.Peers = append(cfg.Peers, p)
		}
		cfg.Size = len(n.roster.Members) + n.cfg.Spares
		if n.lead == nil {
			cfg.Size += n.up.spares
		} else {
			cfg.Peers = n.lead.markLost(cfg.Peers)
		}
		if n.lead != nil && n.cfg.Spares > 0 {
			cfg.Peers = append(cfg.Peers, n.lead.spares()...)
		}
		cfg.last = n.succession()
		if n.lead == nil && !n.hasLost() {
			cfg.leader = n.up.leader
		}
	})
	return cfg
}

// Succeed names the node of the next generation, which serves the connections that wait for it. The caller closes this
// node afterwards.
func (n *Node) Succeed(next *Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !isClosed(n.clearing.after) {
		n.clearing.next = weak.Make(next)
		close(n.clearing.after)
	}
}

// Generation returns the number of this generation, from 1 on. It is that of the job once Gather has returned.
func (n *Node) Generation() uint64 { return n.generation.Load() }

// Told returns the text with which rank 0 has greeted this rank, nil if there was none.
func (n *Node) Told() (text []byte) {
	n.ask(func() { text = n.up.text })
	return text
}

// Successor returns the node of the next generation, once it has started; nil = it will not come, or is over already,
// or ctx has ended.
func (n *Node) Successor(ctx context.Context) *Node {
	select {
	case <-n.clearing.after:
	case <-ctx.Done():
	case <-n.ctx.Done():
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.clearing.next.Value()
}

// Accept serves an incoming control connection to its end. Rank 0 reaches this container through it.
func (n *Node) Accept(ctx context.Context, rwc io.ReadWriteCloser, remote net.Addr) {
	w := newWire(rwc, nil)
	w.share = n.cfg.share
	defer w.close()
	defer context.AfterFunc(ctx, w.abort)()
	var bound binding
	bound.to(n, w)
	defer bound.end()
	serving := n
	err := w.read(func(m message) error {
		for {
			late, g := false, m.generation()
			if m.Type == hello && g > serving.Generation() {
				serving.ask(func() { late = serving.up.onLaterGeneration(g, m.Record) })
			}
			at := serving
			if !late && at.post(func() { at.onMessage(w, m, remote) }) {
				return nil
			}
			if serving = at.Successor(ctx); serving == nil {
				return errEnded
			}
		}
	})
	if serving != nil {
		serving.post(func() { serving.up.onLost(w, err) })
	}
}

// binding ends a connection with the last of the nodes that succeed each other. A connection that comes while one gives
// way to the next would end otherwise, and rank 0 would call again only after a pause.
type binding struct {
	mu   sync.Mutex
	stop func() bool
	over bool
}

func (b *binding) to(n *Node, w *wire) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return
	}
	b.stop = context.AfterFunc(n.ctx, func() {
		if next := n.Successor(n.ctx); next != nil {
			b.to(next, w)
		} else {
			w.abort()
		}
	})
}

func (b *binding) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	b.stop()
}

// generation returns the generation of a greeting.
func (m *message) generation() uint64 { return max(m.Generation, 1) }

// isOver refuses a greeting of another generation, or of a rank 0 that this rank has given up. It reports false for
// another start of rank 0 while this rank holds a roster: every start begins with generation 1, and learns from the
// answer that it is too late.
func (u *uplink) isOver(w *wire, m message) bool {
	own, holds := u.n.Generation(), u.n.phase != Gathering && len(u.n.roster.Members) > 0
	if u.n.restarts() && u.n.hasLost() {
		w.send(message{Type: refuse, Generation: own + 1, Reason: "it has lost rank 0, and goes on without it"})
		return true
	}
	if m.generation() == own || holds && m.Record != nil && m.Record.Nonce != u.n.roster.Members[0].Nonce {
		return false
	}
	if u.maySucceed(m) {
		return false
	}
	reason := fmt.Sprintf("this is generation %d, and not %d", own, m.generation())
	w.send(message{Type: refuse, Generation: own, Reason: reason})
	return true
}

// onAgain takes rank 0's order to end the processes of this generation.
func (u *uplink) onAgain(m message) {
	c := &u.n.clearing
	switch {
	case u.n.phase != Running:
	case c.order == nil:
		c.order = &m
		c.clears <- m.Text
	case c.answer != nil: // it was lost with the connection
		u.send(*c.answer)
	}
}

// onNext ends the generation on a rank that has cleared.
func (u *uplink) onNext() {
	if u.n.phase == Running && u.n.clearing.answer != nil {
		u.n.setFinished(Outcome{}, ErrNext)
	}
}

// onLaterGeneration handles a greeting of rank 0 in a later generation. A container that was started since joins that
// one. For a rank that has cleared, this generation is over; then onLaterGeneration reports that the next node must
// handle the greeting.
func (u *uplink) onLaterGeneration(g uint64, leader *Record) (next bool) {
	if u.wire != nil && u.leader != nil && leader != nil && u.leader.Nonce != leader.Nonce {
		return false // its own rank 0 is in this generation
	}
	if u.contendsWithLast(leader) {
		return false // greeted decides, and a refused rank 0 must not change the generation
	}
	if u.n.phase == Gathering && u.n.lead == nil && !u.n.isGathered() && u.n.clearing.order == nil {
		u.n.generation.Store(g)
		return false
	}
	u.onNext()
	return errors.Is(u.n.outcomeErr, ErrNext)
}

// resetGeneration makes a container that has lost its rank 0 before the launch free to follow one of any generation.
func (n *Node) resetGeneration() { n.generation.Store(max(n.cfg.Generation, 1)) }

func (c *coordinator) onCleared(t *target, m message) {
	member, ok := c.memberOf(t)
	if !ok || c.n.clearing.order == nil {
		return
	}
	c.n.clearing.by[member.ID] = Cleared{
		Rank: member.Rank, Name: member.Display(), Ended: m.Kills, Took: time.Duration(m.After),
	}
	c.checkCleared()
}

// fenceTime is how long a lost rank may still run its command after the end of its connection, and after the order to
// clear: until that order, other ranks may have told it that rank 0 is alive. The rank needs noticeTime, asks the other
// ranks, asks the first of them for the verdict, looks which of them it can reach, and ends its command.
const (
	fenceTime   = noticeTime + askTimeout + askTimeout + lookTimeout + linger + commandTime + 2*time.Second
	noticeTime  = 6 * time.Second // until a rank notices that rank 0 is silent: cmd shortens the keepalive
	commandTime = 8 * time.Second // cmd's default --grace
)

// fence returns how long a lost rank may still run its command. It cannot any more if its address refuses, or another
// container answers there: then the process that would have to end the command has ended. The next start of its
// container proves nothing at another address, because the first one may only be cut off.
func (c *coordinator) fence(t *target, m Member) time.Duration {
	switch {
	case t.link != nil: // it may be frozen
		return fenceTime
	case t.successor != nil && t.successor.Addr == m.Addr:
		return 0
	case addressIn(t.err) == m.Addr && (isElse(t.err) || errors.Is(t.err, syscall.ECONNREFUSED)):
		return 0
	}
	return max(0, time.Until(t.since.Add(fenceTime)), time.Until(c.n.clearing.since.Add(fenceTime)))
}

// isOver reports whether generation g is about to end, or has ended: a rank of it that has lost rank 0 must end too,
// because rank 0 counts on that after fenceTime.
func (n *Node) isOver(g uint64) bool {
	own := n.Generation()
	return g < own || g == own && n.clearing.order != nil
}

// continues reports whether this process was in the job's last generation.
func (n *Node) continues() bool { return n.cfg.Generation > 1 }

// asksFor returns the generation in which this rank looks for rank 0. After it has cleared that is the next one.
func (n *Node) asksFor() uint64 {
	g := n.Generation()
	if n.clearing.answer != nil {
		g++
	}
	if g == 1 {
		return 0 // as in a greeting
	}
	return g
}

// checkCleared lets Clear return once every other rank has cleared, or is lost and cannot run its command any more.
func (c *coordinator) checkCleared() {
	k := &c.n.clearing
	if k.order == nil || isClosed(k.proven) || c.n.phase != Running {
		return
	}
	for _, m := range c.n.roster.Members {
		if _, ok := k.by[m.ID]; ok || m.Nonce == c.n.self.Nonce {
			continue
		}
		t := c.targets[m.ID]
		if t == nil || !t.gone {
			return
		}
		if left := c.fence(t, m); left > 0 {
			c.n.after(left, c.checkCleared)
			return
		}
	}
	close(k.proven)
}

// keepSuccessor notes the next start of a rank that is lost or leaves: the next generation dials it.
func (c *coordinator) keepSuccessor(t *target, r *Record) {
	if t.successor == nil || t.successor.Nonce != r.Nonce {
		c.n.log.Info("the container of a rank has started again", "peer", r.display(), "addr", r.Addr)
	}
	t.successor = r
}

// putOff leaves a container that waits for a later generation without an answer. It is dialled again after a moment,
// because the rank whose place it wants may have come back.
func (c *coordinator) putOff(w *wire) { c.n.after(putOffTime, w.abort) }

const putOffTime = time.Second

// mayRejoin reports whether a container without a place may take that of a lost rank in a later generation.
func (c *coordinator) mayRejoin() bool {
	if !c.n.cfg.Rejoin {
		return false
	}
	for _, m := range c.n.roster.Members {
		if t := c.targets[m.ID]; t != nil && t.link == nil {
			return true
		}
	}
	return false
}
