package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A barrier is a name that every rank calls once all ranks have been told to go.
//
//	a rank                                     rank 0
//	   arrive(call, name)  ------------------>  notes it
//	   leave(call)  ------------------------->  the caller is gone: takes it back
//	   ...until every rank has one call at that name...
//	                  <-----------------------  release(call), to all of them at once
//	   released(call)  ---------------------->  forgets it
//
// A release empties the barrier, so the name can be used again at once: a call that comes later counts for the next time. A rank
// whose connection was lost repeats its calls when it is back; a call that was released meanwhile is released again, so nobody
// waits for a time that is over.

// MaxName is the longest name of a barrier, in bytes.
const MaxName = 128

// ErrOver says that the job ended while somebody waited for something else; Wait tells how.
var ErrOver = errors.New("the job is over")

// BarrierError says who had not called a barrier when a caller gave up.
type BarrierError struct {
	Name   string
	Size   int
	Absent []Missing // empty when rank 0 could not be asked
}

func (e *BarrierError) Error() string {
	if len(e.Absent) == 0 {
		return fmt.Sprintf("barrier %q: not every rank has come, and rank 0 does not say who is awaited", e.Name)
	}
	return fmt.Sprintf("barrier %q: %d of %d ranks have come; missing: %s", e.Name, e.Size-len(e.Absent), e.Size, Fold(e.Absent))
}

// calls are what this container wants of rank 0. Only the loop touches them.
type calls struct {
	n       *Node
	last    uint64
	asked   map[uint64]chan message
	waiting map[uint64]*arrival // not released yet
}

type arrival struct {
	name     string
	released chan struct{}
}

// barrier holds the calls of one name: those of this container under "", those of others under their targets' keys.
type barrier map[string]map[uint64]bool

// Barrier returns once every rank has called it with that name, in each of which callers of one rank count once. Before all
// ranks are present it waits for them, too. Its errors are *BarrierError when ctx ends, and ErrOver.
func (n *Node) Barrier(ctx context.Context, name string) error {
	if name == "" || len(name) > MaxName {
		return fmt.Errorf("rendezvous: the name of a barrier has 1 to %d bytes, not %d", MaxName, len(name))
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
	select {
	case <-a.released:
		return nil
	case <-n.finished:
		return a.over()
	case <-n.ctx.Done():
		return a.over()
	case <-ctx.Done():
	}
	absent := n.calls.absentAt(name)
	released, size := false, n.cfg.Size
	n.ask(func() {
		if n.phase == Running {
			size = len(n.roster.Members)
		}
		if _, waiting := n.calls.waiting[call]; !waiting {
			released = true // between the end of ctx and now
			return
		}
		delete(n.calls.waiting, call)
		n.calls.leave(call, name)
	})
	if released {
		return nil
	}
	return &BarrierError{Name: name, Size: size, Absent: absent}
}

// over is for a call that sees the end of the job: it may have been released just before that.
func (a *arrival) over() error {
	select {
	case <-a.released:
		return nil
	default:
		return ErrOver
	}
}

// absentAt lists who is awaited: at the barrier, or at all.
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
		if m, ok := k.inquire(k.n.ctx, name); ok { // the caller's time is over, but not the node's
			absent = m.Missing
		}
	}
	return absent
}

// arrive tells rank 0 of a call, if it can be told now; resumeCalls repeats what could not.
func (k *calls) arrive(call uint64, a *arrival) {
	switch {
	case k.n.phase != Running:
	case k.n.lead != nil:
		k.n.lead.noteArrival("", call, a.name)
	case k.n.up.wire != nil:
		k.n.up.wire.send(message{Type: arrive, Call: call, Name: a.name})
	}
}

func (k *calls) leave(call uint64, name string) {
	switch {
	case k.n.lead != nil:
		k.n.lead.takeBack("", call, name)
	case k.n.up.wire != nil:
		k.n.up.wire.send(message{Type: leave, Call: call, Name: name})
	}
}

// resumeCalls tells rank 0 of every call: when the job starts, and when the connection is back.
func (k *calls) resume() {
	order := make([]uint64, 0, len(k.waiting))
	for call := range k.waiting {
		order = append(order, call)
	}
	slices.Sort(order)
	for _, call := range order {
		if a, ok := k.waiting[call]; ok {
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

// onArrive is rank 0's part.
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
	if c.barriers == nil {
		c.barriers = make(map[string]barrier)
	}
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
			if t.released == nil {
				t.released = make(map[uint64]bool)
			}
			t.released[call] = true
			t.link.send(message{Type: release, Call: call}) // a rank without a connection has no call here
		}
	}
}

func (c *coordinator) takeBack(key string, call uint64, name string) {
	b := c.barriers[name]
	delete(b[key], call)
	if len(b[key]) == 0 {
		delete(b, key)
	}
	if len(b) == 0 {
		delete(c.barriers, name)
	}
}

// dropArrivals forgets the calls of a rank whose connection has ended: it repeats those that still wait when it is back.
func (c *coordinator) dropArrivals(t *target) {
	for name, b := range c.barriers {
		delete(b, t.key)
		if len(b) == 0 {
			delete(c.barriers, name)
		}
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
		out = append(out, Missing{Rank: m.Rank, Name: m.Alias, Reason: reason})
	}
	return out
}
