package rendezvous

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Outcome is how the job ended; it is the same on every rank.
type Outcome struct {
	Status int           `json:"status"`          // exit status, 0 to 255
	Reason string        `json:"reason"`          // the first cause, for people; empty when the status says everything
	After  time.Duration `json:"after,omitempty"` // from the start of the job to its end, measured by rank 0
	Stderr string        `json:"stderr,omitempty"`
	Stdout string        `json:"stdout,omitempty"`
	Own    bool          `json:"own,omitempty"` // Stderr is that of the process that failed, and of no other
	Next   string        `json:"next,omitempty"`
	// Stopped says that a signal from outside ended the job: it has not failed.
	Stopped bool `json:"stopped,omitempty"`
	// Verdict says that Status is the caller's own, and not that of a command.
	Verdict bool `json:"verdict,omitempty"`
	Hung    bool `json:"hung,omitempty"` // the command made no progress
}

// Statuses are the exit statuses of outcomes that the rendezvous itself decides.
type Statuses struct {
	Retry    int // a rank or its launch is gone, and a retry may help
	Conflict int // the containers contradict each other, and a retry does not help
}

// Peer is a container that the environment names.
type Peer struct {
	ID      string // as in its record
	Own     string // its container's own name, as the environment predicts it; "" = unknown
	Rank    int    // -1 = unknown
	Host    string // address or name
	Port    int
	Slots   int            // of the roster, if Decided
	Decided bool           // a host list of rank 0's scheduler gives Slots; else the rank's own record does
	At      netip.AddrPort // where it was last; invalid = unknown
	lost    bool           // it was not there at the end of the last generation
}

// Seed is a name with several addresses, at which containers may be found that the environment does not list. It is
// resolved again until enough containers are known.
type Seed struct {
	Host string
	Port int
	Role string // the job needs a container of this role there; "" = of any role
}

// Stop is the request of a rank to end the job, or rank 0's order to end the command of this rank.
type Stop struct {
	Name   string // of the rank
	Signal int    // that it got, or for the command; 0 = none, or the caller chooses
	Reason string
}

// Leaves reports whether only the container that asks for the end must end, in a job that may go on in a later
// generation. Schedulers end a container that they replace, for example on a node that is drained, with SIGTERM.
func (s Stop) Leaves() bool { return s.Signal == int(syscall.SIGTERM) }

// Loss is a rank that was lost while the job ran.
type Loss struct {
	Rank   int
	Name   string
	Reason string
}

// Config describes this container and how it reaches the others.
type Config struct {
	// Self.Addr.Port is set from Port; an invalid Self.Addr.Addr is replaced by an address of an interface.
	Self Record
	Size int // ranks of the job, at least 1; 0 = only rank 0 knows, and this container is another rank

	// Generation counts the launches of the job in place, from 1 on; 0 = 1. A later generation does not gossip.
	// Node.Following returns the configuration of one.
	Generation uint64
	// Text reaches the other ranks with rank 0's greeting (Node.Told), and the next start of rank 0 from the ranks that
	// have outlived the last one. Nil = the job cannot restart, as far as this container knows.
	Text []byte
	// Adopt is called on the next start of rank 0, in the loop, with the text of a rank that has outlived the last one.
	// It returns the text for the greetings, and how long to wait at least for the ranks of that generation. Nil = that
	// text, and Timeout.
	Adopt func(text []byte) (own []byte, wait time.Duration, err error)
	// Spares is how many of the Size containers have no rank at first: from the second generation on they take the
	// places of lost ones. Rank 0 alone knows it. The environment must tell the ranks; those of the spares come last.
	Spares int
	// SpareAfter is how long a lost container may take to come back before a spare takes its place.
	SpareAfter time.Duration
	// Rejoin says that the job may go on in a later generation. Rank 0 then keeps the next start of a lost rank.
	Rejoin bool

	Peers []Peer // of the environment; this container among them is ignored
	Seeds []Seed

	Port  *Port  // carries gossip; nil = no gossip: only Peers can be found
	Key   []byte // of gossip, 32 bytes for AES-256-GCM
	Label string // job and attempt; gossip with another label is dropped

	// Known reports whether an address belongs to the job, beyond those of Peers and Seeds: gossip from there has a
	// queue of its own. Nil = no other address does.
	Known func(netip.Addr) bool

	// Dial opens an authenticated control connection to the container with that id, "" = to any container of the job.
	// Its errors wrap one of the ErrOther... where it applies, and the system's errors otherwise.
	Dial func(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error)

	// Fabric gives Self.Fabric once, if finding it takes a while: this container is announced without it, and only the
	// launch waits for it. Nil = Self holds it.
	Fabric <-chan []byte

	// Unfit is why this container cannot take part in a launch. It registers only to say so, and Gather then fails: on
	// rank 0 when it hears of it, or, if rank 0 itself is unfit, when all ranks are present. Nil = it can take part.
	Unfit *Outcome

	// Network returns the name of the interface that has an address of this container, for Self.Network. Nil = unknown.
	Network func(netip.Addr) string

	// Delay is how long the threads of this process have waited for a processor since it started. Nil = unknown.
	Delay func() time.Duration

	// Kills returns how many processes of the job the kernel has killed here for lack of memory. Nil = unknown.
	Kills func() int

	// Lookup resolves a name; nil = the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	// NameOf returns the own name of the container that has an address, and may take a while. It is called for a seed's
	// address that could not be reached. Nil = no name is known.
	NameOf func(context.Context, netip.Addr) string

	// AskAfter delays the first name lookup: where the DNS caches denials, a lookup that comes too early does harm.
	AskAfter time.Duration

	// Verify is called on rank 0 before a complete roster is sent; an outcome ends the job on all ranks instead.
	Verify func(Roster) *Outcome

	// Late is called on rank 0 when a rank told its launcher (Node.SetLaunch) too late for Verify. Nil = it is ignored.
	Late func(Record)

	// Noted is called on rank 0, in the loop, with each note of another rank (Node.Tell): the rank's ID, and rank 0's
	// time of day at the arrival minus the rank's time of day when it sent the note. Nil = they are ignored.
	Noted func(id, kind string, text []byte, skew time.Duration)

	// NoteWait is how long rank 0 waits for the facts of all ranks once all are present, before it calls Verify. 0 = it
	// does not wait.
	NoteWait time.Duration

	// Everyone says that every rank runs a command, and tells so by Node.CommandRuns. Otherwise rank 0 alone runs one.
	Everyone bool

	// GoDelay is how long rank 0 may act on the roster before all other ranks are told to go, until Node.Launched is
	// called: woken all at once, they would take processors from rank 0's starting command. Where rank 0 has had to
	// wait for processors, they are told a fifth of GoDelay after Launched. 0 = they are told at once.
	GoDelay time.Duration

	Started time.Time     // of the container, by its own clock; zero = unknown
	Timeout time.Duration // for all ranks to come; 0 = forever
	Logger  *slog.Logger  // nil = silent

	Status Statuses // of the outcomes that this package decides

	notes map[string][]byte // of this container, as of the last generation
	last  *succession       // nil = a first generation, or ranks that were agreed
	// leader is rank 0 of the last generation. Nil = a first generation, or this rank has lost it, or is rank 0 itself.
	leader *Record

	// For tests.
	starTable int                     // 0 = the constant
	share     func([]Member) []Member // lets thousands of nodes in one process share the roster
}

const (
	ackTimeout = 3 * time.Second
	// Where packets are lost, one of many ranks is always late: the timeout doubles this many times.
	maxAckDoublings = 3
	registerTimeout = 5 * time.Second
	fetchTimeout    = 2 * time.Second
	dialTimeout     = 5 * time.Second
	// Of rank 0's dial: where packets are lost, a login takes many seconds, and dialling again would begin it anew.
	callTimeout    = 20 * time.Second
	nextAddress    = 300 * time.Millisecond  // between dials to the addresses of one container
	lookTimeout    = 2 * time.Second         // for one look at a rank that may be gone
	askTimeout     = 3 * time.Second         // for a rank that may have to look itself
	lossGrace      = 5 * time.Second         // for a lost control connection to come back before other ranks are asked
	silentGrace    = 1500 * time.Millisecond // the same after a timeout: the kernel has waited for seconds already
	refusalGrace   = 2 * time.Second         // after the launch: a refusal may be a hiccup for this long
	rejoinGrace    = 500 * time.Millisecond  // the same where the rank may come back in a later generation
	doneTimeout    = 15 * time.Second
	doneAckTimeout = 5 * time.Second // connected: a frozen rank has the outcome in its kernel's buffer
	probeTimeout   = 3 * time.Second // for an answer over an open connection
	// A rank that knows the outcome stays this long when rank 0 is gone, because other ranks may ask.
	linger         = 750 * time.Millisecond
	rejoinInterval = 5 * time.Second
)

// gossipMost is the largest job whose ranks gossip although they know their ranks: above it, gossip would cost each
// rank the roster many times over, and announcements are enough.
const gossipMost = 256

// NewNonce returns the nonce of one start of a container.
func NewNonce() string {
	b := make([]byte, nonceBytes)
	_, _ = rand.Read(b) // never fails, by its documentation
	return hex.EncodeToString(b)
}

// Node is this container in the rendezvous. Its state belongs to the goroutine of loop, to which all others post.
type Node struct {
	cfg  Config
	self Record
	log  *slog.Logger

	generation atomic.Uint64 // a new container adopts that of its rank 0

	guessed bool // self.Addr was guessed from an interface

	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	begin   time.Time
	pace    pace
	stops   chan Stop
	orders  chan Stop
	refused repeats
	losses  chan Loss
	ends    chan End // nil = another rank is rank 0

	loop

	// Only the loop touches the fields below.
	course
	limit     time.Time     // when this container gives up waiting for ranks; zero = never
	moved     chan struct{} // closed and replaced when limit changes
	gaveUp    *MissingError // the missing ranks at the deadline: the same for every caller of Gather
	reported  lastReport
	find      finder
	lead      *coordinator // nil = another rank coordinates
	up        uplink       // view of rank 0
	current   Record       // self, and what this container has learned of itself since
	looking   bool         // cfg.Fabric has not come yet
	ownTimes  Times
	command   command            // of this rank
	own       *message           // report to rank 0 on how this rank's command ended
	order     *message           // rank 0's first order to end every command
	calls     calls              // pending questions to rank 0
	probes    map[*wire]*probe   // pings without an answer
	withdrawn map[string]message // by id, for rank 0: messages of ranks that leave before the launch
	clearing  clearing           // end of this generation
	notes     map[string][]byte  // for rank 0, by kind
}

// awaitFabric waits for Config.Fabric and adds it to the record.
func (n *Node) awaitFabric() {
	select {
	case <-n.ctx.Done():
	case f := <-n.cfg.Fabric:
		n.post(func() {
			n.current.Fabric, n.looking = f, false
			n.amend()
		})
	}
}

// amend sends what this container has learned of itself since it registered.
func (n *Node) amend() {
	switch {
	case n.lead != nil:
		n.lead.tryPrepare()
	case n.phase != Ended:
		n.up.send(n.up.registration(n.up.leader))
	}
}

type seedState struct {
	addrs []netip.AddrPort
	err   error
	told  bool // the DNS has answered, with addresses or with a denial
}

// Start begins to look for the other ranks. The caller hands incoming control connections to Accept.
func Start(cfg Config) (*Node, error) {
	if cfg.Spares < 0 || cfg.Spares > 0 && cfg.Spares > cfg.Size-2 {
		return nil, fmt.Errorf("%d spares among %d containers", cfg.Spares, cfg.Size)
	}
	if cfg.Size < 0 || cfg.Size == 0 && cfg.Self.Rank < 1 {
		return nil, fmt.Errorf("size is %d, rank %d", cfg.Size, cfg.Self.Rank)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.starTable = cmp.Or(cfg.starTable, starTable)
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
				return nil, fmt.Errorf("finding the own address: %w", err)
			}
		}
		self.Addr = netip.AddrPortFrom(addr.Unmap(), uint16(cfg.Port.Number()))
	}
	if cfg.Network != nil && cfg.Size != 1 && self.Network == "" {
		self.Network = cfg.Network(self.Addr.Addr())
	}
	if err := self.validate(); err != nil {
		return nil, fmt.Errorf("own record: %w", err)
	}
	cfg.Peers = slices.DeleteFunc(slices.Clone(cfg.Peers), func(p Peer) bool { return p.ID == self.ID })
	ctx, cancel := context.WithCancel(context.Background())
	n := &Node{
		cfg: cfg, self: self, guessed: guessed, log: cfg.Logger,
		ctx: ctx, cancel: cancel, begin: time.Now(), refused: repeats{log: cfg.Logger},
		stops:  make(chan Stop, 16),
		orders: make(chan Stop, 16),
		losses: make(chan Loss, 16),
		loop:   loop{over: make(chan struct{})},
		course: course{
			phase: Gathering, entered: time.Now(), gathered: make(chan struct{}), finished: make(chan struct{}),
		},

		clearing: newClearing(),
	}
	if self.Rank <= 0 { // only rank 0 sends on it, and a container without a rank may become rank 0
		n.ends = make(chan End, cfg.Size) // one from each rank, so that the loop never waits
	}
	n.resetGeneration()
	n.moved = make(chan struct{})
	n.extend(cfg.Timeout)
	n.pace.delay, n.pace.limit, n.pace.known = cfg.Delay, cfg.Timeout, n.Generation() == 1
	n.find = finder{
		n: n, heard: make(map[string]Record), seeds: make([]seedState, len(cfg.Seeds)),
		names: names{
			lookup: cfg.Lookup, from: n.begin.Add(cfg.AskAfter), hosts: make(map[string]*name),
			seen: make(map[netip.Addr]bool),
		},
	}
	n.up.n, n.up.lastLeader = n, cfg.leader
	n.current, n.looking = self, cfg.Fabric != nil || cfg.Unfit != nil
	n.calls = calls{n: n, asked: make(map[uint64]chan message), waiting: make(map[uint64]*arrival)}
	n.probes, n.withdrawn = make(map[*wire]*probe), make(map[string]message)
	if n.notes = cfg.notes; n.notes == nil {
		n.notes = make(map[string][]byte)
	}
	if cfg.Unfit != nil {
		n.own = &message{Type: ended, Outcome: cfg.Unfit}
	}
	n.cond.L = &n.mu
	if cfg.Port != nil && cfg.Size != 1 && (cfg.Size <= gossipMost || self.Rank < 0) && n.Generation() == 1 {
		var err error
		if n.find.gossip, err = startGossip(n); err != nil {
			cancel()
			return nil, err
		}
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
		if n.find.gossip != nil {
			n.wg.Go(n.find.joinOthers)
		}
		if self.Rank != 0 {
			n.wg.Go(n.up.lookForLeader)
		}
	}
	return n, nil
}

// Self returns this container's record as announced; the roster has the address at which it was reached.
func (n *Node) Self() Record { return n.self }

// SetLaunch adds the version of the launcher to this container's record; the roster holds it if it comes in time.
func (n *Node) SetLaunch(launcher string) {
	n.post(func() {
		n.current.Launch = launcher
		n.amend()
	})
}

// Rest waits for d, and then, for a quarter of Config.Timeout at most (30 s without one), until this process gets a
// processor when it wants one (Config.Delay): all ranks may share the processors and begin at once. false = ctx ended
// first.
func (n *Node) Rest(ctx context.Context, d time.Duration) bool { return n.pace.rest(ctx, nil, d) }

// RestInGather is Rest, and also returns false as soon as Gather has a result.
func (n *Node) RestInGather(ctx context.Context, d time.Duration) bool {
	return n.pace.rest(ctx, n.gathered, d)
}

// Close leaves without telling the other ranks, and waits for every goroutine. It does not close the port.
func (n *Node) Close() error {
	n.awaitNext()
	n.cancel()
	var err error
	if n.find.gossip != nil {
		err = n.find.gossip.Shutdown()
	}
	n.shutDown()
	n.wg.Wait()
	n.refused.end()
	return err
}

// Gather waits until every rank holds the same roster and has been told to go, or the job ended before that. Its errors
// are *MissingError, *ConflictError, *EndedError, *LostError, *BugError, or the context's.
func (n *Node) Gather(ctx context.Context) (Roster, error) {
	late := false // a second ago
	for pause := time.Duration(0); ; {
		var left time.Duration
		var moved chan struct{}
		n.ask(func() { left, moved = max(n.left(), pause), n.moved })
		select {
		case <-n.gathered:
			return n.roster, n.gatherErr
		case <-ctx.Done():
			return Roster{}, fmt.Errorf("gathering: %w", context.Cause(ctx))
		case <-moved:
		case <-n.over:
			if n.isGathered() {
				return n.roster, n.gatherErr
			}
			return Roster{}, fmt.Errorf("gathering: %w", net.ErrClosed)
		case <-time.After(left):
			var missing *MissingError
			if !n.ask(func() {
				if n.left() > 0 {
					return
				}
				// Rank 0 has the same timeout, and its answer makes all ranks report the same. After the
				// acknowledgement the commit or the loss of rank 0 decides, within seconds.
				others := n.lead == nil && n.up.wire != nil || n.phase != Gathering
				// A container that was frozen until now first reads what rank 0 has sent meanwhile.
				wasLate := late
				late = time.Since(n.limit) >= n.cfg.Timeout+ackTimeout
				if n.gaveUp == nil && (!others || wasLate) {
					n.gaveUp = n.atDeadline()
				}
				missing = n.gaveUp
			}) {
				return Roster{}, fmt.Errorf("gathering: %w", net.ErrClosed)
			}
			if missing != nil {
				return Roster{}, missing
			}
			pause = time.Second
		}
	}
}

// extend has this container wait for other ranks for at least d from now on; 0 = without end.
func (n *Node) extend(d time.Duration) {
	switch at := time.Now().Add(d); {
	case n.cfg.Timeout <= 0:
	case d <= 0:
		n.moveLimit(time.Time{})
	case at.After(n.limit):
		n.moveLimit(at)
	}
}

func (n *Node) moveLimit(at time.Time) {
	n.limit = at
	close(n.moved)
	n.moved = make(chan struct{})
}

// left returns how long this container still waits for ranks.
func (n *Node) left() time.Duration {
	if n.limit.IsZero() {
		return math.MaxInt64
	}
	return time.Until(n.limit)
}

// ConflictError reports that the containers contradict each other: a retry does not help.
type ConflictError struct{ Err error }

func (e *ConflictError) Error() string {
	return "the containers contradict each other: " + e.Err.Error()
}

// Unwrap returns the contradiction.
func (e *ConflictError) Unwrap() error { return e.Err }

// EndedError reports that the job ended before it was launched.
type EndedError struct{ Outcome Outcome }

func (e *EndedError) Error() string {
	return fmt.Sprintf("the job ended before it was launched: %s", e.Outcome.Reason)
}

// LostError reports that rank 0 was lost before it told how the job ended.
type LostError struct{ Reason string }

func (e *LostError) Error() string { return "rank 0 is gone: " + e.Reason }

// Wait waits for the end of the job, on rank 0 for its own Finish. Its errors are *LostError, *BugError, or of ctx.
func (n *Node) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-n.finished:
	case <-ctx.Done():
		if !isClosed(n.finished) { // or finished at the same moment
			return Outcome{}, fmt.Errorf("waiting for the end of the job: %w", context.Cause(ctx))
		}
	}
	return n.outcome, n.outcomeErr
}

// Stops returns, on rank 0, the requests of ranks to end the job. Before the launch a request ends Gather instead.
func (n *Node) Stops() <-chan Stop { return n.stops }

// Losses returns, on rank 0, the ranks that were lost while the job ran.
func (n *Node) Losses() <-chan Loss { return n.losses }

// RequestStop asks rank 0 to end the job on all ranks. It reports false if rank 0 is not connected.
func (n *Node) RequestStop(signal int, reason string) (told bool) {
	m := message{Type: stop, Signal: signal, Reason: reason, Name: n.self.Nonce}
	return n.ask(func() {
		if told = n.up.send(m); told && n.phase == Gathering {
			n.up.request = &m
		}
	}) && told
}

// loop is the goroutine that owns the state of a node. Its queue is unbounded: memberlist's callbacks run under
// memberlist's lock and must never block.
type loop struct {
	mu    sync.Mutex
	cond  sync.Cond
	queue []func()
	shut  bool
	over  chan struct{} // closed when the loop has ended
}

// run calls the posted functions, one after the other, until the loop is shut down.
func (l *loop) run() {
	defer close(l.over)
	for f := l.next(); f != nil; f = l.next() {
		f()
	}
}

// next returns nil when the loop is shut down.
func (l *loop) next() func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && !l.shut {
		l.cond.Wait()
	}
	if l.shut {
		return nil
	}
	f := l.queue[0]
	l.queue = l.queue[1:]
	return f
}

// post queues f for the loop and never blocks. It reports false if the node is closed.
func (l *loop) post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return false
	}
	l.queue = append(l.queue, f)
	l.cond.Signal()
	return true
}

// after posts f when d is over.
func (l *loop) after(d time.Duration, f func()) { time.AfterFunc(d, func() { l.post(f) }) }

// ask posts f and waits until it has run. If it reports false, f has not run and will not.
func (l *loop) ask(f func()) bool {
	ran := make(chan struct{})
	if !l.post(func() { f(); close(ran) }) {
		return false
	}
	select {
	case <-ran:
	case <-l.over:
	}
	return isClosed(ran) // it may have been the last one
}

func (l *loop) shutDown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = true
	l.cond.Broadcast()
}

// offer sends v unless the buffer of c is full.
func offer[T any](c chan<- T, v T) {
	select {
	case c <- v:
	default:
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
