package restart

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// Book is what one container knows of the restarts of its job. Rank 0 decides by it; the other ranks hold what rank 0
// has told them, so that all ranks tell the same. It is safe for concurrent use.
type Book struct {
	First string // End.Progress before the first launch, set before the first call of Ended

	mu      sync.Mutex
	history *History      // nil = no generation has ended
	begun   time.Time     // when all ranks had agreed on this generation
	cleared time.Duration // until no process of the last one was left
	told    Order
}

// Order is what rank 0 tells the other ranks when it greets them, and when a generation has ended.
type Order struct {
	Policy  Policy          `json:"policy"`
	Grace   time.Duration   `json:"grace"`  // from SIGTERM to SIGKILL
	Rejoin  time.Duration   `json:"rejoin"` // for a lost container to come back
	History json.RawMessage `json:"history"`
}

// Begun records that all ranks have agreed on a generation: present is the time until all ranks were present, gathered
// the time until they had agreed. It returns the attributes of the log record "the job runs again", nil for the first
// generation.
func (b *Book) Begun(generation int, present, gathered time.Duration, now time.Time) []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun = now
	if b.history == nil {
		return nil
	}
	b.history.Resumed(Resumption{
		Generation: generation, Clear: b.cleared, Rejoin: present, Commit: gathered - present,
	}, now)
	return b.history.ResumedAttrs()
}

// Ended records how this generation ended, and decides whether the job starts again. It sets End.Ran.
func (b *Book) Ended(p Policy, end End, now time.Time) Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.history == nil {
		b.history = New(p, b.First)
	}
	end.Ran = now.Sub(b.begun)
	return b.history.Add(end, now)
}

// Decision returns the decision on the last end.
func (b *Book) Decision() Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.history == nil {
		return Decision{}
	}
	return b.history.decision()
}

// Cleared records how long it took until no process of the last generation was left.
func (b *Book) Cleared(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cleared = took
}

// Left reports whether a failure may start the job again.
func (b *Book) Left(p Policy) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return p.Restarts != 0 && (b.history == nil || b.history.Left())
}

// Final is [History.Final].
func (b *Book) Final(status int, reason string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.history == nil {
		return reason
	}
	return b.history.Final(status, reason)
}

// RestartingAttrs is [History.RestartingAttrs].
func (b *Book) RestartingAttrs() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.history == nil {
		return nil
	}
	return b.history.RestartingAttrs()
}

// Restarts is [History.Restarts], nil if no generation has ended.
func (b *Book) Restarts() []Restart {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.history == nil {
		return nil
	}
	return b.history.Restarts()
}

// Variables is [History.Variables]. p counts before the first end.
func (b *Book) Variables(p Policy, generation int, oneProcess bool) []Variable {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.history
	if h == nil {
		h = New(p, "")
	}
	return h.Variables(generation, oneProcess)
}

// Tell returns rank 0's order to the other ranks, with the history until now.
func (b *Book) Tell(p Policy, grace, rejoin time.Duration) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = Order{Policy: p, Grace: grace, Rejoin: rejoin}
	return b.text()
}

// text returns the last order with what this container knows now.
func (b *Book) text() []byte {
	h := b.history
	if h == nil {
		h = New(b.told.Policy, "")
	}
	b.told.History = h.Encode()
	return b.told.encode()
}

func (o *Order) encode() []byte {
	text, _ := json.Marshal(o) // it has only numbers and JSON
	return text
}

// Told returns the last order, and its text for a container that joins the next generation, with the history until now.
// Without an order the text is nil.
func (b *Book) Told() (Order, []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.told.History == nil {
		return b.told, nil
	}
	text := b.text()
	return b.told, text
}

// Adopt takes the text of a rank that has outlived the last rank 0. It returns the text for all ranks, and for how long
// they wait for a lost container.
func (b *Book) Adopt(text []byte) (own []byte, rejoin time.Duration, err error) {
	if err := b.Hear(text); err != nil {
		return nil, 0, err
	}
	o, text := b.Told()
	return text, o.Rejoin, nil
}

// Hear takes the text of rank 0's order.
func (b *Book) Hear(text []byte) error {
	var o Order
	if err := json.Unmarshal(text, &o); err != nil {
		return fmt.Errorf("reading rank 0's order: %w", err)
	}
	h, err := Decode(o.Policy, o.History)
	if err != nil {
		return err
	}
	if h.state.Ends == 0 {
		h = nil
	}
	o.Grace, o.Rejoin = max(0, o.Grace), max(0, o.Rejoin)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.history, b.told = h, o
	return nil
}
