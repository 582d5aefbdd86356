package sshd

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A burst is one line, an endless flood a line at growing intervals. Each line counts the events between.
func TestRepeats(t *testing.T) {
	for _, row := range []struct {
		events   int
		interval time.Duration
		want     string // the lines: time and the number of events that were not logged before
	}{
		{1, 0, "0s+0"},
		{31, 300 * time.Millisecond, "0s+0"},
		{250, time.Second, "0s+0 1m40s+99"},
		{1000, time.Second, "0s+0 1m40s+99 11m40s+599"},
		{1_000_000, time.Millisecond, "0s+0 100ms+99 10.1s+9999 10m10.1s+599999"},
		{3, 10 * time.Minute, "0s+0 10m0s+0 20m0s+0"},
	} {
		var r repeats
		start := time.Unix(0, 0)
		text, events := "", 0
		for i := range row.events {
			at := time.Duration(i) * row.interval
			log, again, many := r.note(netip.MustParseAddr("10.0.0.1"), "no key", start.Add(at))
			require.False(t, many)
			if log {
				text += fmt.Sprintf(" %v+%d", at, again)
				events += 1 + again
			}
		}
		require.Equal(t, " "+row.want, text)
		require.LessOrEqual(t, events, row.events)
	}
}

// Hosts and kinds of events are apart. What is remembered is bounded, and so are the lines.
func TestRepeatsOfManyHosts(t *testing.T) {
	var r repeats
	now := time.Unix(0, 0)
	note := func(from, kind string) bool {
		log, _, _ := r.note(netip.MustParseAddr(from), kind, now)
		return log
	}
	require.True(t, note("10.0.0.1", "no key"))
	require.False(t, note("10.0.0.1", "no key"))
	require.True(t, note("10.0.0.1", "expired key"))
	require.True(t, note("10.0.0.2", "no key"))
	require.True(t, note("2001:db8::1", "no key"))
	require.False(t, note("2001:db8::ffff", "no key"), "the same host has a whole /64")
	require.True(t, note("2001:db8:0:1::1", "no key"))
	lines := 0
	for i := range 1000 {
		if note("10.0.0.3", fmt.Sprint("kind ", i)) {
			lines++
		}
	}
	require.Equal(t, maxKinds+2, lines, "the kinds, the rest, and 100 repetitions of the rest")

	lines, total, of := 0, 0, 0
	for i := range 20_000 {
		log, again, many := r.note(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), "no key", now)
		if log {
			lines++
		}
		if log && many {
			total, of = total+1+again, of+1
		}
		require.LessOrEqual(t, len(r.hosts), maxHosts)
	}
	require.Equal(t, maxHosts-5+3, lines, "the hosts, and three lines for the rest")
	require.Equal(t, 3, of)
	require.Equal(t, 1+100+10_000, total)

	now = now.Add(repeatPause)
	require.True(t, note("10.2.0.1", "no key"))
	require.Len(t, r.hosts, 1)
}
