package rendezvous

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKills: every rank tells rank 0 how many processes were killed in its container, and how the job ended reaches
// every rank with all that rank 0 knows.
func TestKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 4
		w := newWorld(t)
		var nodes []*Node
		for i := range size {
			cfg := w.config(i, size)
			if i == 2 {
				cfg.Kills = func() int { return 3 }
			}
			nodes = append(nodes, w.start(cfg))
		}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, map[int]int{2: 3}, nodes[0].Kills(ctx))
		require.Nil(t, nodes[1].Kills(ctx))
		want := Outcome{
			Status: 137, Reason: "killed", After: time.Hour, Stderr: "a\nb", Stdout: "c", Own: true, Next: "look",
		}
		require.NoError(t, nodes[0].Finish(t.Context(), want, 0))
		for _, n := range nodes[1:] {
			got, err := n.Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		w.close(nodes...)
	})
}
