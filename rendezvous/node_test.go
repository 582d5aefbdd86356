package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// testStatuses are those of cmd.
var testStatuses = Statuses{Retry: 75, Conflict: 78}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a network of control connections in memory: the nodes by address, and what a dial meets.
type world struct {
	t     *testing.T
	mu    sync.Mutex
	nodes map[netip.AddrPort]*Node
	block map[netip.AddrPort]error // what a dial to that address ends with
	conns map[netip.AddrPort][]net.Conn
	wg    sync.WaitGroup

	instant time.Time // of the last dial
	dials   int       // at that instant
}

// mostDials is how many dials one instant of virtual time may have; no test needs a tenth of them.
const mostDials = 10_000

func newWorld(t *testing.T) *world {
	return &world{t: t, nodes: map[netip.AddrPort]*Node{}, block: map[netip.AddrPort]error{},
		conns: map[netip.AddrPort][]net.Conn{}}
}

func addrOf(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 12345)
}

func (w *world) dial(ctx context.Context, _ string, addr netip.AddrPort) (io.ReadWriteCloser, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.countDial(addr)
	if err := w.block[addr]; err != nil {
		return nil, err
	}
	n := w.nodes[addr]
	if n == nil {
		return nil, syscall.ECONNREFUSED
	}
	a, b := net.Pipe()
	w.conns[addr] = append(w.conns[addr], a, b)
	w.wg.Go(func() { n.Accept(context.Background(), b, nil) })
	return a, nil
}

func TestLoginPatience(t *testing.T) {
	for size, want := range map[int]time.Duration{
		-1: 0, 0: 0, 2: 0, 64: 3 * time.Second, 1000: 50 * time.Second, 100_000: time.Minute,
	} {
		require.Equal(t, want, LoginPatience(size), size)
	}
}

// countDial ends the test binary if the nodes dial each other without end. Virtual time then stands still, so that no
// timeout of the test would end it.
func (w *world) countDial(addr netip.AddrPort) {
	if now := time.Now(); !now.Equal(w.instant) {
		w.instant, w.dials = now, 0
	}
	if w.dials++; w.dials > mostDials {
		panic(fmt.Sprintf("%s: livelock: more than %d dials at one instant, the last one to %v", w.t.Name(),
			mostDials, addr))
	}
}

func (w *world) set(addr netip.AddrPort, n *Node, block error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[addr], w.block[addr] = n, block
}

// cut ends all control connections to an address.
func (w *world) cut(addr netip.AddrPort) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns[addr] {
		_ = c.Close()
	}
	w.conns[addr] = nil
}

func (w *world) config(i, size int) Config {
	cfg := Config{
		Status: testStatuses,
		Self: Record{ID: fmt.Sprintf("worker-%d", i), Role: "worker", Index: i, Rank: i, Nonce: NewNonce(),
			Addr: addrOf(i), Slots: 2, Version: "1"},
		Size: size, Dial: w.dial, Timeout: time.Minute,
	}
	if os.Getenv("DEBUG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr,
			&slog.HandlerOptions{Level: slog.LevelDebug})).With("self", i)
	}
	for k := range size {
		cfg.Peers = append(cfg.Peers, Peer{ID: fmt.Sprintf("worker-%d", k), Rank: k, Host: addrOf(k).Addr().String(),
			Port: 12345})
	}
	return cfg
}

func (w *world) start(cfg Config) *Node {
	n, err := Start(cfg)
	require.NoError(w.t, err)
	w.set(cfg.Self.Addr, n, nil)
	return n
}

func (w *world) close(nodes ...*Node) {
	for _, n := range nodes {
		assert.NoError(w.t, n.Close())
	}
	w.wg.Wait()
}

type gathered struct {
	roster Roster
	err    error
}

func gatherAll(ctx context.Context, nodes []*Node) []gathered {
	out := make([]gathered, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { out[i].roster, out[i].err = n.Gather(ctx) })
	}
	wg.Wait()
	return out
}

func TestAllAgreeAndEndTogether(t *testing.T) {
	for _, size := range []int{1, 2, 4, 64} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var nodes []*Node
				for i := range size {
					nodes = append(nodes, w.start(w.config(i, size)))
				}
				res := gatherAll(t.Context(), nodes)
				for i, g := range res {
					require.NoError(t, g.err, "rank %d", i)
					require.Len(t, g.roster.Members, size)
					require.Equal(t, res[0].roster.Hash, g.roster.Hash)
					require.Equal(t, fmt.Sprintf("worker-%d", i), g.roster.Members[i].Alias)
				}
				require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 3, Reason: "because"}, 0))
				for _, n := range nodes[1:] {
					o, err := n.Wait(t.Context())
					require.NoError(t, err)
					require.Equal(t, Outcome{Status: 3, Reason: "because"}, o)
				}
				w.close(nodes...)
			})
		})
	}
}

func TestSlotsOfTheHostListOfRankZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		zero := w.config(0, 3)
		zero.Peers[1].Slots, zero.Peers[1].Decided = 7, true
		zero.Peers[2].Slots = 9 // not decided
		nodes := []*Node{w.start(zero), w.start(w.config(1, 3)), w.start(w.config(2, 3))}
		for i, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err, "rank %d", i)
			var slots []int
			for _, m := range g.roster.Members {
				slots = append(slots, m.Slots)
			}
			require.Equal(t, []int{2, 7, 2}, slots, "rank %d", i)
		}
		w.close(nodes...)
	})
}

func TestMissingRankIsNamedOnEveryRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var nodes []*Node
		for i := range 3 {
			cfg := w.config(i, 4)
			cfg.Timeout = 5 * time.Second
			nodes = append(nodes, w.start(cfg))
		}
		var wg sync.WaitGroup
		for i, n := range nodes {
			wg.Go(func() {
				_, err := n.Gather(t.Context())
				if i == 0 {
					var m *MissingError
					if assert.ErrorAs(t, err, &m) {
						assert.Equal(t, "gave up after 5 s: 3 of 4 ranks are present; missing: worker-3 (10.0.0.3): "+
							"dialled N times in 5 s, last: connection refused on 12345/tcp", uncounted(m.Error()))
						assert.False(t, m.OtherSecret())
						assert.NoError(t, n.Finish(t.Context(), Outcome{Status: 75, Reason: m.Error()}, 0))
						for range 20 { // the deadline and the end have both come, and either may be seen first
							_, again := n.Gather(t.Context())
							assert.ErrorContains(t, again, m.Error(), "whoever waits beside is told the same")
						}
					}
					return
				}
				var e *EndedError
				if assert.ErrorAs(t, err, &e, "rank %d", i) {
					assert.Equal(t, 75, e.Outcome.Status)
					assert.Contains(t, e.Outcome.Reason, "worker-3 (10.0.0.3): dialled ")
				}
			})
		}
		wg.Wait()
		w.close(nodes...)
	})
}

func TestRankZeroNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(1, 2)
		cfg.Timeout = 5 * time.Second
		w.set(addrOf(0), nil, syscall.EHOSTUNREACH)
		n := w.start(cfg)
		_, err := n.Gather(t.Context())
		var m *MissingError
		require.ErrorAs(t, err, &m)
		require.Equal(t, "gave up after 5 s: rank 0 is missing: worker-0 (10.0.0.0): dialled N times in 5 s, "+
			"last: no route to host", uncounted(m.Error()))
		w.close(n)
	})
}

// TestOnlyRankZeroKnowsTheSize is a job whose other ranks know only where rank 0 is, such as an MPIJob's workers.
func TestOnlyRankZeroKnowsTheSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		below := func(i int) Config {
			cfg := w.config(i, 0)
			cfg.Seeds = []Seed{{Host: addrOf(0).Addr().String(), Port: 12345}}
			return cfg
		}
		nodes := []*Node{w.start(w.config(0, 3)), w.start(below(1)), w.start(below(2))}
		for i, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err, "rank %d", i)
			require.Len(t, g.roster.Members, 3)
		}
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 3}, 0))
		for _, n := range nodes[1:] {
			o, err := n.Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, 3, o.Status)
		}
		w.close(nodes...)

		cfg := below(1)
		cfg.Timeout = 5 * time.Second
		w.set(addrOf(0), nil, syscall.EHOSTUNREACH)
		n := w.start(cfg)
		_, err := n.Gather(t.Context())
		var m *MissingError
		require.ErrorAs(t, err, &m)
		require.Regexp(t, `^gave up after 5 s: rank 0 is missing: rank 0: `, m.Error())
		w.close(n)

		for _, rank := range []int{-1, 0} {
			cfg := below(1)
			cfg.Self.Rank = rank
			_, err := Start(cfg)
			require.Error(t, err)
		}
	})
}

func TestOtherSecretEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		other := fmt.Errorf("worker-2: %w", ErrOtherSecret)
		var nodes []*Node
		for i := range 2 {
			nodes = append(nodes, w.start(w.config(i, 3)))
		}
		w.set(addrOf(2), nil, other)
		begin := time.Now()
		_, err := nodes[0].Gather(t.Context())
		var m *MissingError
		require.ErrorAs(t, err, &m)
		require.True(t, m.OtherSecret())
		require.Contains(t, m.Error(), "another secret")
		require.Contains(t, m.Error(), "worker-2")
		require.Less(t, time.Since(begin), 2*secretProofTime)
		w.close(nodes...)

		// The rank with another secret finds out when it calls rank 0.
		w = newWorld(t)
		w.set(addrOf(0), nil, other)
		odd := w.start(w.config(2, 3))
		_, err = odd.Gather(t.Context())
		require.ErrorAs(t, err, &m)
		require.True(t, m.OtherSecret())
		w.close(odd)
	})
}

func TestOtherVersionEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(addrOf(2), nil, fmt.Errorf("worker-2: %w", ErrOtherVersion))
		zero, one := w.start(w.config(0, 3)), w.start(w.config(1, 3))
		begin := time.Now()
		_, err := zero.Gather(t.Context())
		var m *MissingError
		require.ErrorAs(t, err, &m)
		require.True(t, m.OtherVersion())
		require.False(t, m.OtherSecret())
		require.ErrorContains(t, err, "worker-2: has another version of paiinit")
		require.Less(t, time.Since(begin), 2*jobProofTime)
		w.close(zero, one)
	})
}

// A container of an earlier job with another secret says nothing of the rank 0 that came after it.
func TestOtherSecretIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(addrOf(0), nil, fmt.Errorf("worker-0: %w", ErrOtherSecret))
		one := w.start(w.config(1, 3))
		time.Sleep(time.Second)
		require.NotNil(t, incompatibleOf(one))
		zero := w.start(w.config(0, 3))
		time.Sleep(3 * time.Second)
		require.Nil(t, incompatibleOf(one))
		w.close(zero, one)
	})
}

func incompatibleOf(n *Node) (err error) {
	n.ask(func() { err = n.up.incompatible })
	return err
}

// The rank with another secret finds out long before rank 0 dials again.
func TestOtherSecretIsKnownToTheOthers(t *testing.T) {
	for called := range 20 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			other := fmt.Errorf("worker-1: %w", ErrOtherSecret)
			zero := w.start(w.config(0, 2))
			w.set(addrOf(0), nil, other)
			time.Sleep(time.Second + time.Duration(called)*50*time.Millisecond) // virtual: rank 0 is between two calls
			odd := w.start(w.config(1, 2))
			w.set(addrOf(1), nil, other)
			var m *MissingError
			_, err := odd.Gather(t.Context())
			require.True(t, errors.As(err, &m) && m.OtherSecret(), "%v", err)
			require.NoError(t, odd.Close())
			w.set(addrOf(1), nil, syscall.ECONNREFUSED)
			_, err = zero.Gather(t.Context())
			require.True(t, errors.As(err, &m) && m.OtherSecret(), "%v", err)
			w.close(zero)
		})
	}
}

// Where processors are short, both find out before either of them leaves.
func TestOtherSecretIsFoundByBoth(t *testing.T) {
	for _, waited := range []float64{0, 0.05, 0.5, 2} { // seconds of waiting for a processor, in a second
		t.Run(fmt.Sprint(waited), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				other := fmt.Errorf("another one: %w", ErrOtherSecret)
				nodes := make([]*Node, 2)
				begin := time.Now()
				for i := range nodes {
					w.set(addrOf(i), nil, other)
					cfg := w.config(i, 2)
					cfg.Timeout = time.Minute
					cfg.Delay = func() time.Duration { return time.Duration(waited * float64(time.Since(begin))) }
					n, err := Start(cfg)
					require.NoError(t, err)
					nodes[i] = n
				}
				var gathered sync.WaitGroup
				for i, n := range nodes {
					gathered.Go(func() {
						_, err := n.Gather(t.Context())
						var m *MissingError
						assert.True(t, errors.As(err, &m) && m.OtherSecret(), "rank %d: %v", i, err)
						assert.NoError(t, n.Close())
						w.set(addrOf(i), nil, syscall.ECONNREFUSED)
					})
				}
				gathered.Wait()
				require.Less(t, time.Since(begin), 30*time.Second)
			})
		})
	}
}

func TestRestartBeforeTheLaunchReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		zero, one := w.start(w.config(0, 3)), w.start(w.config(1, 3))
		time.Sleep(time.Second) // virtual: rank 1 is registered
		// Rank 2 comes, registers, and dies before the last rank is there: here rank 1 is the rank that leaves.
		w.set(addrOf(1), nil, syscall.ECONNREFUSED)
		w.cut(addrOf(1))
		require.NoError(t, one.Close())
		two := w.start(w.config(2, 3))
		time.Sleep(2 * time.Second)
		select {
		case <-zero.gathered:
			t.Fatal("launched without rank 1")
		default:
		}
		cfg := w.config(1, 3)
		again := w.start(cfg)
		res := gatherAll(t.Context(), []*Node{zero, again, two})
		for _, g := range res {
			require.NoError(t, g.err)
			require.Equal(t, res[0].roster.Hash, g.roster.Hash)
		}
		require.Equal(t, cfg.Self.Nonce, res[0].roster.Members[1].Nonce)
		w.close(zero, again, two)
	})
}

func TestLossesWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var nodes []*Node
		for i := range 3 {
			nodes = append(nodes, w.start(w.config(i, 3)))
		}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		// A connection that comes back does no harm.
		w.cut(addrOf(1))
		time.Sleep(time.Minute)
		select {
		case l := <-nodes[0].Losses():
			t.Fatalf("lost %v", l)
		default:
		}
		// A rank that does not come back is reported once, with its reason.
		w.set(addrOf(2), nil, syscall.EHOSTUNREACH)
		w.cut(addrOf(2))
		l := <-nodes[0].Losses()
		require.Equal(t, 2, l.Rank)
		require.Contains(t, l.Reason, "no route to host")
		// The others are told, and the lost rank does not delay the end.
		begin := time.Now()
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 75}, 0))
		require.Less(t, time.Since(begin), doneTimeout)
		o, err := nodes[1].Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, 75, o.Status)
		w.close(nodes...)
	})
}

func TestRankZeroVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 2)), w.start(w.config(1, 2))}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		w.set(addrOf(0), nil, syscall.ECONNREFUSED)
		w.set(addrOf(1), nil, syscall.ECONNREFUSED)
		w.cut(addrOf(1))
		begin := time.Now()
		_, err := nodes[1].Wait(t.Context())
		var lost *LostError
		require.ErrorAs(t, err, &lost)
		require.Less(t, time.Since(begin), time.Second)
		w.close(nodes...)
	})
}

func TestStopReachesRankZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 2)), w.start(w.config(1, 2))}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		require.True(t, nodes[1].RequestStop(15, "its container was stopped"))
		require.Equal(t, Stop{Name: "worker-1", Signal: 15, Reason: "its container was stopped"}, <-nodes[0].Stops())
		w.close(nodes...)
	})
}

func TestStopBeforeTheLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 3)), w.start(w.config(1, 3))}
		time.Sleep(time.Second) // virtual: rank 1 is registered
		require.True(t, nodes[1].RequestStop(15, "its container was stopped"))
		_, err := nodes[0].Gather(t.Context())
		var e *EndedError
		require.ErrorAs(t, err, &e)
		require.Equal(t, 143, e.Outcome.Status)
		require.NoError(t, nodes[0].Finish(t.Context(), e.Outcome, 0))
		_, err = nodes[1].Gather(t.Context())
		require.ErrorAs(t, err, &e)
		require.Equal(t, 143, e.Outcome.Status)
		w.close(nodes...)
	})
}

func TestRestartAfterTheLaunchEndsTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 2)), w.start(w.config(1, 2))}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		w.cut(addrOf(1))
		w.set(addrOf(1), nil, syscall.ECONNREFUSED)
		require.NoError(t, nodes[1].Close())
		again := w.start(w.config(1, 2))
		l := <-nodes[0].Losses()
		require.Equal(t, Loss{Rank: 1, Name: "worker-1", Reason: "its container was started again"}, l)
		_, err := again.Gather(t.Context())
		var e *EndedError
		require.ErrorAs(t, err, &e)
		require.Equal(t, 75, e.Outcome.Status)
		w.close(nodes[0], again)
	})
}

func TestVerifyEndsTheJobEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(0, 2)
		cfg.Verify = func(r Roster) *Outcome { return &Outcome{Status: 69, Reason: r.Members[1].Version} }
		nodes := []*Node{w.start(cfg), w.start(w.config(1, 2))}
		_, err := nodes[0].Gather(t.Context())
		var e *EndedError
		require.ErrorAs(t, err, &e)
		require.Equal(t, Outcome{Status: 69, Reason: "1"}, e.Outcome)
		require.NoError(t, nodes[0].Finish(t.Context(), e.Outcome, 0))
		_, err = nodes[1].Gather(t.Context())
		require.ErrorAs(t, err, &e)
		require.Equal(t, 69, e.Outcome.Status)
		w.close(nodes...)
	})
}

func TestTwoContainersOfOneRankConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(2, 3)
		cfg.Self.Rank = 1
		nodes := []*Node{w.start(w.config(0, 3)), w.start(w.config(1, 3)), w.start(cfg)}
		_, err := nodes[0].Gather(t.Context())
		var c *ConflictError
		require.ErrorAs(t, err, &c)
		require.Contains(t, err.Error(), "both say that they are rank 1")
		w.close(nodes...)
	})
}

func TestGatherEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start(w.config(0, 2))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("stopped"))
		_, err := n.Gather(ctx)
		require.ErrorContains(t, err, "stopped")
		w.close(n)
	})
}

// Rank 0 cannot launch: it tells the ranks that come while it stays why, and leaves when all know.
func TestLatecomersAreSentHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		zero := w.start(w.config(0, 3))
		begin := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			assert.NoError(t, zero.Finish(t.Context(), Outcome{Status: 127, Reason: "a typo"}, 5*time.Second))
		})
		time.Sleep(2 * time.Second)
		nodes := []*Node{w.start(w.config(1, 3)), w.start(w.config(2, 3))}
		for _, n := range nodes {
			_, err := n.Gather(t.Context())
			var e *EndedError
			require.ErrorAs(t, err, &e)
			require.Equal(t, Outcome{Status: 127, Reason: "a typo"}, e.Outcome)
		}
		wg.Wait()
		require.Less(t, time.Since(begin), 4*time.Second)

		// A rank that never comes does not delay it further.
		other := newWorld(t)
		alone := other.start(other.config(0, 3))
		begin = time.Now()
		require.NoError(t, alone.Finish(t.Context(), Outcome{Status: 127}, 5*time.Second))
		require.Equal(t, 5*time.Second, time.Since(begin))
		w.close(append(nodes, zero)...)
		other.close(alone)
	})
}

func TestAbsent(t *testing.T) {
	const settle = 300 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 3)), w.start(w.config(1, 3)), w.start(w.config(2, 3))}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		begin := time.Now()
		require.Empty(t, nodes[0].Absent(t.Context(), settle, 3*time.Second))
		require.Equal(t, settle, time.Since(begin), "all are there")

		begin = time.Now()
		w.cut(addrOf(1))
		synctest.Wait()
		require.Empty(t, nodes[0].Absent(t.Context(), settle, 3*time.Second), "one that comes back is there")
		require.Less(t, time.Since(begin), time.Second)

		// A rank that is lost only after the question.
		w.set(addrOf(2), nil, syscall.ECONNREFUSED)
		time.AfterFunc(settle/2, func() { w.cut(addrOf(2)) })
		begin = time.Now()
		require.Equal(t, []Loss{{Rank: 2, Name: "worker-2",
			Reason: "its control connection is lost (10.0.0.2:12345: connection refused)"}},
			nodes[0].Absent(t.Context(), settle, 3*time.Second))
		require.Less(t, time.Since(begin), time.Second, "nobody waits for one whose port is closed")

		w.set(addrOf(1), nil, errors.New("silence"))
		w.cut(addrOf(1))
		synctest.Wait()
		begin = time.Now()
		require.Len(t, nodes[0].Absent(t.Context(), settle, 3*time.Second), 2)
		require.Equal(t, settle+3*time.Second, time.Since(begin))
		w.close(nodes...)
	})
}

// A container that gives up when its context has ended already has no rank to tell.
func TestFinishOnAnyRankWithAnEndedContext(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			n := w.start(w.config(1, 2))
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.NoError(t, n.Finish(ctx, Outcome{Status: 75}, 0))
			w.close(n)
		})
	}
}

// Rank 0 acts first; the first ranks know of the launch at once, the others when its command has been started, or a
// moment later.
func TestRankZeroHasAHeadStart(t *testing.T) {
	const size, head = 3 + witnesses, time.Second
	for name, tt := range map[string]struct {
		say    func(*Node)
		waited time.Duration // for processors, since rank 0 leads
		told   time.Duration // how long the last ranks wait at most
	}{
		"it says that it has started": {(*Node).Launched, lateEnough - 1, 0},
		"it ends at once": {func(n *Node) {
			go func() { _ = n.Finish(context.Background(), Outcome{Status: 3}, 0) }()
		}, 0, 0},
		"it says nothing":                          {func(*Node) {}, 0, head},
		"it has started, and processors are short": {(*Node).Launched, lateEnough, head / 5},
		"it ends at once although processors are short": {func(n *Node) {
			n.Launched()
			go func() { _ = n.Finish(context.Background(), Outcome{Status: 3}, 0) }()
		}, lateEnough, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var nodes []*Node
				for i := range size {
					cfg := w.config(i, size)
					cfg.GoDelay = head
					delay := time.Hour - tt.waited // of this process before
					cfg.Delay = func() time.Duration { delay += tt.waited; return delay }
					nodes = append(nodes, w.start(cfg))
				}
				_, err := nodes[0].Gather(t.Context())
				require.NoError(t, err)
				synctest.Wait()
				for i, n := range nodes {
					require.Equal(t, i <= witnesses, n.isGathered(), "rank %d", i)
				}
				began := time.Now()
				tt.say(nodes[0])
				for _, n := range nodes[1:] {
					r, err := n.Gather(t.Context())
					require.NoError(t, err)
					require.Len(t, r.Members, size)
				}
				require.Equal(t, tt.told, time.Since(began))
				_ = nodes[0].Finish(t.Context(), Outcome{Status: 3}, 0)
				for _, n := range nodes[1:] {
					o, err := n.Wait(t.Context())
					require.NoError(t, err)
					require.Equal(t, 3, o.Status)
				}
				w.close(nodes...)
			})
		})
	}
}

// startAhead starts a job of which rank 0 and the first ranks know that it has been launched, and the others do not.
func (w *world) startAhead(size int) (nodes []*Node) {
	for i := range size {
		cfg := w.config(i, size)
		cfg.GoDelay = time.Hour
		nodes = append(nodes, w.start(cfg))
	}
	_, err := nodes[0].Gather(w.t.Context())
	require.NoError(w.t, err)
	synctest.Wait()
	require.False(w.t, nodes[size-1].isGathered())
	return nodes
}

// An order to end that rank 0 gives before all ranks have been told to go reaches all of them.
func TestAnOrderEndsTheHeadStart(t *testing.T) {
	const size = 3 + witnesses
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := w.startAhead(size)
		nodes[0].Order(15, "it fails at once")
		for _, n := range nodes[1:] {
			require.Equal(t, Stop{Signal: 15, Reason: "it fails at once"}, <-n.Orders())
		}
		w.close(nodes...)
	})
}

// The next start of a rank 0 that was lost when only the first ranks had been told to go does not launch again.
func TestNoSecondLaunchAfterAHeadStart(t *testing.T) {
	const size = 3 + witnesses
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := w.startAhead(size)
		w.set(addrOf(0), nil, syscall.ECONNREFUSED)
		require.NoError(t, nodes[0].Close())
		w.cut(addrOf(0))
		nodes[0] = w.start(w.config(0, size))
		_, err := nodes[0].Gather(t.Context())
		var e *EndedError
		require.ErrorAs(t, err, &e)
		require.Equal(t, 75, e.Outcome.Status)
		w.close(nodes...)
	})
}

// The version of a launcher is in the roster if it comes in time, and goes to Late if not.
func TestLauncherIsSaidLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		late := make(chan Record, 1)
		cfg := w.config(0, 3)
		cfg.Late = func(r Record) { late <- r }
		nodes := []*Node{w.start(cfg), w.start(w.config(1, 3))}
		synctest.Wait()
		nodes[0].SetLaunch("zero")
		nodes[1].SetLaunch("one")
		synctest.Wait()
		nodes = append(nodes, w.start(w.config(2, 3)))
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
			require.Equal(t, "zero", g.roster.Members[0].Launch)
			require.Equal(t, "one", g.roster.Members[1].Launch)
			require.Empty(t, g.roster.Members[2].Launch)
		}
		require.Empty(t, late)
		nodes[2].SetLaunch("two")
		r := <-late
		require.Equal(t, "worker-2", r.ID)
		require.Equal(t, "two", r.Launch)
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{}, 0))
		w.close(nodes...)
	})
}

// A rank is present before it knows its fabric, and rank 0 launches nothing before all know theirs: the roster holds
// each of them.
func TestTheLaunchWaitsForEveryFabric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const size = 3
		found := make([]chan []byte, size)
		var nodes []*Node
		for i := range size {
			cfg := w.config(i, size)
			found[i] = make(chan []byte, 1)
			cfg.Fabric = found[i]
			nodes = append(nodes, w.start(cfg))
		}
		for i, reason := range []string{"worker-[0-2] (it is present, but still examines its devices)",
			"worker-[1-2] (it is present, but still examines its devices)",
			"worker-2 (it is present, but still examines its devices)"} {
			time.Sleep(3 * time.Second)
			for _, n := range nodes {
				require.False(t, n.isGathered())
				var e *MissingError
				require.True(t, n.ask(func() { e = n.missingError() }))
				require.Equal(t, fmt.Sprintf("%d of 3 ranks are present; missing: %s", i, reason), e.Error())
			}
			s := nodes[1].Status(t.Context())
			require.Len(t, s.Ranks, size)
			for rank, r := range s.Ranks {
				require.Equal(t, Present, r.Standing, "the connection is there")
				require.Equal(t, rank < i, r.Reason == "")
			}
			found[i] <- []byte{'f', byte(i)}
		}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
			require.EqualValues(t, 1, g.roster.Epoch)
			require.Equal(t, nodes[0].roster.Hash, g.roster.Hash)
			for i, m := range g.roster.Members {
				require.Equal(t, []byte{'f', byte(i)}, m.Fabric)
			}
		}
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{}, 0))
		w.close(nodes...)
	})
}

// If a rank never knows its fabric, all ranks name it at the deadline.
func TestAFabricThatIsNeverKnown(t *testing.T) {
	for _, of := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			var nodes []*Node
			for i := range 3 {
				cfg := w.config(i, 3)
				cfg.Timeout = time.Minute
				if i == of {
					cfg.Fabric = make(chan []byte)
				}
				nodes = append(nodes, w.start(cfg))
			}
			begin := time.Now()
			for i, g := range gatherAll(t.Context(), nodes[:1]) {
				var e *MissingError
				require.ErrorAs(t, g.err, &e, "rank %d", i)
				require.Equal(t, time.Minute, time.Since(begin))
				require.Equal(t, fmt.Sprintf("gave up after 1m00s: 2 of 3 ranks are present; missing: worker-%d: "+
					"it is present, but still examines its devices", of), e.Error())
			}
			require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 75}, 0))
			w.close(nodes...)
		})
	}
}

// A container that is started again has to look again, whatever its previous start has found.
func TestARestartedRankLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 3)), w.start(w.config(1, 3))}
		synctest.Wait()
		require.NoError(t, nodes[1].Close())
		w.cut(addrOf(1))
		cfg := w.config(1, 3)
		found := make(chan []byte, 1)
		cfg.Fabric = found
		nodes[1] = w.start(cfg)
		nodes = append(nodes, w.start(w.config(2, 3)))
		time.Sleep(10 * time.Second)
		require.False(t, nodes[0].isGathered())
		found <- []byte("second")
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
			require.Equal(t, "second", string(g.roster.Members[1].Fabric))
		}
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{}, 0))
		w.close(nodes...)
	})
}

// Two containers that claim a rank must be told apart.
func TestBothClaim(t *testing.T) {
	record := func(id, host string, at int) *Record {
		return &Record{ID: id, Role: "worker", Host: host, Addr: addrOf(at), Rank: 0}
	}
	for _, tt := range []struct {
		a, b *Record
		want string
	}{
		{record("worker-0", "a", 1), record("worker-1", "b", 2),
			"worker-0 at 10.0.0.1:12345 and worker-1 at 10.0.0.2:12345"},
		{record("worker-0", "a", 1), record("worker-0", "b", 2),
			"worker-0 at 10.0.0.1:12345 on host a and worker-0 at 10.0.0.2:12345 on host b"},
		{record("worker-0", "a", 1), record("worker-1", "b", 1),
			"worker-0 at 10.0.0.1:12345 on host a and worker-1 at 10.0.0.1:12345 on host b"},
		{record("worker-0", "", 1), record("worker-0", "", 2),
			"worker-0 at 10.0.0.1:12345 and worker-0 at 10.0.0.2:12345"},
	} {
		require.EqualError(t, bothClaim(tt.a, tt.b), tt.want+" both say that they are rank 0")
	}
}
