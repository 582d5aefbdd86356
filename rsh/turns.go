package rsh

import (
	"context"
	"slices"
	"sync"
	"time"
)

// turns limits the logins that are under way at once, first come, first served. If too many share the processors, none
// ends before its timeout, and the work for all of them is lost. Logins that wait for a slow network or a stopped peer
// do not hold up the others for long: while none ends, one more begins from time to time.
type turns struct {
	mu    sync.Mutex
	under int             // logins under way
	queue []chan struct{} // logins that wait; each is closed when its turn comes
	ended time.Time       // the last end of a login while others waited, or the start of that wait
	moved time.Time       // the same, or the last start of a login beyond mostLogins
	gap   time.Duration   // moving average between the ends of two logins while others waited
	more  *time.Timer     // starts one more login; nil while none waits
}

const (
	mostLogins = 64
	stuckAfter = 300 * time.Millisecond // if no login ends for this long, one more begins; longer if logins are slow
)

// wait returns when a login may begin, or when ctx has ended. The caller calls end once, after the login.
func (t *turns) wait(ctx context.Context) (end func(), err error) {
	t.mu.Lock()
	if t.under < mostLogins && len(t.queue) == 0 {
		t.under++
		t.mu.Unlock()
		return t.end, nil
	}
	turn := make(chan struct{})
	t.queue = append(t.queue, turn)
	if len(t.queue) == 1 {
		t.ended = time.Now()
		t.moved = t.ended
		t.more = time.AfterFunc(t.stuck(), t.oneMore)
	}
	t.mu.Unlock()
	select {
	case <-turn:
		return t.end, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.queue, turn); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
	} else {
		t.under-- // its turn came at the same moment
	}
	t.next()
	return nil, context.Cause(ctx)
}

func (t *turns) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.under--
	if len(t.queue) > 0 {
		now := time.Now()
		t.gap = (3*t.gap + now.Sub(t.ended)) / 4
		t.ended, t.moved = now, now
	}
	t.next()
}

// next begins waiting logins while there is room, and stops the timer when none waits. Its caller holds the lock.
func (t *turns) next() {
	for t.under < mostLogins && len(t.queue) > 0 {
		t.begin()
	}
	if len(t.queue) == 0 && t.more != nil {
		t.more.Stop()
		t.more = nil
	}
}

func (t *turns) begin() {
	close(t.queue[0])
	t.queue = t.queue[1:]
	t.under++
}

func (t *turns) stuck() time.Duration { return max(stuckAfter, 4*t.gap) }

// oneMore begins a login if none has ended for long.
func (t *turns) oneMore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) > 0 && time.Since(t.moved) >= t.stuck() {
		t.begin()
		t.moved = time.Now()
		t.next()
	}
	if t.more != nil {
		t.more.Reset(time.Until(t.moved.Add(t.stuck())))
	}
}
