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

// Outcome is how the job ended; it is the same on every rank.
type Outcome struct {
	Status int    `json:"status"` // exit status, 0 to 255
	Reason string `json:"reason"` // one paragraph for people; empty when the status says everything
}

// Statuses are the exit statuses of outcomes that the rendezvous itself decides.
type Statuses struct {
	Retry    int // a rank or its launch is gone, and a retry may help
	Conflict int // the containers contradict each other, and a retry does not help
}

// Peer is a container that the environment names.
type Peer struct {
	ID   string // as in its record
	Rank int    // -1 = unknown
	Host string // address or name
	Port int
}

// Seed is a name with several addresses, at which containers may be found that the environment does not list. It is
// resolved again until enough containers are known.
type Seed struct {
	Host string
	Port int
	Role string // the job needs a container of this role there; "" = of any role
}

// Stop is the request of a rank to end the job.
type Stop struct {
	Name   string // of the rank
	Signal int    // that it got; 0 = none
	Reason string
}

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

	Peers []Peer // of the environment; this container among them is ignored
	Seeds []Seed

	Port  *Port  // carries gossip; nil = no gossip: only Peers can be found
	Key   []byte // of gossip, 32 bytes for AES-256-GCM
	Label string // job and attempt; gossip with another label is dropped

	// Known reports whether an address belongs to the job, beyond the addresses to which Peers and Seeds resolve.
	// Gossip from such an address has a queue of its own. Nil = no other address does.
	Known func(netip.Addr) bool

	// Dial opens an authenticated control connection to the container with that id, "" = to any container of the job.
	// Its errors wrap ErrOtherSecret, ErrOtherVersion, ErrOtherJob, ErrOtherContainer or ErrOtherProgram where they
	// apply, and the system's errors otherwise.
	Dial func(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error)

	// Fabric gives Self.Fabric once, if finding it takes a while: this container is announced without it, and only the
	// launch waits for it. Nil = Self holds it.
	Fabric <-chan []byte

	// Unfit is why this container cannot take part in a launch. It registers only to say so, and rank 0 neither judges
	// nor launches anything before it has. Gather then fails: on rank 0 when it hears of it, or, if rank 0 itself is
	// unfit, when all ranks are present; on the others when rank 0 ends the job. Nil = it can take part.
	Unfit *Outcome

	// Network returns the name of the interface that has an address of this container, for Self.Network. Nil = unknown.
	Network func(netip.Addr) string

	// Delay is how long the threads of this process have waited for a processor since it started. Nil = unknown.
	Delay func() time.Duration

	// Lookup resolves a name; nil = the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	// AskAfter delays the first name lookup after the start: where the DNS caches denials, a lookup that comes too
	// early does harm.
	AskAfter time.Duration

	// Verify is called on rank 0 before a complete roster is sent; an outcome ends the job on all ranks instead.
	Verify func(Roster) *Outcome

	// Late is called on rank 0 when a rank told its launcher (Node.SetLaunch) too late for Verify. Nil = it is ignored.
	Late func(Record)

	// GoDelay is how long rank 0 may act on the roster before all other ranks are told to go, until Node.Launched is
	// called: woken all at once, they would take the processors that they share with rank 0 from the starting command.
	// 0 = all are told at once.
	GoDelay time.Duration

	Timeout time.Duration // for all ranks to come; 0 = forever
	Report  time.Duration // interval of the log line on missing ranks; 0 = 10 s
	// A lost control connection may take this long to come back before other ranks are asked; 0 = 5 s, less after a
	// timeout.
	LossGrace time.Duration
	Logger    *slog.Logger // nil = silent

	Status Statuses // of the outcomes that this package decides

	// For tests.
	starTable int                     // 0 = the constant
	share     func([]Member) []Member // lets thousands of nodes in one process share the roster
}

const (
	ackTimeout = 3 * time.Second
	// The timeout for acknowledgements doubles this many times: where packets are lost, one of many ranks is always
	// late.
	maxAckDoublings = 3
	registerTimeout = 5 * time.Second
	fetchTimeout    = 2 * time.Second
	dialTimeout     = 5 * time.Second
	// callTimeout is of rank 0's dial: where packets are lost, a login takes many seconds, and dialling again would
	// begin it anew.
	callTimeout    = 20 * time.Second
	callShare      = 50 * time.Millisecond   // more for each rank, because logins queue for processors
	nextAddress    = 300 * time.Millisecond  // between dials to the addresses of one container
	lookTimeout    = 2 * time.Second         // for one look at a rank that may be gone
	silentGrace    = 1500 * time.Millisecond // after a timeout: the kernel has waited for seconds already
	refusalGrace   = 2 * time.Second         // after the launch: a refusal may be a hiccup for this long
	doneTimeout    = 15 * time.Second
	doneAckTimeout = 5 * time.Second // connected: a frozen rank has the outcome in its kernel's buffer
	probeTimeout   = 3 * time.Second // for an answer over an open connection
	// A rank that knows the outcome stays this long when rank 0 is gone, because other ranks may ask; all leave within
	// 1 s.
	linger         = 750 * time.Millisecond
	rejoinInterval = 5 * time.Second
)

// gossipMost is the largest job whose ranks gossip although they know their ranks: above it, gossip costs each rank the
// roster many times over, and announcements find the ranks that are not where the environment says.
const gossipMost = 1000

// NewNonce returns the nonce of one start of a container.
func NewNonce() string {
	b := make([]byte, nonceBytes)
	_, _ = rand.Read(b) // never fails, by its documentation
	return hex.EncodeToString(b)
}

// Node is this container in the rendezvous. Its state belongs to the goroutine of loop; all other goroutines post to
// it.
type Node struct {
	cfg  Config
	self Record
	log  *slog.Logger

	guessed bool // self.Addr was guessed from an interface

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

	// Only the loop touches the fields below.
	course
	gaveUp      *MissingError // the missing ranks at the deadline: the same for every caller of Gather
	find        finder
	lead        *coordinator // nil = another rank coordinates
	up          uplink       // view of rank 0
	details     details
	own         *message // report to rank 0 on how this rank's command ended
	order       *message // rank 0's first order to end every command
	calls       calls    // pending questions to rank 0
	probes      probes
	withdrawals withdrawals
}

// details are what this container learns of itself after the start. Only the loop touches them.
type details struct {
	n        *Node
	launcher string // Self.Launch by now
	fabric   []byte // Self.Fabric by now
	looking  bool   // cfg.Fabric has not come yet
}

// awaitFabric waits for Config.Fabric and adds it to the record.
func (d *details) awaitFabric() {
	select {
	case <-d.n.ctx.Done():
	case f := <-d.n.cfg.Fabric:
		d.n.post(func() {
			d.fabric, d.looking = f, false
			d.amend()
		})
	}
}

// amend sends what this container has learned of itself since it registered.
func (d *details) amend() {
	switch {
	case d.n.lead != nil:
		d.n.lead.tryPrepare()
	case d.n.up.wire != nil && d.n.phase != Ended:
		d.n.up.wire.send(d.n.up.registration(d.n.up.leader))
	}
}

// record returns what this container says of itself by now.
func (d *details) record() Record {
	r := d.n.self
	r.Launch, r.Fabric = d.launcher, d.fabric
	return r
}

type seedState struct {
	addrs []netip.AddrPort
	err   error
	asked bool
	told  bool // the DNS has answered, with addresses or with a denial
}

// Start begins to look for the other ranks. The caller hands incoming control connections to Accept.
func Start(cfg Config) (*Node, error) {
	if cfg.Size < 0 || cfg.Size == 0 && cfg.Self.Rank < 1 {
		return nil, fmt.Errorf("rendezvous: size is %d, rank %d", cfg.Size, cfg.Self.Rank)
	}
	if cfg.Dial == nil {
		return nil, errors.New("rendezvous: no way to dial")
	}
	if cfg.Status.Retry == 0 || cfg.Status.Conflict == 0 {
		return nil, errors.New("rendezvous: no exit statuses") // 0 would mean that the job has succeeded
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
		stops:  make(chan Stop, 16),
		orders: make(chan Order, 16),
		losses: make(chan Loss, 16),
		ends:   make(chan End, cfg.Size), // one from each rank, so that the loop never waits
		loop:   loop{over: make(chan struct{})},
		course: course{phase: Gathering, gathered: make(chan struct{}), finished: make(chan struct{})},
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
	n.details = details{
		n: n, launcher: self.Launch, fabric: self.Fabric,
		looking: cfg.Fabric != nil || cfg.Unfit != nil,
	}
	n.withdrawals = withdrawals{n: n, heard: make(map[string]message)}
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
		n.wg.Go(n.details.awaitFabric)
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

// Self returns this container's record as announced, with the address that it believes to have; the roster has the one
// at which it was reached.
func (n *Node) Self() Record { return n.self }

// SetLaunch adds the version of the launcher to this container's record, because asking the launcher may take longer
// than finding the other ranks. The roster holds it if it comes in time.
func (n *Node) SetLaunch(launcher string) {
	n.post(func() {
		n.details.launcher = launcher
		n.details.amend()
	})
}

// Rest waits for d before work that is not urgent, and longer if this process had to wait for a processor
// (Config.Delay). It reports false if ctx ends first.
func (n *Node) Rest(ctx context.Context, d time.Duration) bool { return n.pace.sleep(ctx, nil, d) }

// Close leaves without telling the other ranks, and waits for every goroutine. It does not close the port.
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

// Gather waits until every rank holds the same roster and has been told to go, or the job ended before that. Its errors
// are *MissingError, *ConflictError, *EndedError, *LostError, *BugError, or the context's.
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
				// Rank 0 has the same timeout, and its answer makes all ranks report the same. After the
				// acknowledgement the commit or the loss of rank 0 decides, within seconds.
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

// Wait waits for the end of the job, on rank 0 for its own Finish. Its errors are *LostError, *BugError, or the
// context's.
func (n *Node) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-n.finished:
		return n.outcome, n.outcomeErr
	case <-ctx.Done():
	}
	select {
	case <-n.finished: // finished at the same moment
		return n.outcome, n.outcomeErr
	default:
		return Outcome{}, fmt.Errorf("rendezvous: waiting for the end of the job: %w", context.Cause(ctx))
	}
}

// Stops returns, on rank 0, the requests of ranks to end the job. Before the launch a request ends Gather instead.
func (n *Node) Stops() <-chan Stop { return n.stops }

// Losses returns, on rank 0, the ranks that were lost while the job ran.
func (n *Node) Losses() <-chan Loss { return n.losses }

// RequestStop asks rank 0 to end the job on all ranks. It reports false if rank 0 is not connected.
func (n *Node) RequestStop(signal int, reason string) bool {
	told := false
	return n.ask(func() {
		if n.up.wire != nil {
			told = true
			n.up.wire.send(message{Type: stop, Signal: signal, Reason: reason})
		}
	}) && told
}

// end stops gossip for good: the launch needs no other container, and gossip's timers would disturb the job.
func (f *finder) end() {
	if f.net != nil {
		f.n.wg.Go(func() { _ = f.net.close() })
	}
}

// report logs the missing ranks until all are present.
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

// loop is the goroutine that owns the state of a node.
type loop struct {
	inbox inbox
	over  chan struct{} // closed when the loop has ended
}

// run calls the posted functions, one after the other, until the inbox is closed.
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

// post queues f for the loop and never blocks. It reports false if the node is closed.
func (l *loop) post(f func()) bool { return l.inbox.put(f) }

// ask posts f and waits until it has run. If it reports false, f has not run and will not.
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
	case <-ran: // it was the last one
		return true
	default:
		return false
	}
}

// inbox is an unbounded queue for the loop: memberlist's callbacks run under memberlist's lock and must never block.
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
