package rendezvous

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Where every rank runs its own command, each reports to rank 0 how it ended, and rank 0 orders the others to end.

// End is how the command of one rank ended.
type End struct {
	Rank    int
	Name    string
	Outcome Outcome
	At      time.Time     // when the command ended, by this node's clock
	Error   time.Duration // bound on the error of At; for the ends of other ranks [Node.Align] sets it
	Stopped bool          // it was told to end before it did

	after time.Duration // from the start of the rank's node to the end, by the rank's clock
}

// Report reports to rank 0 how the command of this rank ended, and again whenever the connection comes back. It ignores
// e.Rank and e.Name. Rank 0 itself does not report.
func (n *Node) Report(e End) {
	n.ask(func() {
		n.own = &message{Type: ended, Outcome: &e.Outcome, After: int64(e.At.Sub(n.begin)), Stopped: e.Stopped}
		n.sendOwn()
	})
}

// sendOwn stamps the report with the time at which it is sent: it may be sent again much later.
func (n *Node) sendOwn() {
	report := *n.own
	report.Clock = int64(time.Since(n.begin))
	n.up.send(report)
}

// Ends returns, on rank 0, how the commands of the other ranks ended, each once. On another rank it never delivers.
func (n *Node) Ends() <-chan End { return n.ends }

// Order orders every other rank to end its command. A rank that is not connected gets the first order when it is back;
// later orders go to connected ranks only. Rank 0 calls it.
func (n *Node) Order(signal int, reason string) {
	n.ask(func() {
		if n.lead == nil || n.phase != Running {
			return
		}
		n.lead.tellGo() // a rank that was not told go would ignore the order, and run its command afterwards
		order := message{Type: stop, Signal: signal, Reason: reason}
		if n.order == nil {
			n.order = &order
		}
		for _, t := range n.lead.targets {
			if t.link != nil {
				t.link.send(order)
			}
		}
	})
}

// Orders returns, on every rank but 0, the orders of rank 0 to end the command.
func (n *Node) Orders() <-chan Stop { return n.orders }

func (u *uplink) onOrder(m message) {
	if u.n.phase == Running {
		offer(u.n.orders, Stop{Signal: m.Signal, Reason: m.Reason}) // sixteen may wait
	}
}

func (c *coordinator) onEnded(t *target, m message) {
	if m.Outcome == nil || t.ended {
		return
	}
	if c.n.phase != Running {
		o := *m.Outcome
		if c.letGo(t, t.link, o) {
			return
		}
		o.Reason = fmt.Sprintf("%s: %s", c.nameOf(t), o.Reason)
		c.n.setGathered(&EndedError{o})
		return
	}
	if m.Signal > 0 { // it was stopped, and does not know yet that the job runs
		c.onStop(t, t.link, message{Name: m.Name, Signal: m.Signal, Reason: m.Outcome.Reason})
		return
	}
	member, ok := c.memberOf(t)
	if !ok {
		return
	}
	t.ended = true
	after := time.Duration(m.After)
	at := time.Now().Add(after - time.Duration(m.Clock)) // or earlier, by the time that the message took
	t.events.Ended = at
	e := End{Rank: member.Rank, Name: member.Display(), Outcome: *m.Outcome, At: at, Stopped: m.Stopped, after: after}
	c.n.ends <- e
}

// clockReadings is how often Align asks a rank for its clock; the fastest answers give the tightest bound.
const clockReadings = 8

// Align asks the other ranks for their clocks and corrects At and Error of their ends. Rank 0 calls it when commands
// have failed, because clocks that were compared at the launch of a long job have drifted apart. If a rank does not
// answer before ctx ends, At stays the latest time at which its command can have ended.
func (n *Node) Align(ctx context.Context, ends ...*End) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if lead := n.leading(); lead != nil {
		for _, e := range ends {
			wg.Go(func() { lead.align(ctx, e) })
		}
	}
}

func (c *coordinator) align(ctx context.Context, e *End) {
	var first, last time.Time // bounds of the start of the rank's node
	for range clockReadings {
		r, ok := c.readClock(ctx, e.Rank)
		if !ok {
			break
		}
		if from := r.sent.Add(-r.clock); first.IsZero() || from.After(first) {
			first = from
		}
		if to := r.heard.Add(-r.clock); last.IsZero() || to.Before(last) {
			last = to
		}
	}
	if first.IsZero() {
		return
	}
	e.Error = max(0, last.Sub(first)/2)
	e.At = first.Add(last.Sub(first) / 2).Add(e.after)
}

// reading is a value of another rank's clock, read between sent and heard.
type reading struct {
	sent, heard time.Time
	clock       time.Duration // since the start of the rank's node
	now         time.Time     // time of day; zero = not told
	kills       int
}

func (c *coordinator) readClock(ctx context.Context, rank int) (r reading, ok bool) {
	heard := make(chan reading, 1)
	var t *target
	if !c.n.ask(func() {
		if t = c.byRank(rank); c.n.lead == c && t != nil && t.link != nil {
			t.clockCall++
			t.clockSent, t.clockHeard = time.Now(), heard
			t.link.send(message{Type: clock, Call: t.clockCall})
			ok = true
		}
	}) || !ok {
		return r, false
	}
	select {
	case r = <-heard:
		return r, true
	case <-c.n.over:
	case <-t.ctx.Done():
	case <-ctx.Done():
	}
	return r, false
}

func (t *target) onClock(m message) {
	if m.Call != t.clockCall || t.clockHeard == nil {
		return // the answer to a question that was given up
	}
	t.clockHeard <- reading{t.clockSent, time.Now(), time.Duration(m.Clock), m.Now, m.Kills}
	t.clockHeard = nil
}
