package rendezvous

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (w *world) startAll(size int) []*Node {
	var nodes []*Node
	for i := range size {
		nodes = append(nodes, w.start(w.config(i, size)))
	}
	return nodes
}

// TestBarrierHoldsEveryTime calls one name again and again on every rank, while connections are lost and come back: no
// rank may leave before every rank has called, and no rank may be left behind.
func TestBarrierHoldsEveryTime(t *testing.T) {
	const size, times = 8, 30
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				nodes := w.startAll(size)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // virtual
				defer cancel()
				var come [times]atomic.Int64
				var wg sync.WaitGroup
				for i, n := range nodes {
					rnd := rand.New(rand.NewPCG(seed, uint64(i)))
					wg.Go(func() {
						for g := range times {
							time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond) // virtual
							come[g].Add(1)
							if !assert.NoError(t, n.Barrier(ctx, "step")) ||
								!assert.EqualValues(t, size, come[g].Load(),
									"rank %d left time %d before all had come", i, g) {
								return
							}
						}
					})
				}
				rnd := rand.New(rand.NewPCG(seed, size))
				end, stop := context.WithCancel(t.Context())
				var cutting sync.WaitGroup
				cutting.Go(func() {
					for end.Err() == nil {
						time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond)
						if nodes[0].isGathered() {
							w.cut(addrOf(1 + rnd.IntN(size-1)))
						}
					}
				})
				wg.Wait()
				stop()
				cutting.Wait()
				require.True(t, nodes[0].ask(func() { assert.Empty(t, nodes[0].lead.barriers) }))
				w.close(nodes...)
			})
		})
	}
}

func TestBarrierWaitsForTheLastRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 3)), w.start(w.config(1, 3))}
		var wg sync.WaitGroup
		for _, n := range nodes {
			wg.Go(func() { assert.NoError(t, n.Barrier(t.Context(), "early")) })
		}
		short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := nodes[1].Barrier(short, "early")
		var b *BarrierError
		require.ErrorAs(t, err, &b)
		require.Equal(t, `barrier "early": 2 of 3 ranks have come; `+
			`missing: worker-2 (10.0.0.2:12345: connection refused)`, err.Error())
		nodes = append(nodes, w.start(w.config(2, 3)))
		require.NoError(t, nodes[2].Barrier(t.Context(), "early"))
		wg.Wait()
		w.close(nodes...)
	})
}

func TestBarrierCallerIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := w.startAll(3)
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		killed, kill := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, kill)
		require.Error(t, nodes[1].Barrier(killed, "b")) // it does not count any more
		for i, n := range []*Node{nodes[0], nodes[2]} {
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			err := n.Barrier(short, "b")
			cancel()
			require.EqualError(t, err, `barrier "b": 1 of 3 ranks have come; missing: worker-`+
				[]string{"[1-2]", "[0-1]"}[i]+` (has not called it)`)
		}
		// The error tells a lost rank from a late one.
		w.set(addrOf(2), nil, syscall.ECONNREFUSED)
		w.cut(addrOf(2))
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorContains(t, nodes[1].Barrier(short, "b"),
			"worker-0 (has not called it); worker-2 (lost: 10.0.0.2:12345: connection refused)")
		w.close(nodes...)
	})
}

func TestBarrierEndsWithTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := w.startAll(3)
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		var wg sync.WaitGroup
		for _, n := range nodes[:2] {
			wg.Go(func() { assert.ErrorIs(t, n.Barrier(t.Context(), "b"), ErrOver) })
		}
		synctest.Wait()
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 4}, 0))
		wg.Wait()
		w.close(nodes...)
		require.ErrorIs(t, nodes[0].Barrier(t.Context(), "b"), ErrOver)
	})
}

func TestBarrierName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(w.config(0, 1))
		require.Error(t, n.Barrier(t.Context(), ""))
		require.Error(t, n.Barrier(t.Context(), string(make([]byte, MaxName+1))))
		require.NoError(t, n.Barrier(t.Context(), "alone"))
		w.close(n)
	})
}

// TestBarrierReleaseIsLost ends a connection at the moment of the release.
func TestBarrierReleaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := w.startAll(3)
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		var wg sync.WaitGroup
		for _, n := range nodes[1:] {
			wg.Go(func() { assert.NoError(t, n.Barrier(t.Context(), "b")) })
		}
		synctest.Wait()
		require.True(t, nodes[0].ask(func() {
			nodes[0].lead.targets["worker-1"].link.abort()
			nodes[0].lead.noteArrival("", 1, "b")
		}))
		wg.Wait()
		synctest.Wait()
		require.True(t, nodes[0].ask(func() { assert.Empty(t, nodes[0].lead.targets["worker-1"].released) }))
		w.close(nodes...)
	})
}
