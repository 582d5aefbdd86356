package rendezvous

import (
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// seconds lists what happened to a rank, in seconds after begin.
func atSeconds(e Times, begin time.Time) string {
	out := e.Name
	for _, at := range []struct {
		what string
		time time.Time
	}{
		{"started", e.Started}, {"heard", e.Heard}, {"reachable", e.Reachable}, {"committed", e.Committed},
		{"launched", e.Launched}, {"session", e.Session}, {"ended", e.Ended},
	} {
		if !at.time.IsZero() {
			out += fmt.Sprintf(" %s %.0f", at.what, at.time.Sub(begin).Seconds())
		}
	}
	if e.Lost {
		out += " lost"
	}
	if e.Reason != "" {
		out += ": " + e.Reason
	}
	return out
}

func allSeconds(all []Times, begin time.Time) (out []string) {
	for _, e := range all {
		out = append(out, atSeconds(e, begin))
	}
	return out
}

// TestTimes follows a job whose last container starts 5 s late and dies. Rank 0 and another rank, whose clock is hours
// away, report the same.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		begin := time.Now()
		begun := func(rank int, age time.Duration) *Node {
			cfg := w.config(rank, 3)
			cfg.Started = time.Now().Add(-age)
			return w.start(cfg)
		}
		time.Sleep(time.Second) // virtual
		nodes := []*Node{nil, begun(1, 0)}
		require.Equal(t, []string{"worker-1 started 1"}, allSeconds(nodes[1].Times(t.Context()), begin))
		time.Sleep(time.Second)
		nodes[0] = begun(0, 2*time.Second)
		time.Sleep(5 * time.Second)
		for _, n := range nodes {
			require.Equal(t, []string{
				"worker-0 started 0 heard 2 reachable 2",
				"worker-1 started 1 heard 2 reachable 2",
				"worker-2: 10.0.0.2:12345: connection refused",
			}, allSeconds(n.Times(t.Context()), begin))
		}

		nodes = append(nodes, begun(2, 500*time.Millisecond))
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		time.Sleep(time.Second)
		nodes[0].Launched()
		nodes[0].Session(nodes[2].Self().ID)
		nodes[0].Session("another-job-0")
		synctest.Wait()
		late := nodes[0].Times(t.Context())[2]
		require.InDelta(t, 6.5, late.Started.Sub(begin).Seconds(), 0.1)
		require.False(t, late.Heard.Before(late.Started))
		require.False(t, late.Reachable.Before(late.Heard))
		require.False(t, late.Committed.Before(late.Reachable))
		require.False(t, late.Launched.Before(late.Committed))
		require.False(t, late.Session.Before(late.Launched))
		require.Zero(t, late.Ended)

		w.set(addrOf(2), nil, syscall.ECONNREFUSED)
		w.cut(addrOf(2))
		lost := time.Now()
		time.Sleep(time.Second)
		for _, n := range nodes[:2] {
			e := n.Times(t.Context())[2]
			require.True(t, e.Lost)
			require.True(t, e.Ended.Equal(lost), e.Ended)
			require.NotEmpty(t, e.Reason)
		}
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 3}, 0))
		all := nodes[0].Times(t.Context())
		require.NotZero(t, all[0].Launched)
		for _, e := range all[:2] {
			require.False(t, e.Lost, e.Name)
			require.NotZero(t, e.Ended, e.Name)
		}
		w.close(nodes...)
	})
}

// TestTimesGivenUp asks rank 0 after the deadline, when no roster was ever agreed.
func TestTimesGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(0, 2)
		cfg.Timeout = 3 * time.Second
		n := w.start(cfg)
		begin := time.Now()
		_, err := n.Gather(t.Context())
		require.Error(t, err)
		require.NoError(t, n.Finish(t.Context(), Outcome{Status: 75}, 0))
		require.Equal(t, []string{
			"worker-0 heard 0 reachable 0 ended 3", "worker-1: 10.0.0.1:12345: connection refused",
		}, allSeconds(n.Times(t.Context()), begin))
		w.close(n)
	})
}

// TestTimesOfManyRanks keeps the answer for a large job well below the limit of a message.
func TestTimesOfManyRanks(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.UTC)
	e := Times{
		Rank: 1234, Name: "worker-1234", Started: now, Resolved: now, Heard: now, Reachable: now, Committed: now,
		Launched: now, Session: now, Ended: now,
	}
	b, err := json.Marshal(e)
	require.NoError(t, err)
	require.Less(t, 4000*len(b), maxMessage/4)
}
