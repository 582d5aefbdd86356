package sshd

import (
	"sync"
	"time"
)

const (
	refusalPause = time.Minute // between two warnings about the same refusal
	maxRefusals  = 256         // different refusals to remember
)

// refusals limits warnings about repeated refusals: a paiinit of another job on the same host, or with another secret,
// connects every second.
type refusals struct {
	mu   sync.Mutex
	seen map[string]refusal
}

type refusal struct {
	warned time.Time
	since  int // refusals since then
}

// warn says whether to warn about a refusal, and how many like it were not logged since the last warning.
func (r *refusals) warn(kind string, now time.Time) (warn bool, unsaid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.seen[kind]
	if ok && now.Sub(known.warned) < refusalPause {
		known.since++
		r.seen[kind] = known
		return false, 0
	}
	if r.seen == nil || !ok && len(r.seen) >= maxRefusals {
		r.seen = make(map[string]refusal)
	}
	r.seen[kind] = refusal{warned: now}
	return true, known.since
}
