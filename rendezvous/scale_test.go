package rendezvous

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The protocol's own time and bytes, without those of the login below it, for a job whose ranks start at the same
// moment. PAIINIT_TEST_SIZES sets the sizes of the jobs, "64,1000".
func TestScale(t *testing.T) {
	const rtt = 200 * time.Microsecond
	t.Logf("%5s  %10s  %8s  %14s  %14s  %10s  %12s", "ranks", "GO at all", "in RTT", "messages/rank", "bytes/rank",
		"table", "heap/rank")
	for _, size := range scaleSizes(t) {
		var took time.Duration
		var bytes, messages, table int
		var heap uint64
		synctest.Test(t, func(t *testing.T) {
			net := newSimNet(rand.New(rand.NewPCG(1, 1)))
			net.delay = rtt / 2
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			begin := time.Now()
			var one atomic.Pointer[[]Member]
			share := func(m []Member) []Member {
				one.CompareAndSwap(nil, &m)
				return *one.Load()
			}
			var nodes []*Node
			for i := range size {
				cfg := scaleConfig(net, i, size)
				cfg.share = share
				nodes = append(nodes, startSim(t, net, cfg))
			}
			var wg sync.WaitGroup
			hashes := make([]string, size)
			for i, n := range nodes {
				wg.Go(func() {
					r, err := n.Gather(t.Context())
					if err == nil {
						hashes[i] = r.Hash
					}
				})
			}
			wg.Wait()
			took = time.Since(begin).Round(time.Microsecond) // hosts send their long segments 1 ns apart
			for i, h := range hashes {
				require.Equal(t, hashes[0], h, "rank %d", i)
				require.NotEmpty(t, h)
			}
			synctest.Wait()
			runtime.GC()
			runtime.ReadMemStats(&after)
			heap = (after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc)) / uint64(size)
			zero := simAddr(0)
			net.mu.Lock()
			bytes, messages = net.bytes[zero], net.messages[zero]
			net.mu.Unlock()
			table = len(nodes[0].roster.pack())
			for _, n := range nodes {
				require.NoError(t, n.Close())
			}
			net.wg.Wait()
			time.Sleep(time.Minute)
		})
		perRank := bytes / (size - 1)
		t.Logf("%5d  %10v  %8.1f  %14.1f  %14d  %10d  %12d", size, took, float64(took)/float64(rtt),
			float64(messages)/float64(size-1), perRank, table, heap)
		limit := 6 * rtt
		if size > 2+tableFan+tableFan*tableFan {
			limit += rtt / 2 // the tree has a third level below rank 1
		}
		require.LessOrEqual(t, took, limit, "%d ranks", size)
		if size <= starTable {
			perRank -= table
		}
		most := 300
		if size > 10_000 {
			most += 5 // names have a fifth digit
		}
		require.LessOrEqual(t, perRank, most, "bytes at rank 0 per rank, besides the table; %d ranks", size)
		require.LessOrEqual(t, messages, 8*size)
	}
}

// scaleSizes returns the sizes of the jobs of TestScale.
func scaleSizes(t *testing.T) (sizes []int) {
	if list := os.Getenv("PAIINIT_TEST_SIZES"); list != "" {
		for word := range strings.SplitSeq(list, ",") {
			size, err := strconv.Atoi(word)
			if err == nil && size < 2 {
				err = fmt.Errorf("a job of %d ranks", size)
			}
			if err != nil {
				t.Fatalf("PAIINIT_TEST_SIZES: %v", err)
			}
			sizes = append(sizes, size)
		}
		return sizes
	}
	sizes = []int{16, 64, 256, 1000, 1001, 4000}
	if raceEnabled {
		sizes = sizes[:3] // the race detector ends at 8128 goroutines; "make test" runs this test without it, too
	}
	return sizes
}

// scaleConfig is the configuration of a rank in a job in which every rank knows all addresses, with records of a usual
// length.
func scaleConfig(net *simNet, rank, size int) Config {
	id := fmt.Sprintf("worker-%d", rank)
	h := net.listen(&simHost{addr: simAddr(rank), id: id, secret: "ours"})
	cfg := Config{
		Status: testStatuses,
		Self: Record{ID: id, Role: "worker", Index: rank, Rank: rank, Nonce: NewNonce(), Addr: h.addr,
			Host:  fmt.Sprintf("gpu-node-%d", rank),
			Slots: 8, GPUs: 8, Version: "v1.0.0-12-g0123456789", Fabric: make([]byte, 40), Launch: "Open MPI 4.1.4",
			Exec: "rank0"},
		Size: size, Dial: net.dialer(h),
	}
	if rank == 0 {
		for k := 1; k < size; k++ {
			cfg.Peers = append(cfg.Peers, Peer{ID: fmt.Sprintf("worker-%d", k), Rank: k,
				Host: simAddr(k).Addr().String(), Port: 12345})
		}
	} else {
		cfg.Peers = []Peer{{ID: "worker-0", Rank: 0, Host: simAddr(0).Addr().String(), Port: 12345}}
	}
	return cfg
}

func startSim(t *testing.T, net *simNet, cfg Config) *Node {
	n, err := Start(cfg)
	require.NoError(t, err)
	net.mu.Lock()
	net.hosts[cfg.Self.Addr].node = n
	net.mu.Unlock()
	return n
}

// In a large job the roster goes from rank to rank, and from rank 0 to ranks whose source is not there.
func TestTableTravelsByATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 5
		net := newSimNet(rand.New(rand.NewPCG(1, 1)))
		asked := map[string]int{}
		net.seen = func(from *simHost, to netip.AddrPort, k kind, _ []byte) {
			if k == fetch {
				asked[fmt.Sprintf("%v to %v", from.addr.Addr(), to.Addr())]++
			}
		}
		var nodes []*Node
		for i := range size {
			nodes = append(nodes, startSim(t, net, scaleConfig(net, i, size)))
			nodes[i].ask(func() { nodes[i].cfg.starTable = 1 })
		}
		// Rank 3 cannot reach rank 1, which has the roster.
		net.setCut(simAddr(3), simAddr(1), true)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, g := range gatherAll(ctx, nodes) {
			require.NoError(t, g.err)
			require.Len(t, g.roster.Members, size)
		}
		require.Less(t, time.Since(begin), ackTimeout)
		require.Equal(t, map[string]int{"10.0.0.2 to 10.0.0.1": 1, "10.0.0.4 to 10.0.0.1": 1,
			"10.0.0.3 to 10.0.0.0": 1}, asked)
		net.setCut(simAddr(3), simAddr(1), false)
		for _, n := range nodes {
			require.NoError(t, n.Close())
		}
		net.wg.Wait()
		time.Sleep(time.Minute)
	})
}

// Looking at the devices adds nothing to a launch if it is over before the ranks have found each other. If not, it adds
// only the time to tell the result, and to agree.
func TestLookingTakesNoTimeOfTheLaunch(t *testing.T) {
	const rtt = 200 * time.Microsecond
	launch := func(size int, look time.Duration) (took time.Duration, bytes int) {
		synctest.Test(t, func(t *testing.T) {
			net := newSimNet(rand.New(rand.NewPCG(1, 1)))
			net.delay = rtt / 2
			begin := time.Now()
			var nodes []*Node
			for i := range size {
				cfg := scaleConfig(net, i, size)
				if look > 0 {
					fabric := cfg.Self.Fabric
					found := make(chan []byte, 1)
					cfg.Self.Fabric, cfg.Fabric = nil, found
					time.AfterFunc(look, func() { found <- fabric })
				}
				nodes = append(nodes, startSim(t, net, cfg))
			}
			for _, g := range gatherAll(t.Context(), nodes) {
				require.NoError(t, g.err)
				require.Len(t, g.roster.Members[size-1].Fabric, 40)
			}
			took = time.Since(begin)
			synctest.Wait()
			net.mu.Lock()
			bytes = net.bytes[simAddr(0)]/(size-1) - len(nodes[0].roster.pack())
			net.mu.Unlock()
			for _, n := range nodes {
				require.NoError(t, n.Close())
			}
			net.wg.Wait()
			time.Sleep(time.Minute)
		})
		return took, bytes
	}
	for _, size := range []int{2, 4, 64} {
		none, plain := launch(size, 0)
		for _, look := range []time.Duration{rtt / 4, rtt / 2, rtt, 20 * time.Millisecond} {
			took, bytes := launch(size, look)
			t.Logf("%3d ranks, %v to look: launched after %v, without it after %v; %d and %d bytes per rank", size,
				look, took, none, bytes, plain)
			require.LessOrEqual(t, took, max(none, look+2*rtt))
			require.LessOrEqual(t, bytes, 300, "bytes at rank 0 per rank, besides the table")
		}
	}
}
