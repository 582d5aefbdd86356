package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// A barrier is a name that every rank calls, once all ranks have been told to go.
//
//	a rank                                     rank 0
//	   arrive(call, name)  ------------------>  notes it
//	   leave(call)  ------------------------->  the caller is gone: takes it back
//	   ...until every rank has one call at that name...
//	                  <-----------------------  release(call), to all of them at once
//	   released(call)  ---------------------->  forgets it
//
// A release empties the barrier, so the name can be used again at once. A rank whose connection was lost repeats its
// calls when it is back, and rank 0 then releases those again that it released meanwhile.

// MaxName is the longest name of a barrier, in bytes.
const MaxName = 128

// ErrOver reports that the job ended while the caller waited for something else; Wait returns how.
var ErrOver = errors.New("the job is over")

// BarrierError names the ranks that had not called a barrier when the caller's context ended.
type BarrierError struct {
	Name   string
	Size   int
	Absent []Missing // empty if rank 0 could not be asked
}

func (e *BarrierError) Error() string {
	if len(e.Absent) == 0 {
		return fmt.Sprintf("barrier %q: not every rank has called it, and rank 0 does not say which ranks are missing",
			e.Name)
	}
	return fmt.Sprintf("barrier %q: %d of %d ranks have come; missing: %s",
		e.Name, e.Size-len(e.Absent), e.Size, Fold(e.Absent))
}

// calls are this container's pending questions to rank 0. Only the loop touches them.
type calls struct {
	n       *Node
	last    uint64
	asked   map[uint64]chan message
	waiting map[uint64]*arrival // not released yet

	skew   time.Duration // of rank 0's clock to ours, as skewOf's first answer told it
	skewOf *wire
}

type arrival struct {
	name     string
	released chan struct{}
}

// barrier holds the calls of one name, by the key of the rank's target; those of this container are under "".
type barrier map[string]map[uint64]bool

// Barrier returns once every rank has called the barrier of that name; several calls of one rank count once. It can be
// called before all ranks are present. Its errors are *BarrierError when ctx ends, and ErrOver.
func (n *Node) Barrier(ctx context.Context, name string) error {
	if name == "" || len(name) > MaxName {
		return fmt.Errorf("the name of a barrier has 1 to %d bytes, not %d", MaxName, len(name))
	}
	a := &arrival{name: name, released: make(chan struct{})}
	var call uint64
	if !n.ask(func() {
		n.calls.last++
		call = n.calls.last
		n.calls.waiting[call] = a
		n.calls.arrive(call, a)
	}) {
		return ErrOver
	}
	over := true
	select {
	case <-a.released:
	case <-n.finished:
	case <-n.ctx.Done():
	case <-ctx.Done():
		over = false
	}
	switch {
	case isClosed(a.released):
		return nil
	case over:
		return ErrOver
	}
	absent := n.calls.absentAt(name)
	size := n.cfg.Size
	n.ask(func() {
		if n.phase == Running {
			size = len(n.roster.Members)
		}
		if !isClosed(a.released) {
			delete(n.calls.waiting, call)
			n.calls.leave(call, name)
		}
	})
	if isClosed(a.released) { // between the end of ctx and now
		return nil
	}
	return &BarrierError{Name: name, Size: size, Absent: absent}
}

// absentAt lists the ranks that have not called the barrier, or have not come at all.
func (k *calls) absentAt(name string) []Missing {
	var absent []Missing
	k.n.ask(func() {
		switch {
		case k.n.phase != Running:
			absent = k.n.missing()
		case k.n.lead != nil:
			absent = k.n.lead.notAt(name)
		}
	})
	if len(absent) == 0 {
		if m, ok := k.inquire(k.n.ctx, message{Name: name}); ok { // ctx has ended, but not the node's context
			absent = m.Missing
		}
	}
	return absent
}

// arrive sends a call to rank 0 if it is connected; resume repeats the calls.
func (k *calls) arrive(call uint64, a *arrival) {
	switch {
	case k.n.phase != Running:
	case k.n.lead != nil:
		k.n.lead.noteArrival("", call, a.name)
	default:
		k.n.up.send(message{Type: arrive, Call: call, Name: a.name})
	}
}

func (k *calls) leave(call uint64, name string) {
	if k.n.lead != nil {
		k.n.lead.takeBack("", call, name)
	} else {
		k.n.up.send(message{Type: leave, Call: call, Name: name})
	}
}

// resume sends every pending call to rank 0: when the job starts, and when the connection is back.
func (k *calls) resume() {
	for _, call := range slices.Sorted(maps.Keys(k.waiting)) {
		if a, ok := k.waiting[call]; ok { // not released by an earlier one
			k.arrive(call, a)
		}
	}
}

// onRelease ends a call of this container.
func (k *calls) onRelease(call uint64) {
	if a, ok := k.waiting[call]; ok {
		delete(k.waiting, call)
		close(a.released)
	}
}

// onArrive handles the call of another rank.
func (c *coordinator) onArrive(t *target, m message) {
	switch {
	case c.n.phase != Running || m.Name == "" || len(m.Name) > MaxName:
	case t.released[m.Call]:
		t.link.send(message{Type: release, Call: m.Call})
	default:
		c.noteArrival(t.key, m.Call, m.Name)
	}
}

func (c *coordinator) noteArrival(key string, call uint64, name string) {
	b := c.barriers[name]
	if b == nil {
		b = make(barrier)
		c.barriers[name] = b
	}
	if b[key] == nil {
		b[key] = make(map[uint64]bool)
	}
	b[key][call] = true
	if len(b) < len(c.n.roster.Members) {
		return
	}
	delete(c.barriers, name)
	for key, calls := range b {
		for call := range calls {
			if key == "" {
				c.n.calls.onRelease(call)
				continue
			}
			t := c.targets[key]
			t.released[call] = true
			t.link.send(message{Type: release, Call: call}) // a rank without a connection has no call here
		}
	}
}

func (c *coordinator) takeBack(key string, call uint64, name string) {
	b := c.barriers[name]
	delete(b[key], call)
	if len(b[key]) == 0 {
		c.dropCalls(name, key)
	}
}

// dropCalls forgets the calls of one rank at a barrier.
func (c *coordinator) dropCalls(name, key string) {
	delete(c.barriers[name], key)
	if len(c.barriers[name]) == 0 {
		delete(c.barriers, name)
	}
}

// dropArrivals forgets the calls of a rank whose connection has ended: the rank repeats them when it is back.
func (c *coordinator) dropArrivals(t *target) {
	for name := range c.barriers {
		c.dropCalls(name, t.key)
	}
}

// notAt lists the ranks that have no call at a barrier.
func (c *coordinator) notAt(name string) []Missing {
	if c.n.phase != Running {
		return c.n.missing()
	}
	var out []Missing
	b := c.barriers[name]
	for _, m := range c.n.roster.Members {
		key := m.ID
		if m.Nonce == c.n.self.Nonce {
			key = ""
		}
		if _, arrived := b[key]; arrived {
			continue
		}
		reason := "has not called it"
		if t := c.targets[key]; t != nil && t.link == nil {
			reason = "lost: " + explain(t.err)
		}
		out = append(out, Missing{Rank: m.Rank, Name: m.Display(), Reason: reason})
	}
	return out
}
