package sshd

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// door is where connections wait for their handshake. Handshakes cost processor time and memory, so only so many run at once; the others
// wait their turn, first come, first served. Three kinds do not stand in each other's way: peers of the job, of whom nobody is ever
// turned away; clients from elsewhere that have said something; and those that have said nothing yet. Of those from elsewhere one
// address has only some of the places, and only so many may wait: beyond that the one goes that has waited longest, which is
// hardly one of a person. An address with a place of its own waits only briefly for other addresses, which
// may keep the common places with handshakes that they never finish.
type door struct {
	peers, spoken, quiet chan struct{}
	limits               *limits

	mu        sync.Mutex
	strangers *list.List               // of *conn: without a login and not from peers, the oldest first
	sources   map[netip.Prefix]*source // by network
	dropped   int                      // since the last line in the log
	told      time.Time                // when that was
}

// source is one host from which strangers come: an IPv4 address, or the /64 of an IPv6 one.
type source struct {
	waiting       *list.List // those of strangers that are from here
	spoken, quiet chan struct{}
}

func newDoor(l *limits) *door {
	return &door{
		peers: make(chan struct{}, l.handshakes), spoken: make(chan struct{}, l.handshakes), quiet: make(chan struct{}, max(1, l.handshakes/4)),
		limits: l, strangers: list.New(), sources: make(map[netip.Prefix]*source),
	}
}

// enter lets a stranger's connection in, until leave is called. oldest has to go for it, if not nil; told counts those for which no line was written yet
// if it is time for one.
func (d *door) enter(c *conn, from netip.Addr) (s *source, leave func(), oldest *conn, told int) {
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
	case d.strangers.Len() >= d.limits.strangers:
		oldest = d.strangers.Front().Value.(*conn)
	}
	if oldest != nil {
		d.dropped++
		if now := time.Now(); now.Sub(d.told) >= time.Second {
			told, d.dropped, d.told = d.dropped, 0, now
		}
	}
	here, there := s.waiting.PushBack(c), d.strangers.PushBack(c)
	return s, sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.strangers.Remove(there)
		if s.waiting.Remove(here); s.waiting.Len() == 0 {
			delete(d.sources, key)
		}
	}), oldest, told
}

// wait returns when a client may begin its handshake; s is nil for a peer. The place is given back by release, or after one
// turn: slow clients delay others, but do not stop them, and go on beside the queue. So does a client that has waited
// limits.queue for a place that all strangers share.
func (d *door) wait(ctx context.Context, s *source, spoken bool) (release func(), ok bool) {
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
			places = places[:i] // the shared place is the last one
		case <-ctx.Done():
			giveBack(places[:i])
			return func() {}, false
		}
	}
	once := sync.OnceFunc(func() { giveBack(places) })
	turn := time.AfterFunc(d.limits.turn, once)
	return func() { turn.Stop(); once() }, true
}

func giveBack(places []chan struct{}) {
	for _, place := range places {
		<-place
	}
}

// network groups addresses that one host can use: it returns an IPv4 address itself, and the /64 of an IPv6 one.
func network(a netip.Addr) netip.Prefix {
	bits := 64
	if a.Is4() {
		bits = 32
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// ipOf is the address of a TCP peer; invalid for any other.
func ipOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
