package rendezvous

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// noted collects the notes that rank 0 gets.
type noted struct {
	mu  sync.Mutex
	all []string
}

func (n *noted) put(id, kind string, text []byte, _ time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, id+" "+kind+" "+string(text))
}

// texts returns "ID kind text" of all notes so far, and forgets them.
func (n *noted) texts() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make(map[string]int)
	for _, x := range n.all {
		out[x]++
	}
	n.all = nil
	return out
}

// Notes reach rank 0 before and after the launch, whether the rank was connected or not, and again after a lost
// connection. The launch does not wait for them.
func TestNotesReachRankZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var got noted
		zero, one, two := w.config(0, 3), w.config(1, 3), w.config(2, 3)
		zero.Noted = got.put
		n1 := w.start(one)
		n1.Tell(Facts, []byte("early"))
		n1.Tell(Facts, []byte("new"))
		n1.Tell("other", make([]byte, maxNote+1)) // too long
		n0, n2 := w.start(zero), w.start(two)
		n0.Tell(Facts, []byte("own"))
		for _, g := range gatherAll(t.Context(), []*Node{n0, n1, n2}) {
			require.NoError(t, g.err)
		}
		synctest.Wait()
		require.Equal(t, map[string]int{"worker-1 facts new": 1}, got.texts())
		n2.Tell(Facts, []byte("late"))
		synctest.Wait()
		require.Equal(t, map[string]int{"worker-2 facts late": 1}, got.texts())
		w.cut(addrOf(1))
		time.Sleep(10 * time.Second)
		require.Equal(t, map[string]int{"worker-1 facts new": 1}, got.texts())
		for _, kind := range []string{"a", "b", "c", "d"} {
			n1.Tell(kind, []byte("x"))
		}
		synctest.Wait()
		require.Len(t, got.texts(), maxKinds-1)
		require.NoError(t, n0.Finish(t.Context(), Outcome{}, 0))
		w.close(n0, n1, n2)
	})
}

// With NoteWait, Verify is called once all facts are there, and after NoteWait without them.
func TestTheLaunchWaitsForFacts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		tell   []time.Duration // after the start; negative = never
		launch time.Duration
	}{
		{"all at once", []time.Duration{0, 0, 0}, 0},
		{"one is late", []time.Duration{0, 0, 700 * time.Millisecond}, 700 * time.Millisecond},
		{"rank 0 is late", []time.Duration{300 * time.Millisecond, 0, 0}, 300 * time.Millisecond},
		{"one never tells", []time.Duration{0, -1, 0}, time.Second},
		{"rank 0 never tells", []time.Duration{-1, 0, 0}, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var nodes []*Node
				verified := 0
				for i, after := range tt.tell {
					cfg := w.config(i, len(tt.tell))
					cfg.NoteWait = time.Second // counts on rank 0
					cfg.Verify = func(Roster) *Outcome { verified++; return nil }
					n := w.start(cfg)
					nodes = append(nodes, n)
					if after >= 0 {
						time.AfterFunc(after, func() { n.Tell(Facts, []byte("f")) })
					}
				}
				begin := time.Now()
				for _, g := range gatherAll(t.Context(), nodes) {
					require.NoError(t, g.err)
				}
				require.WithinRange(t, time.Now(), begin.Add(tt.launch), begin.Add(tt.launch+500*time.Millisecond))
				require.Equal(t, 1, verified)
				require.NoError(t, nodes[0].Finish(t.Context(), Outcome{}, 0))
				w.close(nodes...)
			})
		})
	}
}

// The facts of an earlier start do not count for the next one.
func TestARestartedRankTellsItsFactsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		zero := w.config(0, 3)
		zero.NoteWait = 2 * time.Second
		nodes := []*Node{w.start(zero), w.start(w.config(1, 3))}
		for _, n := range nodes {
			n.Tell(Facts, []byte("f"))
		}
		time.Sleep(5 * time.Second)
		require.NoError(t, nodes[1].Close())
		begin := time.Now()
		nodes = []*Node{nodes[0], w.start(w.config(1, 3)), w.start(w.config(2, 3))}
		nodes[2].Tell(Facts, []byte("f"))
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		require.GreaterOrEqual(t, time.Since(begin), 2*time.Second, "worker-1 has not told its facts")
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{}, 0))
		w.close(nodes...)
	})
}

// While a preflight runs, all ranks say so.
func TestTheReasonNamesThePreflight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var nodes []*Node
		found := make([]chan []byte, 3)
		for i := range 3 {
			cfg := w.config(i, 3)
			if i < 2 {
				found[i] = make(chan []byte, 1)
				cfg.Fabric = found[i]
			}
			n := w.start(cfg)
			nodes = append(nodes, n)
			n.Tell(Preflight, []byte("{}"))
		}
		time.Sleep(10 * time.Second)
		const reason = "it is present, but its preflight still runs"
		for _, n := range nodes[:2] {
			var e *MissingError
			require.True(t, n.ask(func() { e = n.missingError() }))
			require.Equal(t, "1 of 3 ranks are present; missing: worker-[0-1] ("+reason+")", e.Error())
		}
		s := nodes[2].Status(t.Context())
		require.Equal(t, reason, s.Ranks[0].Reason)
		require.Equal(t, reason, s.Ranks[1].Reason)
		require.Empty(t, s.Ranks[2].Reason)
		for _, f := range found[:2] {
			f <- []byte("f")
		}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{}, 0))
		w.close(nodes...)
	})
}

// A rank whose preflight has ended before rank 0 comes tells the result before the launch.
func TestThePreflightsResultComesBeforeTheLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n1 := w.start(w.config(1, 2))
		n1.Tell(Preflight, []byte("failed"))
		time.Sleep(time.Second)
		var got noted
		zero := w.config(0, 2)
		zero.Noted = got.put
		var before map[string]int
		zero.Verify = func(Roster) *Outcome { before = got.texts(); return nil }
		n0 := w.start(zero)
		for _, g := range gatherAll(t.Context(), []*Node{n0, n1}) {
			require.NoError(t, g.err)
		}
		require.Equal(t, map[string]int{"worker-1 preflight failed": 1}, before)
		require.NoError(t, n0.Finish(t.Context(), Outcome{}, 0))
		w.close(n0, n1)
	})
}

// The clocks of one machine are equal.
func TestClockAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 2)), w.start(w.config(1, 2))}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		ahead, bound, ok := nodes[0].ClockAhead(t.Context(), 1)
		require.True(t, ok)
		require.Zero(t, ahead)
		require.Zero(t, bound)
		_, _, ok = nodes[0].ClockAhead(t.Context(), 0)
		require.False(t, ok)
		_, _, ok = nodes[1].ClockAhead(t.Context(), 1)
		require.False(t, ok)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		w.cut(addrOf(1))
		_, _, ok = nodes[0].ClockAhead(ended, 1)
		require.False(t, ok)
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{}, 0))
		w.close(nodes...)
	})
}
