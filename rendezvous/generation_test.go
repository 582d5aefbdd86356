package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// follow starts the next generation of a node, as cmd does.
func (w *world) follow(n *Node) *Node {
	next := w.start(n.Following())
	n.Succeed(next)
	assert.NoError(w.t, n.Close())
	return next
}

// obey clears on order and returns the node of the next generation, or nil with the end of the job.
func (w *world) obey(n *Node, takes time.Duration) (*Node, Outcome, error) {
	select {
	case <-n.Clears():
		time.Sleep(takes)
		n.Cleared(2, takes)
	case <-n.finished:
	}
	o, err := n.Wait(context.Background())
	if err == ErrNext { //nolint:errorlint // it is returned as it is
		return w.follow(n), o, nil
	}
	return nil, o, err
}

// gatherSame waits until all nodes know the same roster. No test waits for an hour: if one of them ends the job alone,
// the timers of the others would go on without an end.
func gatherSame(t *testing.T, nodes []*Node) Roster {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	res := gatherAll(ctx, nodes)
	for i, g := range res {
		require.NoError(t, g.err, "rank %d", i)
		require.Equal(t, res[0].roster.Hash, g.roster.Hash)
	}
	return res[0].roster
}

func TestGenerations(t *testing.T) {
	for _, size := range []int{1, 2, 5, 64} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var nodes []*Node
				for i := range size {
					nodes = append(nodes, w.start(w.config(i, size)))
				}
				first := gatherSame(t, nodes)
				for generation := uint64(2); generation < 5; generation++ {
					var wg sync.WaitGroup
					for i, n := range nodes[1:] {
						wg.Go(func() {
							next, o, err := w.obey(n, time.Duration(i)*time.Millisecond)
							if assert.NoError(t, err) && assert.NotNil(t, next, "%v", o) {
								nodes[1+i] = next
							}
						})
					}
					cleared, err := nodes[0].Clear(t.Context(), []byte("because"))
					require.NoError(t, err)
					require.Len(t, cleared, size-1)
					for i, c := range cleared {
						took := time.Duration(i) * time.Millisecond
						require.Equal(t, Cleared{i + 1, fmt.Sprintf("worker-%d", i+1), 2, took}, c)
					}
					nodes[0].Next()
					nodes[0] = w.follow(nodes[0])
					wg.Wait()
					begin := time.Now()
					again := gatherSame(t, nodes)
					require.Less(t, time.Since(begin), 100*time.Millisecond, "nothing is waited for")
					for _, n := range nodes {
						require.Equal(t, generation, n.Generation())
					}
					for i, m := range again.Members {
						require.Equal(t, first.Members[i].Nonce, m.Nonce, "every container keeps its rank")
					}
				}
				require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 3}, 0))
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

// TestClearOverALostConnection: the order and the answer are repeated when a connection comes back, and a rank that
// did not get next learns it from the greeting.
func TestClearOverALostConnection(t *testing.T) {
	for _, when := range []string{"before the order", "while clearing", "after the answer", "at next"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				nodes := []*Node{w.start(w.config(0, 3)), w.start(w.config(1, 3)), w.start(w.config(2, 3))}
				gatherSame(t, nodes)
				if when == "before the order" {
					w.cut(addrOf(1))
				}
				var wg sync.WaitGroup
				for i := 1; i < 3; i++ {
					n := nodes[i]
					wg.Go(func() {
						select {
						case <-n.Clears():
						case <-time.After(2 * time.Minute):
							return
						}
						if i == 1 && when == "while clearing" {
							w.cut(addrOf(1))
						}
						n.Cleared(1, 0)
						if i == 1 && when == "after the answer" {
							w.cut(addrOf(1))
						}
						soon, cancel := context.WithTimeout(context.Background(), time.Minute)
						defer cancel()
						_, err := n.Wait(soon)
						assert.ErrorIs(t, err, ErrNext)
						nodes[i] = w.follow(n)
					})
				}
				defer wg.Wait()
				soon, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := nodes[0].Clear(soon, nil)
				require.NoError(t, err)
				if when == "at next" {
					w.cut(addrOf(1))
				}
				nodes[0].Next()
				nodes[0] = w.follow(nodes[0])
				wg.Wait()
				gatherSame(t, nodes)
				w.close(nodes...)
			})
		})
	}
}

// crash ends a container; its address refuses, or is silent if the host is lost with it.
func (w *world) crash(n *Node, block error) {
	w.set(n.self.Addr, nil, block)
	w.cut(n.self.Addr)
	assert.NoError(w.t, n.Close())
}

// TestALostRankIsReplaced: the others clear, the generation is proven to be over, and the next start of the lost
// container takes its place in the next one.
func TestALostRankIsReplaced(t *testing.T) {
	for name, tt := range map[string]struct {
		block   error // of its old address
		while   string
		moves   bool
		unnamed bool // its environment does not tell its rank
		fence   time.Duration
		foreign error // what a container of another job answers at its old address, until its next start
		rival   bool  // meanwhile another container claims rank 0, and ends alone
	}{
		"running":                     {},
		"another rank 0 comes":        {rival: true},
		"its address, another secret": {foreign: fmt.Errorf("x: %w", ErrOtherSecret)},
		"its address, another job":    {foreign: fmt.Errorf("x: %w", ErrOtherJob)},
		"clearing":                    {while: "clearing"},
		"elsewhere":                   {moves: true},
		"its host is lost":            {block: syscall.ETIMEDOUT, moves: true, fence: fenceTime},
		"its host, clearing":          {block: syscall.ETIMEDOUT, moves: true, while: "clearing", fence: fenceTime},
		"agreed rank":                 {unnamed: true},
		"agreed rank, clearing":       {unnamed: true, while: "clearing"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				config := func(i int) Config {
					cfg := w.config(i, 3)
					cfg.Rejoin = true
					if tt.unnamed && i == 1 {
						cfg.Self.Rank, cfg.Self.Index = -1, -1
						cfg.Self.ID = MakeID(cfg.Self.Role, -1, cfg.Self.Nonce)
					}
					if tt.unnamed {
						cfg.Peers = append(cfg.Peers[:1:1], cfg.Peers[2:]...)
						cfg.Seeds = []Seed{{Host: "10.0.0.1", Port: 12345}}
					}
					return cfg
				}
				nodes := []*Node{w.start(config(0)), w.start(config(1)), w.start(config(2))}
				defer func() {
					if t.Failed() { // their timers would keep the test alive
						w.close(nodes...)
					}
				}()
				first := gatherSame(t, nodes)
				var wg sync.WaitGroup
				if tt.while == "" {
					w.crash(nodes[1], tt.block)
					require.Equal(t, 1, (<-nodes[0].Losses()).Rank)
				} else {
					wg.Go(func() {
						<-nodes[1].Clears()
						w.crash(nodes[1], tt.block)
					})
				}
				wg.Go(func() {
					next, _, err := w.obey(nodes[2], 0)
					assert.NoError(t, err)
					nodes[2] = next
				})
				begin := time.Now()
				cleared, err := nodes[0].Clear(t.Context(), nil)
				require.NoError(t, err)
				require.Len(t, cleared, 1)
				require.InDelta(t, tt.fence.Seconds(), time.Since(begin).Seconds(), 8)
				nodes[0].Next()
				cfg := nodes[0].Following()
				cfg.Text = []byte("what was before")
				next := w.start(cfg)
				nodes[0].Succeed(next)
				assert.NoError(t, nodes[0].Close())
				nodes[0] = next
				wg.Wait()
				late := 3 * time.Second
				if tt.foreign != nil {
					w.set(nodes[1].self.Addr, nil, tt.foreign)
					late += 2 * jobProofTime
				}
				time.Sleep(late)
				if tt.rival {
					cfg := config(0)
					cfg.Self.Addr = addrOf(8)
					n := w.start(cfg)
					_, err := n.Gather(t.Context())
					var conflict *ConflictError
					require.ErrorAs(t, err, &conflict)
					require.NoError(t, n.Finish(t.Context(), Outcome{Status: 78}, 0))
					require.NoError(t, n.Close())
				}
				cfg = config(1)
				if tt.moves {
					cfg.Self.Addr = addrOf(9)
				}
				nodes[1] = w.start(cfg)
				second := gatherSame(t, nodes)
				require.Equal(t, uint64(2), nodes[1].Generation())
				require.Equal(t, "what was before", string(nodes[1].Told()))
				for i := range 3 {
					require.Equal(t, i == 1, first.Members[i].Nonce != second.Members[i].Nonce)
				}
				w.close(nodes...)
			})
		})
	}
}

// TestTheNextStartOfALostRankWaits: it may come before rank 0 has noticed that the first start is gone, and is kept.
func TestTheNextStartOfALostRankWaits(t *testing.T) {
	for _, moves := range []bool{false, true} {
		t.Run(fmt.Sprint("moves=", moves), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				config := func(i int) Config {
					cfg := w.config(i, 3)
					cfg.Rejoin = true
					return cfg
				}
				nodes := []*Node{w.start(config(0)), w.start(config(1)), w.start(config(2))}
				defer func() {
					if t.Failed() { // their timers would keep the test alive
						w.close(nodes...)
					}
				}()
				gatherSame(t, nodes)
				w.crash(nodes[1], nil)
				cfg := config(1)
				if moves {
					cfg.Self.Addr = addrOf(9)
				}
				nodes[1] = w.start(cfg)
				var l Loss
				select {
				case l = <-nodes[0].Losses():
				case <-time.After(time.Minute):
				}
				require.Equal(t, Loss{1, "worker-1", "its container was started again"}, l)
				var wg sync.WaitGroup
				wg.Go(func() {
					next, _, err := w.obey(nodes[2], 0)
					assert.NoError(t, err)
					nodes[2] = next
				})
				soon, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := nodes[0].Clear(soon, nil)
				require.NoError(t, err)
				nodes[0].Next()
				nodes[0] = w.follow(nodes[0])
				wg.Wait()
				begin := time.Now()
				gatherSame(t, nodes)
				require.Less(t, time.Since(begin), time.Second, "its address was told")
				w.close(nodes...)
			})
		})
	}
}

// TestALeavingRankIsReplaced: a scheduler may start the next container while the first one still saves its work.
func TestALeavingRankIsReplaced(t *testing.T) {
	for _, signal := range []int{15, 2} {
		t.Run(fmt.Sprint("signal=", signal), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				config := func(i int) Config {
					cfg := w.config(i, 3)
					cfg.Rejoin = true
					return cfg
				}
				nodes := []*Node{w.start(config(0)), w.start(config(1)), w.start(config(2))}
				gatherSame(t, nodes)
				require.True(t, nodes[1].RequestStop(signal, "stopped"))
				require.Equal(t, signal == 15, (<-nodes[0].Stops()).Leaves())
				cfg := config(1)
				cfg.Self.Addr = addrOf(9)
				next := w.start(cfg)
				if signal != 15 {
					_, err := next.Gather(t.Context())
					require.ErrorContains(t, err, "worker-1 is taken")
					w.close(append(nodes, next)...)
					return
				}
				time.Sleep(5 * time.Second)
				require.False(t, next.isGathered())
				var wg sync.WaitGroup
				wg.Go(func() {
					<-nodes[1].Clears()
					nodes[1].Cleared(1, 0)
					_, err := nodes[1].Wait(t.Context())
					assert.ErrorIs(t, err, ErrNext)
					w.crash(nodes[1], nil)
				})
				wg.Go(func() {
					following, _, err := w.obey(nodes[2], 0)
					assert.NoError(t, err)
					nodes[2] = following
				})
				_, err := nodes[0].Clear(t.Context(), nil)
				require.NoError(t, err)
				nodes[0].Next()
				nodes[0] = w.follow(nodes[0])
				wg.Wait()
				nodes[1] = next
				begin := time.Now()
				gatherSame(t, nodes)
				require.Less(t, time.Since(begin), 2*time.Second)
				require.Empty(t, nodes[0].Losses())
				w.close(nodes...)
			})
		})
	}
}

// TestAStartLeavesBetweenLaunches: the next start of a lost container gets a signal while the other ranks wait for it.
// With SIGTERM it leaves alone, and the one after it takes part.
func TestAStartLeavesBetweenLaunches(t *testing.T) {
	for name, tt := range map[string]struct {
		blocked []int // whose addresses cannot be reached, 9 is the start that leaves
		asks    bool  // it asks rank 0 to end the job, before it knows the generation
		signal  int
	}{
		"rank 0 knows it":                 {signal: 15},
		"it has asked rank 0":             {signal: 15, asks: true},
		"rank 0 does not reach it":        {signal: 15, blocked: []int{9}},
		"only another rank is reached":    {signal: 15, blocked: []int{9, 0}},
		"another signal ends the job":     {signal: 2},
		"so does one that rank 0 is told": {signal: 2, asks: true},
		"or that another rank is told":    {signal: 2, blocked: []int{9}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				nodes := make([]*Node, 4)
				config := func(i int) Config {
					cfg := w.config(i, len(nodes))
					cfg.Rejoin, cfg.Timeout, cfg.Text = true, time.Hour, []byte("restarts")
					return cfg
				}
				for i := range nodes {
					nodes[i] = w.start(config(i))
				}
				gatherSame(t, nodes)
				w.crash(nodes[1], nil)
				w.crash(nodes[3], nil) // it comes back last, so that the launch waits
				<-nodes[0].Losses()
				<-nodes[0].Losses()
				var wg sync.WaitGroup
				wg.Go(func() {
					following, _, err := w.obey(nodes[2], 0)
					assert.NoError(t, err)
					nodes[2] = following
				})
				_, err := nodes[0].Clear(t.Context(), nil)
				require.NoError(t, err)
				nodes[0].Next()
				nodes[0] = w.follow(nodes[0])
				wg.Wait()

				cfg := config(1)
				cfg.Self.Addr = addrOf(9)
				leaver, err := Start(cfg)
				require.NoError(t, err)
				w.set(addrOf(9), leaver, nil)
				for _, i := range tt.blocked {
					w.set(addrOf(i), map[int]*Node{0: nodes[0], 9: leaver}[i], syscall.EHOSTUNREACH)
				}
				var results []chan gathered
				gather := func(n *Node) {
					out := make(chan gathered, 1)
					results = append(results, out)
					wg.Go(func() {
						r, err := n.Gather(t.Context())
						out <- gathered{r, err}
						if ended, ok := errors.AsType[*EndedError](err); ok {
							assert.NoError(t, n.Finish(t.Context(), ended.Outcome, 0))
						}
					})
				}
				gather(nodes[0])
				gather(nodes[2])
				if tt.blocked == nil {
					knows := func() bool { return leaver.Generation() == 2 }
					require.Eventually(t, knows, time.Minute, time.Millisecond)
				}
				stopped := Outcome{Status: 128 + tt.signal, Reason: "stopped", Stopped: true}
				begin := time.Now()
				switch {
				case tt.asks:
					require.True(t, leaver.RequestStop(tt.signal, "stopped"))
					_, err = leaver.Gather(t.Context())
					var ended *EndedError
					require.ErrorAs(t, err, &ended)
					if tt.signal != 15 {
						stopped.Reason = "worker-1: stopped"
					}
					require.Equal(t, stopped, ended.Outcome)
				default:
					leaving, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					told, alone := leaver.Withdraw(leaving, stopped)
					cancel()
					require.Equal(t, tt.signal == 15, alone)
					require.True(t, told)
				}
				if tt.signal == 15 {
					require.Less(t, time.Since(begin), time.Second)
				}
				if tt.signal == 15 && tt.blocked == nil {
					synctest.Wait()
					require.Equal(t, Absent, nodes[0].View().Ranks[1].Standing)
				}
				w.crash(leaver, nil)
				if tt.signal != 15 {
					var ended *EndedError
					require.ErrorAs(t, (<-results[0]).err, &ended)
					require.Equal(t, "worker-1: stopped", ended.Outcome.Reason)
					wg.Wait()
					w.close(nodes[0], nodes[2])
					return
				}
				time.Sleep(10 * time.Second) // longer than withdrawDelay
				for _, i := range tt.blocked {
					w.set(addrOf(i), map[int]*Node{0: nodes[0]}[i], nil)
				}
				for _, i := range []int{1, 3} {
					nodes[i] = w.start(config(i))
					gather(nodes[i])
				}
				for _, out := range results {
					g := <-out
					require.NoError(t, g.err)
					require.Equal(t, nodes[1].self.Nonce, g.roster.Members[1].Nonce)
				}
				w.close(nodes...)
			})
		})
	}
}

// TestAFrozenRankIsNotFenced: its connection stands, and it may go on.
func TestAFrozenRankIsNotFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 2)), w.start(w.config(1, 2))}
		gatherSame(t, nodes)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := nodes[0].Clear(ctx, nil) // the other one never answers
		require.ErrorIs(t, err, context.DeadlineExceeded)
		w.close(nodes...)
	})
}

func TestFence(t *testing.T) {
	const ago = 5 * time.Second
	m := Member{Record: Record{Addr: addrOf(1)}}
	at := func(a netip.AddrPort, err error) error { return fmt.Errorf("%v: %w", a, err) }
	for name, tt := range map[string]struct {
		lost   *target
		lostIn time.Duration // after the order
		want   time.Duration
	}{
		"silent":                 {&target{err: at(m.Addr, syscall.ETIMEDOUT)}, -ago, fenceTime},
		"lost after the order":   {&target{err: at(m.Addr, syscall.ETIMEDOUT)}, ago, fenceTime + ago},
		"refuses":                {&target{err: at(m.Addr, syscall.ECONNREFUSED)}, 0, 0},
		"somebody else is there": {&target{err: at(m.Addr, ErrOtherContainer)}, 0, 0},
		"its new address":        {&target{err: at(addrOf(9), syscall.ECONNREFUSED)}, 0, fenceTime},
		"started again there":    {&target{successor: &Record{Addr: m.Addr}, err: errEnded}, 0, 0},
		"started again":          {&target{successor: &Record{Addr: addrOf(9)}, err: errEnded}, 0, fenceTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := coordinator{n: &Node{}}
				c.n.clearing.since = time.Now()
				tt.lost.since = time.Now().Add(tt.lostIn)
				require.Equal(t, tt.want, c.fence(tt.lost, m))
			})
		})
	}
}

// TestStopWhileClearing: a rank that is asked to end while it clears ends the job, as at any other time.
func TestStopWhileClearing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 2)), w.start(w.config(1, 2))}
		gatherSame(t, nodes)
		var wg sync.WaitGroup
		wg.Go(func() {
			<-nodes[1].Clears()
			assert.True(t, nodes[1].RequestStop(15, "stopped"))
			o, err := nodes[1].Wait(context.Background())
			assert.NoError(t, err)
			assert.Equal(t, 143, o.Status)
		})
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			assert.Equal(t, 15, (<-nodes[0].Stops()).Signal)
			cancel()
		})
		_, err := nodes[0].Clear(ctx, nil)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 143}, 0))
		wg.Wait()
		w.close(nodes...)
	})
}

// TestGreetingOfAnEarlierGeneration: a dial that was under way when the generation ended finds nothing to lead.
func TestGreetingOfAnEarlierGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cfg := w.config(1, 2)
		cfg.Generation = 2
		n := w.start(cfg)
		rwc, err := w.dial(t.Context(), "", addrOf(1))
		require.NoError(t, err)
		zero := w.config(0, 2).Self
		c := newWire(rwc, &zero)
		c.send(message{Type: hello, Record: &zero, Epoch: 2})
		var got message
		require.Error(t, c.read(func(m message) error { got = m; return errEnded }))
		require.Equal(t, refuse, got.Type)
		require.Equal(t, "this is generation 2, and not 1", got.Reason)
		c.close()
		w.close(n)
	})
}

// later starts a node of the second generation.
func (p *play) later(self Record, size int) *Node {
	cfg := Config{Status: testStatuses, Self: self, Size: size, Dial: p.dial, Generation: 2}
	n, err := Start(cfg)
	require.NoError(p.t, err)
	return n
}

// TestNextNeedsClear: rank 0 does not go on while processes may be left, and no other rank does before its answer.
func TestNextNeedsClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 2)), w.start(w.config(1, 2))}
		gatherSame(t, nodes)
		nodes[0].Next()
		synctest.Wait()
		for i, n := range nodes {
			require.False(t, isClosed(n.finished), "rank %d", i)
		}
		w.close(nodes...)

		p := newPlay(t)
		zero, one := p.record(0), p.record(1)
		n := p.start(one, 2)
		l := p.prepared(n, &zero, rosterOf(t, 1, zero, one))
		l.launched(1)
		l.w.send(message{Type: next})
		l.w.send(message{Type: again})
		<-n.Clears()
		l.w.send(message{Type: next})
		l.quiet(time.Second)
		require.False(t, isClosed(n.finished))
		p.end(n, l)
	})
}

// TestLookAtARankThatGoesOn: a rank that was lost with the last generation must end, because rank 0 goes on without it.
// A rank that has cleared is waited for.
func TestLookAtARankThatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, one, two := p.record(0), p.record(1), p.record(2)
		n := p.start(one, 3)
		l := p.prepared(n, &zero, rosterOf(t, 1, zero, one, two))
		l.launched(1)
		looks := func(at *Node, generation uint64, alive bool) {
			for _, verdict := range []bool{false, true} {
				q := p.call(at, nil)
				q.w.send(message{Type: look, Record: &zero, Generation: generation, Last: verdict})
				require.Equal(t, alive, q.want(seen).Alive, "generation %d, verdict %v", generation, verdict)
				q.w.abort()
			}
		}
		looks(n, 0, true)
		l.w.send(message{Type: again})
		<-n.Clears()
		looks(n, 0, false)
		looks(n, 2, true)
		n.ask(func() { require.Zero(t, n.asksFor()) })
		n.Cleared(0, 0)
		l.want(cleared)
		n.ask(func() { require.Equal(t, uint64(2), n.asksFor(), "it waits for the next generation") })
		l.w.send(message{Type: next})
		_, err := n.Wait(t.Context())
		require.ErrorIs(t, err, ErrNext)
		looks(n, 0, false)
		looks(n, 2, true)
		later := p.later(one, 3)
		m := p.call(later, &zero)
		m.w.send(message{Type: hello, Record: &zero, Generation: 2})
		m.want(register)
		looks(later, 0, false)
		looks(later, 2, true)
		require.NoError(t, n.Close())
		p.end(later, l, m)
	})
}

// TestRankZeroIsStartedAgainInALaterGeneration: it begins with the first one, and learns that it is too late.
func TestRankZeroIsStartedAgainInALaterGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, restarted, one := p.record(0), p.record(0), p.record(1)
		n := p.later(one, 2)
		early := p.greet(n, &restarted)
		require.Equal(t, "this is generation 2, and not 1", early.want(refuse).Reason)

		l := p.call(n, &zero)
		l.w.send(message{Type: hello, Record: &zero, Generation: 2})
		l.want(register)
		r := rosterOf(t, 1, zero, one)
		l.w.send(message{Type: prepare, Epoch: 1, Roster: r})
		l.want(ack)
		l.launched(1)
		same := p.greet(n, &zero)
		require.Equal(t, "this is generation 2, and not 1", same.want(refuse).Reason)
		late := p.greet(n, &restarted) // the first one does not answer
		require.Equal(t, Running, late.want(register).State)
		p.end(n, l, early, same, late)

		// A rank that has acknowledged the roster does not follow it either.
		n = p.later(one, 2)
		l = p.call(n, &zero)
		l.w.send(message{Type: hello, Record: &zero, Generation: 2})
		l.want(register)
		l.w.send(message{Type: prepare, Epoch: 1, Roster: r})
		l.want(ack)
		late = p.greet(n, &restarted)
		require.Equal(t, Ended, late.want(register).State)
		_, err := n.Gather(t.Context())
		require.ErrorContains(t, err, "its container was started again; it may have launched")
		p.end(n, l, late)
	})
}

// TestAPreparedRankStaysInItsGeneration: if rank 0 has gone on without it, that generation was launched, and this rank
// must not take part in the next one with the roster of that one.
func TestAPreparedRankStaysInItsGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, one := p.record(0), p.record(1)
		n := p.start(one, 2)
		l := p.prepared(n, &zero, rosterOf(t, 1, zero, one))
		later := p.call(n, &zero)
		later.w.send(message{Type: hello, Record: &zero, Generation: 2})
		require.Equal(t, "this is generation 1, and not 2", later.want(refuse).Reason)
		l.launched(1)
		require.Equal(t, uint64(1), n.Generation())
		p.end(n, l, later)
	})
}

// TestANewContainerLeavesAGeneration: rank 0 of a later generation dies before the launch, and its next start begins
// with the first one.
func TestANewContainerLeavesAGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, restarted, one := p.record(0), p.record(0), p.record(1)
		n := p.start(one, 2)
		l := p.call(n, &zero)
		l.w.send(message{Type: hello, Record: &zero, Generation: 2})
		l.want(register)
		require.Equal(t, uint64(2), n.Generation())
		l.w.abort()
		synctest.Wait()
		next := p.greet(n, &restarted)
		next.want(register)
		require.Equal(t, uint64(1), n.Generation())
		p.end(n, l, next)
	})
}

// TestAThawedContainerReadsBeforeItGivesUp: the deadline has passed while it was frozen, and go waits in its kernel.
func TestAThawedContainerReadsBeforeItGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, one := p.record(0), p.record(1)
		n := p.start(one, 2)
		l := p.prepared(n, &zero, rosterOf(t, 1, zero, one))
		thaw := make(chan struct{})
		n.post(func() { <-thaw })
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := n.Gather(t.Context())
			assert.NoError(t, err)
		})
		l.w.send(message{Type: launched, Epoch: 1})
		time.Sleep(3 * n.cfg.Timeout)
		close(thaw)
		l.want(started)
		wg.Wait()
		p.end(n, l)
	})
}

// TestAGreetingAcrossGenerations: rank 0 has connected to the node of the last generation, and greets the next one.
func TestAGreetingAcrossGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, one := p.record(0), p.record(1)
		n := p.start(one, 2)
		l := p.prepared(n, &zero, rosterOf(t, 1, zero, one))
		l.launched(1)
		early := p.call(n, &zero)
		l.w.send(message{Type: again})
		<-n.Clears()
		n.Cleared(0, 0)
		l.w.send(message{Type: next})
		_, err := n.Wait(t.Context())
		require.ErrorIs(t, err, ErrNext)
		following, err := Start(n.Following())
		require.NoError(t, err)
		n.Succeed(following)
		require.NoError(t, n.Close())
		synctest.Wait()
		early.w.send(message{Type: hello, Record: &zero, Generation: 2})
		early.want(register)
		p.end(following, l, early)
	})
}

// TestANewContainerWaitsForTheRanks: a container without a rank from the environment gets that of a lost container, and
// no other.
func TestANewContainerWaitsForTheRanks(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(t)
			p.listen(1, true)
			p.listen(9, true)
			zero, one, other := p.agreed(0), p.agreed(1), p.agreed(9)
			zero.Rank, one.Rank = 0, 1
			n, err := Start(Config{
				Status: testStatuses, Self: zero, Size: 2, Dial: p.dial, Generation: 2, Rejoin: true,
				Timeout: time.Hour,
				Peers: []Peer{{
					ID: one.ID, Rank: 1, Host: addrOf(1).Addr().String(), Port: 12345, At: addrOf(1), lost: lost,
				}},
			})
			require.NoError(t, err)
			asks := p.call(n, nil)
			asks.w.send(message{Type: announce, Record: &other})
			l := p.called(9)
			l.want(hello)
			l.w.send(message{Type: register, Record: &other, Generation: 2})
			if !lost {
				l.quiet(putOffTime / 2)
				rank := p.called(1)
				rank.want(hello)
				rank.w.send(message{Type: register, Record: &one, Generation: 2})
				rank.want(prepare)
				p.end(n, asks, l, rank)
				return
			}
			l.want(prepare)
			p.end(n, asks, l)
		})
	}
}
