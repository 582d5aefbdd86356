package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// crowd is a job whose ranks are agreed, in virtual time: containers of services, as compose starts them.
type crowd struct {
	t     *testing.T
	net   *simNet
	size  int
	names []string // in rank order
	index bool     // each knows its number
	log   *lines

	mu   sync.Mutex
	dns  map[string][]netip.Addr
	wg   sync.WaitGroup
	ends map[int]end
	all  []*Node
	port []*Port
	host []*simHost
}

// end is how a container ended.
type end struct {
	status int
	reason string
	took   time.Duration // to its launch
}

func newCrowd(t *testing.T, size int, names ...string) *crowd {
	return &crowd{t: t, net: newSimNet(rand.New(rand.NewPCG(1, 1))), size: size, names: names, index: true,
		log: new(lines), ends: map[int]end{}, dns: map[string][]netip.Addr{}}
}

func (c *crowd) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.dns[host]) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return slices.Clone(c.dns[host]), nil
}

// register adds container i to the DNS, which may happen before that container starts.
func (c *crowd) register(role string, i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := simAddr(i).Addr(); !slices.Contains(c.dns[role], a) {
		c.dns[role] = append(c.dns[role], a)
	}
}

// start adds a container of a role, and its further addresses.
func (c *crowd) start(role string, others ...netip.AddrPort) {
	i := len(c.all)
	self := Record{Role: role, Index: -1, Rank: -1, Order: slices.Index(c.names, role),
		Nonce: NewNonce(), Addr: simAddr(i), Version: "1"}
	if c.index {
		self.Index = i
	}
	self.ID = MakeID(role, self.Index, self.Nonce)
	h := c.net.listen(&simHost{addr: self.Addr, id: self.ID, secret: "ours"})
	port := c.net.port(h)
	cfg := Config{Status: testStatuses, Self: self, Size: c.size, Dial: c.net.dialer(h), Timeout: time.Minute,
		Lookup: c.lookup,
		Port:   port, Key: make([]byte, 32), Label: "job",
		Logger: slog.New(slog.NewTextHandler(c.log, nil)).With("self", i)}
	c.register(role, i)
	c.mu.Lock()
	for _, a := range others {
		c.dns[role] = append(c.dns[role], a.Addr())
	}
	c.mu.Unlock()
	for _, name := range c.names {
		cfg.Seeds = append(cfg.Seeds, Seed{Host: name, Port: 12345, Role: name})
	}
	n, err := Start(cfg)
	require.NoError(c.t, err)
	c.net.mu.Lock()
	h.node = n
	for _, a := range others {
		c.net.hosts[a] = h
	}
	c.net.mu.Unlock()
	c.all, c.port, c.host = append(c.all, n), append(c.port, port), append(c.host, h)
	begin := time.Now()
	c.wg.Go(func() { // what cmd does
		var e end
		r, err := n.Gather(c.t.Context())
		e.took = time.Since(begin)
		var ended *EndedError
		var missing *MissingError
		switch {
		case errors.As(err, &ended):
			e.status, e.reason = ended.Outcome.Status, ended.Outcome.Reason
		case errors.As(err, &missing):
			e.status, e.reason = 75, err.Error()
		case err != nil:
			e.status, e.reason = 78, err.Error()
		case r.Members[0].Nonce == self.Nonce:
			time.Sleep(time.Minute)
		default:
			if _, err := n.Wait(c.t.Context()); err != nil {
				e.status, e.reason = 75, err.Error()
			}
		}
		_ = n.Finish(c.t.Context(), Outcome{Status: e.status, Reason: e.reason}, time.Second)
		c.net.kill(h, false)
		c.mu.Lock()
		c.ends[i] = e
		c.mu.Unlock()
	})
}

// over waits for the end of all containers.
func (c *crowd) over() (ends []end) {
	c.wg.Wait()
	for i, n := range c.all {
		require.NoError(c.t, n.Close())
		require.NoError(c.t, c.port[i].Close())
	}
	c.net.wg.Wait()
	time.Sleep(time.Minute)
	for i := range c.all {
		ends = append(ends, c.ends[i])
	}
	return ends
}

// lines is a log with several writers.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestMoreContainersThanRanks(t *testing.T) {
	type one struct {
		role string
		at   time.Duration
	}
	w, l := "worker", "launcher"
	for name, test := range map[string]struct {
		size  int
		names []string
		start []one
		ends  []int
		say   string // in the reason of a container that ends with 78
	}{
		"two sets at once": {2, []string{w}, []one{{w, 0}, {w, 0}, {w, 0}, {w, 0}},
			[]int{78, 78, 78, 78},
			"the job has 2 ranks, but 4 containers are here; too many: "},
		"one too many": {3, []string{w}, []one{{w, 0}, {w, 0}, {w, 0}, {w, 0}},
			[]int{78, 78, 78, 78},
			"the job has 3 ranks, but 4 containers are here; too many: "},
		"a set that comes later": {2, []string{w}, []one{{w, 0}, {w, 0}, {w, 9 * time.Second}, {w, 9 * time.Second}},
			[]int{0, 0, 78, 78},
			"the job has 2 ranks and all of them are here: this container is one too many"},
		"a container comes later": {2, []string{w}, []one{{w, 0}, {w, 0}, {w, 9 * time.Second}},
			[]int{0, 0, 78},
			"the job has 2 ranks and all of them are here: this container is one too many"},
		"the size forgets the launcher": {2, []string{l, w}, []one{{l, 0}, {w, 0}, {w, 0}}, []int{78, 78, 78},
			"the job has 2 ranks, but 3 containers are here; too many: worker"},
		"the size forgets the launcher, which is late": {2, []string{l, w}, []one{{w, 0}, {w, 0}, {l, 9 * time.Second}},
			[]int{78, 78, 78},
			"the job has 2 ranks, but 3 containers are here; too many: worker"},
		"the size forgets the launcher, and a worker is late": {2, []string{l, w},
			[]one{{l, 0}, {w, 0}, {w, 9 * time.Second}},
			[]int{0, 0, 78}, "this container is one too many"},
		"as many as there are ranks": {3, []string{l, w},
			[]one{{w, 0}, {w, 300 * time.Millisecond}, {l, time.Second}}, []int{0, 0, 0}, ""},
	} {
		for _, index := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, index %v", name, index), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCrowd(t, test.size, test.names...)
					c.index = index
					begin := time.Now()
					for i, s := range test.start {
						if s.at == 0 {
							c.register(s.role, i)
						}
					}
					for _, s := range test.start {
						time.Sleep(time.Until(begin.Add(s.at)))
						c.start(s.role)
					}
					var statuses []int
					for _, e := range c.over() {
						statuses = append(statuses, e.status)
						if e.status == 78 {
							require.Contains(t, e.reason, test.say, "%s", c.log)
						}
						require.Less(t, e.took, 10*time.Second)
					}
					require.Equal(t, test.ends, statuses, "%v\n%s", c.ends, c.log)
				})
			})
		}
	}
}

// The log line names the containers that are too many by their addresses.
func TestSurplusIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 2, "worker")
		for i := range 4 {
			c.register("worker", i)
		}
		for range 4 {
			c.start("worker")
		}
		for _, e := range c.over() {
			require.Contains(t, e.reason, "too many: worker-2 at 10.0.0.2, worker-3 at 10.0.0.3")
		}
	})
}

// As many containers as ranks are not the job while one of its roles has none.
func TestARoleWithoutAContainerIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 2, "launcher", "worker")
		c.start("worker")
		c.start("worker")
		for _, e := range c.over() {
			require.Equal(t, 75, e.status, e.reason)
			require.Contains(t, e.reason,
				"2 of 2 ranks are present; missing: launcher: name launcher does not resolve")
		}
	})
}

// A container that has died may keep its connection for a while when another one comes: it is asked, and does not
// count.
func TestADeadContainerIsNotOneTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 3, "worker", "launcher")
		for range 3 {
			c.start("worker") // all that the size says, but a role is missing
		}
		time.Sleep(time.Second)
		c.net.pause(c.host[1], true)
		c.start("launcher")
		time.Sleep(30 * time.Second)
		c.net.pause(c.host[1], false)
		for i, e := range c.over() {
			if i != 1 {
				require.Zero(t, e.status, "%s\n%s", e.reason, c.log)
				require.Less(t, e.took, 12*time.Second)
			}
		}
	})
}

// agreed is a container whose rank the environment does not tell.
func (p *play) agreed(i int) Record {
	r := p.record(i)
	r.Rank = -1
	return r
}

// More containers than ranks have a coordinator, too: it finds out which of them are there.
func TestMoreThanTheSizeHaveACoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(2, true)
		n, err := Start(Config{Status: testStatuses, Self: p.agreed(1), Size: 2, Dial: p.dial,
			Timeout: 10 * time.Minute})
		require.NoError(t, err)
		first := p.agreed(0)
		n.post(func() {
			n.find.onGossip(first, true)
			n.find.onGossip(p.agreed(2), true)
			n.find.onGossip(p.agreed(3), true)
			n.find.onGossip(first, false)
		})
		two := p.called(2)
		two.want(hello)
		p.end(n, two)
	})
}

// A container that is one too many may come earlier in the order, and end its connection to lead itself before it reads
// how the job ends. The coordinator stays to tell it, unless it is gone.
func TestASurplusContainerThatLeadsIsTold(t *testing.T) {
	for _, test := range []struct {
		name       string
		told, gone bool
	}{{"told", true, false}, {"not told", false, false}, {"told, and gone", true, true}, {"gone", false, true}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				p.listen(0, true)
				p.listen(2, true)
				first, self, last := p.agreed(0), p.agreed(1), p.agreed(2)
				first.Role, first.ID, self.Order, last.Order = "launcher", "launcher-0", 1, 1
				n, err := Start(Config{Status: testStatuses, Self: self, Size: 2, Dial: p.dial,
					Timeout: 10 * time.Minute, Seeds: []Seed{{Host: "launcher", Role: "launcher"}},
					Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
						return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
					}})
				require.NoError(t, err)
				n.post(func() { n.find.onGossip(last, true) })
				two := p.called(2)
				two.w.send(message{Type: register, ref: two.want(hello).Record, Record: &last, State: Gathering})
				synctest.Wait()
				n.post(func() { n.find.onGossip(first, true) })
				zero := p.called(0)
				zero.w.send(message{Type: register, ref: zero.want(hello).Record, Record: &first, State: Gathering})
				for _, l := range []*line{two, zero} {
					l.want(ping)
					l.w.send(message{Type: pong})
				}
				_, err = n.Gather(t.Context())
				require.ErrorContains(t, err, "the job has 2 ranks, but 3 containers are here")

				p.listen(0, !test.gone)
				if !test.told {
					zero.w.abort()
					zero.ended()
					synctest.Wait()
				}
				left, begin := make(chan error, 1), time.Now()
				over := Outcome{Status: 78, Reason: "too many"}
				p.wg.Go(func() { left <- n.Finish(t.Context(), over, 5*time.Second) })
				require.Equal(t, 78, two.want(done).Outcome.Status)
				two.w.send(message{Type: doneAck})
				if test.told {
					require.Equal(t, 78, zero.want(done).Outcome.Status)
					zero.w.abort()
				}
				if test.gone {
					two.want(bye)
					two.w.abort()
					require.NoError(t, <-left)
					require.Less(t, time.Since(begin), 2*time.Second)
					p.end(n, two, zero)
					return
				}
				two.quiet(2 * time.Second)
				again := p.called(0) // it leads, and refuses
				again.want(hello)
				again.w.send(message{Type: refuse, Record: &first, Reason: "launcher-0 leads already"})
				again.ended()
				leads := p.greet(n, &first)
				require.Equal(t, over, *leads.want(done).Outcome)
				two.want(bye)
				two.w.abort()
				require.NoError(t, <-left)
				p.end(n, two, zero, again, leads)
			})
		})
	}
}

// A coordinator that was not there at the launch has no part in it; if rank 0 is lost, it may be its next start.
func TestARunningRankSendsAnotherCoordinatorAway(t *testing.T) {
	for _, alive := range []bool{true, false} {
		t.Run(fmt.Sprintf("rank 0 answers %v", alive), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				self, first, late := p.agreed(1), p.agreed(0), p.agreed(2)
				n, err := Start(Config{Status: testStatuses, Self: self, Size: 2, Dial: p.dial,
					Timeout: 10 * time.Minute})
				require.NoError(t, err)
				up := p.call(n, &first)
				up.w.send(message{Type: hello, Record: &first})
				up.want(register)
				members, err := assign([]Record{first, self}, 2)
				require.NoError(t, err)
				r := &Roster{Epoch: 1, Hash: hashMembers(members), Members: members}
				up.w.send(message{Type: prepare, Epoch: 1, Roster: r})
				up.want(ack)
				up.w.send(message{Type: launched, Epoch: 1})
				up.want(started)

				other := p.call(n, &late)
				other.w.send(message{Type: hello, Record: &late})
				up.want(ping)
				if alive {
					up.w.send(message{Type: pong})
					require.Equal(t, 78, other.want(done).Outcome.Status)
				} else {
					require.Equal(t, Running, other.want(register).State)
				}
				p.end(n, up, other)
			})
		})
	}
}

// Containers are counted, not addresses, and nothing is waited for if all addresses answer.
func TestContainersWithTwoAddresses(t *testing.T) {
	for name, two := range map[string]bool{"one address each": false, "two addresses each": true} {
		t.Run(name, func(t *testing.T) {
			for range 20 { // which of two addresses is dialled first decides about half of all runs
				synctest.Test(t, func(t *testing.T) { startWithAddresses(t, two) })
			}
		})
	}
}

func startWithAddresses(t *testing.T, two bool) {
	c := newCrowd(t, 3, "worker")
	for i := range 3 {
		var others []netip.AddrPort
		if two {
			a := netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+1))
			others = append(others, netip.AddrPortFrom(a, 12345))
		}
		c.start("worker", others...)
	}
	for _, e := range c.over() {
		require.Zero(t, e.status, e.reason)
		require.Less(t, e.took, 500*time.Millisecond, "%s", c.log)
	}
	require.NotContains(t, c.log.String(), "went away")
}

// The DNS may still return the addresses of containers that are gone.
func TestAddressesWithoutAContainer(t *testing.T) {
	for _, test := range []struct {
		name           string
		silent, paused bool
		most           time.Duration
	}{
		{"refused", false, false, 500 * time.Millisecond},
		{"silent", true, false, dialTimeout + 500*time.Millisecond},
		{"accepted, and silent", false, true, dialTimeout + 500*time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t, 2, "worker")
				gone := netip.MustParseAddrPort("10.9.9.9:12345")
				c.dns["worker"] = append(c.dns["worker"], gone.Addr())
				c.start("worker")
				switch {
				case test.silent:
					c.net.listen(&simHost{addr: gone, silent: true})
				case test.paused:
					c.net.pause(c.net.listen(&simHost{addr: gone, node: c.all[0]}), true)
				}
				c.start("worker")
				for _, e := range c.over() {
					require.Zero(t, e.status, e.reason)
					require.Less(t, e.took, test.most)
				}
			})
		})
	}
}
