package rendezvous

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	repeatPause = time.Minute // between two lines about the same peer
	maxRepeats  = 64          // peers to remember
)

// repeats limits the warnings about peers that are refused again and again: a line for the first refusal of each peer,
// then at most one per repeatPause, and one at the end, with the count. Peers that find no place share one line.
type repeats struct {
	log *slog.Logger

	mu    sync.Mutex
	peers map[string]*repeat // by message and peer
	more  repeat             // of all other peers
}

type repeat struct {
	message string
	attrs   []any
	count   int
	told    int // count in the last line
	at      time.Time
}

// warn counts a refusal of a peer, and logs it unless a line about it is recent.
func (r *repeats) warn(peer, message string, attrs ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := message + "\n" + peer
	known := r.peers[key]
	switch {
	case known != nil:
	case len(r.peers) < maxRepeats:
		if r.peers == nil {
			r.peers = make(map[string]*repeat)
		}
		known = &repeat{}
		r.peers[key] = known
	default:
		known, message, attrs = &r.more, "more peers were refused", []any{"last", message, "peer", peer}
	}
	known.message, known.attrs = message, attrs
	known.count++
	if known.told == 0 || time.Since(known.at) >= repeatPause {
		r.say(known)
	}
}

func (r *repeats) say(k *repeat) {
	attrs := k.attrs
	if k.count > 1 {
		attrs = append(slices.Clone(attrs), "count", k.count)
	}
	k.told, k.at = k.count, time.Now()
	r.log.Warn(k.message, attrs...)
}

// end logs the counts that no line has told.
func (r *repeats) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(r.peers)) {
		if k := r.peers[key]; k.count > k.told {
			r.say(k)
		}
	}
	if r.more.count > r.more.told {
		r.say(&r.more)
	}
}
