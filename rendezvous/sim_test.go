package rendezvous

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The fault simulation is a whole job in virtual time, over a network in memory, with a schedule of faults that a seed
// composes. Afterwards it checks the invariants of doc.go. The seed does not schedule goroutines, so a failing seed may
// need some tries to fail again; its faults are always the same.

// TestFaults runs the seeds that once failed, then 2,000 others, or 500 under the race detector, which makes them slow,
// and a quarter as many of jobs with spares, which begin at sparesFrom.
// PAIINIT_TEST_SEED runs one and prints what happens in it; PAIINIT_TEST_SEEDS sets the number, or "FIRST-LAST"; "make
// soak SEEDS=100000" runs more.
func TestFaults(t *testing.T) {
	if one := os.Getenv("PAIINIT_TEST_SEED"); one != "" {
		seed, err := strconv.ParseUint(one, 10, 64)
		if err != nil {
			t.Fatalf("PAIINIT_TEST_SEED: %v", err)
		}
		_, met := runSeed(t, seed, true)
		t.Logf("%v", met)
		return
	}
	seeds := onceFailing(t)
	first, last := 1, 2000
	if raceEnabled {
		last = 500
	}
	if s := os.Getenv("PAIINIT_TEST_SEEDS"); s != "" {
		var err error
		from, to, isRange := strings.Cut(s, "-")
		if isRange {
			first, err = strconv.Atoi(from)
			s = to
		}
		if err == nil {
			last, err = strconv.Atoi(s)
		}
		if err != nil {
			t.Fatalf("PAIINIT_TEST_SEEDS: %v", err)
		}
	}
	for i := first; i <= last; i++ {
		seeds = append(seeds, uint64(i))
		if n := i - first + 1; first < sparesFrom && n%4 == 0 {
			seeds = append(seeds, uint64(sparesFrom+first+n/4))
		}
	}
	var next, launches atomic.Int64
	var mu sync.Mutex
	total := tally{}
	for range runtime.GOMAXPROCS(0) {
		t.Run("seeds", func(t *testing.T) {
			t.Parallel()
			for !t.Failed() {
				i := int(next.Add(1)) - 1
				if i >= len(seeds) {
					return
				}
				launched, met := runSeed(t, seeds[i], false)
				if launched {
					launches.Add(1)
				}
				mu.Lock()
				for what, n := range met {
					total[what] += n
				}
				mu.Unlock()
			}
		})
	}
	t.Cleanup(func() {
		t.Logf("%d seeds, of which %d came to a launch", len(seeds), launches.Load())
		for _, what := range slices.Sorted(maps.Keys(total)) {
			t.Logf("%7d  %s", total[what], what)
		}
		if !t.Failed() && len(seeds) >= 2000 {
			for _, what := range slices.Concat(faultsOfGenerations(), mustHappen, mustHappenToSpares) {
				if total[what] == 0 {
					t.Errorf("nothing tests this any more: %s", what)
				}
			}
		}
		if !t.Failed() && int(launches.Load()) < len(seeds)/3 {
			t.Error("too few of them: the schedules test little of what comes after it")
		}
	})
}

func onceFailing(t *testing.T) (seeds []uint64) {
	b, err := os.ReadFile("testdata/seeds")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		for _, f := range strings.Fields(line) {
			s, err := strconv.ParseUint(f, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			seeds = append(seeds, s)
		}
	}
	return seeds
}

// mustHappen lists what a test of 2,000 seeds must have met, whatever the seeds are.
var mustHappen = []string{
	"refused dial", "silent dial", "dial that meets another secret", "dial that meets another attempt",
	"dial that meets somebody else",
	"gossip packet lost", "gossip packet twice", "gossip packet late", "gossip packet overtaken",
	"gossip packet to nobody", "gossip stream",
	"fault: crash", "fault: crash, its host with it", "fault: start again", "fault: start again elsewhere",
	"fault: pause", "fault: partition", "fault: cut", "fault: apart", "fault: stranger", "fault: stale",
	"fault: duplicate", "fault: stop", "fault: reset",
	"overloaded processors",
	"present before it knows its fabric", "fault at a message", "launch with ranks from the environment",
	"launch with ranks that were agreed", "launch with rank 0 from the environment",
	"rank 0 dies while gathering", "rank 0 dies while prepared", "rank 0 dies while running", "rank 0 dies while ended",
	"rank 0 dies at hello", "rank 0 dies at register", "rank 0 dies at prepare", "rank 0 dies at ack",
	"rank 0 dies at go",
	"rank 0 dies at started", "rank 0 dies at done", "rank 0 dies at done-ack", "rank 0 dies at bye",
	"generation 2", "generation 4", "fault: stop of rank 0", "a stopped rank withdraws from the next generation",
	"a container is replaced that was killed", "a container is replaced that has lost rank 0",
	"a container that has lost rank 0 starts again", "two ranks are lost at once, and replaced",
	"fault: thaw", "a thawed rank goes on", "a thawed rank is ended", "replaced while frozen",
	"a frozen rank is fenced",
	"fault: replace", "replaced while partitioned", "fault: torn", "a lost rank is fenced by time",
	"a lost container does not come back",
	"partition in a restart, longer than the fence", "partition in a restart, shorter than the fence",
	"cut in a restart, longer than the fence", "cut in a restart, shorter than the fence",
	"pause in a restart, longer than the fence", "pause in a restart, shorter than the fence",
	"a rank outlives rank 0", "the next start of rank 0 adopts a generation", "rank 0 is succeeded that was killed",
	"rank 0 and another rank are replaced at once",
}

var kindNames = map[kind]string{hello: "hello", register: "register", prepare: "prepare", fetch: "fetch", ack: "ack",
	launched: "go",
	started:  "started", done: "done", doneAck: "done-ack", bye: "bye",
	again: "again", cleared: "cleared", next: "next"}

func runSeed(t *testing.T, seed uint64, verbose bool) (launched bool, met tally) {
	var s *sim
	bad := func(what any) {
		t.Errorf("seed %d: %v\n%s\nreplay: PAIINIT_TEST_SEED=%d go test -run TestFaults -count 20 ./rendezvous", seed,
			what, s.plan, seed)
	}
	defer func() {
		if r := recover(); r != nil { // a deadlock in the bubble
			bad(r)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		s = newSim(seed, verbose)
		s.run()
		for _, v := range s.violations() {
			bad(v)
		}
		launched, met = len(s.launches) > 0, s.net.met
		if launched {
			met["launch with "+string(s.who)]++
		}
	})
	return launched, met
}

// plan is what a seed composes. Times are from the beginning.
type plan struct {
	seed    uint64
	size    int
	book    book
	delay   time.Duration
	jitter  time.Duration
	loss    float64
	starts  []time.Duration // by rank
	job     time.Duration
	status  int
	faults  []fault
	timeout time.Duration
	tree    bool // the table travels from rank to rank
	who     who
	gossip  bool
	udpLoss float64
	head    time.Duration
	lazy    bool            // rank 0 does not say that its command has been started
	looks   []time.Duration // by rank, from the start: when it knows its fabric; 0 = at once
	says    []time.Duration // delay of the launcher's version, for which no rank waits; 0 = never
	cpus    int             // that all ranks share; 0 = no work takes time
	slower  int             // factor on the usual costs

	restarts   []restart
	rejoin     rejoin
	spares     int // of the size
	spareAfter time.Duration
	asks       bool // rank 0 looks for a lost rank before it restarts the job
}

// who says which containers know the ranks.
type who string

const (
	declared who = "ranks from the environment"
	elected  who = "ranks that were agreed"
	led      who = "rank 0 from the environment"
)

// book says which containers know whose address.
type book string

const (
	everybody  book = "everybody knows all"
	onlyZero   book = "all know rank 0 only"
	zeroAlone  book = "only rank 0 knows the others"
	byName     book = "everybody knows all names, and the DNS remembers denials"
	oneAnother book = "everybody knows all but rank 0, who knows all"
)

type fault struct {
	kind  string
	at    time.Duration
	lasts time.Duration
	rank  int
	other int
	moves bool          // restart at another address
	power bool          // its host dies with it
	msg   kind          // it happens when rank 0
	nth   int           // sends or is sent this for the nth time, and not at a time
	again bool          // restarted after lasts
	after time.Duration // when a replaced container's successor starts

	generation uint64 // msg is counted in this generation of rank 0; 0 = in all of them
	zero       bool   // rank 0 may have two starts that live
}

func (f fault) String() string {
	switch f.kind {
	case "crash":
		return fmt.Sprintf("%v crash of rank %d power=%v again=%v after %v moves=%v", f.at, f.rank, f.power, f.again,
			f.lasts, f.moves)
	case "crash-at":
		return fmt.Sprintf("crash of rank 0 at message %d of type %d again=%v after %v moves=%v", f.nth, f.msg,
			f.again, f.lasts, f.moves)
	}
	if f.msg != 0 {
		return fmt.Sprintf("%s rank %d other %d for %v at message %d of type %d of generation %d power=%v again=%v "+
			"moves=%v", f.kind, f.rank, f.other, f.lasts, f.nth, f.msg, f.generation, f.power, f.again, f.moves)
	}
	return fmt.Sprintf("%v %s rank %d other %d for %v", f.at, f.kind, f.rank, f.other, f.lasts)
}

func (p plan) String() string {
	s := fmt.Sprintf("size %d, %s, gossip=%v (loss %.1f), tree=%v, %s, delay %v+%v, loss %.2f, starts %v, "+
		"head %v lazy=%v, looks %v says %v, job %v status %d",
		p.size, p.who, p.gossip, p.udpLoss, p.tree, p.book, p.delay, p.jitter, p.loss, p.starts,
		p.head, p.lazy, p.looks, p.says, p.job, p.status)
	if p.cpus > 0 {
		s += fmt.Sprintf(", %d processors %d times slower", p.cpus, p.slower)
	}
	for _, re := range p.restarts {
		s += fmt.Sprintf("\n  restart: %v to clear, %v to wait, %v to start, then job %v", re.clears, re.delay,
			re.starts,
			re.job)
	}
	if p.restarts != nil {
		s += fmt.Sprintf("\n  rejoin: %+v, %d spares after %v", p.rejoin, p.spares, p.spareAfter)
	}
	for _, f := range p.faults {
		s += "\n  " + f.String()
	}
	return s
}

func compose(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 7))
	ms := func(least, most int) time.Duration {
		return time.Duration(least+r.IntN(most-least+1)) * time.Millisecond
	}
	p := plan{seed: seed, size: 2 + r.IntN(4), timeout: 40 * time.Second}
	p.book = []book{everybody, everybody, onlyZero, zeroAlone, byName, oneAnother}[r.IntN(6)]
	p.delay = []time.Duration{100 * time.Microsecond, time.Millisecond, 25 * time.Millisecond}[r.IntN(3)]
	if r.IntN(2) == 0 {
		p.jitter = p.delay
	}
	if r.IntN(4) == 0 {
		p.loss = []float64{0.01, 0.1, 0.2}[r.IntN(3)]
	}
	spread := []int{0, 500, 5000}[r.IntN(3)]
	for range p.size {
		p.starts = append(p.starts, ms(0, spread))
	}
	p.job, p.status, p.tree = ms(0, 12000), r.IntN(3), r.IntN(4) == 0
	switch r.IntN(6) {
	case 0, 1:
		p.job = ms(0, 20)
	case 2:
		p.job = ms(20000, 35000)
	}
	horizon := spread + []int{50, 1000, 15000}[r.IntN(3)]
	for range []int{0, 1, 1, 1, 2, 2, 3, 4}[r.IntN(8)] {
		f := fault{at: ms(0, horizon), rank: r.IntN(p.size), lasts: ms(20, []int{300, 4000, 15000}[r.IntN(3)])}
		f.other = (f.rank + 1 + r.IntN(p.size-1)) % p.size
		switch r.IntN(10) {
		case 0, 1:
			f.kind, f.power, f.again, f.moves = "crash", r.IntN(4) == 0, r.IntN(4) > 0, r.IntN(3) == 0
		case 2, 3:
			f.kind, f.again, f.moves = "crash-at", r.IntN(2) > 0, r.IntN(3) == 0
			f.msg = []kind{hello, register, prepare, fetch, ack, launched, started, done, doneAck, bye}[r.IntN(10)]
			f.nth = 1 + r.IntN(2*p.size)
		case 4:
			f.kind = "pause"
		case 5:
			f.kind = "partition" // of one rank from all
		case 6:
			f.kind = "cut" // one direction
		case 7:
			f.kind = []string{"stranger", "stale", "duplicate"}[r.IntN(3)]
		case 8:
			f.kind = "stop"
		case 9:
			f.kind = "reset" // all streams of one rank end
		}
		if f.power && f.again {
			f.moves = true
		}
		p.faults = append(p.faults, f)
	}
	if h := rand.New(rand.NewPCG(seed, 10)); h.IntN(2) == 0 {
		p.head, p.lazy = time.Duration(1+h.IntN(200))*time.Millisecond, h.IntN(2) == 0
	}
	slices.SortStableFunc(p.faults, func(a, b fault) int { return int(a.at - b.at) })
	p.add(rand.New(rand.NewPCG(seed, 9)), horizon)
	p.looks, p.says = make([]time.Duration, p.size), make([]time.Duration, p.size)
	if l := rand.New(rand.NewPCG(seed, 11)); l.IntN(2) == 0 {
		for _, times := range [][]time.Duration{p.looks, p.says} {
			longest := []time.Duration{5 * time.Millisecond, 200 * time.Millisecond, 5 * time.Second}[l.IntN(3)]
			for i := range times {
				times[i] = time.Duration(l.Int64N(int64(longest)))
			}
		}
	}
	if c := rand.New(rand.NewPCG(seed, 12)); c.IntN(6) == 0 {
		p.cpus, p.slower = 1+c.IntN(2), []int{5, 20, 50}[c.IntN(3)]
	}
	p.addRestarts(rand.New(rand.NewPCG(seed, 13)))
	p.addRejoin(rand.New(rand.NewPCG(seed, 14)), horizon)
	p.addZero(rand.New(rand.NewPCG(seed, 15)), horizon)
	p.addSpares(rand.New(rand.NewPCG(seed, 16)), horizon)
	p.addThaw(rand.New(rand.NewPCG(seed, 17)), horizon)
	return p
}

// add composes what was added later, so that the kept seeds still compose the same.
func (p *plan) add(r *rand.Rand, horizon int) {
	p.who = []who{declared, declared, declared, declared, elected, led}[r.IntN(6)]
	if p.gossip = p.who != declared || r.IntN(6) == 0; p.gossip {
		p.udpLoss = []float64{0, 0.1, 0.5, 1}[r.IntN(4)]
	}
	if p.who == elected {
		p.timeout = 100 * time.Second // gossip takes half a minute to tell that a rank is gone
	}
	for range []int{0, 0, 0, 1, 1, 2}[r.IntN(6)] {
		f := fault{at: time.Duration(r.IntN(horizon+1)) * time.Millisecond, rank: r.IntN(p.size)}
		f.lasts = time.Duration(1+r.IntN([]int{20, 300, 4000, 15000, 45000}[r.IntN(5)])) * time.Millisecond
		f.other = (f.rank + 1 + r.IntN(p.size-1)) % p.size
		f.kind = []string{"crash", "pause", "partition", "cut", "apart", "reset"}[r.IntN(6)]
		if r.IntN(3) > 0 {
			f.msg = []kind{hello, register, prepare, ack, launched, started, done, doneAck}[r.IntN(8)]
			f.nth = 1 + r.IntN(2*p.size)
		}
		if f.kind == "crash" {
			f.power, f.again = r.IntN(4) == 0, r.IntN(4) > 0
			f.moves = f.again && (f.power || r.IntN(3) == 0)
		}
		p.faults = append(p.faults, f)
	}
}

// sim is one run of a plan.
type sim struct {
	plan
	net   *simNet
	dns   *simDNS
	log   *slog.Logger
	begin time.Time
	wg    sync.WaitGroup

	mu       sync.Mutex
	all      []*simInst
	launches []simLaunch
	count    map[kind]int    // of messages from and to rank 0
	acked    map[string]bool // nonce and hash
	hasty    []string        // launches that did not wait for all
	bugs     []string        // illegal changes of phase
	spare    int             // addresses for containers that move
	now      []*simInst      // by rank
	hits     []hit

	countIn map[messageOf]int // as count, of one generation
	stage   string            // of the generation of rank 0, by its messages
	acts    []*simAct
}

// hit is a fault that really happened.
type hit struct {
	fault
	at time.Time
}

type simLaunch struct {
	at         time.Time
	roster     Roster
	by         *simInst
	generation uint64
}

// simInst is one start of a container.
type simInst struct {
	what   string
	rank   int // of those that the environment does not tell: its number, and nothing more
	nonce  string
	host   *simHost
	node   *Node
	port   *Port // nil = no gossip
	cancel context.CancelFunc
	begin  time.Time

	killed bool
	killAt time.Time
	ended  time.Time // zero = it has not
	status int
	reason string
	lost   bool // it gave rank 0 up before the launch

	generation uint64 // of node
	acts       []*simAct
	stoppedIn  uint64        // generation; 0 = it was not stopped
	stop       chan struct{} // closed when it is stopped, and could not tell rank 0
	goesOn     bool          // it is rank 0, and has begun to say next
	orphan     bool          // it has lost rank 0 after the launch
	outlives   bool          // it has lost rank 0, and waits for its next start

	frozen      []*span
	unconfirmed bool // it was frozen, and nothing has confirmed since that its generation goes on
}

func newSim(seed uint64, verbose bool) *sim {
	p := compose(seed)
	s := &sim{plan: p, begin: time.Now(), count: map[kind]int{}, acked: map[string]bool{}, countIn: map[messageOf]int{},
		now: make([]*simInst, p.size)}
	s.net = newSimNet(rand.New(rand.NewPCG(seed, 8)))
	s.net.delay, s.net.jitter, s.net.loss = p.delay, p.jitter, p.loss
	s.net.udpLoss = p.udpLoss
	if p.cpus > 0 {
		s.net.cpu = newSimCPU(p.cpus, usualCosts.times(p.slower))
	}
	s.net.seen, s.net.came = s.onMessage, s.onArrival
	s.dns = &simDNS{lag: 400 * time.Millisecond, keep: 5 * time.Second, denied: map[string]time.Time{},
		names: map[string]map[int]simName{}}
	s.log = slog.New(slog.DiscardHandler)
	if verbose {
		s.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug,
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.String("t", time.Since(s.begin).String())
				}
				return a
			}}))
		fmt.Fprintln(os.Stderr, p)
	}
	return s
}

func simAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 12345)
}

func (s *sim) run() {
	for rank, at := range s.starts {
		s.after(at, func() { s.start(rank, "first", simAddr(rank), func(*simHost) {}) })
	}
	for _, f := range s.faults {
		if f.msg == 0 {
			s.after(f.at, func() { s.inflict(f) })
		}
	}
	time.Sleep(s.bound())
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	for _, c := range all {
		c.cancel()
		s.net.kill(c.host, false)
		s.close(c)
	}
	s.wg.Wait()
	s.net.wg.Wait()
	time.Sleep(time.Minute) // timers that have nothing to do any more
}

// bound is when everything must be over.
func (s *sim) bound() time.Duration {
	d := 25*time.Second + s.timeout + s.job + 60*time.Second + s.restarting()
	for _, f := range s.faults {
		if f.kind == "thaw" {
			d += f.lasts
		}
	}
	return d
}

func (s *sim) after(d time.Duration, f func()) {
	s.wg.Go(func() {
		time.Sleep(d)
		f()
	})
}

// start makes a container; edit may give it another identity.
func (s *sim) start(rank int, what string, addr netip.AddrPort, edit func(*simHost)) *simInst {
	self := Record{Role: "worker", Index: rank, Rank: rank, Nonce: NewNonce(), Addr: addr, Slots: 2, Version: "1"}
	unknown := s.who == elected || s.who == led && rank != 0
	switch {
	case unknown:
		self.Index, self.Rank, self.Order = -1, -1, 1
	case s.who == led:
		self.Role = "launcher"
	}
	self.ID = MakeID(self.Role, self.Index, self.Nonce)
	h := &simHost{addr: addr, id: self.ID, secret: "ours"}
	edit(h)
	s.net.cpu.use(context.Background(), h, "starts", s.net.cpuCosts().start)
	c := &simInst{what: what, rank: rank, nonce: self.Nonce, host: s.net.listen(h), begin: time.Now(), generation: 1,
		stop: make(chan struct{})}
	var found chan []byte
	if s.looks[rank] > 0 {
		found = make(chan []byte, 1)
		s.after(s.looks[rank], func() {
			if n := s.net.nodeOf(h); n != nil {
				there := false
				if n.ask(func() { there = n.lead != nil || n.up.wire != nil }) && there {
					s.net.meet("present before it knows its fabric")
				}
			}
			found <- c.fabric()
		})
	} else {
		self.Fabric = c.fabric()
	}
	if s.says[rank] > 0 {
		s.after(s.says[rank], func() {
			if n := s.net.nodeOf(h); n != nil {
				n.SetLaunch("launcher of " + c.nonce)
			}
		})
	}
	cfg := Config{
		Status: testStatuses,
		Self:   self, Fabric: found, Size: s.size, Dial: s.net.dialer(h), Timeout: s.timeout, GoDelay: s.head,
		Rejoin: s.restarts != nil, Adopt: s.adopt,
		Lookup: s.dns.lookup,
		Logger: s.log.With("self", fmt.Sprintf("%d/%s", rank, what)),
	}
	if s.net.cpu != nil {
		cfg.Delay = s.net.cpu.delay(h)
		s.net.meet("overloaded processors")
	}
	if s.gossip {
		key := sha256.Sum256([]byte(h.secret))
		c.port = s.net.port(h)
		cfg.Port, cfg.Key, cfg.Label = c.port, key[:], fmt.Sprintf("job %d", h.try)
	}
	if s.tree {
		cfg.starTable = 1
	}
	if s.who == led {
		cfg.Seeds = append(cfg.Seeds, Seed{Host: "launcher.train", Port: 12345, Role: "launcher"})
	}
	if s.who != declared {
		cfg.Seeds = append(cfg.Seeds, Seed{Host: "worker.train", Port: 12345})
	}
	for k := range s.size {
		if s.who != declared {
			break
		}
		switch {
		case k == rank, s.book == onlyZero && k != 0, s.book == zeroAlone && rank != 0, s.book == oneAnother &&
			rank != 0 && k == 0:
			continue
		}
		host := simAddr(k).Addr().String()
		if s.book == byName {
			host, cfg.AskAfter = fmt.Sprintf("worker-%d.train", k), time.Second
		}
		cfg.Peers = append(cfg.Peers, Peer{ID: fmt.Sprintf("worker-%d", k), Rank: k, Host: host, Port: 12345})
	}
	if rank == 0 && s.restarts != nil {
		cfg.Text, cfg.Spares, cfg.SpareAfter = []byte("0"), s.spares, s.spareAfter
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	n, err := Start(cfg)
	if err != nil {
		panic(err)
	}
	c.node = n
	s.net.mu.Lock()
	h.node = n
	s.net.mu.Unlock()
	s.mu.Lock()
	s.all = append(s.all, c)
	if h.secret == "ours" && h.try == 0 && what != "duplicate" {
		s.dns.set(fmt.Sprintf("worker-%d.train", rank), rank, addr.Addr())
		s.dns.set(self.Role+".train", rank, addr.Addr())
		s.now[rank] = c
	}
	if what == "duplicate" && unknown { // it is one too many, which the name knows as well
		s.dns.set(self.Role+".train", 1000+s.spare, addr.Addr())
	}
	s.mu.Unlock()
	s.wg.Go(func() { s.live(ctx, c) })
	return c
}

// fabric is what a container says of its devices.
func (c *simInst) fabric() []byte { return []byte("fabric of " + c.nonce) }

// live does with a node what cmd does.
func (s *sim) live(ctx context.Context, c *simInst) {
	status, reason := s.act(ctx, c)
	s.mu.Lock()
	if !c.killed {
		c.ended, c.status, c.reason = time.Now(), status, reason
		s.log.Info("ended", "self", fmt.Sprintf("%d/%s", c.rank, c.what), "status", status, "reason", reason)
	}
	// Agreed ranks would form another job without a rank 0 that is cut off.
	revives := s.restarts != nil && s.who != elected && s.rejoin.revives && c.orphan && !c.killed && s.now[c.rank] == c
	s.mu.Unlock()
	s.net.kill(c.host, false)
	s.close(c)
	s.checkBug(c, s.nodeOf(c))
	if revives {
		s.net.meet("a container that has lost rank 0 starts again")
		s.start(c.rank, c.what+"*", c.host.addr, func(*simHost) {})
	}
}

// checkBug notes a bug that a closed node has found.
func (s *sim) checkBug(c *simInst, n *Node) {
	if bug := (*BugError)(nil); errors.As(n.outcomeErr, &bug) {
		s.mu.Lock()
		s.bugs = append(s.bugs, fmt.Sprintf("rank %d: %v", c.rank, bug))
		s.mu.Unlock()
	}
}

func (s *sim) close(c *simInst) {
	_ = s.nodeOf(c).Close()
	if c.port != nil {
		_ = c.port.Close()
	}
}

// kill ends a container, and starts it again.
func (s *sim) kill(c *simInst, f fault) {
	s.mu.Lock()
	if c == nil || c.killed || !c.ended.IsZero() {
		s.mu.Unlock()
		return
	}
	c.killed, c.killAt = true, time.Now()
	s.hits = append(s.hits, hit{f, time.Now()})
	s.mu.Unlock()
	s.log.Info("killed", "self", fmt.Sprintf("%d/%s", c.rank, c.what))
	s.net.kill(c.host, f.power)
	if c.rank >= s.size-s.spares {
		does := map[bool]string{true: "the job runs", false: "it gathers"}[s.nodeOf(c).isIdle()]
		s.net.meet("a spare is killed while " + does)
	}
	s.net.meet("fault: crash" + map[bool]string{true: ", its host with it"}[f.power])
	leads, phase, lost := false, Phase(""), false
	n := s.nodeOf(c)
	n.ask(func() {
		leads, phase = n.lead != nil, n.phase
		lost = n.outcomeErr != nil && !errors.Is(n.outcomeErr, ErrNext)
	})
	s.mu.Lock()
	c.lost = c.lost || lost // it was about to leave, and has told others so
	s.mu.Unlock()
	if leads {
		s.net.meet("rank 0 dies while " + string(phase))
	}
	if f.msg != 0 && c.rank == 0 && s.who != elected {
		s.net.meet("rank 0 dies at " + kindNames[f.msg])
	}
	c.cancel()
	s.close(c)
	if !f.again {
		return
	}
	s.net.meet("fault: start again" + map[bool]string{true: " elsewhere"}[f.moves])
	time.Sleep(f.lasts)
	addr := c.host.addr
	if f.moves {
		addr = s.fresh()
	}
	s.start(c.rank, c.what+"+", addr, func(*simHost) {})
}

func (s *sim) fresh() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare++
	return simAddr(1000 + s.spare)
}

func (s *sim) inflict(f fault) {
	s.mu.Lock()
	c, other := s.now[f.rank], s.now[f.other]
	if f.kind != "crash" && f.kind != "crash-at" {
		s.hits = append(s.hits, hit{f, time.Now()})
	}
	stage := s.stage
	s.mu.Unlock()
	if stage != "" {
		s.net.meet(faultOfGeneration(stage, f.rank == 0 || f.kind == "crash-at", f.kind))
		if f.kind == "partition" || f.kind == "cut" || f.kind == "pause" || f.kind == "thaw" {
			s.net.meet(f.kind + " in a restart, " +
				map[bool]string{true: "longer", false: "shorter"}[f.lasts > fenceTime] +
				" than the fence")
		}
	}
	if f.kind != "crash" && f.kind != "crash-at" {
		s.net.meet("fault: " + f.kind)
	}
	s.log.Info("fault", "what", f)
	switch f.kind {
	case "crash":
		s.kill(c, f)
	case "crash-at":
		s.kill(s.now0(), f)
	case "pause":
		if c != nil {
			s.freeze(c, f.lasts)
		}
	case "thaw": // its processes are frozen for longer than the fence, or its machine, and then go on
		if c == nil || s.isFrozen(c) {
			return
		}
		if f.power {
			s.isolate(c.host.addr, true)
		}
		if f.moves && (f.zero || s.nodeOf(c).leading() == nil) {
			s.after(f.after, func() {
				s.net.meet("replaced while frozen")
				s.start(c.rank, c.what+"r", s.fresh(), func(*simHost) {})
			})
		}
		s.freeze(c, f.lasts)
		if f.power {
			s.isolate(c.host.addr, false)
		}
	case "partition":
		for _, on := range []bool{true, false} {
			for k := range s.size {
				if k != f.rank {
					s.net.setCut(simAddr(f.rank), simAddr(k), on)
					s.net.setCut(simAddr(k), simAddr(f.rank), on)
				}
			}
			if on {
				time.Sleep(f.lasts)
			}
		}
	case "replace": // it is cut off, and its scheduler takes it for dead
		if c == nil || !f.zero && s.nodeOf(c).leading() != nil {
			return
		}
		s.wg.Go(func() {
			s.isolate(c.host.addr, true)
			time.Sleep(f.lasts)
			s.isolate(c.host.addr, false)
		})
		time.Sleep(f.after)
		s.net.meet("replaced while partitioned")
		s.start(c.rank, c.what+"r", s.fresh(), func(*simHost) {})
	case "torn": // rank 0 notices at once that a rank is cut off, and the rank does not
		if c == nil {
			return
		}
		s.isolate(c.host.addr, true)
		s.net.tear(c.host)
		if f.moves && (f.zero || s.nodeOf(c).leading() == nil) {
			s.after(f.after, func() { s.start(c.rank, c.what+"r", s.fresh(), func(*simHost) {}) })
		}
		time.Sleep(f.lasts)
		s.isolate(c.host.addr, false)
	case "cut", "apart":
		for _, on := range []bool{true, false} {
			s.net.setCut(simAddr(f.rank), simAddr(f.other), on)
			if f.kind == "apart" {
				s.net.setCut(simAddr(f.other), simAddr(f.rank), on)
			}
			if on {
				time.Sleep(f.lasts)
			}
		}
	case "stranger":
		s.start(f.rank, "stranger", s.fresh(), func(h *simHost) { h.secret = "theirs" })
	case "stale":
		s.start(f.rank, "stale", s.fresh(), func(h *simHost) { h.try = -1 })
	case "duplicate":
		if f.rank != 0 { // two of rank 0 that both live is a matter of the scheduler's
			s.start(f.rank, "duplicate", s.fresh(), func(*simHost) {})
		}
	case "stop":
		switch {
		case c == nil:
		case f.generation == 0:
			s.nodeOf(c).RequestStop(2, "stopped")
		default:
			s.stop(c)
		}
	case "reset":
		if c != nil && other != nil {
			s.net.mu.Lock()
			for conn := range s.net.conns {
				if conn.host == c.host {
					conn.fail(syscallReset)
					conn.peer.fail(syscallReset)
				}
			}
			s.net.mu.Unlock()
		}
	}
}

// isolate cuts an address off from all others, or restores it.
func (s *sim) isolate(addr netip.AddrPort, on bool) {
	s.mu.Lock()
	var others []netip.AddrPort
	for _, c := range s.all {
		if c.host.addr != addr {
			others = append(others, c.host.addr)
		}
	}
	s.mu.Unlock()
	for _, o := range others {
		s.net.setCut(addr, o, on)
		s.net.setCut(o, addr, on)
	}
}

var syscallReset error = &net.OpError{Op: "read", Err: errors.New("connection reset")}

func (s *sim) now0() *simInst {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now[0]
}

// onMessage injects the faults that happen when rank 0 sends or receives a certain message. It is called with the net's
// lock held.
func (s *sim) onMessage(from *simHost, to netip.AddrPort, k kind, _ []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	zero := s.now[0]
	if zero == nil || from != zero.host && to != zero.host.addr {
		return
	}
	s.count[k]++
	in := messageOf{zero.generation, k}
	s.countIn[in]++
	s.noteStage(zero, k)
	for _, f := range s.faults {
		if f.msg == k && (f.generation == 0 && f.nth == s.count[k] ||
			f.generation == zero.generation && f.nth == s.countIn[in]) {
			s.net.met["fault at a message"]++
			s.wg.Go(func() { s.inflict(f) })
		}
	}
}

// onArrival notes which ranks have acknowledged what. It is called with the net's lock held.
func (s *sim) onArrival(from *simHost, _ netip.AddrPort, k kind, b []byte) {
	if k != ack {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := decodeMessage(b, nil)
	for _, c := range s.all {
		if err == nil && c.host == from {
			s.acked[fmt.Sprint(c.nonce, c.node.Generation(), m.Epoch, m.Hash)] = true
		}
	}
}

// simDNS answers for the containers that were started lag ago, and caches a denial for all ranks.
type simDNS struct {
	lag, keep time.Duration
	mu        sync.Mutex
	names     map[string]map[int]simName // by container
	denied    map[string]time.Time
	asked     int
}

type simName struct {
	addr  netip.Addr
	since time.Time
}

func (d *simDNS) set(name string, of int, a netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == nil {
		d.names[name] = map[int]simName{}
	}
	d.names[name][of] = simName{a, time.Now()}
}

func (d *simDNS) lookup(_ context.Context, name string) ([]netip.Addr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	if until, ok := d.denied[name]; ok && time.Now().Before(until) {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	var addrs []netip.Addr
	for _, r := range d.names[name] {
		if time.Since(r.since) >= d.lag {
			addrs = append(addrs, r.addr)
		}
	}
	if len(addrs) > 0 {
		return addrs, nil
	}
	d.denied[name] = time.Now().Add(d.keep)
	return nil, &net.DNSError{Err: "server misbehaving", Name: name, IsTemporary: true}
}

// violations lists the invariants that the run broke.
func (s *sim) violations() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bad := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	who := func(c *simInst) string { return fmt.Sprintf("%d/%s", c.rank, c.what) }
	byNonce := map[string]*simInst{}
	for _, c := range s.all {
		byNonce[c.nonce] = c
		if !c.killed && c.ended.IsZero() {
			bad("%s did not end within %v", who(c), s.bound())
		}
	}
	// Launches: each by a rank 0 whose predecessor is gone, and no rank takes part in two.
	for i, l := range s.launches {
		for _, e := range s.launches[:i] {
			if e.by == l.by {
				if e.generation >= l.generation {
					bad("%s launched generation %d, then %d", who(l.by), e.generation, l.generation)
				}
				continue
			}
			if s.isApart(e, l) {
				continue
			}
			end := e.by.over()
			if a := e.by.actOn(&e); a != nil && l.generation > e.generation {
				end = a.over()
			}
			if (end.IsZero() || end.After(l.at)) && !s.isStill(e.by, e.by.actOn(&e), l.at) {
				bad("%s launched while %s did", who(l.by), who(e.by))
			}
			for _, m := range l.roster.Members {
				if _, both := e.roster.Self(m.Nonce); both && l.generation <= e.generation {
					bad("rank %d has a part in two launches with one start", m.Rank)
				}
			}
		}
		if len(l.roster.Members) != s.size-s.spares {
			bad("%s launched %d ranks of %d", who(l.by), len(l.roster.Members), s.size-s.spares)
		}
		for rank, m := range l.roster.Members {
			c := byNonce[m.Nonce]
			switch {
			case c == nil:
				bad("rank %d of the roster is nobody", rank)
			case c.host.secret != "ours" || c.host.try != 0:
				bad("%s is in the roster", who(c))
			case string(m.Fabric) != string(c.fabric()):
				bad("%s is in the roster with the fabric %q", who(c), m.Fabric)
			case c.rank != rank && (s.who == declared && (s.spares == 0 || l.generation == 1 || rank == 0) ||
				s.who == led && rank == 0):
				bad("%s is rank %d of the roster", who(c), rank)
			case s.who != declared && rank > 1 && l.generation == 1 &&
				l.roster.Members[rank-1].Addr.Compare(m.Addr) >= 0:
				bad("%s and %s are not in the order of their addresses", l.roster.Members[rank-1].Addr, m.Addr)
			}
		}
	}
	for _, c := range s.all {
		if !c.killed && c.status == 0 && !c.ended.IsZero() && (s.status != 0 || len(s.launches) == 0) {
			bad("%s ends with 0 (%s), and nothing has succeeded", who(c), c.reason)
		}
		for _, a := range c.acts {
			l := s.launchOf(a)
			switch {
			case l == nil && !s.zeroDiedAt(a.roster.Members[0].Nonce, a.at):
				bad("%s acts on a roster that nobody launched", who(c))
			case hashMembers(a.roster.Members) != a.roster.Hash:
				bad("%s acts on a roster that is not what its hash says", who(c))
			case l != nil && l.roster.Epoch != a.roster.Epoch:
				bad("%s acts on epoch %d, rank 0 on %d", who(c), a.roster.Epoch, l.roster.Epoch)
			}
			if _, ok := a.roster.Self(c.nonce); !ok {
				bad("%s acts on a roster without it", who(c))
			}
		}
	}
	out = slices.Concat(out, s.hasty, s.bugs, s.statuses(), s.slow(), s.generations())
	if s.mustLaunch() && len(s.launches) == 0 {
		bad("nothing was launched, and nothing forbade it")
	}
	silences := func(h hit) bool {
		return slices.Contains([]string{"pause", "thaw", "partition", "cut", "apart", "replace", "torn"}, h.kind)
	}
	// Short processors and lost packets delay the first byte, too.
	calm := s.cpus == 0 && s.loss == 0 && !slices.ContainsFunc(s.hits, silences)
	if n := s.net.met["gossip stream taken for SSH"]; n > 0 && calm {
		bad("%d gossip streams were taken for SSH, because their first byte came late", n)
	}
	return out
}

func (c *simInst) over() time.Time {
	if c.killed {
		return c.killAt
	}
	return c.ended
}

// zeroDiedAt reports whether a rank 0 was killed so shortly before that it may have sent go without acting on it
// itself.
func (s *sim) zeroDiedAt(zero string, at time.Time) bool {
	for _, c := range s.all {
		if c.nonce == zero && c.killed && !c.killAt.After(at) {
			return true
		}
	}
	return false
}

// zeroWasAway reports whether rank 0 was dead, or silent for so long that the others had to take it for dead.
func (s *sim) zeroWasAway() bool {
	return slices.ContainsFunc(s.hits, func(f hit) bool {
		switch f.kind {
		case "crash":
			return f.rank == 0 || s.who == elected
		case "crash-at":
			return true
		case "pause":
			return (f.rank == 0 || s.who == elected) && f.lasts > 5*time.Second
		case "partition", "cut", "apart", "replace", "torn", "thaw":
			return f.lasts > 5*time.Second
		}
		return false
	})
}

// resetInSilence reports whether the connection of c to rank 0 was reset while, or shortly before, the two could not
// reach each other: c gives rank 0 up some time after the reset, and a dial that began in the silence may take as long.
func (s *sim) resetInSilence(c *simInst) bool {
	ofThem := func(f hit) bool { return s.who == elected || f.rank == 0 || f.rank == c.rank || f.other == c.rank }
	return slices.ContainsFunc(s.hits, func(r hit) bool {
		return r.kind == "reset" && ofThem(r) && slices.ContainsFunc(s.hits, func(f hit) bool {
			return slices.Contains([]string{"pause", "partition", "cut", "apart"}, f.kind) && ofThem(f) &&
				f.at.Before(r.at.Add(dialTimeout)) && f.at.Add(f.lasts).After(r.at)
		})
	})
}

// statuses checks that all ranks that took part in a launch and lived to its end report the same status.
func (s *sim) statuses() (out []string) {
	for _, l := range s.launches {
		var first *simInst
		seen := false
		cut, reset, paused, frozen, power, zero, hurt := false, false, false, false, false, l.by.killed, false
		second := false
		for _, f := range s.hits {
			switch {
			case f.kind == "crash-at", f.kind == "crash":
				hurt = true
				power = power || f.power
			case f.kind == "stop":
				hurt = true
			case f.kind == "duplicate":
				second = true
			case f.at.Add(f.lasts).Before(l.at.Add(-simKeepalive)):
			case slices.Contains([]string{"cut", "apart", "partition", "replace", "torn", "thaw"}, f.kind):
				cut = true
			case f.kind == "reset":
				reset = true
			case f.kind == "pause":
				paused = true
				hurt = hurt || f.lasts > 14*time.Second || s.restarts != nil && f.lasts > lossGrace
				frozen = frozen || f.lasts > 4*time.Second // rank 0 stays 5 s
			}
			hurt = hurt || f.zero && f.kind != "crash" // two of rank 0 end the job if both are seen
		}
		hurt = hurt || second && paused // a frozen rank is lost when its second container asks for its place
		out = append(out, s.atWork(l)...)
		if cut || reset && paused || zero && (paused || power || s.loss > 0 || s.cpus > 0) {
			continue // a rank may be alone, and can only report 75
		}
		if l.by.generation > l.by.lastAct() && (l.by.killed || frozen) {
			continue // it ended before the next launch, and may have told some ranks only that there will be none
		}
		for _, c := range s.all {
			if c.killed || c.actOn(&l) == nil || s.restarts != nil && s.slept(c) || s.hasSuccessor(c) {
				continue
			}
			if !seen {
				first, seen = c, true
			}
			if c.status != first.status {
				out = append(out, fmt.Sprintf("%d/%s ends with %d (%s), %d/%s with %d (%s)", first.rank, first.what,
					first.status, first.reason, c.rank, c.what, c.status, c.reason))
			}
			if !hurt && c.status != s.status {
				out = append(out, fmt.Sprintf("%d/%s ends with %d (%s), and nothing was wrong", c.rank, c.what,
					c.status, c.reason))
			}
		}
	}
	return out
}

// hasSuccessor reports whether c is one of two starts of rank 0 that live, and the others went on without it in a later
// generation.
func (s *sim) hasSuccessor(c *simInst) bool {
	two := slices.ContainsFunc(s.hits, func(f hit) bool { return f.zero && f.kind != "crash" })
	return two && c.rank == 0 && c.status == 75 && slices.ContainsFunc(s.launches, func(l simLaunch) bool {
		return l.by != c && l.generation > c.lastAct()
	})
}

// slow lists the ranks that were not told to go at once, or did not leave soon after a rank 0 that ended or was killed,
// in runs where only deaths happened.
func (s *sim) slow() (out []string) {
	if s.loss > 0 || s.delay > time.Millisecond || s.cpus > 0 || slices.ContainsFunc(s.hits, func(f hit) bool {
		return f.power ||
			f.kind != "crash" && f.kind != "crash-at" && f.kind != "stop" && f.kind != "reset"
	}) {
		return nil
	}
	for _, l := range s.launches {
		for _, c := range s.all {
			if _, ok := l.roster.Self(c.nonce); !ok || c == l.by {
				continue
			}
			if end := l.by.over(); c.over().After(end.Add(time.Second+s.dies(c))) && !l.by.goesOn &&
				!c.outlives {
				out = append(out, fmt.Sprintf("%d/%s leaves %v after rank 0", c.rank, c.what, c.over().Sub(end)))
			}
			if a := c.actOn(&l); a != nil && a.at.After(l.at.Add(time.Second)) {
				out = append(out, fmt.Sprintf("%d/%s acts %v after the launch", c.rank, c.what, a.at.Sub(l.at)))
			}
		}
	}
	return out
}

// atWork checks the results of a launch that lasts: all ranks act on it, a rank that dies ends it, and a rank that only
// rank 0 does not see does not.
func (s *sim) atWork(l simLaunch) (out []string) {
	const settled = simKeepalive + 10*time.Second // a lost host is silent for the first part of it
	calm, cuts := true, 0                         // nothing but deaths; nothing but cuts
	for _, f := range s.hits {
		switch {
		case f.kind == "cut", f.kind == "apart":
			cuts++
			calm = false
		case f.kind != "crash" && f.kind != "reset" && f.kind != "stale" && f.kind != "stranger":
			calm = false
		}
	}
	end := l.by.over()
	if planned := l.at.Add(s.jobOf(l.generation)); planned.Before(end) {
		end = planned // what comes then is the end itself
	}
	if a := l.by.actOn(&l); a != nil && !a.until.IsZero() && a.until.Before(end) {
		end = a.until
	}
	if calm && !l.by.killed && end.Sub(l.at) > settled && s.loss == 0 {
		for _, c := range s.all {
			i := slices.IndexFunc(l.roster.Members, func(m Member) bool { return m.Nonce == c.nonce })
			switch {
			case i < 0:
			case c.killed && end.Sub(c.killAt) > settled && (l.by.status == s.status || s.restarts != nil):
				out = append(out, fmt.Sprintf("%d/%s was killed, and the job went on for %v", c.rank, c.what,
					end.Sub(c.killAt)))
			case !c.killed && c.actOn(&l) == nil:
				out = append(out, fmt.Sprintf("%d/%s was never told to go", c.rank, c.what))
			}
		}
	}
	if cuts == 1 && len(s.hits) == 1 && s.size > 2 && s.loss == 0 && l.by.status != s.status &&
		(s.restarts == nil || s.hits[0].lasts < simGrace) {
		out = append(out, fmt.Sprintf("the job ends with %d (%s) for a cut that others go around", l.by.status,
			l.by.reason))
	}
	return out
}

// mustLaunch reports whether the plan leaves nothing to wait for: every rank comes, and stays.
func (s *sim) mustLaunch() bool {
	for _, c := range s.all {
		if len(c.acts) > 0 {
			return false // a rank 0 that died right after it told a rank to go
		}
		if c.lost && (s.zeroWasAway() || s.resetInSilence(c)) {
			return false // it had acknowledged the roster
		}
	}
	moved := 0
	for _, f := range s.hits {
		if f.lasts > s.timeout/3 {
			return false
		}
		switch f.kind {
		case "crash", "crash-at":
			if f.kind == "crash" && f.msg != 0 && f.rank == 0 {
				f.kind = "crash-at"
			}
			if f.moves {
				moved++
			}
			if !f.again || moved > 1 {
				return false
			}
			if s.who != declared {
				continue // a name or gossip tells where it is
			}
			if f.moves && s.book == oneAnother && s.size == 2 {
				return false
			}
			if f.moves && (s.book == zeroAlone || f.kind == "crash-at" && s.book != everybody) {
				return false // no rank is told
			}
			if f.moves && (s.book == onlyZero || s.book == oneAnother) && (f.rank == 0 || f.kind == "crash-at") {
				return false
			}
		case "stop", "stale", "stranger", "replace", "torn", "thaw":
			return false
		case "duplicate":
			if s.who != declared {
				return false // one too many ends the job
			}
		case "pause", "partition", "cut", "apart", "reset":
		}
	}
	return true
}
