package rendezvous

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestConfirm: a generation is confirmed by the connections of rank 0 alone.
func TestConfirm(t *testing.T) {
	const fails, waits = "fails", "waits"
	for name, tt := range map[string]struct {
		fault func(w *world, nodes []*Node)
		want  [3]string // by rank; "" = confirmed at once
	}{
		"all are here": {},
		"a connection is lost": {
			fault: func(w *world, nodes []*Node) { w.cut(addrOf(1)) },
			want:  [3]string{waits, waits},
		},
		"a rank is lost": {
			fault: func(w *world, nodes []*Node) {
				w.crash(nodes[1], nil)
				<-nodes[0].Losses()
			},
			want: [3]string{fails, fails},
		},
		"rank 0 is lost": {
			fault: func(w *world, nodes []*Node) { w.crash(nodes[0], nil) },
			want:  [3]string{fails, fails, fails},
		},
		"the generation is being cleared": {
			fault: func(_ *world, nodes []*Node) {
				soon, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_, _ = nodes[0].Clear(soon, nil)
			},
			want: [3]string{fails, fails, fails},
		},
		"the job has ended": {
			fault: func(_ *world, nodes []*Node) { _ = nodes[0].Finish(context.Background(), Outcome{Status: 3}, 0) },
			want:  [3]string{fails, fails, fails},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var nodes []*Node
				for i := range 3 {
					cfg := w.config(i, 3)
					cfg.Rejoin = true
					nodes = append(nodes, w.start(cfg))
				}
				defer w.close(nodes...)
				gatherSame(t, nodes)
				if tt.fault != nil {
					tt.fault(w, nodes)
				}
				for i, n := range nodes {
					soon, cancel := context.WithTimeout(t.Context(), time.Minute)
					begin := time.Now()
					err := n.Confirm(soon)
					require.NoError(t, soon.Err(), "rank %d knows it before", i)
					cancel()
					if tt.want[i] == fails {
						require.ErrorContains(t, err, "asking whether the job goes on", "rank %d", i)
						continue
					}
					require.NoError(t, err, "rank %d", i)
					if tt.want[i] == "" {
						require.Zero(t, time.Since(begin), "rank %d", i)
					}
				}
			})
		})
	}
}

// TestConfirmByANewAnswer: the answer to a question from before a freeze may have waited in the kernel.
func TestConfirmByANewAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 2)), w.start(w.config(1, 2))}
		defer w.close(nodes...)
		gatherSame(t, nodes)
		answer := make(chan struct{})
		nodes[0].post(func() { <-answer })
		old := make(chan bool, 1)
		nodes[1].post(func() { nodes[1].probe(nodes[1].up.wire, func(alive bool) { old <- alive }) })
		confirmed := make(chan error, 1)
		go func() { confirmed <- nodes[1].Confirm(t.Context()) }()
		synctest.Wait()
		close(answer)
		require.True(t, <-old)
		synctest.Wait()
		require.Empty(t, confirmed)
		require.NoError(t, <-confirmed)
	})
}

// TestConfirmEndsWithItsContext: a rank whose rank 0 does not answer waits as long as its caller does.
func TestConfirmEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 2)), w.start(w.config(1, 2))}
		defer w.close(nodes...)
		gatherSame(t, nodes)
		thaw := make(chan struct{})
		nodes[0].post(func() { <-thaw })
		defer close(thaw)
		for _, d := range []time.Duration{time.Second, time.Minute} { // during a question, and between two
			soon, cancel := context.WithTimeout(t.Context(), d)
			require.ErrorIs(t, nodes[1].Confirm(soon), context.DeadlineExceeded)
			cancel()
		}
	})
}
