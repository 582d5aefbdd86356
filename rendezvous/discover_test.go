package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// simJob starts ranks over a network in memory; edit changes what one of them knows, and the address that it announces.
func simJob(t *testing.T, net *simNet, size int, starts func(rank int) time.Duration,
	edit func(rank int, c *Config)) []*Node {
	nodes := make([]*Node, size)
	for at := time.Duration(0); ; at += 100 * time.Millisecond {
		missing := 0
		for rank := range size {
			switch {
			case nodes[rank] != nil:
			case starts(rank) > at:
				missing++
			default:
				id := fmt.Sprintf("worker-%d", rank)
				h := net.listen(&simHost{addr: simAddr(rank), id: id, secret: "ours"})
				cfg := Config{
					Status: testStatuses,
					Self: Record{ID: id, Role: "worker", Index: rank, Rank: rank, Nonce: NewNonce(), Addr: h.addr,
						Version: "1"},
					Size: size, Dial: net.dialer(h), Timeout: time.Minute,
				}
				for k := range size {
					if k != rank {
						cfg.Peers = append(cfg.Peers, Peer{ID: fmt.Sprintf("worker-%d", k), Rank: k,
							Host: simAddr(k).Addr().String(), Port: 12345})
					}
				}
				edit(rank, &cfg)
				n, err := Start(cfg)
				require.NoError(t, err)
				net.mu.Lock()
				h.node = n
				net.mu.Unlock()
				nodes[rank] = n
			}
		}
		if missing == 0 {
			return nodes
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// endJob gathers all ranks, ends them, and returns when the launch was.
func endJob(t *testing.T, net *simNet, nodes []*Node) time.Time {
	for i, g := range gatherAll(t.Context(), nodes) {
		require.NoError(t, g.err, "rank %d", i)
		require.Len(t, g.roster.Members, len(nodes))
	}
	at := time.Now()
	for _, n := range nodes {
		require.NoError(t, n.Close())
	}
	net.wg.Wait()
	time.Sleep(time.Minute)
	return at
}

func atOnce(int) time.Duration { return 0 }

// The cases are what each rank may know; the ranks find each other in every case.
func TestWaysToFindEachOther(t *testing.T) {
	for name, edit := range map[string]func(rank int, c *Config){
		"rank 0 knows nobody": func(rank int, c *Config) {
			if rank == 0 {
				c.Peers = nil
			}
		},
		"only rank 0 knows anybody": func(rank int, c *Config) {
			if rank != 0 {
				c.Peers = nil
			}
		},
		"rank 3 is known to nobody, and does not know rank 0": func(rank int, c *Config) {
			if rank == 3 {
				c.Peers = c.Peers[1:]
			} else {
				c.Peers = c.Peers[:len(c.Peers)-1]
			}
		},
		"what the environment says of rank 0 is wrong": func(rank int, c *Config) {
			if rank != 0 {
				c.Peers[0].Host = "10.9.9.9"
			}
		},
		"nobody is reached where it believes to be": func(rank int, c *Config) {
			c.Self.Addr = netip.MustParseAddrPort("10.9.9.9:1")
		},
		"rank 2 is not where the environment says": func(rank int, c *Config) {
			for i := range c.Peers {
				if c.Peers[i].Rank == 2 {
					c.Peers[i].Port = 1
				}
			}
		},
	} {
		for _, silent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, silence %v", name, silent), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					net := newSimNet(rand.New(rand.NewPCG(1, 1)))
					if silent { // no host answers, not even with a refusal
						for _, a := range []string{"10.9.9.9:1", "10.9.9.9:12345", "10.0.0.2:1"} {
							net.listen(&simHost{addr: netip.MustParseAddrPort(a), silent: true})
						}
					}
					begin := time.Now()
					at := endJob(t, net, simJob(t, net, 4, atOnce, edit))
					require.Less(t, at.Sub(begin), dialTimeout+2*time.Second)
				})
			})
		}
	}
}

// A program that accepts connections and stays silent has taken the port of a rank, which listens on another one: rank
// 0 learns of that one while it waits for the program's greeting.
func TestSilentProgramOnThePortOfARank(t *testing.T) {
	for name, later := range map[string]time.Duration{
		"all start at once": 0, "the rank starts later": 2 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newSimNet(rand.New(rand.NewPCG(1, 1)))
				taken := netip.AddrPortFrom(simAddr(2).Addr(), 1)
				last := time.Now().Add(later)
				starts := func(rank int) time.Duration {
					if rank == 2 {
						return later
					}
					return 0
				}
				at := endJob(t, net, simJob(t, net, 4, starts, func(rank int, c *Config) {
					for i := range c.Peers {
						if c.Peers[i].Rank == 2 {
							c.Peers[i].Port = int(taken.Port())
						}
					}
					dial := c.Dial
					c.Dial = func(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error) {
						if addr == taken {
							<-ctx.Done()
							return nil, ctx.Err()
						}
						return dial(ctx, id, addr)
					}
				}))
				require.Less(t, at.Sub(last), time.Second)
			})
		})
	}
}

// Another job has the port of every host, so each container listens on the next port or the one after it, and gossip
// cannot find it.
func TestPortsTakenByAnotherJob(t *testing.T) {
	for name, other := range map[string]*simHost{
		"another job":               {secret: "ours", try: 1},
		"a job of the same name":    {secret: "theirs"},
		"containers of one machine": {secret: "ours", id: "worker-9"},
	} {
		for i := range 6 {
			below, unknown := i/2, i%2 == 1 // rank 0 knows no rank, and is found by all
			t.Run(fmt.Sprintf("%s, %d ports, unknown %v", name, below, unknown), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					net := newSimNet(rand.New(rand.NewPCG(1, 1)))
					begin := time.Now()
					at := endJob(t, net, simJob(t, net, 4, atOnce, func(rank int, c *Config) {
						for i := range c.Peers {
							c.Peers[i].Port -= below
						}
						for k := range below {
							at := netip.AddrPortFrom(simAddr(rank).Addr(), simAddr(rank).Port()-uint16(k)-1)
							net.listen(&simHost{addr: at, node: &Node{},
								id: other.id, secret: other.secret, try: other.try})
						}
						if unknown && rank == 0 {
							c.Peers = nil
						}
					}))
					require.Less(t, at.Sub(begin), time.Second)
				})
			})
		}
	}
}

// Rank 0 dials a container once if a seed has told its address and gossip then tells it again: two connections to one
// container end each other, and on slow processors that would go on.
func TestACallOfASeedIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newSimNet(rand.New(rand.NewPCG(1, 1)))
		calls := 0
		nodes := simJob(t, net, 1, atOnce, func(_ int, c *Config) {
			c.Size = 2
			c.Dial = func(ctx context.Context, _ string, _ netip.AddrPort) (io.ReadWriteCloser, error) {
				calls++
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		require.True(t, nodes[0].ask(func() {
			seed := nodes[0].lead.addTarget("@"+simAddr(1).String(), nil, simAddr(1))
			require.Same(t, seed, nodes[0].lead.addTarget("worker-1", nil, simAddr(1)))
		}))
		synctest.Wait()
		require.Equal(t, 1, calls)
		require.NoError(t, nodes[0].Close())
		net.wg.Wait()
	})
}

// A cluster's DNS learns of a container 0.4 s after its start, and caches a denial for 5 s.
func TestNamesAreNotAskedForTooEarly(t *testing.T) {
	const size = 8
	for name, starts := range map[string]func(rank int) time.Duration{
		"all at once": atOnce,
		"rank 0 last": func(rank int) time.Duration {
			return map[bool]time.Duration{true: 3 * time.Second}[rank == 0]
		},
		"rank 5 last": func(rank int) time.Duration {
			return map[bool]time.Duration{true: 3 * time.Second}[rank == 5]
		},
		"in a row":     func(rank int) time.Duration { return time.Duration(rank) * 500 * time.Millisecond },
		"in a row, -1": func(rank int) time.Duration { return time.Duration(size-rank) * 500 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newSimNet(rand.New(rand.NewPCG(1, 1)))
				dns := &simDNS{lag: 400 * time.Millisecond, keep: 5 * time.Second, denied: map[string]time.Time{},
					names: map[string]map[int]simName{}}
				var last time.Time
				nodes := simJob(t, net, size, starts, func(rank int, c *Config) {
					last = time.Now()
					dns.set(fmt.Sprintf("worker-%d.train", rank), rank, c.Self.Addr.Addr())
					c.Lookup, c.AskAfter = dns.lookup, time.Second
					for i := range c.Peers {
						c.Peers[i].Host = c.Peers[i].ID + ".train"
					}
				})
				at := endJob(t, net, nodes)
				t.Logf("%v after the last start, %d questions", at.Sub(last), dns.asked)
				require.Less(t, at.Sub(last), 2*time.Second, "a denial costs 5 s")
				require.Less(t, dns.asked, 6*size)
			})
		})
	}
}

// Whatever the resolver answers, it is asked again, and callers at the same time share one lookup.
func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var asked []time.Duration
		fail := []error{errors.New("server misbehaving"), context.DeadlineExceeded, errors.New("no such host")}
		s := names{hosts: map[string]*name{}, seen: map[netip.Addr]bool{}, from: begin.Add(time.Second)}
		s.lookup = func(context.Context, string) ([]netip.Addr, error) {
			asked = append(asked, time.Since(begin))
			time.Sleep(10 * time.Millisecond)
			if len(asked) <= len(fail) {
				return nil, fail[len(asked)-1]
			}
			return []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")}, nil
		}
		one := netip.MustParseAddr("10.0.0.1")
		require.False(t, s.has(one))
		_, err := s.find(t.Context(), "x")
		require.ErrorIs(t, err, errNotAsked)
		defer func() { require.True(t, s.has(one)) }()
		for time.Since(begin) < 10*time.Second {
			for range 3 {
				go func() { _, _ = s.find(t.Context(), "x") }()
			}
			time.Sleep(50 * time.Millisecond)
		}
		synctest.Wait() // orders the reads below after the last lookup
		require.GreaterOrEqual(t, asked[0], time.Second)
		require.Len(t, asked[:4], 4)
		for i, pause := range []time.Duration{firstAgain, 2 * firstAgain, 4 * firstAgain} {
			require.InDelta(t, pause, asked[i+1]-asked[i], float64(100*time.Millisecond))
		}
		require.Less(t, len(asked), 14, "an answer is kept for a while")
		addrs, err := s.find(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.1")}, addrs)
		// An address is not looked up.
		addrs, err = s.find(t.Context(), "::1")
		require.NoError(t, err)
		require.Equal(t, []netip.Addr{netip.IPv6Loopback()}, addrs)
	})
}

// Rank 0 waits up to a second between two dials of a rank that is not there; one packet ends the wait, before any rank
// joins gossip.
func TestRankZeroHearsAnAnnouncement(t *testing.T) {
	for _, late := range []time.Duration{3 * time.Second, 10300 * time.Millisecond, 20 * time.Second,
		time.Minute - time.Second} {
		for _, lost := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				net := newSimNet(rand.New(rand.NewPCG(1, 1)))
				net.delay = 100 * time.Microsecond
				if lost {
					net.udpLoss = 1
				}
				var ports []*Port
				var last time.Time
				nodes := simJob(t, net, 3, func(rank int) time.Duration { return late * time.Duration(rank/2) },
					func(rank int, c *Config) {
						last = time.Now()
						ports = append(ports, net.port(net.hosts[c.Self.Addr]))
						c.Port, c.Key, c.Label, c.Timeout = ports[rank], make([]byte, 32), "job", 0
					})
				at := endJob(t, net, nodes).Sub(last)
				for _, p := range ports {
					require.NoError(t, p.Close())
				}
				if lost {
					require.Less(t, at, joinDelay+10*time.Millisecond, "gossip is joined then")
				} else {
					require.Less(t, at, 10*net.delay)
				}
			})
		}
	}
}

func TestPacketsThatAnnounceNothing(t *testing.T) {
	self := Record{ID: "worker-1", Role: "worker", Index: 1, Rank: 1, Nonce: NewNonce(), Addr: simAddr(1), Version: "1"}
	packed := func(m message) []byte {
		b, err := m.encode()
		require.NoError(t, err)
		return b
	}
	packet := packed(message{Type: announce, Record: &self})
	for name, tt := range map[string]struct {
		packet []byte
		heard  bool
	}{
		"an announcement": {packet, true},
		"nothing":         {nil, false},
		"short":           {packet[:len(packet)-1], false},
		"long":            {append(slices.Clone(packet), 0), false},
		"no record":       {packed(message{Type: announce}), false},
		"the end":         {packed(message{Type: done, Outcome: &Outcome{Status: 1}}), false},
		"another message": {packed(message{Type: hello, Record: &self}), false},
		"no length":       {bytes.Repeat([]byte{0xff}, 12), false},
	} {
		t.Run(name, func(t *testing.T) {
			var heard []Record
			d := delegate{announced: func(r Record) { heard = append(heard, r) }, promised: func(Record, string) {}}
			d.NotifyMsg(tt.packet)
			if tt.heard {
				require.Equal(t, []Record{self}, heard)
			} else {
				require.Empty(t, heard)
			}
		})
	}
}

// A packet that was on its way during the launch, or that an attacker has recorded and sends again, ends nothing.
func TestLateAnnouncement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newSimNet(rand.New(rand.NewPCG(1, 1)))
		nodes := simJob(t, net, 3, atOnce, func(int, *Config) {})
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		earlier := nodes[1].Self() // the same rank, an earlier start of it
		earlier.Nonce = NewNonce()
		require.True(t, nodes[0].post(func() { nodes[0].find.onAnnouncement(&earlier) }))
		time.Sleep(time.Minute)
		require.Empty(t, nodes[0].Losses())
		endJob(t, net, nodes)
	})
}

// A rank whose announcement rank 0 has acknowledged waits for rank 0, which may have many ranks to dial: it joins no
// gossip and calls no rank.
func TestAnAcknowledgedAnnouncementIsLeftToRankZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newSimNet(rand.New(rand.NewPCG(1, 1)))
		calls := 0
		net.seen = func(_ *simHost, _ netip.AddrPort, k kind, _ []byte) {
			if k == announce {
				calls++
			}
		}
		var ports []*Port
		begin := time.Now()
		nodes := simJob(t, net, 3, atOnce, func(rank int, c *Config) {
			ports = append(ports, net.port(net.hosts[c.Self.Addr]))
			c.Port, c.Key, c.Label = ports[rank], make([]byte, 32), "job"
			if dial := c.Dial; rank == 0 {
				c.Dial = func(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error) {
					time.Sleep(2 * time.Second)
					return dial(ctx, id, addr)
				}
			}
		})
		at := endJob(t, net, nodes).Sub(begin)
		for _, p := range ports {
			require.NoError(t, p.Close())
		}
		require.InDelta(t, 2*time.Second, at, float64(100*time.Millisecond))
		require.Zero(t, calls)
		require.Zero(t, net.met["gossip stream"])
	})
}

// What a process has waited for a processor in the last generation does not delay the next one.
func TestPaceOfALaterGeneration(t *testing.T) {
	delay := time.Minute
	p := pace{delay: func() time.Duration { return delay }}
	require.Zero(t, p.extra(lateFactor))
	delay += 100 * time.Millisecond
	require.Equal(t, time.Second, p.extra(lateFactor))
}

// Work that is not urgent waits longer if the process has had to wait for a processor.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delay := 300 * time.Millisecond
		p := pace{delay: func() time.Duration { return delay }, known: true}
		never := make(chan struct{})
		took := func() time.Duration {
			begin := time.Now()
			require.True(t, p.sleep(t.Context(), never, time.Second))
			return time.Since(begin)
		}
		require.Equal(t, 4*time.Second, took(), "since its start")
		require.Equal(t, 2500*time.Millisecond, took(), "half of it is still believed")
		delay += time.Minute
		require.Equal(t, time.Second+longestExtra, took())
		delay, p.limit = delay+time.Minute, 8*time.Second
		require.Equal(t, 3*time.Second, took(), "of a quarter of the limit")
		for range 20 {
			took()
		}
		require.Equal(t, time.Second, took())
		rested := func() time.Duration {
			begin := time.Now()
			require.True(t, p.rest(t.Context(), never, time.Second))
			return time.Since(begin)
		}
		require.Equal(t, time.Second, rested())
		delay += 80 * time.Millisecond
		require.Equal(t, time.Second+(800+400+200)*time.Millisecond, rested(), "until it is less than lateEnough")
		delay += time.Minute
		require.Equal(t, 3*time.Second, rested(), "of a quarter of the limit")
		for range 20 {
			took()
		}
		p.delay, p.limit = func() time.Duration { delay += time.Second; return delay }, 0
		require.Equal(t, time.Second+longestExtra, rested())
		p.limit = 10 * time.Minute
		require.Equal(t, time.Second+p.limit/4, rested(), "a thousand starts last longer than longestExtra")
		p.delay, p.limit = nil, 0
		require.Equal(t, time.Second, took())
		require.Equal(t, time.Second, rested())

		over := make(chan struct{})
		close(over)
		require.False(t, p.sleep(t.Context(), over, time.Hour))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.False(t, p.sleep(ctx, never, time.Hour))
	})
}
