package rendezvous

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// All ranks of a job start at once on two processors, with and without UDP. The launch takes little longer than the
// work that it needs, however slow the processors are, because work that can wait does. A slow start is no warning.
func TestBurstOnFewProcessors(t *testing.T) {
	for _, tt := range []burstCase{
		{64, 1, true, false}, {128, 1, true, false}, {128, 1, false, false},
		{128, 8, true, false}, {128, 8, false, false},
		{64, 1, true, true}, {64, 1, false, true}, {64, 8, true, true},
	} {
		name := fmt.Sprintf("%d ranks, processors %d times slower, UDP %v, agreed %v",
			tt.ranks, tt.slower, tt.udp, tt.agreed)
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newSimNet(rand.New(rand.NewPCG(1, 1)))
				net.cpu = newSimCPU(2, usualCosts.times(tt.slower))
				if !tt.udp {
					net.udpLoss = 1
				}
				took, spent, met := burst(t, net, tt.ranks, tt.agreed)
				c := net.cpu.cost
				needed := time.Duration(tt.ranks) * (c.start + 4*c.step + 6*c.message) / 2
				t.Logf("launched after %v, of which %v are needed; %v; %v", took, needed, spent, met)
				require.Less(t, took, tt.within(needed))
				require.Zero(t, met["gossip stream taken for SSH"])
				require.LessOrEqual(t, met["login cut half way"], tt.ranks/16+tt.looks()/2)
				require.LessOrEqual(t, met["login"], tt.ranks*3/2+tt.looks())
			})
		})
	}
}

type burstCase struct {
	ranks, slower int
	udp           bool
	agreed        bool // no container knows its rank: all must hear of all by gossip first
}

func (c burstCase) within(needed time.Duration) time.Duration {
	if c.agreed {
		return 4*needed + 4*time.Second
	}
	return needed*3/2 + time.Second
}

// looks are the logins by which ranks look for a rank 0 that is not declared.
func (c burstCase) looks() int {
	if c.agreed {
		return 4 * c.ranks
	}
	return 0
}

// burst starts the ranks of a job at once, gathers and ends them. It returns how long the launch took, and the work and
// events until then.
func burst(t *testing.T, net *simNet, size int, agreed bool) (
	took time.Duration, spent map[string]time.Duration, met tally,
) {
	begin := time.Now()
	warnings, logger := recordLog(slog.LevelWarn)
	nodes, ports := make([]*Node, size), make([]*Port, size)
	var starts sync.WaitGroup
	for rank := range size {
		h := net.listen(&simHost{addr: simAddr(rank), id: fmt.Sprintf("worker-%d", rank), secret: "ours"})
		starts.Go(func() {
			net.cpu.use(t.Context(), h, "starts", net.cpu.cost.start)
			ports[rank] = net.port(h)
			cfg := Config{
				Status: testStatuses,
				Self: Record{ID: h.id, Role: "worker", Index: rank, Rank: rank,
					Nonce: NewNonce(), Addr: h.addr, Version: "1"},
				Size: size, Dial: net.dialer(h), Timeout: 10 * time.Minute,
				Port: ports[rank], Key: make([]byte, 32), Label: "job", Logger: logger,
			}
			cfg.Delay = net.cpu.delay(h)
			if agreed {
				cfg.Self.Index, cfg.Self.Rank, cfg.Self.Order = -1, -1, 1
				cfg.Self.ID = MakeID("worker", -1, cfg.Self.Nonce)
				h.id = cfg.Self.ID
				cfg.Seeds = []Seed{{Host: "worker", Port: 12345}}
				cfg.Lookup = func(context.Context, string) (addrs []netip.Addr, err error) {
					for i := range size {
						addrs = append(addrs, simAddr(i).Addr())
					}
					return addrs, nil
				}
			}
			for k := range size {
				if k != rank && !agreed {
					cfg.Peers = append(cfg.Peers, Peer{ID: fmt.Sprintf("worker-%d", k), Rank: k,
						Host: simAddr(k).Addr().String(), Port: 12345})
				}
			}
			n, err := Start(cfg)
			if err != nil {
				t.Error(err)
				return
			}
			net.mu.Lock()
			h.node = n
			net.mu.Unlock()
			nodes[rank] = n
		})
	}
	starts.Wait()
	_, err := nodes[0].Gather(t.Context())
	took = time.Since(begin)
	net.cpu.mu.Lock()
	spent = maps.Clone(net.cpu.spent)
	net.cpu.mu.Unlock()
	net.mu.Lock()
	met = maps.Clone(net.met)
	net.mu.Unlock()
	require.NoError(t, err)
	for _, g := range gatherAll(t.Context(), nodes) {
		require.NoError(t, g.err)
	}
	require.Empty(t, warnings.take())
	for i, n := range nodes {
		require.NoError(t, n.Close())
		require.NoError(t, ports[i].Close())
	}
	net.wg.Wait()
	time.Sleep(time.Minute)
	return took, spent, met
}
