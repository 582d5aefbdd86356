package rendezvous

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Outcome is how the job ended: the same on every rank.
type Outcome struct {
	Status int    `json:"status"` // exit status, 0 to 255
	Reason string `json:"reason"` // one paragraph for people; empty when the status says everything
}

// Statuses are the exit statuses of the outcomes that no rank reports, but the rendezvous itself decides.
type Statuses struct {
	Retry    int // a retry may help: a rank or its launch is gone
	Conflict int // a retry does not help: the containers contradict each other
}

// Peer is a container that the environment names.
type Peer struct {
	ID   string // as in its record
	Rank int    // -1 = unknown
	Host string // address or name
	Port int
}

// Seed is a place where containers may be found that the environment does not list: a name with several addresses, which
// is asked again until enough are known.
type Seed struct {
	Host string
	Port int
	Role string // of the containers there: the job needs one of it; "" = of any
}

// Stop is the request of a rank to end the job.
type Stop struct {
	Name   string // of the rank
	Signal int    // that it got; 0 = none
	Reason string
}

// Loss is a rank that went away while the job ran.
type Loss struct {
	Rank   int
	Name   string
	Reason string
}

// Config says who this container is and how the others are reached.
type Config struct {
	Self Record // Self.Addr.Port is ignored: it is the port's; an invalid Self.Addr.Addr is found out by looking at the interfaces
	Size int    // ranks of the job, at least 1; 0 = only rank 0 knows, which this container is not

	Peers []Peer // of the environment; this container among them is ignored
	Seeds []Seed

	Port  *Port  // carries gossip; nil = no gossip (then only Peers can be found)
	Key   []byte // of gossip, 32 bytes for AES-256-GCM
	Label string // job and attempt; gossip with another label is dropped

	// Known reports whether an address belongs to the job, besides the addresses that names of Peers and Seeds resolve
	// to. Gossip from such an address has a queue of its own. Nil: no other address does.
	Known func(netip.Addr) bool

	// Dial opens an authenticated control connection to the container with that id, "" = any of the job that answers
	// there. Its errors wrap ErrOtherSecret, ErrOtherJob, ErrOtherContainer and ErrOtherProgram where they apply, and
	// the system's errors otherwise.
	Dial dialFunc

	// Fabric gives Self.Fabric, once, where it takes a while to find out: this container is announced without it, and only the launch waits
	// for it. Nil: Self holds it.
	Fabric <-chan []byte

	// Unfit is why this container can have no part in a launch: it only comes to say so, and nothing is judged or launched before it has.
	// Gather fails with it: on rank 0 as soon as it hears it, or has all ranks if it says so itself, on the others when rank 0 ends the job. Nil: it can.
	Unfit *Outcome

	// Network gives the name of the interface that has an address of this container, for Self.Network. Nil: it is not
	// told.
	Network func(netip.Addr) string

	// Delay is how long this process has waited for a processor since it started, all threads together. Nil: it is not
	// known.
	Delay func() time.Duration

	// Lookup resolves a name; nil = the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	// AskAfter is how long after the start names are asked for: where the DNS remembers denials, one that comes too early is
	// worse than none.
	AskAfter time.Duration

	// Verify is asked on rank 0 before a complete roster is sent out; an outcome ends the job on all ranks instead.
	Verify func(Roster) *Outcome

	// Late is told on rank 0 what a rank has said of its launcher (Node.SetLaunch) when it was too late for Verify. Nil: nobody is told.
	Late func(Record)

	// GoDelay is for how long at most rank 0 may act on the roster before all others are told to: until Node.Launched is called. Ranks
	// that share processors with rank 0 would take them, all at once, from whoever starts the command. 0 = all are told at once.
	GoDelay time.Duration

	Timeout   time.Duration // for all ranks to come; 0 = no limit
	Report    time.Duration // between two log lines on who is missing; 0 = 10 s
	LossGrace time.Duration // how long a lost control connection may take to come back before others are asked; 0 = 5 s, less after a silence
	Logger    *slog.Logger  // nil = silent

	Status Statuses // of the outcomes that this package decides

	// For tests.
	starTable int                     // 0 = the constant
	share     func([]Member) []Member // thousands of nodes in one process need not hold the table each
}

type dialFunc = func(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error)

const (
	ackTimeout      = 3 * time.Second
	maxPatience     = 3 // times the time for acknowledgements doubles: where packets are lost, one of many ranks is always late
	registerTimeout = 5 * time.Second
	fetchTimeout    = 2 * time.Second
	dialTimeout     = 5 * time.Second
	callTimeout     = 20 * time.Second        // of rank 0's call: where packets are lost a login takes many seconds, and is not begun anew for that
	callShare       = 50 * time.Millisecond   // more of it for each rank: calls queue for processors
	nextAddress     = 300 * time.Millisecond  // of one container
	lookTimeout     = 2 * time.Second         // for one look at somebody who may be gone
	silentGrace     = 1500 * time.Millisecond // of a machine that has not answered the kernel's questions for seconds already
	refusalGrace    = 2 * time.Second         // after the launch: for how long a refused port may still turn out to be a hiccup
	doneTimeout     = 15 * time.Second
	doneAckTimeout  = 5 * time.Second        // connected: a frozen rank has the outcome in its kernel's buffer
	probeTimeout    = 3 * time.Second        // for an answer over a connection that is there
	linger          = 750 * time.Millisecond // a rank that knows the outcome stays so long when rank 0 is gone: others may ask for it; all leave within 1 s
	rejoinInterval  = 5 * time.Second
)

// gossipMost is the size above which those who know their ranks do not gossip: it costs each of them the table many times over,
// and calls (here) find who is not where the environment says.
const gossipMost = 1000

// NewNonce makes the nonce of one start of a container.
func NewNonce() string {
	b := make([]byte, nonceBytes)
	_, _ = rand.Read(b) // never fails, by its documentation
	return hex.EncodeToString(b)
}

// Node is this container in the rendezvous. Its state belongs to one goroutine, the loop; everything else posts to it.
type Node struct {
	cfg  Config
	self Record
	log  *slog.Logger

	guessed bool // self.Addr is the address of some interface

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	begin  time.Time
	pace   pace
	stops  chan Stop
	orders chan Order
	losses chan Loss
	ends   chan End

	loop

	// The loop's own.
	course
	gaveUp    *MissingError // who was missing at the deadline: the same for all who wait
	find      finder
	lead      *coordinator // not nil on rank 0
	up        uplink       // the others' view of rank 0
	launcher  string       // what Self.Launch is by now
	fabric    []byte       // what Self.Fabric is by now
	looking   bool         // until cfg.Fabric has said it
	own       *message     // how the command of this rank ended, for rank 0
	order     *message     // rank 0's, to end every command
	calls     calls        // what this container wants of rank 0
	probes    probes
	farewells farewells
}

type seedState struct {
	addrs []netip.AddrPort
	err   error
	asked bool
	told  bool // the DNS has answered: with addresses, or that there are none
}

// Start begins to look for the others and to be found. The caller hands control connections that come in to Accept.
func Start(cfg Config) (*Node, error) {
	if cfg.Size < 0 || cfg.Size == 0 && cfg.Self.Rank < 1 {
		return nil, fmt.Errorf("rendezvous: size is %d, rank %d", cfg.Size, cfg.Self.Rank)
	}
	if cfg.Dial == nil {
		return nil, errors.New("rendezvous: no way to dial")
	}
	if cfg.Status.Retry == 0 || cfg.Status.Conflict == 0 {
		return nil, errors.New("rendezvous: no exit statuses") // 0 would say that the job has succeeded
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Report == 0 {
		cfg.Report = 10 * time.Second
	}
	if cfg.starTable == 0 {
		cfg.starTable = starTable
	}
	if cfg.LossGrace == 0 {
		cfg.LossGrace = 5 * time.Second
	}
	if cfg.Lookup == nil {
		cfg.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	self := cfg.Self
	guessed := false
	if cfg.Port != nil {
		addr := self.Addr.Addr()
		if guessed = !addr.IsValid(); guessed {
			var err error
			if addr, err = ownAddr(cfg.Peers, cfg.Seeds); err != nil {
				return nil, fmt.Errorf("rendezvous: finding the own address: %w", err)
			}
		}
		self.Addr = netip.AddrPortFrom(addr.Unmap(), uint16(cfg.Port.Number()))
	}
	if cfg.Network != nil && cfg.Size != 1 {
		self.Network = cfg.Network(self.Addr.Addr())
	}
	if err := self.validate(); err != nil {
		return nil, fmt.Errorf("rendezvous: own record: %w", err)
	}
	cfg.Peers = slices.DeleteFunc(slices.Clone(cfg.Peers), func(p Peer) bool { return p.ID == self.ID })
	ctx, cancel := context.WithCancel(context.Background())
	n := &Node{
		cfg: cfg, self: self, guessed: guessed, log: cfg.Logger,
		ctx: ctx, cancel: cancel, begin: time.Now(),
		stops:    make(chan Stop, 16),
		orders:   make(chan Order, 16),
		losses:   make(chan Loss, 16),
		ends:     make(chan End, cfg.Size), // one of each rank: the loop never waits
		loop:     loop{over: make(chan struct{})},
		course:   course{phase: Gathering, gathered: make(chan struct{}), finished: make(chan struct{})},
		launcher: self.Launch,
		fabric:   self.Fabric,
		looking:  cfg.Fabric != nil || cfg.Unfit != nil,
	}
	n.pace.delay, n.pace.limit = cfg.Delay, cfg.Timeout
	n.find = finder{
		n: n, heard: make(map[string]Record), seeds: make([]seedState, len(cfg.Seeds)),
		names: names{
			lookup: cfg.Lookup, from: n.begin.Add(cfg.AskAfter), hosts: make(map[string]*name),
			seen: make(map[netip.Addr]bool),
		},
	}
	n.up.n = n
	n.farewells = farewells{n: n, heard: make(map[string]message)}
	n.calls = calls{n: n, asked: make(map[uint64]chan message), waiting: make(map[uint64]*arrival)}
	n.probes = probes{n: n, open: make(map[*wire]*probe)}
	if cfg.Unfit != nil {
		n.own = &message{Type: ended, Outcome: cfg.Unfit}
	}
	n.inbox.init()
	if cfg.Port != nil && cfg.Size != 1 && (cfg.Size <= gossipMost || self.Rank < 0) {
		known := func(a netip.Addr) bool { return cfg.Known != nil && cfg.Known(a) || n.find.names.has(a) }
		heard := func(r Record, alive bool) { n.post(func() { n.find.onGossip(r, alive) }) }
		knocked := func(r Record) { n.post(func() { n.find.onKnock(&r) }) }
		promised := func(r Record) { n.post(func() { n.up.onPromise(&r) }) }
		g, err := startGossip(ctx, cfg.Port, self, cfg.Key, cfg.Label, cfg.Size, known, cfg.Logger, heard, knocked,
			promised)
		if err != nil {
			cancel()
			return nil, err
		}
		n.find.net = g
	} else if cfg.Port != nil {
		cfg.Port.mute() // without memberlist no goroutine reads streams
	}
	n.wg.Go(n.run)
	n.post(func() {
		if self.Rank == 0 || cfg.Size == 1 {
			n.becomeCoordinator()
		}
	})
	if cfg.Fabric != nil && cfg.Unfit == nil {
		n.wg.Go(n.awaitFabric)
	}
	if cfg.Size != 1 {
		for i := range cfg.Seeds {
			n.wg.Go(func() { n.find.resolveSeed(i) })
		}
		n.wg.Go(n.report)
		if n.find.net != nil {
			n.wg.Go(n.find.joinOthers)
		}
		if self.Rank != 0 {
			n.wg.Go(n.up.lookForLeader)
		}
	}
	return n, nil
}

// Self is this container's record as it was announced, complete with the address that it believes to have; the roster
// holds the one at which it was reached.
func (n *Node) Self() Record { return n.self }

// SetLaunch adds to this container's record what its launcher says of its version: to ask it may take longer than to find the others.
// The roster holds it if it comes in time.
func (n *Node) SetLaunch(launcher string) {
	n.post(func() {
		n.launcher = launcher
		n.amend()
	})
}

// awaitFabric is for what the launch waits for.
func (n *Node) awaitFabric() {
	select {
	case <-n.ctx.Done():
	case f := <-n.cfg.Fabric:
		n.post(func() {
			n.fabric, n.looking = f, false
			n.amend()
		})
	}
}

// amend passes on what this container has found out of itself since it registered.
func (n *Node) amend() {
	switch {
	case n.lead != nil:
		n.lead.tryPrepare()
	case n.up.wire != nil && n.phase != Ended:
		n.up.wire.send(n.up.registration(n.up.leader))
	}
}

// record is what this container says of itself by now.
func (n *Node) record() Record {
	r := n.self
	r.Launch, r.Fabric = n.launcher, n.fabric
	return r
}

// Rest waits for d before work that is not urgent, and longer where this process is kept waiting for a processor
// (Config.Delay). It reports false when ctx ended before.
func (n *Node) Rest(ctx context.Context, d time.Duration) bool { return n.pace.sleep(ctx, nil, d) }

// Close leaves without a word and waits for every goroutine. It does not close the port.
func (n *Node) Close() error {
	n.cancel()
	var err error
	if n.find.net != nil {
		err = n.find.net.close()
	}
	n.inbox.close()
	n.wg.Wait()
	return err
}

// Gather waits until every rank holds the same roster and has been told to go, or the job ended before that.
// Its errors are *MissingError, *ConflictError, *EndedError, or the context's.
func (n *Node) Gather(ctx context.Context) (Roster, error) {
	var deadline <-chan time.Time
	if n.cfg.Timeout > 0 {
		t := time.NewTimer(time.Until(n.begin.Add(n.cfg.Timeout)))
		defer t.Stop()
		deadline = t.C
	}
	for {
		select {
		case <-n.gathered:
			return n.roster, n.gatherErr
		case <-ctx.Done():
			return Roster{}, fmt.Errorf("rendezvous: gathering: %w", context.Cause(ctx))
		case <-deadline:
			var missing *MissingError
			if !n.ask(func() {
				// Rank 0 is there and has the same limit: its word makes all ranks say the same. And from the acknowledgement of a
				// roster on the commit decides, or the end of rank 0: what comes of it is known within seconds.
				others := n.lead == nil && n.up.wire != nil || n.phase != Gathering
				if n.gaveUp == nil && (!others || time.Since(n.begin) >= 2*n.cfg.Timeout+ackTimeout) {
					n.gaveUp = n.missingError()
				}
				missing = n.gaveUp
			}) {
				return Roster{}, fmt.Errorf("rendezvous: gathering: %w", net.ErrClosed)
			}
			if missing != nil {
				return Roster{}, missing
			}
			deadline = time.After(time.Second)
		}
	}
}

// ConflictError is a contradiction between what the containers say of themselves: no retry mends it.
type ConflictError struct{ Err error }

func (e *ConflictError) Error() string {
	return "the containers contradict each other: " + e.Err.Error()
}

// Unwrap gives the contradiction.
func (e *ConflictError) Unwrap() error { return e.Err }

// EndedError says that the job ended before it was launched.
type EndedError struct{ Outcome Outcome }

func (e *EndedError) Error() string {
	return fmt.Sprintf("the job ended before it was launched: %s", e.Outcome.Reason)
}

// LostError says that rank 0 went away without telling how the job ended.
type LostError struct{ Reason string }

func (e *LostError) Error() string { return "rank 0 is gone: " + e.Reason }

// Wait waits for the end of the job; on rank 0 that is for its own Finish. Its errors are *LostError or the context's.
func (n *Node) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-n.finished:
		return n.outcome, n.outcomeErr
	case <-ctx.Done():
	}
	select {
	case <-n.finished: // at the same moment
		return n.outcome, n.outcomeErr
	default:
		return Outcome{}, fmt.Errorf("rendezvous: waiting for the end of the job: %w", context.Cause(ctx))
	}
}

// Stops tells rank 0 which ranks ask for the end of the job. Before the launch such a request ends Gather instead.
func (n *Node) Stops() <-chan Stop { return n.stops }

// Losses tells rank 0 which ranks went away while the job ran.
func (n *Node) Losses() <-chan Loss { return n.losses }

// RequestStop asks rank 0 to end the job on all ranks; false = rank 0 cannot be told.
func (n *Node) RequestStop(signal int, reason string) bool {
	told := false
	return n.ask(func() {
		if n.up.wire != nil {
			told = true
			n.up.wire.send(message{Type: stop, Signal: signal, Reason: reason})
		}
	}) && told
}

// endGossip stops gossip for good: the launch needs nobody else, and its timers would disturb what runs.
func (f *finder) end() {
	if f.net != nil {
		f.n.wg.Go(func() { _ = f.net.close() })
	}
}

// report logs who is missing while ranks are awaited.
func (n *Node) report() {
	t := time.NewTicker(n.cfg.Report)
	defer t.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.gathered:
			return
		case <-t.C:
			n.post(func() {
				if n.phase == Running || n.phase == Ended {
					return
				}
				e := n.missingError()
				n.log.Warn("waiting for ranks", "present", e.Present, "size", e.Size, "missing", Fold(e.Missing),
					"elapsed", time.Since(n.begin).Round(time.Second))
			})
		}
	}
}

// loop is the goroutine to which the state of a node belongs.
type loop struct {
	inbox inbox
	over  chan struct{} // closed when the loop has ended
}

// run calls what was posted, one after the other, until the loop is closed.
func (l *loop) run() {
	defer close(l.over)
	for {
		f, ok := l.inbox.next()
		if !ok {
			return
		}
		f()
	}
}

// post has f run by the loop; it never blocks. It reports false when the node is closed.
func (l *loop) post(f func()) bool { return l.inbox.put(f) }

// ask has f run by the loop and waits for it. When it reports false, f has not run and will not.
func (l *loop) ask(f func()) bool {
	ran := make(chan struct{})
	if !l.post(func() { f(); close(ran) }) {
		return false
	}
	select {
	case <-ran:
		return true
	case <-l.over:
	}
	select {
	case <-ran: // as the last one
		return true
	default:
		return false
	}
}

// inbox is an unbounded queue of what the loop has to do: memberlist's callbacks run under its lock and must never block.
type inbox struct {
	mu     sync.Mutex
	cond   sync.Cond
	queue  []func()
	shut   bool
	closed chan struct{}
}

func (q *inbox) init() {
	q.cond.L = &q.mu
	q.closed = make(chan struct{})
}

func (q *inbox) put(f func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut {
		return false
	}
	q.queue = append(q.queue, f)
	q.cond.Signal()
	return true
}

func (q *inbox) next() (func(), bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.queue) == 0 && !q.shut {
		q.cond.Wait()
	}
	if q.shut {
		return nil, false
	}
	f := q.queue[0]
	q.queue = q.queue[1:]
	return f, true
}

func (q *inbox) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.shut {
		q.shut = true
		close(q.closed)
		q.cond.Broadcast()
	}
}
