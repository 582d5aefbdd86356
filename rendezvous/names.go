package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// names resolves names as seldom as is useful. The DNS of a cluster caches a denial for seconds and shares it: a lookup
// just before the name exists costs every rank those seconds, and asking more often does not help. Every kind of
// failure is retried, because without a server for the root a name that does not exist yet is a "server misbehaving".
type names struct {
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	from   time.Time // no lookup before it

	mu    sync.Mutex
	hosts map[string]*name
	seen  map[netip.Addr]bool // every address that a lookup has returned
}

// name is one host. It is held during a lookup, so that all callers share the answer.
type name struct {
	held  chan struct{} // capacity 1
	addrs []netip.Addr
	err   error
	next  time.Time // no lookup before it
	pause time.Duration

	answered time.Time // when addrs were resolved; the mutex of names guards it
	asked    int       // lookups; the mutex of names guards it
}

var errNotAsked = errors.New("its name was not looked up yet")

const (
	firstAgain  = 250 * time.Millisecond
	latestAgain = 5500 * time.Millisecond // a little more than the longest time that CoreDNS caches a denial
	fresh       = time.Second             // an answer is used this long; its container may move
)

func (s *names) find(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	s.mu.Lock()
	h := s.hosts[host]
	if h == nil {
		h = &name{next: s.from, held: make(chan struct{}, 1)}
		s.hosts[host] = h
	}
	s.mu.Unlock()
	select {
	case h.held <- struct{}{}:
		defer func() { <-h.held }()
	case <-ctx.Done():
		return nil, fmt.Errorf("resolving %s: %w", host, context.Cause(ctx))
	}
	if now := time.Now(); now.Before(h.next) {
		if h.addrs == nil && h.err == nil {
			return nil, errNotAsked
		}
		return h.addrs, h.err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	s.mu.Lock()
	h.asked++
	s.mu.Unlock()
	addrs, err := s.lookup(ctx, host)
	if err != nil {
		h.pause = min(max(2*h.pause, firstAgain), latestAgain)
		h.next = time.Now().Add(h.pause)
		if h.addrs != nil {
			// Better an old address than none: the container that answers there must prove its identity.
			return h.addrs, nil
		}
		h.err = fmt.Errorf("resolving %s: %w", host, err)
		return nil, h.err
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	now := time.Now()
	h.addrs, h.err, h.pause, h.next = addrs, nil, 0, now.Add(fresh)
	s.mu.Lock()
	defer s.mu.Unlock()
	h.answered = now
	for _, a := range addrs {
		s.seen[a] = true
	}
	return addrs, nil
}

// has reports whether a name of the job resolves to an address, or did.
func (s *names) has(a netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[a]
}

// answered returns when the addresses that find returns were resolved: a later lookup may have failed.
func (s *names) answered(host string) time.Time {
	if _, err := netip.ParseAddr(host); err == nil {
		return time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hosts[host]; h != nil {
		return h.answered
	}
	return time.Time{}
}

// lookups counts the lookups of a name.
func (s *names) lookups(host string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hosts[host]; h != nil {
		return h.asked
	}
	return 0
}
