package sshd

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// admission queues connections for their handshake. Handshakes cost processor time and memory, so a limited number runs
// at once, first come, first served. Peers of the job, other clients that have sent something, and silent clients have
// separate places. Peers are never dropped. Outside of the job, one address gets only some of the places, and a limited
// number of connections may wait: beyond that the oldest is dropped, which is rarely a person's. A client whose address
// has a free place waits only briefly for a shared place, which other addresses may block with unfinished handshakes.
type admission struct {
	peers, spoken, quiet chan struct{}
	limits               *limits

	mu      sync.Mutex
	pending *list.List               // of *conn: no login yet, not from peers, the oldest first
	sources map[netip.Prefix]*source // by network
	drops   repeat
}

// source is one host outside of the job: an IPv4 address, or the /64 of an IPv6 address.
type source struct {
	waiting       *list.List // the part of pending from this source
	spoken, quiet chan struct{}
}

func newAdmission(l *limits) *admission {
	return &admission{
		peers:   make(chan struct{}, l.handshakes),
		spoken:  make(chan struct{}, l.handshakes),
		quiet:   make(chan struct{}, max(1, l.handshakes/4)),
		limits:  l,
		pending: list.New(),
		sources: make(map[netip.Prefix]*source),
	}
}

// enter adds a connection from outside of the job until leave is called. If oldest is not nil, the caller must close
// it. If told is not 0, the caller logs that many dropped connections.
func (d *admission) enter(c *conn, from netip.Addr) (s *source, leave func(), oldest *conn, told int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := network(from)
	s = d.sources[key]
	if s == nil {
		n := d.limits.turns
		s = &source{waiting: list.New(), spoken: make(chan struct{}, n), quiet: make(chan struct{}, max(1, n/4))}
		d.sources[key] = s
	}
	switch {
	case s.waiting.Len() >= d.limits.perSource:
		oldest = s.waiting.Front().Value.(*conn)
	case d.pending.Len() >= d.limits.pending:
		oldest = d.pending.Front().Value.(*conn)
	}
	if oldest != nil {
		if log, again := d.drops.note(time.Now()); log {
			told = 1 + again
		}
	}
	here, there := s.waiting.PushBack(c), d.pending.PushBack(c)
	return s, sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.pending.Remove(there)
		if s.waiting.Remove(here); s.waiting.Len() == 0 {
			delete(d.sources, key)
		}
	}), oldest, told
}

// wait returns when a client may begin its handshake. s is nil for a peer. release frees the place; so does the end of
// one turn, so that slow clients delay others but do not stop them. A client that has waited limits.queue for a shared
// place continues without one.
func (d *admission) wait(ctx context.Context, s *source, spoken bool) (release func(), ok bool) {
	places := []chan struct{}{d.peers}
	switch {
	case s != nil && spoken:
		places = []chan struct{}{s.spoken, d.spoken}
	case s != nil:
		places = []chan struct{}{s.quiet, d.quiet}
	case !spoken:
		places[0] = d.quiet
	}
	for i, place := range places {
		var late <-chan time.Time
		if place == d.spoken || place == d.quiet {
			late = time.After(d.limits.queue)
		}
		select {
		case place <- struct{}{}:
		case <-late:
			places = places[:i] // the shared place is the last
		case <-ctx.Done():
			releaseAll(places[:i])
			return func() {}, false
		}
	}
	once := sync.OnceFunc(func() { releaseAll(places) })
	turn := time.AfterFunc(d.limits.turn, once)
	return func() { turn.Stop(); once() }, true
}

func releaseAll(places []chan struct{}) {
	for _, place := range places {
		<-place
	}
}

// network returns the addresses that one host can use: an IPv4 address itself, or the /64 of an IPv6 address.
func network(a netip.Addr) netip.Prefix {
	bits := 64
	if a.Is4() {
		bits = 32
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// ipOf returns the address of a TCP peer; it is invalid for any other.
func ipOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
