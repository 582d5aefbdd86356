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

// Phase is where a rank stands.
type Phase string

// The phases, in the only order in which they come; before Running a rank may fall back to Gathering.
const (
	Gathering Phase = "gathering"
	Prepared  Phase = "prepared" // holds a roster and has acknowledged it
	Running   Phase = "running"
	Ended     Phase = "ended"
)

// Outcome is how the job ended: the same on every rank.
type Outcome struct {
	Status int    `json:"status"` // exit status, 0 to 255
	Reason string `json:"reason"` // one paragraph for people; empty when the status says everything
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
}

// Stop is the wish of a rank that the job ends.
type Stop struct {
	Name   string // who
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
	Size int    // ranks of the job, at least 1

	Peers []Peer // of the environment; this container among them is ignored
	Seeds []Seed

	Port  *Port  // carries gossip; nil = no gossip (then only Peers can be found)
	Key   []byte // of gossip, 32 bytes for AES-256-GCM
	Label string // job and attempt; gossip with another label is dropped

	// Dial opens an authenticated control connection to the container with that id, "" = whoever of the job answers there.
	// Its errors wrap ErrOtherSecret and ErrOtherJob where they apply, and the system's errors otherwise.
	Dial func(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error)

	// Lookup resolves a name; nil = the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	// Verify is asked on rank 0 before a complete roster is sent out; an outcome ends the job on all ranks instead.
	Verify func(Roster) *Outcome

	Timeout   time.Duration // for all ranks to come; 0 = no limit
	Report    time.Duration // between two log lines on who is missing; 0 = 10 s
	LossGrace time.Duration // how long a lost control connection may take to come back; 0 = 30 s
	Logger    *slog.Logger  // nil = silent
}

const (
	ackTimeout      = 3 * time.Second
	registerTimeout = 5 * time.Second
	dialTimeout     = 5 * time.Second
	doneTimeout     = 15 * time.Second
	rejoinInterval  = 5 * time.Second
	secretPatience  = 3 * time.Second
)

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

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	begin  time.Time

	inbox  inbox
	net    *gossip
	stops  chan Stop
	losses chan Loss

	gathered chan struct{} // closed when roster and gatherErr are set
	finished chan struct{} // closed when outcome and outcomeErr are set

	// The loop's own.
	phase      Phase
	roster     Roster
	gatherErr  error
	outcome    Outcome
	outcomeErr error
	heard      map[string]Record // by id, alive by gossip
	seeds      []seedState
	lead       *coordinator // not nil on rank 0
	up         uplink       // the others' view of rank 0
}

type seedState struct {
	addrs []netip.AddrPort
	err   error
	asked bool
}

// Start begins to look for the others and to be found. The caller hands control connections that come in to Accept.
func Start(cfg Config) (*Node, error) {
	if cfg.Size < 1 {
		return nil, fmt.Errorf("rendezvous: size is %d", cfg.Size)
	}
	if cfg.Dial == nil {
		return nil, errors.New("rendezvous: no way to dial")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Report == 0 {
		cfg.Report = 10 * time.Second
	}
	if cfg.LossGrace == 0 {
		cfg.LossGrace = 30 * time.Second
	}
	if cfg.Lookup == nil {
		cfg.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	self := cfg.Self
	if cfg.Port != nil {
		addr := self.Addr.Addr()
		if !addr.IsValid() {
			var err error
			if addr, err = ownAddr(cfg.Peers, cfg.Seeds); err != nil {
				return nil, fmt.Errorf("rendezvous: finding the own address: %w", err)
			}
		}
		self.Addr = netip.AddrPortFrom(addr.Unmap(), uint16(cfg.Port.Number()))
	}
	if err := self.validate(); err != nil {
		return nil, fmt.Errorf("rendezvous: own record: %w", err)
	}
	cfg.Peers = slices.DeleteFunc(slices.Clone(cfg.Peers), func(p Peer) bool { return p.ID == self.ID })
	ctx, cancel := context.WithCancel(context.Background())
	n := &Node{
		cfg: cfg, self: self, log: cfg.Logger,
		ctx: ctx, cancel: cancel, begin: time.Now(),
		stops:    make(chan Stop, 16),
		losses:   make(chan Loss, 16),
		gathered: make(chan struct{}),
		finished: make(chan struct{}),
		phase:    Gathering,
		heard:    make(map[string]Record),
		seeds:    make([]seedState, len(cfg.Seeds)),
	}
	n.inbox.init()
	if cfg.Port != nil && cfg.Size > 1 {
		g, err := startGossip(ctx, cfg.Port, self, cfg.Key, cfg.Label, cfg.Size, cfg.Logger, func(r Record, alive bool) {
			n.post(func() { n.onGossip(r, alive) })
		})
		if err != nil {
			cancel()
			return nil, err
		}
		n.net = g
	}
	n.wg.Go(n.loop)
	n.post(func() {
		if self.Rank == 0 || cfg.Size == 1 {
			n.becomeCoordinator()
		}
	})
	if cfg.Size > 1 {
		for i := range cfg.Seeds {
			n.wg.Go(func() { n.resolveSeed(i) })
		}
		n.wg.Go(n.report)
		if n.net != nil {
			n.wg.Go(n.joinOthers)
		}
		if self.Rank != 0 {
			n.wg.Go(n.lookForLeader)
		}
	}
	return n, nil
}

// Self is this container's record, complete with its address.
func (n *Node) Self() Record { return n.self }

// Close leaves without a word and waits for every goroutine. It does not close the port.
func (n *Node) Close() error {
	n.cancel()
	var err error
	if n.net != nil {
		err = n.net.close()
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
	extended := false
	for {
		select {
		case <-n.gathered:
			return n.roster, n.gatherErr
		case <-ctx.Done():
			return Roster{}, fmt.Errorf("rendezvous: gathering: %w", context.Cause(ctx))
		case <-deadline:
			var missing *MissingError
			led := false
			if !n.ask(func() { missing, led = n.missingError(), n.lead == nil && n.up.wire != nil }) {
				return Roster{}, fmt.Errorf("rendezvous: gathering: %w", net.ErrClosed)
			}
			// Rank 0 is there and has the same limit: its word makes all ranks say the same.
			if led && !extended {
				extended = true
				deadline = time.After(n.cfg.Timeout + ackTimeout)
				continue
			}
			return Roster{}, missing
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

// Wait waits on any rank but 0 for the end of the job. Its errors are *LostError or the context's.
func (n *Node) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-n.finished:
		return n.outcome, n.outcomeErr
	case <-ctx.Done():
		return Outcome{}, fmt.Errorf("rendezvous: waiting for the end of the job: %w", context.Cause(ctx))
	}
}

// Stops tells rank 0 which ranks want the job to end. Before the launch such a wish ends Gather instead.
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

// Missing says who is not there yet, and why, as far as this rank knows.
func (n *Node) Missing() []Missing {
	var m []Missing
	n.ask(func() { m = n.missing() })
	return m
}

func (n *Node) loop() {
	for {
		f, ok := n.inbox.next()
		if !ok {
			return
		}
		f()
	}
}

// post has f run by the loop; it never blocks. It reports false when the node is closed.
func (n *Node) post(f func()) bool { return n.inbox.put(f) }

// ask has f run by the loop and waits for it.
func (n *Node) ask(f func()) bool {
	ran := make(chan struct{})
	if !n.post(func() { f(); close(ran) }) {
		return false
	}
	select {
	case <-ran:
		return true
	case <-n.inbox.closed:
		return false
	}
}

func (n *Node) setGathered(r Roster, err error) {
	select {
	case <-n.gathered:
	default:
		n.roster, n.gatherErr = r, err
		close(n.gathered)
	}
}

func (n *Node) setFinished(o Outcome, err error) {
	select {
	case <-n.finished:
	default:
		n.phase = Ended
		n.outcome, n.outcomeErr = o, err
		close(n.finished)
		if err == nil {
			n.setGathered(Roster{}, &EndedError{o})
		}
	}
}

func (n *Node) isGathered() bool {
	select {
	case <-n.gathered:
		return true
	default:
		return false
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
