package rendezvous

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// In these tests one node is real, and the test plays all others, message by message: for sequences that a lossy
// network rarely produces.

// play is a network in which every dial of the node reaches the test.
type play struct {
	t     *testing.T
	mu    sync.Mutex
	calls map[netip.AddrPort]chan *line // nil = nothing listens
	mute  bool                          // no dial is answered

	silent netip.AddrPort // only this one does not
	others error          // error of a dial to an address where nothing listens; nil = a refusal
	wg     sync.WaitGroup
}

// line is the test's side of a control connection.
type line struct {
	t   *testing.T
	w   *wire
	got chan message // closed at its end
}

func newPlay(t *testing.T) *play { return &play{t: t, calls: map[netip.AddrPort]chan *line{}} }

func (p *play) listen(i int, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[addrOf(i)] = nil
	if on {
		p.calls[addrOf(i)] = make(chan *line, 64)
	}
}

func (p *play) dial(ctx context.Context, _ string, addr netip.AddrPort) (io.ReadWriteCloser, error) {
	p.mu.Lock()
	calls, mute, others := p.calls[addr], p.mute || p.silent == addr, p.others
	p.mu.Unlock()
	if mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	switch {
	case calls == nil && others != nil:
		return nil, fmt.Errorf("the container there %w", others)
	case calls == nil:
		return nil, syscall.ECONNREFUSED
	}
	a, b := net.Pipe()
	calls <- p.line(b, nil)
	return a, nil
}

func (p *play) line(c net.Conn, ref *Record) *line {
	l := &line{t: p.t, w: newWire(c, ref), got: make(chan message, 64)}
	p.wg.Go(func() {
		defer close(l.got)
		defer l.w.close()
		_ = l.w.read(func(m message) error {
			l.got <- m
			return nil
		})
	})
	return l
}

// called returns the next connection that the node makes to rank i.
func (p *play) called(i int) *line {
	p.mu.Lock()
	calls := p.calls[addrOf(i)]
	p.mu.Unlock()
	select {
	case l := <-calls:
		return l
	case <-time.After(time.Minute):
		require.FailNow(p.t, "nobody calls", "rank %d", i)
		return nil
	}
}

// call connects to the node under test.
func (p *play) call(n *Node, ref *Record) *line {
	a, b := net.Pipe()
	p.wg.Go(func() { n.Accept(context.Background(), b, nil) })
	return p.line(a, ref)
}

// greet calls the node as rank 0 does.
func (p *play) greet(n *Node, zero *Record) *line {
	l := p.call(n, zero)
	l.w.send(message{Type: hello, Record: zero})
	return l
}

// prepared greets the node and brings it to acknowledge a roster.
func (p *play) prepared(n *Node, zero *Record, r *Roster) *line {
	l := p.greet(n, zero)
	l.want(register)
	l.w.send(message{Type: prepare, Epoch: r.Epoch, Roster: r})
	require.Equal(p.t, r.Epoch, l.want(ack).Epoch)
	return l
}

// launched tells the node to go.
func (l *line) launched(epoch uint64) {
	l.w.send(message{Type: launched, Epoch: epoch})
	l.want(started)
}

func rosterOf(t *testing.T, epoch uint64, records ...Record) *Roster {
	members, err := assign(records, len(records))
	require.NoError(t, err)
	return &Roster{Epoch: epoch, Hash: hashMembers(members), Members: members}
}

func (p *play) record(i int) Record {
	return Record{ID: MakeID("worker", i, ""), Role: "worker", Index: i, Rank: i, Nonce: NewNonce(), Addr: addrOf(i),
		Slots: 1, Version: "1"}
}

func (p *play) start(self Record, size int) *Node {
	cfg := Config{Status: testStatuses, Self: self, Size: size, Dial: p.dial, Timeout: 10 * time.Minute}
	for k := range size {
		cfg.Peers = append(cfg.Peers, Peer{ID: MakeID("worker", k, ""), Rank: k, Host: addrOf(k).Addr().String(),
			Port: 12345})
	}
	n, err := Start(cfg)
	require.NoError(p.t, err)
	return n
}

func (p *play) end(n *Node, lines ...*line) {
	for _, l := range lines {
		l.w.abort()
	}
	require.NoError(p.t, n.Close())
	p.mu.Lock()
	for addr, calls := range p.calls {
		for len(calls) > 0 {
			(<-calls).w.abort()
		}
		p.calls[addr] = nil
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// want returns the next message, which must be of that kind; it skips waiting messages.
func (l *line) want(k kind) message {
	for {
		select {
		case m, ok := <-l.got:
			if ok && m.Type == waiting && k != waiting {
				continue
			}
			require.True(l.t, ok, "the connection ended before message %d", k)
			require.Equal(l.t, k, m.Type, "%+v", m)
			return m
		case <-time.After(time.Minute):
			require.FailNow(l.t, "no message", "%d", k)
			return message{}
		}
	}
}

// quiet checks that the node sends nothing for a while.
func (l *line) quiet(d time.Duration) {
	select {
	case m, ok := <-l.got:
		require.FailNow(l.t, "unexpected", "%+v, open %v", m, ok)
	case <-time.After(d):
	}
}

// ended waits for the end of the connection.
func (l *line) ended() {
	late := time.After(time.Minute)
	for {
		select {
		case _, ok := <-l.got:
			if !ok {
				return
			}
		case <-late:
			require.FailNow(l.t, "the connection does not end")
		}
	}
}

// register answers rank 0's greeting.
func (l *line) register(r Record, state Phase) {
	l.w.send(message{Type: register, ref: l.want(hello).Record, Record: &r, State: state})
}

func (l *line) ack(epoch uint64, hash string) { l.w.send(message{Type: ack, Epoch: epoch, Hash: hash}) }

// launch brings the real rank 0 of a job to its launch.
func (p *play) launch(size int) (*Node, []*line, Roster) {
	zero := p.start(p.record(0), size)
	lines := make([]*line, size)
	for i := 1; i < size; i++ {
		p.listen(i, true)
	}
	for i := 1; i < size; i++ {
		lines[i] = p.called(i)
		lines[i].register(p.record(i), Gathering)
	}
	for i := 1; i < size; i++ {
		m := lines[i].want(prepare)
		lines[i].ack(m.Epoch, m.Roster.Hash)
	}
	for i := 1; i < size; i++ {
		lines[i].want(launched)
	}
	r, err := zero.Gather(p.t.Context())
	require.NoError(p.t, err)
	return zero, lines, r
}

func launchedYet(n *Node) bool {
	synctest.Wait()
	return n.isGathered()
}

func TestOnlyAcksOfTheRosterThatIsOutCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(1, true)
		p.listen(2, true)
		zero := p.start(p.record(0), 3)
		one, two := p.called(1), p.called(2)
		one.register(p.record(1), Gathering)
		two.register(p.record(2), Gathering)
		first := one.want(prepare)
		two.want(prepare)

		// Rank 2 is started again before rank 1 has answered.
		two.w.abort()
		two = p.called(2)
		again := p.record(2)
		two.register(again, Gathering)
		second := one.want(prepare)
		two.want(prepare)
		require.Equal(t, first.Epoch+1, second.Epoch)
		require.NotEqual(t, first.Roster.Hash, second.Roster.Hash)
		require.Equal(t, again.Nonce, second.Roster.Members[2].Nonce, "the new start counts")
		epoch, hash := second.Epoch, second.Roster.Hash

		two.ack(epoch, hash)
		two.ack(epoch, hash)
		require.False(t, launchedYet(zero), "one rank has acknowledged twice")
		one.ack(first.Epoch, first.Roster.Hash)
		require.False(t, launchedYet(zero), "the roster before")
		one.ack(first.Epoch, hash)
		require.False(t, launchedYet(zero), "another epoch")
		one.ack(epoch, first.Roster.Hash)
		require.False(t, launchedYet(zero), "another hash")
		one.ack(epoch, "")
		require.False(t, launchedYet(zero), "no hash")
		one.ack(epoch, hash)
		require.True(t, launchedYet(zero))
		require.Equal(t, epoch, one.want(launched).Epoch)
		require.Equal(t, epoch, two.want(launched).Epoch)
		p.end(zero, one, two)
	})
}

// What a dropped connection still brings is void.
func TestAnAckInTheLastMomentOfAConnectionIsVoid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(1, true)
		zero := p.start(p.record(0), 2)
		old := p.called(1)
		r := p.record(1)
		old.register(r, Gathering)
		m := old.want(prepare)
		old.ended() // it is not acknowledged in time
		one := p.called(1)
		one.register(r, Gathering)
		next := one.want(prepare)
		require.Greater(t, next.Epoch, m.Epoch)
		require.Equal(t, m.Roster.Hash, next.Roster.Hash, "the same start")
		one.ack(m.Epoch, m.Roster.Hash)
		require.False(t, launchedYet(zero), "the word of an earlier connection")
		one.ack(next.Epoch, next.Roster.Hash)
		require.True(t, launchedYet(zero))
		p.end(zero, one)
	})
}

func TestGoIsRepeatedToARankThatIsBack(t *testing.T) {
	for _, state := range []Phase{Gathering, Prepared, Running} {
		t.Run(string(state), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				zero, lines, r := p.launch(3)
				lines[1].w.abort()
				begin := time.Now()
				one := p.called(1)
				one.register(r.Members[1].Record, state)
				if state != Running {
					require.Equal(t, r.Hash, one.want(prepare).Roster.Hash)
				}
				require.Equal(t, r.Epoch, one.want(launched).Epoch)
				require.Less(t, time.Since(begin), time.Second)
				one.quiet(time.Minute)
				require.Empty(t, zero.Losses())
				p.end(zero, append(lines[2:], one)...)
			})
		})
	}
}

// A rank that was out of reach when an order was given gets it when it is back.
func TestAnOrderIsRepeatedToARankThatIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, lines, r := p.launch(2)
		lines[1].w.abort()
		one := p.called(1)
		zero.Order(15, "over")
		one.register(r.Members[1].Record, Running)
		one.want(launched)
		require.Equal(t, 15, one.want(stop).Signal)
		p.end(zero, one)
	})
}

// playGone runs a test for each thing that may answer at the address of a dead container.
func playGone(t *testing.T, test func(p *play)) {
	for name, others := range map[string]error{
		"nobody": nil, "another start": ErrOtherContainer, "another attempt": ErrOtherJob,
		"another secret": ErrOtherSecret,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				p.others = others
				test(p)
			})
		})
	}
}

// A rank that rank 0 does not reach any more is lost only if no other rank sees it, and once its grace is over.
func TestNoRankIsLostOnTheViewOfRankZeroAlone(t *testing.T) {
	playGone(t, func(p *play) {
		t := p.t
		zero, lines, r := p.launch(3)
		p.listen(1, false)
		lines[1].w.abort()
		begin := time.Now()
		for i := range 5 {
			asked := p.called(2)
			m := asked.want(look)
			require.Equal(t, r.Members[1].Nonce, m.Record.Nonce)
			if i == 0 {
				require.GreaterOrEqual(t, time.Since(begin), refusalGrace)
				require.Less(t, time.Since(begin), 5*time.Second, "it is not silent")
			}
			asked.w.send(message{Type: seen, Alive: true, State: Running})
			synctest.Wait()
			require.Empty(t, zero.Losses(), "rank 2 sees it")
			asked.ended()
		}
		asked := p.called(2)
		asked.want(look)
		asked.w.send(message{Type: seen, State: Running, Reason: "connection refused"})
		l := <-zero.Losses()
		require.Equal(t, 1, l.Rank)
		require.Contains(t, l.Reason, "worker-2 does not see it either")
		asked.ended()
		p.end(zero, lines[2])
	})
}

func TestALostRankHasItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		n, lines, _ := p.launch(2)
		p.mu.Lock()
		p.mute = true
		p.mu.Unlock()
		begin := time.Now()
		lines[1].w.abort()
		require.Equal(t, 1, (<-n.Losses()).Rank)
		require.GreaterOrEqual(t, time.Since(begin), 5*time.Second)
		require.Less(t, time.Since(begin), 10*time.Second)
		p.end(n)
	})
}

// From go on, a rank has one rank 0 and obeys that one alone.
func TestARunningRankHasOneRankZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		self, zero, other := p.record(1), p.record(0), p.record(0)
		n := p.start(self, 2)
		up := p.greet(n, &zero)
		require.Equal(t, Gathering, up.want(register).State)
		up.w.send(message{Type: launched, Epoch: 1})
		require.False(t, launchedYet(n), "go without a roster")
		up.w.send(message{Type: prepare, Epoch: 4, Roster: rosterOf(t, 4, zero, self)})
		require.Equal(t, uint64(4), up.want(ack).Epoch)
		for _, epoch := range []uint64{0, 1, 3, 5} {
			up.w.send(message{Type: launched, Epoch: epoch})
			require.False(t, launchedYet(n), "go of another epoch")
		}
		up.w.send(message{Type: launched, Epoch: 4})
		up.want(started)
		require.True(t, launchedYet(n))

		// Another one comes: the next start of rank 0, or a container that has no right to the rank.
		for _, phase := range []Phase{Running, Ended} {
			late := p.greet(n, &other)
			up.want(ping)
			up.w.send(message{Type: pong})
			late.want(ping)
			late.w.send(message{Type: pong})
			require.Equal(t, zero.Nonce, late.want(refuse).Record.Nonce, "the first answers")
			late.w.send(message{Type: hello, Record: &other})
			up.want(ping)
			require.Equal(t, phase, late.want(register).State, "the first does not answer")
			late.w.send(message{Type: prepare, Epoch: 5, Roster: rosterOf(t, 5, other, self)})
			late.w.send(message{Type: launched, Epoch: 5})
			late.w.send(message{Type: stop, Signal: 15})
			late.w.send(message{Type: done, Outcome: &Outcome{Status: 7}})
			late.w.send(message{Type: bye})
			late.quiet(time.Second)
			synctest.Wait()
			require.Equal(t, phase, n.View().Phase)
			require.Equal(t, rosterOf(t, 4, zero, self).Hash, n.View().Hash)
			require.Empty(t, n.Orders())
			late.w.abort()
			late.ended()
			if phase == Running {
				up.w.send(message{Type: done, Outcome: &Outcome{Status: 3}})
				up.want(doneAck)
				up.w.send(message{Type: done, Outcome: &Outcome{Status: 4}})
				up.want(doneAck)
			}
		}
		up.w.send(message{Type: bye})
		o, err := n.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, o.Status, "the first word counts")
		p.end(n, up)
	})
}

// A prepared rank does not follow a rank 0 that was started again: the first start may have launched.
func TestAPreparedRankFollowsNoOtherStartOfRankZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		self, zero, other := p.record(1), p.record(0), p.record(0)
		n := p.start(self, 2)
		up := p.prepared(n, &zero, rosterOf(t, 1, zero, self))
		up.w.abort()
		up.ended()
		next := p.greet(n, &other)
		require.Equal(t, Ended, next.want(register).State)
		next.w.send(message{Type: launched, Epoch: 1})
		_, err := n.Gather(t.Context())
		var lost *LostError
		require.ErrorAs(t, err, &lost)
		p.end(n, next)
	})
}

// A rank refuses a roster that holds another start of its container, or gives it another rank.
func TestARosterMustHoldThisStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		self, before, zero := p.record(1), p.record(1), p.record(0)
		n := p.start(self, 2)
		other := self
		zeroth := zero
		zeroth.Rank, other.Rank = 1, 0
		for _, records := range [][]Record{{zero, before}, {zeroth, other}} {
			up := p.greet(n, &zero)
			up.want(register)
			up.w.send(message{Type: prepare, Epoch: 1, Roster: rosterOf(t, 1, records...)})
			up.want(refuse)
			up.w.send(message{Type: launched, Epoch: 1})
			require.False(t, launchedYet(n))
			up.w.abort()
			up.ended()
		}
		p.end(n)
	})
}

// A rank that has lost rank 0 stays as long as another one sees rank 0, and learns from that one how the job ended.
func TestRankZeroIsNotGoneOnOneViewAlone(t *testing.T) {
	playGone(t, func(p *play) {
		t := p.t
		self, zero, two := p.record(1), p.record(0), p.record(2)
		n := p.start(self, 3)
		r := rosterOf(t, 1, zero, self, two)
		hash := r.Hash
		up := p.prepared(n, &zero, r)
		up.launched(1)
		p.listen(2, true)
		up.w.abort() // and rank 0 does not listen at its address
		begin := time.Now()
		for i := range 5 {
			asked := p.called(2)
			require.Equal(t, zero.Nonce, asked.want(look).Record.Nonce)
			if i == 0 {
				require.Less(t, time.Since(begin), linger, "who was told how the job ended does not stay longer")
			}
			asked.w.send(message{Type: seen, Alive: true, State: Running, Hash: hash})
			asked.ended()
			require.Equal(t, Running, n.View().Phase)
		}
		asked := p.called(2)
		asked.want(look)
		asked.w.send(message{Type: seen, State: Ended, Hash: hash, Outcome: &Outcome{Status: 3}})
		asked.ended()
		o, err := n.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, o.Status)
		p.end(n)
	})
}

// Where ranks are agreed, another container may lead at first. A rank that has acknowledged its roster follows no
// other, unless that container has stepped down: it may have launched.
func TestAPreparedRankFollowsAnotherWhenItsOwnHasSteppedDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		unknown := func(i int) Record {
			r := p.record(i)
			r.Rank = -1
			return r
		}
		self, leader, other := unknown(1), unknown(0), unknown(2)
		n := p.start(self, 2)
		up := p.prepared(n, &leader, rosterOf(t, 1, leader, self))
		early := p.greet(n, &other)
		early.want(refuse)

		p.listen(0, true)
		up.w.abort()
		asked := p.called(0)
		asked.want(announce)
		late := p.greet(n, &other)
		late.want(refuse)
		asked.w.send(message{Type: lead, Record: &other, Name: leader.Nonce})
		asked.ended()
		synctest.Wait()
		next := p.greet(n, &other)
		require.Equal(t, Gathering, next.want(register).State)
		for _, l := range []*line{early, late} {
			l.w.abort()
			l.ended()
		}
		p.end(n, next)
	})
}

// A rank that is started again after go ends the job, whichever rank learns of it first.
func TestARankThatIsStartedAgainAfterGoEndsTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, lines, _ := p.launch(3)
		lines[1].w.abort()
		one := p.called(1)
		one.register(p.record(1), Gathering)
		m := one.want(done)
		require.Equal(t, 75, m.Outcome.Status)
		require.True(t, m.Last)
		synctest.Wait()
		require.Len(t, zero.Losses(), 1)
		p.end(zero, one, lines[2])
	})
}

// A container that comes when all ranks are present does not disturb them.
func TestOneTooManyDoesNotHoldUpTheLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(1, true)
		p.listen(2, true)
		zero := p.start(p.record(0), 2)
		one := p.called(1)
		one.register(p.record(1), Gathering)
		m := one.want(prepare)
		more := p.record(2)
		zero.post(func() { zero.lead.addTarget(more.ID, nil, more.Addr) })
		two := p.called(2)
		two.register(more, Gathering)
		two.ended()
		one.ack(m.Epoch, m.Roster.Hash)
		require.True(t, launchedYet(zero))
		one.want(launched)
		asking := p.call(zero, nil)
		asking.w.send(message{Type: announce, Record: &more})
		require.Equal(t, 78, asking.want(done).Outcome.Status)
		p.end(zero, one, asking)
	})
}

// Rank 0 tells the others' standing by its own clock, which may be hours away from ours.
func TestNoClockIsCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero := p.record(0)
		n := p.start(p.record(1), 3)
		up := p.greet(n, &zero)
		up.want(register)
		const ahead = -7 * time.Hour
		lost := time.Now().Add(ahead - time.Minute)
		since := time.Now().Add(-time.Minute)
		// A later answer takes longer, and tells the same time.
		for _, way := range []time.Duration{0, 50 * time.Millisecond, time.Second} {
			p.wg.Go(func() {
				m := up.want(inquiry)
				now := time.Now().Add(ahead)
				time.Sleep(way) // virtual
				up.w.send(message{Type: answer, Call: m.Call, Now: now, Deadline: lost.Add(time.Hour),
					Ranks: []RankStatus{{Alias: "worker-2", Since: lost}}})
			})
			s := n.Status(t.Context())
			require.Len(t, s.Ranks, 1)
			require.True(t, s.Ranks[0].Since.Equal(since), s.Ranks[0].Since)
			require.True(t, s.Deadline.Equal(since.Add(time.Hour)), s.Deadline)
		}
		p.wg.Go(func() {
			m := up.want(inquiry)
			up.w.send(message{Type: answer, Call: m.Call, Now: time.Now().Add(ahead),
				Times: []Times{{Name: "worker-2", Started: lost}}})
		})
		all := n.Times(t.Context())
		require.Len(t, all, 1)
		require.True(t, all[0].Started.Equal(since), all[0].Started)
		require.Zero(t, all[0].Ended)
		p.end(n, up)
	})

	// No other time of day goes over the wire. Within a process Go's times are monotonic, unless code turns one into a
	// date.
	times := map[string]bool{}
	var walk func(path string, at reflect.Type)
	walk = func(path string, at reflect.Type) {
		switch {
		case at == reflect.TypeFor[time.Time]():
			times[path] = true
		case at.Kind() == reflect.Pointer, at.Kind() == reflect.Slice:
			walk(path, at.Elem())
		case at.Kind() == reflect.Struct && at.PkgPath() == reflect.TypeFor[message]().PkgPath():
			for i := range at.NumField() {
				walk(path+"."+at.Field(i).Name, at.Field(i).Type)
			}
		}
	}
	walk("message", reflect.TypeFor[message]())
	want := map[string]bool{"message.Now": true, "message.Deadline": true, "message.Ranks.Since": true}
	for _, event := range []string{
		"Started", "Resolved", "Heard", "Reachable", "Committed", "Launched", "Session", "Ended",
	} {
		want["message.Times."+event] = true
	}
	require.Equal(t, want, times)
	dates := regexp.MustCompile(`\.(Unix\w*|UTC|Local|Truncate|AppendFormat)\(|\.Round\(0\)`)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		require.Empty(t, dates.FindAllString(string(b), -1), f)
	}
}

// A rank that has given up rank 0 says so, and nothing else, when the old connection ends after that.
func TestOneThatHasGivenUpDoesNotSayThatAllIsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(1, true)
		self, one, zero, other := p.record(2), p.record(1), p.record(0), p.record(0)
		n := p.start(self, 3)
		up := p.prepared(n, &zero, rosterOf(t, 1, zero, one, self))
		next := p.greet(n, &other)
		require.Equal(t, Ended, next.want(register).State)
		up.w.abort()
		var lost *LostError
		_, err := n.Wait(t.Context())
		require.ErrorAs(t, err, &lost)
		require.Empty(t, p.calls[addrOf(1)], "another rank was told an outcome that nobody gave")
		p.end(n, next)
	})
}

// When rank 0 waits for a rank again, an acknowledged roster is void: rank 0 may be lost, and its next start come.
func TestARosterIsVoidWhenRankZeroWaitsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		self, zero, other := p.record(1), p.record(0), p.record(0)
		n := p.start(self, 2)
		up := p.prepared(n, &zero, rosterOf(t, 1, zero, self))
		up.w.send(message{Type: waiting, Present: 1, Missing: []Missing{{Name: "worker-2"}}})
		synctest.Wait()
		up.w.abort()
		up.ended()
		next := p.greet(n, &other)
		require.Equal(t, Gathering, next.want(register).State)
		p.end(n, next)
	})
}

// A coordinator does not commit to a roster in which another container comes first: that one is going to lead.
func TestOnlyTheFirstCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(0, true)
		p.listen(2, true)
		self, first, last := p.record(1), p.record(0), p.record(2)
		self.Rank, first.Rank, last.Rank = -1, -1, -1
		n, err := Start(Config{Status: testStatuses, Self: self, Size: 2, Dial: p.dial, Timeout: 10 * time.Minute})
		require.NoError(t, err)
		n.post(func() { n.find.onGossip(last, true) })
		elsewhere := p.called(2) // it has heard of two, and comes first
		elsewhere.want(hello)
		n.post(func() { n.find.onGossip(first, true) })
		l := p.called(0)
		l.register(first, Gathering)
		for late, quiet := time.After(10*time.Second), false; !quiet; { // rank 2 does not register: 5 s are its time to
			select {
			case m := <-l.got:
				require.Equal(t, waiting, m.Type)
			case <-late:
				quiet = true
			}
		}
		require.Equal(t, Gathering, n.View().Phase)

		up := p.greet(n, &first)
		up.want(register)
		elsewhere.ended()
		l.ended()
		r := rosterOf(t, 1, first, self)
		up.w.send(message{Type: prepare, Epoch: 1, Roster: r})
		up.want(ack)
		up.launched(1)
		p.end(n, up)
	})
}

// A rank whose connection does not come back is not absent if another one sees it.
func TestNoRankIsAbsentOnTheViewOfRankZeroAlone(t *testing.T) {
	for _, alive := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(t)
			zero, lines, _ := p.launch(3)
			p.mu.Lock()
			p.silent = addrOf(1)
			p.mu.Unlock()
			lines[1].w.abort()
			synctest.Wait()
			found := make(chan []Loss)
			p.wg.Go(func() { found <- zero.Absent(t.Context(), 300*time.Millisecond, 3*time.Second) })
			asked := p.called(2)
			asked.want(look)
			asked.w.send(message{Type: seen, Alive: alive, State: Running})
			if losses := <-found; alive {
				require.Empty(t, losses)
			} else {
				require.Len(t, losses, 1)
			}
			asked.ended()
			p.end(zero, lines[2])
		})
	}
}

// The last registration of a rank counts, even over the same connection: a roster with an earlier one is void.
func TestAnotherStartOnTheSameConnectionIsInTheRoster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(1, true)
		zero := p.start(p.record(0), 2)
		one := p.called(1)
		one.register(p.record(1), Gathering)
		first := one.want(prepare)
		again := p.record(1)
		one.w.send(message{Type: register, ref: &first.Roster.Members[0].Record, Record: &again, State: Gathering})
		second := one.want(prepare)
		require.Equal(t, again.Nonce, second.Roster.Members[1].Nonce)
		one.ack(first.Epoch, first.Roster.Hash)
		require.False(t, launchedYet(zero), "the roster before")
		one.ack(second.Epoch, second.Roster.Hash)
		require.True(t, launchedYet(zero))
		one.want(launched)
		p.end(zero, one)
	})
}

// If another container takes over the address of a seed, it is a rank like any other.
func TestASeedsAddressMayBeSomebodyElsesByNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(1, true)
		before, now := p.record(1), p.record(1)
		for _, r := range []*Record{&before, &now} {
			r.Index, r.Rank, r.Order = -1, -1, 1
			r.ID = MakeID(r.Role, r.Index, r.Nonce)
		}
		zero, err := Start(Config{Status: testStatuses, Self: p.record(0), Size: 2, Dial: p.dial,
			Timeout: 10 * time.Minute})
		require.NoError(t, err)
		// once: the DNS says nothing more
		zero.post(func() { zero.lead.addTarget("@"+addrOf(1).String(), nil, addrOf(1)) })
		gone := p.called(1)
		gone.register(before, Gathering)
		gone.want(prepare)
		gone.w.abort()
		one := p.called(1)
		one.register(now, Gathering)
		m := one.want(prepare)
		require.Equal(t, now.ID, m.Roster.Members[1].ID)
		one.ack(m.Epoch, m.Roster.Hash)
		require.True(t, launchedYet(zero))
		one.want(launched)
		p.end(zero, one)
	})
}

// A rank that was started again knows nothing of the end of rank 0, whatever it says.
func TestALaterStartGivesNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		self, zero, one := p.record(2), p.record(0), p.record(1)
		n := p.start(self, 3)
		up := p.prepared(n, &zero, rosterOf(t, 1, zero, one, self))
		up.launched(1)
		p.listen(1, true)
		begin := time.Now()
		up.w.abort() // and nothing listens at rank 0's address
		for _, verdict := range []bool{false, true} {
			asked := p.called(1)
			require.Equal(t, verdict, asked.want(look).Last)
			asked.w.send(message{Type: seen, Name: NewNonce(), State: Gathering, Alive: verdict})
			asked.ended()
		}
		var lost *LostError
		_, err := n.Wait(t.Context())
		require.ErrorAs(t, err, &lost)
		require.Less(t, time.Since(begin), 2*time.Second)
		p.end(n)
	})
}

// A rank that has acknowledged a roster may be part of a launch: it does not lead, even if it comes first of all that
// it hears of.
func TestWhoHasAcknowledgedARosterDoesNotLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(2, true)
		leader, self, other := p.record(0), p.record(1), p.record(2)
		leader.Rank, self.Rank, other.Rank = -1, -1, -1
		n, err := Start(Config{Status: testStatuses, Self: self, Size: 2, Dial: p.dial, Timeout: 10 * time.Minute})
		require.NoError(t, err)
		up := p.prepared(n, &leader, rosterOf(t, 1, leader, self))
		n.post(func() { n.find.onGossip(other, true) })
		up.quiet(time.Second)
		require.Empty(t, p.calls[addrOf(2)], "it calls the others to a launch of its own")
		require.Equal(t, Prepared, n.View().Phase)
		up.launched(1)
		p.end(n, up)
	})
}

// Rank 0 has not launched if a rank has not acknowledged: when rank 0 is lost, the ranks that did acknowledge wait for
// its next start.
func TestARosterIsVoidWhenAnotherHasNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		self, zero, two, next := p.record(1), p.record(0), p.record(2), p.record(0)
		n := p.start(self, 3)
		up := p.prepared(n, &zero, rosterOf(t, 1, zero, self, two))
		p.listen(2, true)
		up.w.abort() // and nothing listens at rank 0's address
		asked := p.called(2)
		asked.want(look)
		asked.w.send(message{Type: seen, Name: two.Nonce, State: Gathering})
		asked.ended()
		synctest.Wait()
		l := p.greet(n, &next)
		require.Equal(t, Gathering, l.want(register).State)
		p.end(n, l)
	})
}

// The same in a later generation with spares, in which rank 0 alone knows how long to wait: without it, the container
// has its own Timeout.
func TestAPreparedSpareWithoutRankZeroGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		self, zero, two := p.record(1), p.record(0), p.record(2)
		n := p.start(self, 3)
		up := p.call(n, &zero)
		up.w.send(message{Type: hello, Record: &zero, Generation: 2, Spares: 1})
		up.want(register)
		r := rosterOf(t, 1, zero, self, two)
		up.w.send(message{Type: prepare, Epoch: r.Epoch, Roster: r})
		up.want(ack)
		time.Sleep(time.Hour)
		require.Equal(t, Prepared, n.View().Phase)
		p.listen(2, true)
		up.w.abort()
		asked := p.called(2)
		asked.want(look)
		asked.w.send(message{Type: seen, Name: two.Nonce, State: Gathering})
		asked.ended()
		synctest.Wait()
		require.Equal(t, Gathering, n.View().Phase)
		require.InDelta(t, (10 * time.Minute).Seconds(), time.Until(n.View().Deadline).Seconds(), 10)
		p.end(n)
	})
}

// Rank 0 leaves last: it stays until the ranks that it told to leave are gone.
func TestRankZeroLeavesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, lines, _ := p.launch(3)
		left := make(chan error, 1)
		p.wg.Go(func() { left <- zero.Finish(t.Context(), Outcome{Status: 3}, 0) })
		for _, l := range lines[1:] {
			require.Equal(t, 3, l.want(done).Outcome.Status)
			l.w.send(message{Type: doneAck})
		}
		for _, l := range lines[1:] {
			l.want(bye)
		}
		for _, l := range lines[1:] {
			synctest.Wait()
			require.Empty(t, left, "somebody is still there")
			l.w.abort()
			l.ended()
		}
		require.NoError(t, <-left)
		p.end(zero)
	})
}

// A frozen rank keeps its connection and says nothing. Rank 0 waits for it shorter than for a rank whose connection is
// lost, and names it.
func TestAFrozenRankDoesNotHoldUpTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, lines, _ := p.launch(3)
		begin := time.Now()
		left := make(chan error, 1)
		p.wg.Go(func() { left <- zero.Finish(t.Context(), Outcome{Status: 3}, 0) })
		for _, l := range lines[1:] {
			require.Equal(t, 3, l.want(done).Outcome.Status)
		}
		lines[1].w.send(message{Type: doneAck})
		for _, l := range lines[1:] {
			l.want(bye)
		}
		require.GreaterOrEqual(t, time.Since(begin), doneAckTimeout, "a busy rank may take its time")
		lines[1].w.abort()
		lines[1].ended()
		require.ErrorContains(t, <-left, "worker-2 did not acknowledge")
		require.Less(t, time.Since(begin), doneAckTimeout+2*linger)
		p.end(zero, lines[2])
	})
}

// While the first start of a rank answers, a second one is refused and the job goes on, before the launch as after it.
func TestASecondClaimantOfARankIsRefused(t *testing.T) {
	for _, launch := range []bool{false, true} {
		for _, answers := range []bool{true, false} {
			t.Run(fmt.Sprintf("launched %v, the first answers %v", launch, answers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPlay(t)
					p.listen(1, true)
					p.listen(2, true)
					zero := p.start(p.record(0), 3)
					first, second := p.record(1), p.record(1)
					second.Addr = addrOf(7)
					p.listen(7, true)
					one := p.called(1)
					one.register(first, Gathering)
					var two *line
					if launch {
						two = p.called(2)
						two.register(p.record(2), Gathering)
						m := one.want(prepare)
						two.want(prepare)
						one.ack(m.Epoch, m.Roster.Hash)
						two.ack(m.Epoch, m.Roster.Hash)
						one.want(launched)
						two.want(launched)
					}
					synctest.Wait()
					begin := time.Now()
					asking := p.call(zero, nil)
					asking.w.send(message{Type: announce, Record: &second})
					one.want(ping)
					if answers {
						one.w.send(message{Type: pong})
						m := asking.want(done)
						require.Equal(t, 78, m.Outcome.Status)
						require.Contains(t, m.Outcome.Reason, "worker-1 is taken: the container at "+addrOf(1).String())
						require.Less(t, time.Since(begin), time.Second)
						time.Sleep(time.Minute / 2)
						require.Equal(t, 2+len(present(two)), zero.count())
						require.Empty(t, p.calls[addrOf(7)])
						require.Empty(t, zero.Losses())
						p.end(zero, append([]*line{one, asking}, present(two)...)...)
						return
					}
					if launch {
						require.Equal(t, 75, asking.want(done).Outcome.Status)
						require.Equal(t, 1, (<-zero.Losses()).Rank)
					} else {
						asking.want(lead)
						one.ended()
						one = p.called(7)
						one.register(second, Gathering)
						synctest.Wait()
						require.Equal(t, 2, zero.count())
					}
					require.Less(t, time.Since(begin), 5*time.Second)
					p.end(zero, append([]*line{one, asking}, present(two)...)...)
				})
			})
		}
	}
}

func present(l *line) []*line {
	if l == nil {
		return nil
	}
	return []*line{l}
}

func (n *Node) count() (count int) {
	n.ask(func() { count = n.lead.present() })
	return count
}

// A rank whose connection was reset is asked at its address before rank 0 believes another start of it that answers
// elsewhere, because that start may be wrong about its own address.
func TestARankThatIsBackAtItsAddressIsNotReplaced(t *testing.T) {
	for _, calls := range []bool{true, false} {
		for _, there := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				p.listen(7, true)
				zero, lines, r := p.launch(2)
				first, second := r.Members[1].Record, p.record(1)
				lines[1].w.abort()
				lines[1].ended()
				one := p.called(1) // rank 0 dials again
				asking := p.call(zero, nil)
				if calls {
					one.want(hello)
					asking.w.send(message{Type: announce, Record: &second})
				} else { // the second one is at the other address that rank 0 knows
					zero.ask(func() { zero.lead.addTarget(second.ID, nil, addrOf(7)) })
					one.w.abort()
					one.ended()
					one = p.called(7)
					m, ok := <-one.got
					for ; !ok; m, ok = <-one.got { // a call beside the ended call is dropped
						one = p.called(7)
					}
					one.w.send(message{Type: register, ref: m.Record, Record: &second, State: Gathering})
				}
				verify := p.called(1)
				verify.want(announce)
				refused := asking
				if !calls {
					refused = one
				}
				if there {
					verify.w.send(message{Type: lead, Name: first.Nonce})
					require.Equal(t, 78, refused.want(done).Outcome.Status)
					require.Empty(t, zero.Losses())
				} else {
					verify.w.send(message{Type: lead, Name: second.Nonce})
					require.Equal(t, 75, refused.want(done).Outcome.Status)
					require.Equal(t, 1, (<-zero.Losses()).Rank)
				}
				p.end(zero, one, asking, verify)
			})
		}
	}
}

// Two containers that claim rank 0, and both answer, contradict each other: the rank that one of them should be never
// comes.
func TestTwoThatClaimRankZero(t *testing.T) {
	t.Run("a rank that hears both tells both", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(t)
			zero, other := p.record(0), p.record(0)
			other.Addr = addrOf(7)
			n := p.start(p.record(1), 3)
			up := p.greet(n, &zero)
			up.want(register)
			late := p.greet(n, &other)
			up.want(ping)
			up.w.send(message{Type: pong})
			late.want(ping)
			late.w.send(message{Type: pong})
			require.Equal(t, zero.Nonce, late.want(refuse).Record.Nonce)
			require.Equal(t, other.Nonce, up.want(announce).Record.Nonce)
			p.end(n, up, late)
		})
	})
	t.Run("the second one is told first, because the first one ends this rank", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(t)
			zero, other := p.record(0), p.record(0)
			n := p.start(p.record(1), 3)
			up := p.greet(n, &zero)
			up.want(register)
			a, b := net.Pipe() // a write ends when the other side reads
			p.wg.Go(func() { n.Accept(context.Background(), b, nil) })
			w, reads := newWire(a, &other), make(chan struct{})
			w.send(message{Type: hello, Record: &other})
			up.want(ping)
			up.w.send(message{Type: pong})
			p.wg.Go(func() {
				defer w.close()
				_ = w.read(func(m message) error {
					if m.Type == ping {
						w.send(message{Type: pong})
						<-reads
					}
					return nil
				})
			})
			up.quiet(time.Second)
			close(reads)
			require.Equal(t, other.Nonce, up.want(announce).Record.Nonce)
			w.abort()
			p.end(n, up)
		})
	})
	t.Run("a greeting of a dead rank 0 says nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(t)
			zero, other := p.record(0), p.record(0)
			n := p.start(p.record(1), 3)
			up := p.greet(n, &zero)
			up.want(register)
			late := p.greet(n, &other)
			up.want(ping)
			up.w.send(message{Type: pong})
			late.want(ping)
			late.w.abort()
			up.quiet(time.Minute)
			p.end(n, up)
		})
	})
	t.Run("an announcement of a rank 0 that may be dead is not passed on", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(t)
			zero, other := p.record(0), p.record(0)
			n := p.start(p.record(1), 3)
			up := p.greet(n, &zero)
			up.want(register)
			late := p.call(n, &other)
			late.w.send(message{Type: announce, Record: &other})
			require.Equal(t, zero.Nonce, late.want(lead).Record.Nonce)
			up.quiet(time.Minute)
			p.end(n, up, late)
		})
	})
	for name, tell := range map[string]func(p *play, zero *Node, other *Record, one *line){
		"another rank passes it on": func(_ *play, _ *Node, other *Record, one *line) {
			one.w.send(message{Type: announce, Record: other})
		},
		"another rank refuses": func(_ *play, _ *Node, other *Record, one *line) {
			one.w.send(message{Type: refuse, Record: other})
		},
		"it greets": func(p *play, zero *Node, other *Record, _ *line) {
			l := p.call(zero, other)
			l.w.send(message{Type: hello, Record: other})
			l.want(ping)
			l.w.send(message{Type: pong})
			l.want(refuse)
			l.w.abort()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				p.listen(1, true)
				zero := p.start(p.record(0), 3)
				other := p.record(0)
				other.Addr = addrOf(7)
				one := p.called(1)
				one.register(p.record(1), Gathering)
				tell(p, zero, &other, one)
				_, err := zero.Gather(t.Context())
				var conflict *ConflictError
				require.ErrorAs(t, err, &conflict)
				require.Contains(t, err.Error(), "both say that they are rank 0")
				p.end(zero, one)
			})
		})
	}
}

// A coordinator that ends the job tells the connected ranks, and ranks that connect while it stays. It does not leave
// that to another container, which comes earlier in the order and does not know of the end.
func TestACoordinatorThatEndsTheJobDoesNotStepDown(t *testing.T) {
	for _, stay := range []time.Duration{0, 5 * time.Second} {
		t.Run(stay.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				p.listen(2, true)
				self, first, last := p.record(1), p.record(0), p.record(2)
				self.Rank, first.Rank, last.Rank = -1, -1, -1
				n, err := Start(Config{Status: testStatuses, Self: self, Size: 2, Dial: p.dial,
					Timeout: 10 * time.Minute})
				require.NoError(t, err)
				n.post(func() { n.find.onGossip(last, true) })
				two := p.called(2)
				ref := two.want(hello).Record
				registered := message{Type: register, ref: ref, Record: &last, State: Gathering, Looking: true}
				two.w.send(registered)
				synctest.Wait()

				left := make(chan error, 1)
				p.wg.Go(func() { left <- n.Finish(t.Context(), Outcome{Status: 75, Reason: "over"}, stay) })
				require.Equal(t, 75, two.want(done).Outcome.Status)
				up := p.greet(n, &first)
				if stay > 0 {
					require.Equal(t, Outcome{Status: 75, Reason: "over"}, *up.want(done).Outcome)
				} else {
					up.want(refuse)
				}
				require.Equal(t, Ended, n.View().Phase)
				two.w.send(message{Type: doneAck})
				two.want(bye)
				two.w.abort()
				select {
				case err := <-left:
					require.NoError(t, err)
				case <-time.After(time.Minute):
					require.FailNow(t, "the coordinator does not leave")
				}
				o, err := n.Wait(t.Context())
				require.NoError(t, err)
				require.Equal(t, 75, o.Status)
				p.end(n, two, up)
			})
		})
	}
}

// TestARepeatedRequestCountsOnce: a rank repeats its request when rank 0 may not have read it. A new start of the rank,
// or another signal, is a new request.
func TestARepeatedRequestCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, lines, r := p.launch(2)
		first, second := r.Members[1].Nonce, NewNonce()
		for _, m := range []message{
			{Name: first, Signal: 15}, {Name: first, Signal: 15}, {Name: first, Signal: 2}, {Name: first, Signal: 2},
			{Name: second, Signal: 2},
		} {
			m.Type = stop
			lines[1].w.send(m)
		}
		var got []int
		for range 3 {
			got = append(got, (<-zero.Stops()).Signal)
		}
		require.Equal(t, []int{15, 2, 2}, got)
		synctest.Wait()
		require.Empty(t, zero.Stops())
		p.end(zero, lines[1])
	})
}

// Once the job has ended before its launch, the last awaited acknowledgement launches nothing.
func TestAnEndedJobIsNotLaunched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(1, true)
		p.listen(2, true)
		zero := p.start(p.record(0), 3)
		one, two := p.called(1), p.called(2)
		one.register(p.record(1), Gathering)
		two.register(p.record(2), Gathering)
		m := one.want(prepare)
		two.want(prepare)
		one.ack(m.Epoch, m.Roster.Hash)
		one.w.send(message{Type: stop, Signal: 15, Reason: "stopped"})
		_, err := zero.Gather(t.Context())
		var ended *EndedError
		require.ErrorAs(t, err, &ended)
		require.Equal(t, 143, ended.Outcome.Status)
		two.ack(m.Epoch, m.Roster.Hash)
		synctest.Wait()
		require.NotEqual(t, Running, zero.View().Phase)
		left := make(chan error, 1)
		p.wg.Go(func() { left <- zero.Finish(t.Context(), ended.Outcome, 0) })
		for _, l := range []*line{one, two} {
			require.Equal(t, 143, l.want(done).Outcome.Status)
			l.w.send(message{Type: doneAck})
		}
		for _, l := range []*line{one, two} {
			l.want(bye)
			l.w.abort()
		}
		require.NoError(t, <-left)
		p.end(zero)
	})
}

// TestARequestIsRepeated before the launch: rank 0 may not have read it.
func TestARequestIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		zero, one := p.record(0), p.record(1)
		n := p.start(one, 2)
		l := p.greet(n, &zero)
		l.want(register)
		require.True(t, n.RequestStop(15, "stopped"))
		require.Equal(t, one.Nonce, l.want(stop).Name)
		again := p.greet(n, &zero)
		again.want(register)
		require.Equal(t, 15, again.want(stop).Signal)
		p.end(n, l, again)
	})
}

// TestALossVoidsARosterThatTheRankHasAcknowledged: the others do not complete it.
func TestALossVoidsARosterThatTheRankHasAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(1, true)
		p.listen(2, true)
		n := p.start(p.record(0), 3)
		var lines []*line
		for i := 1; i < 3; i++ {
			r, l := p.record(i), p.called(i)
			l.want(hello)
			l.w.send(message{Type: register, Record: &r})
			lines = append(lines, l)
		}
		first := lines[0].want(prepare)
		lines[0].w.send(message{Type: ack, Epoch: first.Epoch, Hash: first.Roster.Hash})
		lines[1].want(prepare)
		synctest.Wait()
		lines[0].w.abort()
		synctest.Wait()
		lines[1].w.send(message{Type: ack, Epoch: first.Epoch, Hash: first.Roster.Hash})
		synctest.Wait()
		require.Equal(t, Gathering, n.View().Phase)
		p.end(n, lines...)
	})
}

// TestALateTableOfAnEarlierRoster does not replace the roster that this rank has acknowledged since.
func TestALateTableOfAnEarlierRoster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.listen(1, true)
		zero, one, two := p.record(0), p.record(1), p.record(2)
		r := rosterOf(t, 1, zero, one, two)
		n := p.start(two, 3)
		l := p.greet(n, &zero)
		l.want(register)
		parent := &parentRank{one.ID, one.Addr}
		l.w.send(message{Type: prepare, Epoch: 1, Hash: r.Hash, Parent: parent})
		early := p.called(1)
		early.want(fetch)
		l.w.send(message{Type: waiting})
		l.w.send(message{Type: prepare, Epoch: 2, Hash: r.Hash, Parent: parent})
		late := p.called(1)
		late.want(fetch)
		late.w.send(message{Type: table, Roster: r})
		require.Equal(t, uint64(2), l.want(ack).Epoch)
		early.w.send(message{Type: table, Roster: r})
		l.quiet(time.Second)
		l.launched(2)
		p.end(n, l, early, late)
	})
}
