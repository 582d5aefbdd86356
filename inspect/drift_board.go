package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// maxEncoded bounds the facts of one rank on the wire.
const maxEncoded = 8 << 10

// Encode packs facts for rank 0. It leaves out the last ones of more than 8 KiB.
func Encode(facts []Fact) []byte {
	for ; ; facts = facts[:len(facts)-1] {
		pairs := make([][2]string, 0, len(facts))
		for _, f := range facts {
			pairs = append(pairs, [2]string{f.Name, f.Value})
		}
		if b, err := json.Marshal(pairs); err == nil && len(b) <= maxEncoded || len(facts) == 0 {
			return b
		}
	}
}

// decode returns nil for facts that cannot be read.
func decode(b []byte) []Fact {
	var pairs [][2]string
	if len(b) > maxEncoded || json.Unmarshal(b, &pairs) != nil {
		return nil
	}
	facts := make([]Fact, 0, len(pairs))
	for _, p := range pairs {
		facts = append(facts, Fact{clean(p[0]), clean(p[1])})
	}
	return facts
}

// Board holds the facts of all ranks, on rank 0. Its methods may be called from several goroutines.
type Board struct {
	mu     sync.Mutex
	facts  map[string][]byte // encoded, by the ID of the rank
	skews  map[string]time.Duration
	clocks map[string]string
	came   chan struct{} // closed and replaced when facts arrive

	preflights map[string][]byte // encoded results, by the ID of the rank
}

// The kinds of notes that a rank sends to rank 0.
const (
	factsNote     = "facts"
	preflightNote = "preflight"
)

// Put notes what a rank has told: its encoded facts, or the result of its preflight. skew is this container's time of
// day at the arrival minus the rank's time of day when it sent them.
func (b *Board) Put(id, kind string, encoded []byte, skew time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.facts == nil {
		b.facts, b.skews, b.clocks = make(map[string][]byte), make(map[string]time.Duration), make(map[string]string)
		b.preflights = make(map[string][]byte)
	}
	if kind == preflightNote {
		b.preflights[id] = encoded
		return
	}
	b.facts[id], b.skews[id] = encoded, skew
	if b.came != nil {
		close(b.came)
		b.came = nil
	}
}

// Await waits until the facts of all these ranks are there, or ctx ends. It returns the ranks without facts.
func (b *Board) Await(ctx context.Context, ranks []Rank) (absent []Rank) {
	for {
		b.mu.Lock()
		if b.came == nil {
			b.came = make(chan struct{})
		}
		came := b.came
		absent = slices.DeleteFunc(slices.Clone(ranks), func(r Rank) bool { return b.facts[r.ID] != nil })
		b.mu.Unlock()
		if len(absent) == 0 {
			return nil
		}
		select {
		case <-came:
		case <-ctx.Done():
			return absent
		}
	}
}

// maxSkew is a difference between clocks that certificates, file systems and the order of log lines do not forgive.
const maxSkew = time.Second

// Suspects returns the ranks whose clock may differ by more than a second: a message that was late looks the same. The
// caller measures their clocks and calls Skew.
func (b *Board) Suspects(ranks []Rank) []Rank {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(ranks), func(r Rank) bool { return b.skews[r.ID].Abs() <= maxSkew })
}

// Skew notes how far a rank's clock is ahead of this container's, at most bound more or less.
func (b *Board) Skew(id string, ahead, bound time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ahead.Abs()-bound <= maxSkew || b.clocks == nil {
		return
	}
	where := "ahead of"
	if ahead < 0 {
		where = "behind"
	}
	b.clocks[id] = fmt.Sprintf("%v %s rank 0", ahead.Abs().Round(100*time.Millisecond), where)
}

// Compare fills in the facts of the ranks by their IDs. It returns what differs, and the names of the ranks whose facts
// are not known.
func (b *Board) Compare(ranks []Rank) (drifts []Drift, absent []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ranks = slices.Clone(ranks)
	decoded := make(map[string][]Fact) // most ranks have equal facts
	for i := range ranks {
		r := &ranks[i]
		text := string(b.facts[r.ID])
		if _, ok := decoded[text]; !ok {
			decoded[text] = decode([]byte(text))
		}
		if r.Facts = slices.Clip(decoded[text]); r.Facts == nil {
			absent = append(absent, r.Name)
			continue
		}
		if len(b.clocks) > 0 {
			value := b.clocks[r.ID]
			if value == "" {
				value = "as on rank 0"
			}
			r.Facts = append(r.Facts, Fact{ClockFact, value})
		}
	}
	return Compare(ranks), absent
}
