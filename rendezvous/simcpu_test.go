package rendezvous

import (
	"context"
	"sync"
	"time"
)

// simCPU is a few processors that all hosts share, as the containers of one machine do. A host that has work queues for
// them: its oldest piece is done as a whole, then the next host has its turn, so that a host with much work gets no
// more than any other.
type simCPU struct {
	mu    sync.Mutex
	free  int
	ready []*simHost // with work, in the order of their turns
	spent map[string]time.Duration
	cost  simCosts
}

// simCosts is the processor time of each kind of work.
type simCosts struct {
	start   time.Duration
	step    time.Duration // of a login: there are two on each side
	message time.Duration // to read one
	packet  time.Duration
	stream  time.Duration // of gossip, on each side
}

// usualCosts were measured on real processes.
var usualCosts = simCosts{start: 20 * time.Millisecond, step: time.Millisecond, message: 200 * time.Microsecond,
	packet: 50 * time.Microsecond, stream: 1500 * time.Microsecond}

func (c simCosts) times(n int) simCosts {
	for _, d := range []*time.Duration{&c.start, &c.step, &c.message, &c.packet, &c.stream} {
		*d *= time.Duration(n)
	}
	return c
}

type simWork struct {
	cost time.Duration
	done chan struct{}
}

func newSimCPU(processors int, cost simCosts) *simCPU {
	return &simCPU{free: processors, spent: map[string]time.Duration{}, cost: cost}
}

// use returns when the host has had its processor time, or at once if ctx ended before its turn came.
func (c *simCPU) use(ctx context.Context, h *simHost, what string, cost time.Duration) {
	if c == nil || cost == 0 {
		return
	}
	w := &simWork{cost, make(chan struct{})}
	c.mu.Lock()
	c.spent[what] += cost
	h.work = append(h.work, w)
	if len(h.work) == 1 {
		c.queue(h)
	}
	c.dispatch()
	c.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
	}
}

// queue lets a host wait for its turn. The lock is held.
func (c *simCPU) queue(h *simHost) {
	h.ready = time.Now()
	c.ready = append(c.ready, h)
}

// dispatch gives free processors to the hosts whose turn it is. The lock is held.
func (c *simCPU) dispatch() {
	for c.free > 0 && len(c.ready) > 0 {
		h := c.ready[0]
		c.ready = c.ready[1:]
		c.free--
		w := h.work[0]
		h.waited += time.Since(h.ready)
		time.AfterFunc(w.cost, func() {
			close(w.done)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.free++
			if h.work = h.work[1:]; len(h.work) > 0 {
				c.queue(h)
			}
			c.dispatch()
		})
	}
}

// delay is Config.Delay of a host.
func (c *simCPU) delay(h *simHost) func() time.Duration {
	return func() time.Duration {
		c.mu.Lock()
		defer c.mu.Unlock()
		return h.waited
	}
}
