package rendezvous

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEveryRankReportsAndIsOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 4
		w := newWorld(t)
		var nodes []*Node
		for i := range size {
			nodes = append(nodes, w.start(w.config(i, size)))
		}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		w.cut(addrOf(3)) // it learns the order, and tells its end, when it is reached again
		nodes[0].Order(15, "worker-2 failed")
		nodes[0].Order(9, "only the first order counts")
		for i, n := range nodes[1:] {
			var s Stop
			select {
			case s = <-n.Stops():
			case <-time.After(time.Minute):
				require.FailNow(t, "it was not told the order", "rank %d", i+1)
			}
			require.Equal(t, Stop{Name: "worker-0", Signal: 15, Reason: "worker-2 failed"}, s)
			n.Report(End{Outcome: Outcome{Status: i + 1, Reason: "ended"}, After: time.Duration(i), Stopped: true})
		}
		w.cut(addrOf(2)) // the report is repeated, and counts once
		got := map[int]End{}
		for range size - 1 {
			e := <-nodes[0].Ends()
			got[e.Rank] = e
		}
		for i := 1; i < size; i++ {
			require.Equal(t, End{Rank: i, Name: fmt.Sprintf("worker-%d", i), Outcome: Outcome{Status: i, Reason: "ended"}, After: time.Duration(i - 1), Stopped: true}, got[i])
		}
		time.Sleep(time.Minute)
		require.Empty(t, nodes[0].Ends())
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 2}, 0))
		w.close(nodes...)
	})
}

// Whoever cannot take part, nothing is judged and nothing is launched, and all end with the reason.
func TestAnUnfitRankEndsTheJob(t *testing.T) {
	const size = 3
	unfit := Outcome{Status: 127, Reason: "no such command"}
	for k, reason := range []string{"no such command", "no such command", "worker-2: no such command", "worker-2: no such command"} {
		who, looks := k/2*(size-1), k%2 > 0
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			var nodes []*Node
			for i := range size {
				cfg := w.config(i, size)
				if i == who {
					cfg.Unfit = &unfit
				}
				if looks {
					found := make(chan []byte, 1)
					found <- []byte("found") // an unfit rank's does not count
					cfg.Fabric = found
				}
				cfg.Verify = func(Roster) *Outcome {
					t.Error("a roster with a rank that cannot take part was judged")
					return nil
				}
				nodes = append(nodes, w.start(cfg))
				time.Sleep(10 * time.Second) // the last one is the one that is waited for
			}
			_, err := nodes[0].Gather(t.Context())
			var e *EndedError
			require.ErrorAs(t, err, &e)
			require.Equal(t, Outcome{Status: 127, Reason: reason}, e.Outcome)
			require.NoError(t, nodes[0].Finish(t.Context(), e.Outcome, 0))
			for i, g := range gatherAll(t.Context(), nodes) {
				var e *EndedError
				require.ErrorAs(t, g.err, &e, "rank %d", i)
				require.Equal(t, Outcome{Status: 127, Reason: reason}, e.Outcome)
			}
			w.close(nodes...)
		})
	}
}
