package rendezvous

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
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
		begin := time.Now()
		w.cut(addrOf(3)) // it learns the order, and tells its end, when it is reached again
		nodes[0].Order(15, "worker-2 failed")
		nodes[0].Order(9, "at once") // not for a rank that is away
		for i, n := range nodes[1:] {
			var s Stop
			select {
			case s = <-n.Orders():
			case <-time.After(time.Minute):
				require.FailNow(t, "it was not told the order", "rank %d", i+1)
			}
			require.Equal(t, Stop{Signal: 15, Reason: "worker-2 failed"}, s)
			if i+1 != 3 {
				require.Equal(t, 9, (<-n.Orders()).Signal)
			}
			n.Report(End{Outcome: Outcome{Status: i + 1, Reason: "ended"}, At: time.Now(), Stopped: true})
		}
		w.cut(addrOf(2)) // the report is repeated, and counts once
		got := map[int]End{}
		for range size - 1 {
			e := <-nodes[0].Ends()
			got[e.Rank] = e
		}
		for i := 1; i < size; i++ {
			e := got[i]
			require.WithinRange(t, e.At, begin, time.Now())
			want := End{Rank: i, Name: fmt.Sprintf("worker-%d", i), Stopped: true, At: e.At, after: e.after}
			want.Outcome = Outcome{Status: i, Reason: "ended"}
			require.Equal(t, want, e)
		}
		time.Sleep(time.Minute)
		require.Empty(t, nodes[0].Ends())
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 2}, 0))
		w.close(nodes...)
	})
}

// slowConn delays messages, short ones only now and then.
type slowConn struct {
	net.Conn
	in, out *rand.Rand
}

func newSlowConn(c net.Conn, seed uint64) slowConn {
	return slowConn{c, rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))}
}

func delayMessage(rng *rand.Rand) {
	d := time.Duration(rng.IntN(40)) * time.Millisecond
	if rng.IntN(4) == 0 {
		d = time.Millisecond
	}
	time.Sleep(d)
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	delayMessage(c.in)
	return n, err
}

func (c slowConn) Write(b []byte) (int, error) {
	delayMessage(c.out)
	return c.Conn.Write(b)
}

// Nodes start at different times, and messages take different times, so the order of the reports says nothing.
func TestEndsAreOrderedByAlignedClocks(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			const size = 5
			w := newWorld(t)
			var nodes []*Node
			for i := range size {
				cfg := w.config(i, size)
				if i == 0 {
					cfg.Dial = func(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error) {
						c, err := w.dial(ctx, id, addr)
						if err != nil {
							return nil, err
						}
						return newSlowConn(c.(net.Conn), seed*size+uint64(addr.Addr().As4()[3])), nil
					}
				}
				nodes = append(nodes, w.start(cfg))
				time.Sleep(time.Duration(7*i) * time.Second)
			}
			for _, g := range gatherAll(t.Context(), nodes) {
				require.NoError(t, g.err)
			}
			time.Sleep(time.Hour)
			at := make([]time.Time, size)
			for i := size - 1; i > 0; i-- { // the rank that ended first reports last
				at[i] = time.Now().Add(time.Duration(i-size) * time.Second)
				nodes[i].Report(End{Outcome: Outcome{Status: i}, At: at[i]})
			}
			ends := make([]End, size-1)
			for k := range ends {
				ends[k] = <-nodes[0].Ends()
				require.False(t, ends[k].At.Before(at[ends[k].Rank]), "not before it ended")
			}
			align := func(ends []End) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var all []*End
				for i := range ends {
					all = append(all, &ends[i])
				}
				nodes[0].Align(ctx, all...)
			}
			align(ends)
			for _, e := range ends {
				off := e.At.Sub(at[e.Rank]).Abs()
				require.LessOrEqual(t, off, e.Error, "rank %d", e.Rank)
				require.LessOrEqual(t, e.Error, 25*time.Millisecond, "rank %d", e.Rank)
			}
			w.cut(addrOf(1))
			w.set(addrOf(1), nil, syscall.EHOSTUNREACH)
			gone := ends[slices.IndexFunc(ends, func(e End) bool { return e.Rank == 1 })]
			known := []End{gone, {Rank: 99}, {Rank: 0, At: at[1]}}
			late := slices.Clone(known)
			align(late)
			require.Equal(t, known, late, "what cannot be asked keeps what is known")
			require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 2}, 0))
			w.close(nodes...)
		})
	}
}

// Whichever rank cannot take part, rank 0 judges and launches nothing, and all ranks end with the reason.
func TestAnUnfitRankEndsTheJob(t *testing.T) {
	const size = 3
	unfit := Outcome{Status: 127, Reason: "no such command"}
	for k, reason := range []string{"no such command", "no such command", "worker-2: no such command",
		"worker-2: no such command"} {
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
