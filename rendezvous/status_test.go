package rendezvous

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func standings(s Status) (out []string) {
	for _, r := range s.Ranks {
		line := r.Alias + " " + string(r.Standing)
		if r.Reason != "" {
			line += ": " + r.Reason
		}
		out = append(out, line)
	}
	return out
}

// TestStatus asks rank 0 and another rank, which report the same of the others, before the last rank is there, while
// the job runs, and after a rank is lost.
func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		lone := w.config(1, 4)
		w.set(addrOf(2), nil, syscall.EHOSTUNREACH)
		nodes := []*Node{nil, w.start(lone)}
		synctest.Wait()
		s := nodes[1].Status(t.Context())
		require.Equal(t, Gathering, s.Phase)
		require.Equal(t, []string{"worker-0 missing: never heard", "worker-1 present",
			"worker-2 missing: not heard by gossip", "worker-3 missing: not heard by gossip"}, standings(s))
		require.Equal(t, "10.0.0.0", s.Ranks[0].Host)
		require.Equal(t, 12345, s.Ranks[0].Port)

		nodes[0] = w.start(w.config(0, 4))
		time.Sleep(2 * time.Second) // virtual
		for _, n := range nodes {
			s := n.Status(t.Context())
			require.Equal(t, Gathering, s.Phase)
			require.Equal(t, []string{
				"worker-0 present", "worker-1 present", "worker-2 missing: 10.0.0.2:12345: no route to host",
				"worker-3 missing: 10.0.0.3:12345: connection refused",
			}, standings(s))
			require.Equal(t, 2, s.Ranks[1].Slots)
			require.Equal(t, -1, s.Ranks[2].Slots)
		}

		nodes = append(nodes, w.start(w.config(2, 4)), w.start(w.config(3, 4)))
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		lost := time.Now()
		w.set(addrOf(3), nil, syscall.ECONNREFUSED)
		w.cut(addrOf(3))
		time.Sleep(2 * time.Second)
		for _, n := range nodes[:3] {
			s := n.Status(t.Context())
			require.Equal(t, Running, s.Phase)
			require.EqualValues(t, 1, s.Epoch)
			require.Len(t, s.Hash, 64)
			require.Equal(t, []string{"worker-0 present", "worker-1 present", "worker-2 present",
				"worker-3 lost: 10.0.0.3:12345: connection refused"}, standings(s))
			require.True(t, s.Ranks[3].Since.Equal(lost), s.Ranks[3].Since)
		}
		// The rank that is cut off reports what it knows.
		s = nodes[3].Status(t.Context())
		require.Equal(t, []string{"worker-0 lost: the control connection to it is lost", "worker-1 present",
			"worker-2 present", "worker-3 present"}, standings(s))
		w.close(nodes...)
	})
}
