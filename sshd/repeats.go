package sshd

import (
	"net/netip"
	"sync"
	"time"
)

const (
	repeatPause = 10 * time.Minute // between two lines about the same event of one host
	firstRepeat = 100              // repetitions that are logged at once; then 100 times as many
	maxHosts    = 64               // hosts to remember; all others share one line
	maxKinds    = 4                // kinds of events to remember of each host; all others share one line
)

// repeats limits the log lines that a client can cause again and again: scanners, a person with a wrong key, and a
// paiinit of another job or with another secret, which connects every second.
type repeats struct {
	mu    sync.Mutex
	hosts map[netip.Prefix]map[string]*repeat // by network of the client and kind of event
	other repeat                              // of all further hosts
}

// repeat counts an event.
type repeat struct {
	logged time.Time
	since  int // events since then
	next   int // the count that is logged at once
}

// note says whether to log an event, and how many like it were not logged since the last line. many means that the line
// stands for hosts that are too many to remember.
func (r *repeats) note(from netip.Addr, kind string, now time.Time) (log bool, again int, many bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts == nil {
		r.hosts = make(map[netip.Prefix]map[string]*repeat)
	}
	host := network(from)
	kinds := r.hosts[host]
	if kinds == nil {
		r.forget(now)
		if len(r.hosts) >= maxHosts {
			log, again = r.other.note(now)
			return log, again, true
		}
		kinds = make(map[string]*repeat)
		r.hosts[host] = kinds
	}
	if kinds[kind] == nil && len(kinds) >= maxKinds {
		kind = ""
	}
	if kinds[kind] == nil {
		kinds[kind] = new(repeat)
	}
	log, again = kinds[kind].note(now)
	return log, again, false
}

// forget drops hosts whose next event is logged in any case, when there are too many hosts.
func (r *repeats) forget(now time.Time) {
	if len(r.hosts) < maxHosts {
		return
	}
	for host, kinds := range r.hosts {
		for kind, k := range kinds {
			if now.Sub(k.logged) >= repeatPause {
				delete(kinds, kind)
			}
		}
		if len(kinds) == 0 {
			delete(r.hosts, host)
		}
	}
}

func (r *repeat) note(now time.Time) (log bool, again int) {
	switch {
	case r.logged.IsZero() || now.Sub(r.logged) >= repeatPause:
		again = r.since
		if again < firstRepeat { // else the flood goes on
			r.next = firstRepeat
		}
	case r.since+1 < r.next:
		r.since++
		return false, 0
	default:
		again, r.next = r.since, r.next*firstRepeat
	}
	r.logged, r.since = now, 0
	return true, again
}
