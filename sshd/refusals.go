package sshd

import (
	"sync"
	"time"
)

const (
	refusalPause = time.Minute // between two warnings about the same refusal
	maxRefusals  = 256         // kinds that are told apart
)

// refusals thins out the warnings about logins that are refused again and again: a paiinit of another job that shares
// the host dials every second, and so does one with another secret.
type refusals struct {
	mu   sync.Mutex
	seen map[string]*refusal
}

type refusal struct {
	warned time.Time
	since  int // refused since then
}

// warn says whether a refusal deserves a warning, and how many like it there were since the last one.
func (r *refusals) warn(kind string, now time.Time) (warn bool, unsaid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.seen[kind]
	switch {
	case !ok && len(r.seen) >= maxRefusals:
		clear(r.seen)
		fallthrough
	case !ok:
		if r.seen == nil {
			r.seen = make(map[string]*refusal)
		}
		r.seen[kind] = &refusal{warned: now}
		return true, 0
	case now.Sub(known.warned) < refusalPause:
		known.since++
		return false, 0
	}
	unsaid = known.since
	*known = refusal{warned: now}
	return true, unsaid
}
