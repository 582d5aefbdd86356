package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPulse: a tick that comes late tells for how long this process was frozen, once.
func TestPulse(t *testing.T) {
	const begin = time.Hour
	p := &pulse{last: begin, taken: make(chan struct{}, 1)}
	for i := range 5 {
		p.beat(begin + time.Duration(i)*time.Second)
	}
	p.beat(begin + 4*time.Second + freezeTime - 1)
	require.Empty(t, p.taken, "late, as on a busy machine")

	p = &pulse{last: begin - 30*time.Second, taken: make(chan struct{}, 1)}
	p.beat(begin)
	require.Len(t, p.taken, 1)
	p.beat(begin + time.Second)
	require.Equal(t, 30*time.Second, p.take(begin+2*time.Second))
	require.Zero(t, p.take(begin+3*time.Second))

	p = &pulse{last: begin - 30*time.Second, taken: make(chan struct{}, 1)}
	require.Equal(t, 30*time.Second, p.take(begin), "the goroutine that ticks does not run yet")
}

// TestPulseTicks: it goes on by itself, until its end.
func TestPulseTicks(t *testing.T) {
	p := startPulse(t.Context())
	first := p.last
	last := func() time.Duration {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.last
	}
	require.Eventually(t, func() bool { return last() > first }, 10*time.Second, 10*time.Millisecond)
	p.end()
	p.end()
}
