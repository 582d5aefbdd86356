package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestALostRankZeroIsReplaced: the others clear by themselves, and the next start of rank 0 goes on with the generation
// and the text that they tell.
func TestALostRankZeroIsReplaced(t *testing.T) {
	for name, tt := range map[string]struct {
		block  error // of its old address
		moves  bool
		double bool // rank 2 is lost with it
		late   time.Duration
		fence  time.Duration
	}{
		"another secret answers there": {
			block: fmt.Errorf("x: %w", ErrOtherSecret), moves: true, late: 3 * jobProofTime, fence: 3 * jobProofTime,
		},
		"there":            {},
		"elsewhere":        {moves: true},
		"its host is lost": {block: syscall.ETIMEDOUT, moves: true, fence: leaderFence},
		"with another one": {double: true, fence: leaderFence},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				config := func(i int) Config {
					cfg := w.config(i, 3)
					cfg.Rejoin = i == 0
					if i == 0 {
						cfg.Text = []byte("first")
						cfg.Adopt = func(text []byte) ([]byte, time.Duration, error) {
							return append(text, " adopted"...), 2 * time.Minute, nil
						}
					}
					cfg.Timeout = leaderFence / 2
					return cfg
				}
				nodes := []*Node{w.start(config(0)), w.start(config(1)), w.start(config(2))}
				first := gatherSame(t, nodes)
				require.Equal(t, "first", string(nodes[1].Told()))
				w.crash(nodes[0], tt.block)
				if tt.double {
					w.crash(nodes[2], nil)
				}
				begin := time.Now()
				var wg sync.WaitGroup
				for i := 1; i < 3; i++ {
					if i == 2 && tt.double {
						continue
					}
					wg.Go(func() {
						soon, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						_, err := nodes[i].Wait(soon)
						var lost *LostError
						if !assert.ErrorAs(t, err, &lost) {
							return
						}
						time.Sleep(3 * time.Second) // it clears, while rank 0 calls it
						cfg := nodes[i].Following()
						cfg.Timeout, cfg.Text = 2*time.Minute, []byte("of generation 1")
						next := w.start(cfg)
						nodes[i].Succeed(next)
						assert.NoError(t, nodes[i].Close())
						nodes[i] = next
					})
				}
				time.Sleep(10*time.Millisecond + tt.late)
				cfg := config(0)
				if tt.moves {
					cfg.Self.Addr = addrOf(9)
				}
				nodes[0] = w.start(cfg) // before the others know
				if tt.double {
					nodes[2] = w.start(config(2))
				}
				wg.Wait()
				second := gatherSame(t, nodes)
				require.InDelta(t, tt.fence.Seconds(), time.Since(begin).Seconds(), 12)
				for i, n := range nodes {
					require.Equal(t, uint64(2), n.Generation())
					require.Equal(t, i == 1 || i == 2 && !tt.double, first.Members[i].Nonce == second.Members[i].Nonce)
				}
				require.Equal(t, "of generation 1 adopted", string(nodes[1].Told()))
				require.Equal(t, "of generation 1 adopted", string(nodes[2].Told()))
				w.close(nodes...)
			})
		})
	}
}

// survivor starts rank 1 of generation 2 after the loss of rank 0.
func (p *play) survivor(zero, one Record) *Node {
	cfg := Config{
		Status: testStatuses, Self: one, Size: 2, Dial: p.dial, Generation: 2, Text: []byte("told"),
		last: &succession{leader: Member{Record: zero}, lost: time.Now()},
	}
	n, err := Start(cfg)
	require.NoError(p.t, err)
	return n
}

// TestASurvivorLeavesTheLastRankZero: it refuses it, says so to ranks that look at it, and follows its next start.
func TestASurvivorLeavesTheLastRankZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, restarted, one := p.record(0), p.record(0), p.record(1)
		n := p.survivor(zero, one)
		last := p.greet(n, &zero)
		got := last.want(refuse)
		require.Equal(t, uint64(2), got.Generation)

		asks := p.call(n, nil)
		asks.w.send(message{Type: look, Record: &one, Name: one.Nonce})
		require.False(t, asks.want(seen).Alive)
		asks.w.send(message{Type: look, Record: &one, Name: one.Nonce, Generation: 2})
		require.True(t, asks.want(seen).Alive)
		asks.w.send(message{Type: look, Record: &one, Name: zero.Nonce, Generation: 2})
		require.False(t, asks.want(seen).Alive)

		time.Sleep(time.Second)
		l := p.greet(n, &restarted)
		got = l.want(register)
		require.Equal(t, uint64(2), got.Generation)
		require.Equal(t, "told", string(got.Text))
		require.InDelta(t, (leaderFence - time.Second).Seconds(), got.Fence.Zero.Seconds(), 0.1)
		l.w.send(message{Type: hello, Record: &restarted, Epoch: 2, Generation: 2})
		l.want(register)

		outrun := p.call(n, &zero) // it has cleared, and begins the same generation
		outrun.w.send(message{Type: hello, Record: &zero, Epoch: 2, Generation: 2})
		got = outrun.want(refuse)
		require.Nil(t, got.Record, "it would end the job of its next start")
		require.True(t, got.Last)
		p.end(n, last, asks, l, outrun)
	})
}

// TestASurvivorFollowsTheLastRankZero that comes back in the next generation, and has cleared.
func TestASurvivorFollowsTheLastRankZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, one := p.record(0), p.record(1)
		n := p.survivor(zero, one)
		l := p.call(n, &zero)
		l.w.send(message{Type: hello, Record: &zero, Epoch: 2, Generation: 2})
		require.Nil(t, l.want(register).Fence)
		p.end(n, l)
	})
}

// TestRankZeroLosesARankThatHasLeft, although the rank answers.
func TestRankZeroLosesARankThatHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		config := func(i int) Config {
			cfg := w.config(i, 2)
			cfg.Rejoin, cfg.Text = true, []byte("told")
			return cfg
		}
		nodes := []*Node{w.start(config(0)), w.start(config(1))}
		gatherSame(t, nodes)
		cfg := nodes[1].Following() // rank 1 alone has noticed the loss
		cfg.last.lost = time.Now()
		w.cut(addrOf(1))
		assert.NoError(t, nodes[1].Close())
		nodes[1] = w.start(cfg)
		begin := time.Now()
		l := <-nodes[0].Losses()
		require.Equal(t, 1, l.Rank)
		require.Less(t, time.Since(begin), time.Second)
		require.Equal(t, "this is generation 2, and not 1", l.Reason)
		w.close(nodes...)
	})
}

// TestTheNextStartOfRankZeroWaits for a rank that still runs the last generation, or has just given it up.
func TestTheNextStartOfRankZeroWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, one := p.record(0), p.record(1)
		p.listen(1, true)
		n, err := Start(Config{
			Status: testStatuses, Self: zero, Size: 2, Dial: p.dial, Rejoin: true, Text: []byte("new"),
			Peers: []Peer{{ID: one.ID, Rank: 1, Host: addrOf(1).Addr().String(), Port: 12345}},
		})
		require.NoError(t, err)
		runs := p.called(1)
		require.Equal(t, "new", string(runs.want(hello).Text))
		runs.w.send(message{Type: register, Record: &one, State: Running})
		runs.quiet(putOffTime / 2)
		runs.ended()
		gone := p.called(1)
		gone.want(hello)
		gone.w.send(message{Type: refuse, Generation: 2, Reason: "it has lost rank 0"})
		gone.ended()
		l := p.called(1)
		l.want(hello)
		joins := message{Type: register, Record: &one, State: Gathering, Generation: 2, Text: []byte("old"),
			Fence: &fence{Zero: time.Minute, Rest: time.Hour}}
		l.w.send(joins)
		again := l.want(hello)
		require.Equal(t, uint64(2), again.Generation)
		require.Equal(t, "old", string(again.Text))
		begin := time.Now()
		joins.Fence = &fence{Zero: 10 * time.Second, Rest: time.Hour}
		l.w.send(joins)
		l.want(prepare)
		require.InDelta(t, 10, time.Since(begin).Seconds(), 0.1)
		p.end(n, runs, gone, l)
	})
}

func TestProvesGone(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.ECONNREFUSED: true, ErrOtherContainer: true, errStartedAgain: true,
		syscall.ETIMEDOUT: false, syscall.EHOSTUNREACH: false, errors.New("it has left this generation"): false,
	} {
		require.Equal(t, want, provesGone(err), "%v", err)
	}
}

// TestTheLastRankZeroEnds when a rank tells it that its next start has its place.
func TestTheLastRankZeroEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, one := p.record(0), p.record(1)
		p.listen(1, true)
		n, err := Start(Config{
			Status: testStatuses, Self: zero, Size: 2, Dial: p.dial, Rejoin: true, Generation: 2, Timeout: time.Hour,
			Peers: []Peer{{ID: one.ID, Rank: 1, Host: addrOf(1).Addr().String(), Port: 12345}},
		})
		require.NoError(t, err)
		l := p.called(1)
		l.want(hello)
		l.w.send(message{Type: refuse, Last: true, Reason: "the next start of rank 0 has its place"})
		_, err = n.Gather(t.Context())
		var ended *EndedError
		require.ErrorAs(t, err, &ended)
		require.Equal(t, testStatuses.Retry, ended.Outcome.Status)
		require.Equal(t, "worker-1 goes on without this container: the next start of rank 0 has its place",
			ended.Outcome.Reason)
		p.end(n, l)
	})
}

// TestASurvivorComesBeforeASecondContainer that has claimed its rank first.
func TestASurvivorComesBeforeASecondContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		config := func(i int) Config {
			cfg := w.config(i, 3)
			cfg.Rejoin, cfg.Timeout = i == 0, 2*time.Minute
			if i == 0 {
				cfg.Text = []byte("told")
			}
			return cfg
		}
		nodes := []*Node{w.start(config(0)), w.start(config(1)), w.start(config(2))}
		gatherSame(t, nodes)
		w.crash(nodes[0], nil)
		for _, n := range nodes[1:] {
			_, err := n.Wait(t.Context())
			var lost *LostError
			require.ErrorAs(t, err, &lost)
		}
		nodes[0] = w.start(config(0))
		second := config(1)
		second.Self.Addr = addrOf(9)
		other := w.start(second)
		for present := 0; present < 2; time.Sleep(time.Millisecond) {
			nodes[0].ask(func() { present = nodes[0].lead.present() })
		}
		for i, n := range nodes[1:] {
			cfg := n.Following()
			cfg.Timeout, cfg.Text = 2*time.Minute, []byte("of generation 1")
			require.NoError(t, n.Close())
			nodes[1+i] = w.start(cfg)
		}
		require.Equal(t, nodes[1].self.Nonce, gatherSame(t, nodes).Members[1].Nonce)
		_, err := other.Gather(t.Context())
		var ended *EndedError
		require.ErrorAs(t, err, &ended)
		require.Equal(t, testStatuses.Conflict, ended.Outcome.Status)
		w.close(append(nodes, other)...)
	})
}

// TestASurvivorReturnsToItsOwnGeneration: it had adopted a later one from a start of rank 0 that has vanished since.
func TestASurvivorReturnsToItsOwnGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, second, third, one := p.record(0), p.record(0), p.record(0), p.record(1)
		n := p.survivor(zero, one)
		l := p.greet(n, &second)
		require.NotNil(t, l.want(register).Fence)
		l.w.send(message{Type: hello, Record: &second, Epoch: 2, Generation: 3})
		got := l.want(register)
		require.Equal(t, uint64(3), got.Generation)
		require.Nil(t, got.Fence)
		again := p.greet(n, &third) // the second start does not answer
		got = again.want(register)
		require.Equal(t, uint64(2), got.Generation)
		require.NotNil(t, got.Fence)
		p.end(n, l, again)
	})
}

// TestARankPrefersTheLastLeader between two generations: it follows another start of rank 0 only if the last leader
// does not answer.
func TestARankPrefersTheLastLeader(t *testing.T) {
	for _, generation := range []uint64{1, 2, 4} {
		for _, last := range []string{"lives", "is another start", "refuses", "is silent"} {
			t.Run(fmt.Sprintf("other in generation %d, last leader %s", generation, last), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testLastLeader(newPlay(t), generation, last) })
			})
		}
	}
}

func testLastLeader(p *play, generation uint64, last string) {
	t := p.t
	zero, other, one := p.record(0), p.record(0), p.record(1)
	other.Addr = addrOf(9)
	n := p.cleared(zero, one)
	answers := last == "lives" || last == "is another start"
	p.listen(0, answers)
	if last == "is silent" {
		p.silent = addrOf(0)
	}
	begin := time.Now()
	l := p.call(n, &other)
	greeting := message{Type: hello, Record: &other, Epoch: 2, Generation: generation}
	l.w.send(greeting)
	lines := []*line{l}
	if answers {
		asks := p.called(0)
		question := <-asks.got
		for question.Type == announce { // this rank also looks for rank 0
			lines = append(lines, asks)
			asks = p.called(0)
			question = <-asks.got
		}
		lines = append(lines, asks)
		require.Equal(t, look, question.Type)
		require.Equal(t, zero.Nonce, question.Name)
		require.Equal(t, uint64(2), question.Generation)
		nonce := map[string]string{"lives": zero.Nonce, "is another start": other.Nonce}[last]
		asks.w.send(message{Type: seen, Name: nonce, Alive: true})
	}
	if last == "lives" {
		got := l.want(refuse)
		require.Equal(t, bothClaim(&zero, &other).Error(), got.Reason)
		require.False(t, got.Last, "it may be the next start, which waits")
		require.Nil(t, got.Record, "the job would end")
		back := p.call(n, &zero)
		back.w.send(message{Type: hello, Record: &zero, Epoch: 2, Generation: 2})
		require.Equal(t, uint64(2), back.want(register).Generation)
		p.end(n, append(lines, back)...)
		return
	}
	l.want(ping)
	delay := map[string]time.Duration{"is silent": lookTimeout}[last]
	require.InDelta(t, delay.Seconds(), time.Since(begin).Seconds(), 0.1)
	l.w.send(message{Type: pong})
	if generation > 2 {
		require.Equal(t, uint64(2), l.want(refuse).Generation)
		l.w.send(greeting)
	}
	require.Equal(t, max(2, generation), l.want(register).Generation)
	p.end(n, lines...)
}

// TestARankDoesNotFollowAnEndedConnection: the other start of rank 0 has gone while this rank asked the last leader.
func TestARankDoesNotFollowAnEndedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, other, one := p.record(0), p.record(0), p.record(1)
		n := p.cleared(zero, one)
		p.silent = addrOf(0)
		l := p.call(n, &other)
		l.w.send(message{Type: hello, Record: &other, Epoch: 2, Generation: 2})
		time.Sleep(lookTimeout / 2)
		l.w.abort()
		time.Sleep(lookTimeout + probeTimeout)
		n.ask(func() { require.Nil(t, n.up.wire) })
		p.end(n)
	})
}

// TestASurvivorDoesNotAskForTheLostRankZero, which may be cut off and still answer: it follows the next start at once.
func TestASurvivorDoesNotAskForTheLostRankZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, other, one := p.record(0), p.record(0), p.record(1)
		n, first := p.running(zero, one)
		first.w.abort()
		_, err := n.Wait(t.Context())
		var lost *LostError
		require.ErrorAs(t, err, &lost)
		next := p.follow(n)
		p.listen(0, true)
		l := p.call(next, &other)
		l.w.send(message{Type: hello, Record: &other, Epoch: 2})
		require.Equal(t, uint64(2), l.want(register).Generation)
		p.end(next, l)
	})
}

// cleared brings rank 1 of two through generation 1 of that rank 0, and returns its node of the next one.
func (p *play) cleared(zero, one Record) *Node {
	n, l := p.running(zero, one)
	l.w.send(message{Type: again})
	<-n.Clears()
	n.Cleared(0, 0)
	l.want(cleared)
	l.w.send(message{Type: next})
	_, err := n.Wait(p.t.Context())
	require.ErrorIs(p.t, err, ErrNext)
	l.w.abort()
	return p.follow(n)
}

// running starts rank 1 of two, which may restart, in generation 1 of that rank 0.
func (p *play) running(zero, one Record) (*Node, *line) {
	n := p.start(one, 2)
	l := p.call(n, &zero)
	l.w.send(message{Type: hello, Record: &zero, Epoch: 2, Text: []byte("told")})
	l.want(register)
	l.w.send(message{Type: prepare, Epoch: 1, Roster: rosterOf(p.t, 1, zero, one)})
	l.want(ack)
	l.launched(1)
	return n, l
}

// follow replaces the node of a generation that has ended.
func (p *play) follow(n *Node) *Node {
	following, err := Start(n.Following())
	require.NoError(p.t, err)
	n.Succeed(following)
	require.NoError(p.t, n.Close())
	return following
}
