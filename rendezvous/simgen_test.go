package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Generations in the fault simulation: plans in which the command fails and starts again in place, and the invariants
// of that.

// restart is one more generation of a plan.
type restart struct {
	clears []time.Duration // by rank: until the last process of the generation before has ended
	delay  time.Duration   // of rank 0, before Next
	starts []time.Duration // by rank: from ErrNext until its next node starts
	job    time.Duration   // of this generation
}

// rejoin is what else a plan with restarts says of lost ranks.
type rejoin struct {
	timeout time.Duration   // of a later generation, for a lost container to come back
	dies    []time.Duration // by rank: until the command has ended after rank 0 was lost, at most simGrace
	revives bool            // a container that ends because rank 0 is lost is started again
}

const (
	simGrace        = 8 * time.Second  // cmd's --grace
	simClearTimeout = 35 * time.Second // cmd's clearTimeout
)

// messageOf is a kind of message in one generation.
type messageOf struct {
	generation uint64
	kind       kind
}

// stages are the parts of a restart in which a fault may happen, with the messages at which one is composed.
var stages = []struct {
	name  string
	kinds []kind
}{
	{"clearing", []kind{again, cleared, next}},
	{"gathering again", []kind{hello, register}},
	{"prepared again", []kind{prepare, ack}},
	{"going again", []kind{launched, started}},
	{"running again", []kind{started, again, done}},
}

var faultKinds = []string{"crash", "pause", "partition", "cut", "reset", "stop", "apart"}

// stageAfter returns the stage that a message of the restarted job begins, "" = the message begins none.
func stageAfter(k kind) string {
	switch k {
	case hello:
		return "gathering again"
	case prepare:
		return "prepared again"
	case launched:
		return "going again"
	case started:
		return "running again"
	case again:
		return "clearing"
	case done:
		return "ending"
	}
	return ""
}

func faultOfGeneration(stage string, zero bool, what string) string {
	rank := "another rank"
	if zero {
		rank = "rank 0"
	}
	return fmt.Sprintf("%s: %s of %s", stage, strings.TrimSuffix(what, "-at"), rank)
}

// faultsOfGenerations lists the faults of restarts that a test of 2,000 seeds must have met. Going is so short that
// some of its faults come up in more seeds only.
func faultsOfGenerations() (out []string) {
	for _, stage := range stages {
		for _, what := range faultKinds[:6] {
			if stage.name != "going again" || what == "crash" {
				out = append(out, faultOfGeneration(stage.name, true, what), faultOfGeneration(stage.name, false, what))
			}
		}
	}
	return out
}

// addRestarts composes the restarts, and faults that happen in them.
func (p *plan) addRestarts(r *rand.Rand) {
	if r.IntN(2) == 0 {
		return
	}
	upTo := func(longest ...time.Duration) time.Duration {
		return time.Duration(r.Int64N(int64(longest[r.IntN(len(longest))]) + 1))
	}
	p.asks = r.IntN(2) == 0
	for range 1 + r.IntN(3) {
		re := restart{delay: upTo(0, 0, time.Second, 8*time.Second)}
		longest := []time.Duration{0, 20 * time.Millisecond, 300 * time.Millisecond, 4 * time.Second}[r.IntN(4)]
		for range p.size {
			re.clears = append(re.clears, upTo(longest))
		}
		longest = []time.Duration{0, 0, 50 * time.Millisecond, 2 * time.Second}[r.IntN(4)]
		for range p.size {
			re.starts = append(re.starts, upTo(longest))
		}
		re.job = upTo(20*time.Millisecond, 3*time.Second, 30*time.Second)
		p.restarts = append(p.restarts, re)
	}
	for range []int{0, 1, 1, 2}[r.IntN(4)] {
		f := fault{kind: "crash"}
		if r.IntN(6) > 0 {
			f.kind = faultKinds[r.IntN(len(faultKinds))]
		}
		f.lasts = time.Millisecond + upTo(20*time.Millisecond, 300*time.Millisecond, 4*time.Second, 15*time.Second,
			45*time.Second)
		if r.IntN(2) > 0 {
			f.rank = 1 + r.IntN(p.size-1)
		}
		f.other = (f.rank + 1 + r.IntN(p.size-1)) % p.size
		kinds := stages[r.IntN(len(stages))].kinds
		f.msg, f.nth = kinds[r.IntN(len(kinds))], 1+r.IntN(p.size)
		f.generation = uint64(1 + r.IntN(len(p.restarts)))
		if f.msg != again && f.msg != cleared && f.msg != next {
			f.generation++
		}
		if f.kind == "crash" {
			f.power, f.again = r.IntN(4) == 0, r.IntN(4) > 0
			f.moves = f.again && (f.power || r.IntN(3) == 0)
		}
		p.faults = append(p.faults, f)
	}
}

// dies returns how long the command of a container runs on after rank 0 was lost.
func (p *plan) dies(c *simInst) time.Duration {
	if p.restarts == nil {
		return 0
	}
	return p.rejoin.dies[c.rank]
}

// jobOf returns how long the command of a generation runs.
func (p *plan) jobOf(generation uint64) time.Duration {
	if generation == 1 {
		return p.job
	}
	return p.restarts[generation-2].job
}

// restarting bounds the time that the restarts add to a run.
func (p *plan) restarting() (d time.Duration) {
	for _, re := range p.restarts {
		d += slices.Max(re.clears) + simClearTimeout + re.delay + slices.Max(re.starts) + p.rejoin.timeout + re.job
	}
	if d > 0 { // the last start of a lost container waits for a job that has ended
		d += simGrace + 45*time.Second + p.timeout
		d += time.Duration(len(p.restarts))*(leaderFence+p.timeout) + 2*time.Minute
	}
	return d
}

// addRejoin composes what happens to lost ranks, and faults that lose them.
func (p *plan) addRejoin(r *rand.Rand, horizon int) {
	if p.restarts == nil {
		return
	}
	p.rejoin.timeout = []time.Duration{30 * time.Second, time.Minute}[r.IntN(2)]
	p.rejoin.revives = r.IntN(3) > 0
	longest := []time.Duration{0, time.Second, simGrace}[r.IntN(3)]
	for range p.size {
		p.rejoin.dies = append(p.rejoin.dies, time.Duration(r.Int64N(int64(longest)+1)))
	}
	n := []int{0, 1, 1, 2}[r.IntN(4)]
	var last fault
	for i := range n {
		f := fault{rank: 1 + r.IntN(p.size-1)}
		f.kind = []string{"crash", "crash", "crash", "replace", "replace", "torn", "partition", "pause"}[r.IntN(8)]
		f.other = (f.rank + 1 + r.IntN(p.size-1)) % p.size
		longest := []time.Duration{
			300 * time.Millisecond, 4 * time.Second, 15 * time.Second, 45 * time.Second,
		}[r.IntN(4)]
		f.lasts = time.Millisecond + time.Duration(r.Int64N(int64(longest)))
		f.after = time.Duration(r.Int64N(int64(f.lasts)))
		if f.kind == "crash" {
			f.power, f.again = r.IntN(4) == 0, r.IntN(5) > 0
			f.moves = f.again && (f.power || r.IntN(3) == 0)
		}
		if f.kind == "torn" {
			f.moves = r.IntN(2) == 0
		}
		switch {
		case i > 0 && r.IntN(2) == 0: // a double loss
			f.at, f.msg, f.nth, f.generation = last.at, last.msg, last.nth, last.generation
		case r.IntN(3) == 0:
			f.at = time.Duration(horizon+r.IntN(20000)) * time.Millisecond
		default:
			kinds := stages[r.IntN(len(stages))].kinds
			f.msg, f.nth = kinds[r.IntN(len(kinds))], 1+r.IntN(p.size)
			f.generation = uint64(1 + r.IntN(len(p.restarts)))
			if f.msg != again && f.msg != cleared && f.msg != next && f.msg != started {
				f.generation++
			}
		}
		last = f
		p.faults = append(p.faults, f)
	}
}

// noteStage follows the restart of rank 0 by its messages. s.mu is held.
func (s *sim) noteStage(zero *simInst, k kind) {
	if k == started && s.countIn[messageOf{zero.generation, k}] < s.size/2 {
		return // most have not been told yet
	}
	if stage := stageAfter(k); stage != "" && (zero.generation > 1 || k == again) {
		s.stage = stage
	}
}

// simAct is what a container does as a rank of one generation.
type simAct struct {
	by         *simInst
	generation uint64
	roster     Roster
	at         time.Time
	gone       time.Time // when the last of its processes had ended; zero = not by itself
	until      time.Time // on rank 0: when the generation ended, or was to end
	next       time.Time // on rank 0: when it says next
	stopped    []*span   // after a freeze
}

// over returns when no process of the command was left any more; zero = never.
func (a *simAct) over() time.Time {
	if a.gone.IsZero() {
		return a.by.over()
	}
	if a.by.killed && a.by.killAt.Before(a.gone) {
		return a.by.killAt
	}
	return a.gone
}

// actOn returns what a container did in a launch; nil = it took no part.
func (c *simInst) actOn(l *simLaunch) *simAct {
	for _, a := range c.acts {
		if a.generation == l.generation && a.roster.Hash == l.roster.Hash {
			return a
		}
	}
	return nil
}

// lastAct returns the last generation in which a container has run.
func (c *simInst) lastAct() uint64 {
	if len(c.acts) == 0 {
		return 0
	}
	return c.acts[len(c.acts)-1].generation
}

func (s *sim) launchOf(a *simAct) *simLaunch {
	for i, l := range s.launches {
		if l.generation == a.generation && l.roster.Hash == a.roster.Hash {
			return &s.launches[i]
		}
	}
	return nil
}

// nodeOf returns the node of a container's generation.
func (s *sim) nodeOf(c *simInst) *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.node
}

// act does with the nodes what cmd does with them.
func (s *sim) act(ctx context.Context, c *simInst) (status int, reason string) {
	for {
		a, o := s.gather(ctx, c)
		switch {
		case a == nil:
		case a.roster.Members[0].Nonce == c.nonce:
			o = s.lead(ctx, c, a)
		default:
			o = s.obey(ctx, c, a)
		}
		if o != nil {
			return o.Status, o.Reason
		}
		if !s.follow(ctx, c) {
			return 75, "killed"
		}
	}
}

// gather returns what this container does in the launch, or how it ends before it.
func (s *sim) gather(ctx context.Context, c *simInst) (*simAct, *Outcome) {
	n := s.nodeOf(c)
	gathering, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.wg.Go(func() {
		select {
		case <-c.stop:
			cancel(errStopped)
		case <-gathering.Done():
		}
	})
	var r Roster
	err := errStopped
	if n.Generation() == 1 || !isClosed(c.stop) {
		r, err = n.Gather(gathering)
	}
	if err != nil && isClosed(c.stop) {
		stopped := Outcome{Status: 130, Reason: "stopped", Stopped: true}
		leaving, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		s.net.meet("a stopped rank withdraws from the next generation")
		_, _ = n.Withdraw(leaving, stopped)
		_ = n.Finish(ctx, stopped, 5*time.Second)
		return nil, &stopped
	}
	if err != nil {
		var ended *EndedError
		var lost *LostError
		var missing *MissingError
		o := Outcome{Status: 75, Reason: err.Error()}
		switch {
		case errors.As(err, &ended):
			o = ended.Outcome
		case errors.As(err, &lost):
			s.mu.Lock()
			c.lost = true
			s.mu.Unlock()
		}
		stay := time.Duration(0)
		switch {
		case n.Generation() == 1:
		case !errors.As(err, &missing):
			stay = 5 * time.Second
		case n.leading() != nil:
			s.net.meet("a lost container does not come back")
		}
		_ = n.Finish(ctx, o, stay)
		return nil, &o
	}
	var refused error
	s.mu.Lock()
	for c.unconfirmed && refused == nil && r.Members[0].Nonce != c.nonce { // it was frozen, and go may be old
		c.unconfirmed = false
		s.mu.Unlock()
		refused = n.Confirm(ctx)
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	c.generation = n.Generation() // a new container has adopted that of its rank 0
	a := &simAct{by: c, generation: c.generation, roster: r, at: time.Now()}
	if c.killed {
		return a, nil
	}
	if refused != nil {
		a.gone, a.stopped = a.at, []*span{{}} // its command is not started
	}
	c.acts, s.acts = append(c.acts, a), append(s.acts, a)
	if r.Members[0].Nonce == c.nonce {
		s.launches = append(s.launches, simLaunch{time.Now(), r, c, a.generation})
		for _, m := range r.Members[1:] {
			if !s.acked[fmt.Sprint(m.Nonce, a.generation, r.Epoch, r.Hash)] {
				s.hasty = append(s.hasty, fmt.Sprintf("launched before rank %d has acknowledged the roster", m.Rank))
			}
		}
	}
	return a, nil
}

var errStopped = errors.New("stopped")

// stop ends the job as SIGINT in a container does: with SIGTERM only the container might leave. If rank 0 cannot be
// told, the container tells it before the next launch.
func (s *sim) stop(c *simInst) {
	s.mu.Lock()
	n, zero := c.node, c.rank == 0 && s.who != elected
	if c.stoppedIn == 0 {
		c.stoppedIn = n.Generation()
	}
	s.mu.Unlock()
	if zero {
		s.net.meet("fault: stop of rank 0")
	}
	if told := n.RequestStop(2, "stopped"); !told {
		s.cancel(c)
	}
}

// cancel ends the wait of a stopped container for the other ranks.
func (s *sim) cancel(c *simInst) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isClosed(c.stop) {
		close(c.stop)
	}
}

// obey is what another rank than 0 does from the launch on. Without an outcome, the next generation begins.
func (s *sim) obey(ctx context.Context, c *simInst, a *simAct) *Outcome {
	n := s.nodeOf(c)
	over, cancel := context.WithCancel(ctx)
	var clearing sync.WaitGroup
	clearing.Go(func() {
		select {
		case <-over.Done():
			return
		case text := <-n.Clears():
			if want := strconv.FormatUint(a.generation, 10); string(text) != want {
				s.bug("%d/%s is told to clear generation %s, and runs %s", c.rank, c.what, text, want)
			}
		}
		takes := s.restarts[a.generation-1].clears[c.rank]
		if !sleep(over, nil, takes) || s.net.awake(over, c.host) != nil {
			return
		}
		s.clearedAll(a)
		n.Cleared(1, takes)
	})
	o, err := n.Wait(ctx)
	cancel()
	clearing.Wait()
	switch {
	case errors.Is(err, ErrNext):
		if s.isThere(a) {
			s.bug("%d/%s goes on from generation %d and has not cleared", c.rank, c.what, a.generation)
		}
		return nil
	case err != nil && s.outlive(ctx, c, a, err):
		return nil
	case err != nil:
		s.endCommand(ctx, c, a)
		return &Outcome{Status: 75, Reason: err.Error()}
	}
	return &o
}

// outlive clears after the loss of rank 0; false = the job ends.
func (s *sim) outlive(ctx context.Context, c *simInst, a *simAct, err error) bool {
	var lost *LostError
	if !errors.As(err, &lost) || s.who != declared || s.spares > 0 || int(a.generation) > len(s.restarts) {
		return false
	}
	s.mu.Lock()
	c.outlives = true
	stopped := c.stoppedIn > 0
	s.mu.Unlock()
	if stopped {
		return false
	}
	if s.isThere(a) {
		if !sleep(ctx, nil, s.restarts[a.generation-1].clears[c.rank]) || s.net.awake(ctx, c.host) != nil {
			return false
		}
		s.clearedAll(a)
	}
	s.net.meet("a rank outlives rank 0")
	return true
}

// adopt is what the next start of rank 0 does with the text of a rank that has outlived the last one.
func (s *sim) adopt(text []byte) ([]byte, time.Duration, error) {
	s.net.meet("the next start of rank 0 adopts a generation")
	return text, s.rejoin.timeout, nil
}

// endCommand ends the command of a rank that has lost rank 0.
func (s *sim) endCommand(ctx context.Context, c *simInst, a *simAct) {
	if s.restarts == nil {
		return
	}
	s.mu.Lock()
	c.orphan = true
	s.mu.Unlock()
	if sleep(ctx, nil, s.dies(c)) && s.net.awake(ctx, c.host) == nil && s.isThere(a) {
		s.clearedAll(a)
	}
}

func (s *sim) bug(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bugs = append(s.bugs, fmt.Sprintf(format, args...))
}

// isThere reports whether processes of a command are left.
func (s *sim) isThere(a *simAct) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.gone.IsZero()
}

func (s *sim) clearedAll(a *simAct) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !a.by.killed {
		a.gone = time.Now()
	}
}

// lead is what rank 0 does from the launch on. Without an outcome, the next generation begins.
func (s *sim) lead(ctx context.Context, c *simInst, a *simAct) *Outcome {
	n := s.nodeOf(c)
	if !s.lazy {
		s.after(s.head/2, n.Launched)
	}
	fails := int(a.generation) <= len(s.restarts)
	o, lost := s.watch(ctx, c, n, s.jobOf(a.generation), n.Losses())
	s.mu.Lock()
	a.until = time.Now()
	s.mu.Unlock()
	if o == nil && (fails && s.asks || !fails && s.status != 0) { // a rank that is gone is the likelier cause
		if absent := n.Absent(ctx, 300*time.Millisecond, 3*time.Second); len(absent) > 0 {
			o = &Outcome{Status: 75, Reason: fmt.Sprintf("rank %d is gone: %s", absent[0].Rank, absent[0].Reason)}
			lost = true
			n.GiveUp(absent[0].Rank)
		}
	}
	if fails && (o == nil || lost) {
		if o = s.clear(ctx, c, n, a); o == nil {
			s.mu.Lock()
			c.goesOn, a.next = true, time.Now()
			s.mu.Unlock()
			n.Next()
			return nil
		}
	}
	if o == nil {
		o = &Outcome{Status: s.status}
	}
	if err := n.Finish(ctx, *o, 0); err != nil {
		s.log.Warn("not every rank was told", "err", err)
	}
	return o
}

// watch waits for d, or for what ends the generation.
func (s *sim) watch(ctx context.Context, c *simInst, n *Node, d time.Duration, losses <-chan Loss) (o *Outcome,
	lost bool) {
	select {
	case <-time.After(d):
		return nil, false
	case l := <-losses:
		return &Outcome{Status: 75, Reason: fmt.Sprintf("rank %d was lost: %s", l.Rank, l.Reason)}, true
	case st := <-n.Stops():
		return &Outcome{Status: 128 + st.Signal, Reason: st.Reason}, false
	case <-c.stop:
		return &Outcome{Status: 130, Reason: "stopped"}, false
	case <-ctx.Done():
		return &Outcome{Status: s.status}, false
	}
}

// clear ends the processes of all ranks, and waits before the next generation. A loss does not end it.
func (s *sim) clear(ctx context.Context, c *simInst, n *Node, a *simAct) *Outcome {
	re := s.restarts[a.generation-1]
	clearing, cancel := context.WithCancel(ctx)
	watched := make(chan *Outcome, 1)
	go func() { // until it is told to stop, or something ends the job
		defer cancel()
		o, _ := s.watch(clearing, c, n, 24*time.Hour, nil)
		watched <- o
	}()
	var own sync.WaitGroup
	own.Go(func() {
		time.Sleep(re.clears[c.rank])
		s.clearedAll(a)
	})
	limited, late := context.WithTimeout(clearing, slices.Max(re.clears)+simClearTimeout)
	defer late()
	begin := time.Now()
	_, err := n.Clear(limited, []byte(strconv.FormatUint(a.generation, 10)))
	own.Wait()
	if took := time.Since(begin); err == nil && took > slices.Max(re.clears)+fenceTime/2 {
		s.net.meet("a lost rank is fenced by time")
	}
	if err == nil {
		sleep(clearing, nil, re.delay)
	}
	ended := clearing.Err() != nil
	cancel()
	o := <-watched
	switch {
	case ended:
		return o
	case err != nil:
		s.net.meet("a clear that is not proven in time")
		return &Outcome{Status: 75, Reason: err.Error()}
	}
	return nil
}

// follow starts the node of the next generation; false = the container was killed.
func (s *sim) follow(ctx context.Context, c *simInst) bool {
	old := s.nodeOf(c)
	if !sleep(ctx, nil, s.restarts[old.Generation()-1].starts[c.rank]) || s.net.awake(ctx, c.host) != nil {
		return false
	}
	cfg := old.Following()
	cfg.Timeout, cfg.Text = s.rejoin.timeout, strconv.AppendUint(nil, old.Generation(), 10)
	n, err := Start(cfg)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	killed, stopped := c.killed, c.stoppedIn > 0
	if !killed {
		c.node = n
		c.generation = n.Generation()
	}
	s.mu.Unlock()
	if killed {
		_ = n.Close()
		return false
	}
	s.net.meet(fmt.Sprintf("generation %d", c.generation))
	s.net.mu.Lock()
	if c.host.node == old {
		c.host.node = n
	}
	s.net.mu.Unlock()
	if stopped { // rank 0 may not have read the request
		s.cancel(c)
	}
	old.Succeed(n)
	_ = old.Close()
	s.checkBug(c, old)
	return true
}

// generations lists the invariants of restarts that the run broke.
func (s *sim) generations() (out []string) {
	bad := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	who := func(c *simInst) string { return fmt.Sprintf("%d/%s", c.rank, c.what) }
	for _, c := range s.all {
		for i, a := range c.acts {
			if a.generation > uint64(len(s.restarts))+1 {
				bad("%s acts in generation %d of %d", who(c), a.generation, len(s.restarts)+1)
			}
			if i > 0 && a.generation <= c.acts[i-1].generation {
				bad("%s acts in generation %d after %d", who(c), a.generation, c.acts[i-1].generation)
			}
		}
	}
	type group struct {
		zero       string
		generation uint64
	}
	rosters := map[group]*simAct{}
	byNonce := map[string][]*simAct{}
	for _, a := range s.acts {
		g := group{a.roster.Members[0].Nonce, a.generation}
		if first := rosters[g]; first == nil {
			rosters[g] = a
		} else if first.roster.Hash != a.roster.Hash || first.roster.Epoch != a.roster.Epoch {
			bad("%s and %s hold other rosters of generation %d", who(first.by), who(a.by), a.generation)
		}
		byNonce[a.by.nonce] = append(byNonce[a.by.nonce], a)
	}
	for _, a := range s.acts {
		if a.generation == 1 {
			continue
		}
		before := s.before(a)
		if before == nil {
			bad("%s acts in generation %d, and there was none before", who(a.by), a.generation)
			continue
		}
		if before.roster.Members[0].Nonce != a.roster.Members[0].Nonce && a.by.nonce == a.roster.Members[0].Nonce {
			s.noteSucceeded(before, a)
		}
		for rank, m := range before.roster.Members {
			c := s.started(m.Nonce)
			if rank >= len(a.roster.Members) || a.roster.Members[rank].Nonce != m.Nonce {
				s.noteReplaced(a, c, rank)
				if end := c.over(); (end.IsZero() || end.After(a.at)) && !s.silenced(c, a.at) {
					bad("rank %d of generation %d is another container than before, which is there", rank, a.generation)
				}
			}
			if now, ok := a.roster.Self(m.Nonce); ok && now.Rank != rank {
				bad("%s was rank %d, and is rank %d of generation %d", who(c), rank, now.Rank, a.generation)
			}
			i := slices.IndexFunc(byNonce[m.Nonce], func(b *simAct) bool { return b.generation == a.generation-1 })
			switch {
			case i >= 0:
				b := byNonce[m.Nonce][i]
				if end := b.over(); (end.IsZero() || end.After(a.at)) && !s.isStill(c, b, a.at) {
					bad("%s acts in generation %d while %s still runs the one before", who(a.by), a.generation, who(c))
				}
			case !s.silenced(c, a.at) && a.roster.Members[rank].Nonce == m.Nonce:
				bad("%s acts in generation %d, and %s did not in the one before", who(a.by), a.generation, who(c))
			}
		}
	}
	if s.mustGoOn() && len(s.launches) != len(s.restarts)+1 {
		bad("%d launches, and every lost container came back for %d", len(s.launches), len(s.restarts)+1)
	}
	if len(s.hits) == 0 && len(s.launches) > 0 && len(s.launches) != len(s.restarts)+1 {
		bad("%d launches, and nothing kept it from %d", len(s.launches), len(s.restarts)+1)
	}
	if double := s.losses(); double > 1 {
		s.net.met["two ranks are lost at once, and replaced"]++
	}
	for _, a := range s.acts {
		if in := a.by.stoppedIn; in > 0 && a.generation > in {
			bad("%s was stopped in generation %d, and acts in %d", who(a.by), in, a.generation)
		}
	}
	return append(out, s.late()...)
}

// isApart reports whether a scheduler has made a second job: it has started rank 0 and others again, although they were
// only cut off. No rank of l had a part in e then, so no rank can know of both.
func (s *sim) isApart(e, l simLaunch) bool {
	shared := slices.ContainsFunc(l.roster.Members, func(m Member) bool {
		_, ok := e.roster.Self(m.Nonce)
		return ok
	})
	two := slices.ContainsFunc(s.hits, func(h hit) bool {
		return h.zero && h.kind != "crash" || s.who == elected && (h.kind == "replace" || h.kind == "torn")
	})
	return two && !shared && (l.by.acts[0].generation <= e.generation || l.by.begin.Before(e.by.begin))
}

// before returns what a rank of a roster did in the generation before, or what any container did if that one had lost
// all its ranks meanwhile.
func (s *sim) before(a *simAct) (any *simAct) {
	for _, b := range s.acts {
		if b.generation != a.generation-1 {
			continue
		}
		if _, ok := a.roster.Self(b.by.nonce); ok {
			return b
		}
		any = b
	}
	return any
}

// noteSucceeded counts how rank 0 was lost whose next start has launched a.
func (s *sim) noteSucceeded(before, a *simAct) {
	zero := s.started(before.roster.Members[0].Nonce)
	how := "that lives"
	switch {
	case zero.killed:
		how = "that was killed"
	case !zero.ended.IsZero() && zero.ended.Before(a.at):
		how = "that has ended"
	}
	s.net.met["rank 0 is succeeded "+how]++
	for rank, m := range before.roster.Members[1:] {
		if a.roster.Members[rank+1].Nonce != m.Nonce {
			s.net.met["rank 0 and another rank are replaced at once"]++
			return
		}
	}
}

// losses returns how many ranks a launch has replaced at most.
func (s *sim) losses() (most int) {
	for i, l := range s.launches {
		n := 0
		for rank, m := range l.roster.Members {
			if i > 0 && rank > 0 && s.launches[i-1].roster.Members[0].Nonce == l.roster.Members[0].Nonce &&
				s.launches[i-1].roster.Members[rank].Nonce != m.Nonce {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// noteReplaced counts how a container was lost whose rank another one has in a.
func (s *sim) noteReplaced(a *simAct, c *simInst, rank int) {
	if a.roster.Members[0].Nonce != a.by.nonce {
		return
	}
	how := "that lives"
	switch {
	case c.killed:
		how = "that was killed"
	case !c.ended.IsZero():
		how = "that has lost rank 0"
	}
	s.net.met["a container is replaced "+how]++
	if by := s.started(a.roster.Members[rank].Nonce); by.rank != rank {
		s.net.met["a spare takes a place"]++
		if by.rank < s.size-s.spares {
			s.net.met["a lost container is a spare, and takes a place"]++
		}
	}
}

// silenced reports whether the others may have taken a container for dead, though it lives at that time.
func (s *sim) silenced(c *simInst, at time.Time) bool {
	return slices.ContainsFunc(s.hits, func(h hit) bool {
		switch h.kind {
		case "crash", "crash-at", "stop", "stranger", "stale", "duplicate":
			return false
		}
		return h.at.Before(at)
	})
}

// slept reports whether a container was paused for so long that the others may have gone on, or ended, without it.
func (s *sim) slept(c *simInst) bool {
	return slices.ContainsFunc(s.hits, func(h hit) bool {
		return (h.kind == "pause" || h.kind == "thaw") && h.rank == c.rank && h.lasts > ackTimeout
	})
}

// mustGoOn reports whether nothing keeps the job from all its generations: every container that is lost after the
// first launch comes back, and can be found.
func (s *sim) mustGoOn() bool {
	if s.restarts == nil || len(s.launches) == 0 || s.who != declared || s.loss > 0 || s.cpus > 0 ||
		s.book == zeroAlone || s.book == oneAnother {
		return false
	}
	gone := 0
	for _, h := range s.hits {
		if h.kind == "crash" && !h.again && h.rank > 0 && gone < s.spares {
			gone++
			h.again = true // a spare stands in
		}
		if h.kind != "crash" || !h.again || h.lasts > s.rejoin.timeout/3 ||
			h.at.Before(s.launches[0].at.Add(time.Second)) || h.rank == 0 && !s.mustSucceed(h) {
			return false
		}
	}
	return true
}

// mustSucceed reports whether nothing keeps the next start of a killed rank 0 from going on with the job.
func (s *sim) mustSucceed(h hit) bool {
	if s.spares > 0 || h.power || h.moves && s.book == onlyZero || s.restarting() < leaderFence || len(s.hits) > 1 {
		return false
	}
	return slices.ContainsFunc(s.acts, func(a *simAct) bool {
		return a.by.rank == 0 && a.by.killAt.Equal(h.at) && int(a.generation) <= len(s.restarts) &&
			!a.until.Before(h.at) && a.at.Add(time.Second).Before(h.at)
	})
}

// drawMoment chooses when a fault happens: after the start, when a command starts, or at a message of a restart.
func (p *plan) drawMoment(r *rand.Rand, f *fault, horizon int) {
	switch r.IntN(3) {
	case 0:
		f.at = time.Duration(horizon+r.IntN(20000)) * time.Millisecond
	case 1:
		f.msg, f.nth, f.generation = started, 1+r.IntN(p.size), uint64(1+r.IntN(len(p.restarts)))
	default:
		kinds := stages[r.IntN(len(stages))].kinds
		f.msg, f.nth = kinds[r.IntN(len(kinds))], 1+r.IntN(p.size)
		f.generation = uint64(1 + r.IntN(len(p.restarts)))
	}
}

// addZero composes losses of rank 0 that the job may outlive.
func (p *plan) addZero(r *rand.Rand, horizon int) {
	if p.restarts == nil || p.who != declared || r.IntN(2) == 0 {
		return
	}
	n := []int{1, 1, 1, 2}[r.IntN(4)]
	if r.IntN(3) == 0 { // nothing else happens
		p.faults, n = nil, 1
	}
	for range n {
		f := fault{zero: true, kind: []string{"crash", "crash", "crash", "replace", "replace", "torn"}[r.IntN(6)]}
		f.other = 1 + r.IntN(p.size-1)
		longest := []time.Duration{
			300 * time.Millisecond, 4 * time.Second, 9 * time.Second, 20 * time.Second, 60 * time.Second,
		}[r.IntN(5)]
		if f.kind != "crash" { // the others need seconds to give it up
			longest = []time.Duration{10 * time.Second, 40 * time.Second, 2 * time.Minute}[r.IntN(3)]
		}
		f.lasts = time.Millisecond + time.Duration(r.Int64N(int64(longest)))
		f.after = time.Duration(r.Int64N(int64(min(f.lasts, 20*time.Second))))
		if f.kind == "crash" {
			f.power, f.again = r.IntN(5) == 0, r.IntN(8) > 0
			f.moves = f.again && (f.power || r.IntN(3) == 0)
		}
		if f.kind == "torn" {
			f.moves = true
		}
		p.drawMoment(r, &f, horizon)
		p.faults = append(p.faults, f)
		if r.IntN(3) == 0 { // a double loss
			g := f
			g.kind, g.rank, g.zero, g.power, g.again = "crash", f.other, false, false, r.IntN(5) > 0
			g.moves = g.again && r.IntN(3) == 0
			p.faults = append(p.faults, g)
		}
	}
}

// sparesFrom is the first seed that composes a job with spares.
const sparesFrom = 1_000_000_000

// mustHappenToSpares is mustHappen for the seeds from sparesFrom on.
var mustHappenToSpares = []string{
	"a spare takes a place", "a lost container is a spare, and takes a place", "a spare is killed while the job runs",
	"a spare is killed while it gathers",
}

// addSpares adds spares to a job that restarts, and losses that they make up for.
func (p *plan) addSpares(r *rand.Rand, horizon int) {
	if p.seed < sparesFrom || p.restarts == nil || p.who != declared || p.cpus > 0 { // more ranks would take too long
		return
	}
	ranks := p.size
	p.spares, p.spareAfter = 1+r.IntN(2), []time.Duration{0, 0, 3 * time.Second, 20 * time.Second}[r.IntN(4)]
	p.size += p.spares
	for range p.spares {
		p.starts = append(p.starts, time.Duration(r.IntN(horizon+1))*time.Millisecond)
		p.looks, p.says = append(p.looks, 0), append(p.says, 0)
		p.rejoin.dies = append(p.rejoin.dies, 0)
		for i := range p.restarts {
			re := &p.restarts[i]
			re.clears = append(re.clears, re.clears[0])
			re.starts = append(re.starts, re.starts[0])
		}
	}
	if r.IntN(2) == 0 { // little else happens
		p.faults = p.faults[:r.IntN(len(p.faults)+1)]
	}
	for range 1 + r.IntN(3) {
		kinds := []string{"crash", "crash", "partition", "torn", "crash", "crash", "replace", "reset"}
		f := fault{kind: kinds[r.IntN(len(kinds))], rank: 1 + r.IntN(p.size-1)}
		if r.IntN(2) == 0 {
			f.rank = 1 + r.IntN(ranks-1)
		}
		f.other = (f.rank + 1 + r.IntN(p.size-1)) % p.size
		longest := []time.Duration{300 * time.Millisecond, 4 * time.Second, 45 * time.Second}[r.IntN(3)]
		f.lasts = time.Millisecond + time.Duration(r.Int64N(int64(longest)))
		f.after = time.Duration(r.Int64N(int64(f.lasts)))
		if f.kind == "crash" {
			f.power, f.again = r.IntN(6) == 0, r.IntN(2) > 0
			f.moves = f.again && (f.power || r.IntN(3) == 0)
		}
		f.moves = f.moves || f.kind == "torn"
		if r.IntN(3) == 0 {
			f.at = time.Duration(horizon+r.IntN(20000)) * time.Millisecond
		} else {
			kinds := stages[r.IntN(len(stages))].kinds
			f.msg, f.nth = kinds[r.IntN(len(kinds))], 1+r.IntN(p.size)
			f.generation = uint64(1 + r.IntN(len(p.restarts)+1))
		}
		p.faults = append(p.faults, f)
	}
}

// late lists the containers that took long to go on, or to end, in runs where nothing but deaths and stops happened.
func (s *sim) late() (out []string) {
	if s.restarts == nil || s.loss > 0 || s.delay > time.Millisecond || s.cpus > 0 {
		return nil
	}
	for _, h := range s.hits {
		if h.power || h.kind != "stop" && h.kind != "crash" && h.kind != "crash-at" {
			return nil
		}
	}
	bad := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	who := func(c *simInst) string { return fmt.Sprintf("%d/%s", c.rank, c.what) }
	for _, a := range s.acts {
		if a.generation == 1 {
			continue
		}
		for _, z := range s.acts {
			if z.generation != a.generation-1 || z.by.nonce != a.roster.Members[0].Nonce {
				continue
			}
			from, longest := z.next.Add(slices.Max(s.restarts[a.generation-2].starts)), time.Second
			for _, m := range a.roster.Members {
				if _, ok := z.roster.Self(m.Nonce); ok {
					continue
				}
				longest = 10 * time.Second // a new container must find rank 0
				if s.spares > 0 {
					longest += rejoinGap + s.spareAfter
				}
				c := s.started(m.Nonce)
				if came := c.begin.Add(s.looks[c.rank]); came.After(from) {
					from = came
				}
			}
			if took := a.at.Sub(from); took > longest {
				bad("%s acts in generation %d %v after rank 0 went on", who(a.by), a.generation, took)
			}
		}
	}
	for _, l := range s.launches {
		for _, h := range s.hits {
			zero := s.started(l.roster.Members[0].Nonce)
			if !zero.killAt.Equal(h.at) || h.kind == "stop" {
				continue // the job goes on, or the bound of the run holds
			}
			for _, m := range l.roster.Members {
				c := s.started(m.Nonce)
				if c.outlives {
					continue
				}
				// The next start of rank 0 may come just in time, and then waits as long again.
				if took := c.over().Sub(h.at); took > 2*s.rejoin.timeout+simGrace+10*time.Second {
					bad("%s goes on for %v after %s of rank %d", who(c), took, h.kind, h.rank)
				}
			}
		}
	}
	return out
}

// started returns a start of a container.
func (s *sim) started(nonce string) *simInst {
	return s.all[slices.IndexFunc(s.all, func(c *simInst) bool { return c.nonce == nonce })]
}
