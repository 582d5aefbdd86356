// Package rsh runs commands on the other containers of a job, the way rsh and ssh would, for mpirun and its relatives.
//
// A Pool keeps one authenticated SSH connection to each peer, for commands and for the control channel, so a command
// costs two round trips instead of a login. Parse reads the command lines that launchers write for a remote shell. Run,
// in the process that the launcher starts, only passes its standard files and its command line to ServeAgent in the
// container's own paiinit, which holds the Pool.
//
// The client accepts only the host key that is derived for the container: there is no "accept new", no known_hosts and
// no option to change that. It never prompts, forwards nothing, and reads no file.
package rsh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/internal/tcp"
)

// Target is a container to reach. Messages show Name; ID selects the host key that the container must prove. If ID is
// empty, the container's own claim selects the key. It still has to prove that key, which only the job's secret yields.
type Target struct {
	Name, ID string
	Addr     netip.AddrPort
}

func (t Target) String() string {
	switch {
	case t.Name == "":
		return t.Addr.String()
	case !t.Addr.IsValid():
		return t.Name
	}
	return fmt.Sprintf("%s (%s)", t.Name, t.Addr)
}

// Config holds the keys, the limits and the logger of a Pool.
type Config struct {
	User  ssh.Signer                    // the job's login key
	Host  func(id string) ssh.PublicKey // the host key of the container with this id; nil result = no such container
	Label string                        // the label of our job and attempt; "" = do not compare labels

	// Dial opens a stream to a peer; nil = TCP.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)

	Patience time.Duration // how much longer than usual a login may take, because many ranks log in at the same moment

	Logger *slog.Logger // nil = discard
}

const (
	dialTimeout     = 20 * time.Second // for connecting, handshake and login together
	connectTimeout  = 5 * time.Second  // for connecting
	longestTurn     = 5 * time.Second  // for a connection's wait for its login: a small part of sshd's 30 s
	keepalive       = 15 * time.Second // between two keepalive requests
	keepaliveMisses = 3                // after this many intervals without an answer, the connection is closed
	mostSessions    = 64               // on one connection; then the pool opens another one. A peer may allow fewer

	// ackTimeout bounds how long the machine of a peer may leave TCP data unacknowledged before the connection is lost.
	// A stopped process is not silent, because its kernel still acknowledges.
	ackTimeout = 20 * time.Second
)

// Pool holds one connection to each peer, by ID and address, and more while that one has no room for another session.
// Its methods may be called concurrently.
type Pool struct {
	cfg        Config
	mu         sync.Mutex
	links      map[peer]*link
	ackTimeout time.Duration // ackTimeout until Watch changes it
	pause      atomic.Int64  // keepalive until Watch changes it
	turns      turns
	closed     bool
	wg         sync.WaitGroup // all goroutines; nothing is added once closed is set

	longestTurn, dialTimeout time.Duration // the constants, except in tests
}

type peer struct {
	id   string
	addr netip.AddrPort
	lane int // 0 is the first connection; higher lanes hold the sessions beyond the peer's limit for one connection
}

// link is a connection. Until ready is closed the pool is dialling; then either conn or err is set.
type link struct {
	keys    []peer // its keys in Pool.links
	ready   chan struct{}
	cancel  context.CancelFunc // ends the dialling
	limit   *time.Timer        // ends it after dialTimeout; stopped while the login waits for its turn
	stage   atomic.Value       // string; the stage that dialling has reached
	waiting int                // callers that wait for ready; under Pool.mu

	sessions, room int // sessions that are open or being opened, and their limit; under Pool.mu

	conn *connection
	lost chan struct{}
	err  error
}

var errClosed = errors.New("the pool is closed")

// New returns a pool without connections. The caller closes it.
func New(cfg Config) *Pool {
	p := &Pool{
		cfg: cfg, ackTimeout: ackTimeout, links: map[peer]*link{}, longestTurn: longestTurn,
		dialTimeout: dialTimeout + cfg.Patience,
	}
	if cfg.Logger == nil {
		p.cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Dial == nil {
		p.cfg.Dial = p.dialTCP
	}
	p.pause.Store(int64(keepalive))
	return p
}

// Watch changes how long a peer's machine may acknowledge nothing (until then 20 s) and the interval of keepalive
// requests (15 s), also for open connections. Before the launch a lossy network should not cost a connection; after it,
// the loss of a machine must be noticed soon. The kernels detect that without waking a process; a keepalive request
// wakes both ends in the middle of the job.
func (p *Pool) Watch(ackTimeout, keepalive time.Duration) {
	p.pause.Store(int64(keepalive))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ackTimeout = ackTimeout
	for _, l := range p.links {
		if l.conn != nil {
			_ = tcp.Watch(l.conn.tcp.Conn, ackTimeout) // fails only if the connection has ended
		}
	}
}

// Close closes all connections, which ends their commands, and waits for every goroutine of the pool. It may be called
// more than once.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	for _, l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.wg.Wait()
	return nil
}

// start runs f in a goroutine that Close waits for. It reports false if the pool is closed.
func (p *Pool) start(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Go(f)
	return true
}

// Control opens the channel "control@paiinit" on the kept connection; its error is a *DialError. Read returns an error
// as soon as the peer closes the channel or the connection is lost, syscall.ETIMEDOUT if the peer's machine has fallen
// silent; there is no other signal of a loss. Close ends Read and Write at once, even if the peer's processes are
// frozen. A pending Write may still read its argument after that, so the caller must not change it.
func (p *Pool) Control(ctx context.Context, t Target) (io.ReadWriteCloser, error) {
	ch, err := p.open(ctx, t, "control@paiinit")
	if err != nil {
		return nil, err
	}
	in, pump := io.Pipe()
	c := &control{ch: ch, in: in, pool: p}
	c.closed, c.end = context.WithCancel(context.Background())
	if !p.start(func() { ssh.DiscardRequests(ch.reqs) }) ||
		!p.start(func() { _ = pump.CloseWithError(copyControl(pump, ch)) }) {
		_ = ch.Close()
		return nil, &DialError{t, stageChannel, errClosed}
	}
	return c, nil
}

// control is a channel that Close ends without the peer's help. Read and Write of an ssh.Channel wait for the peer's
// close, and its Close waits for room in the socket: with a frozen peer all three block until the connection ends. So
// they run in goroutines that Pool.Close waits for.
type control struct {
	ch     *channel
	in     *io.PipeReader
	pool   *Pool
	closed context.Context // ends at Close
	end    context.CancelFunc
}

// RoundTrip returns the shortest round trip that the kernel has measured on the connection; 0 = unknown.
func (c *control) RoundTrip() time.Duration { return tcp.RoundTrip(c.ch.link.conn.tcp.Conn) }

func (c *control) Read(b []byte) (int, error) { return c.in.Read(b) }

func (c *control) Write(b []byte) (int, error) {
	written := make(chan error, 1)
	if !c.pool.start(func() {
		_, err := c.ch.Write(b)
		written <- err
	}) {
		return 0, errClosed
	}
	select {
	case err := <-written:
		if err != nil {
			return 0, err
		}
		return len(b), nil
	case <-c.closed.Done():
		return 0, net.ErrClosed
	}
}

// LocalAddr returns the address of this container on the connection.
func (c *control) LocalAddr() net.Addr { return c.ch.link.conn.LocalAddr() }

func (c *control) Close() error {
	c.end()
	_ = c.in.Close()
	c.pool.start(func() { _ = c.ch.Close() }) // a closed pool has ended the connection already
	return nil
}

// copyControl copies what the peer sends until the channel ends, and returns the reason.
func copyControl(to io.Writer, ch *channel) error {
	b := make([]byte, 1024) // holds nearly every message between two ranks
	for {
		n, err := ch.Read(b)
		if n > 0 {
			if _, werr := to.Write(b[:n]); werr != nil {
				return werr
			}
		}
		if err != nil {
			return ch.link.conn.tcp.loss.Explain(err)
		}
	}
}

// open opens a channel. If the kept connection turns out to be dead, open replaces it once.
func (p *Pool) open(ctx context.Context, t Target, kind string) (*channel, error) {
	for fresh := false; ; fresh = true {
		l, err := p.link(ctx, t, 0)
		if err != nil {
			return nil, err
		}
		ch, err := p.openOn(ctx, l, kind)
		if err == nil {
			return ch, nil
		}
		// A refusal proves that the peer is alive; when ctx has ended, no caller waits any more.
		if _, refused := errors.AsType[*ssh.OpenChannelError](err); fresh || refused || ctx.Err() != nil {
			return nil, &DialError{t, stageChannel, err}
		}
		p.forget(l)
	}
}

// channel is an open channel and its connection.
type channel struct {
	ssh.Channel
	reqs <-chan *ssh.Request
	link *link
}

// openSession opens a session channel on the first connection that has room for it. The caller calls leave once the
// channel is closed.
func (p *Pool) openSession(ctx context.Context, t Target) (*channel, error) {
	fresh := false
	for lane := 0; ; {
		l, err := p.link(ctx, t, lane)
		if err != nil {
			return nil, err
		}
		if !p.enter(l) {
			lane++
			continue
		}
		ch, err := p.openOn(ctx, l, "session")
		if err == nil {
			return ch, nil
		}
		var refused *ssh.OpenChannelError
		switch full := p.leave(l); {
		case errors.As(err, &refused) && refused.Reason == ssh.ResourceShortage && (full > 0 || lane == 0):
			// If none of our sessions is open (full == 0), the peer still ends earlier ones: lane 1 may have room.
			p.limit(l, full)
			lane++
		case fresh || refused != nil || ctx.Err() != nil:
			return nil, &DialError{t, stageChannel, err}
		default:
			fresh = true
			p.forget(l)
		}
	}
}

// enter takes a place for a session on a connection. It reports false if all are taken.
func (p *Pool) enter(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.sessions >= l.room {
		return false
	}
	l.sessions++
	return true
}

// leave gives a place back and returns how many are taken. It closes an extra connection that has no session left.
func (p *Pool) leave(l *link) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.sessions--
	if l.sessions == 0 && l.keys[0].lane > 0 {
		l.room = 0 // for a caller that already holds this link
		p.drop(l)
		l.close()
	}
	return l.sessions
}

// limit notes how many sessions a peer allows on one connection.
func (p *Pool) limit(l *link, room int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if room = max(room, l.sessions); room > 0 {
		l.room = min(l.room, room)
	}
}

var errLost = errors.New("the connection was lost")

// openOn opens a channel on one connection. A dead peer may leave it waiting until the keepalive ends the connection.
//
// Close does not wait for its goroutine: if the connection ends after OpenChannel has made the channel and before it
// sends the request, that call never returns (x/crypto v0.58 ssh/mux.go: loop ends the channels it knows, then closes
// the connection).
func (p *Pool) openOn(ctx context.Context, l *link, kind string) (*channel, error) {
	type opened struct {
		ch  *channel
		err error
	}
	done := make(chan opened)
	go func() {
		ch, reqs, err := l.conn.OpenChannel(kind, nil)
		select {
		case done <- opened{&channel{ch, reqs, l}, err}:
			return
		case <-ctx.Done():
		case <-l.lost:
		}
		if err == nil {
			_ = ch.Close()
			ssh.DiscardRequests(reqs)
		}
	}()
	select {
	case o := <-done:
		return o.ch, o.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-l.lost:
		return nil, errLost
	}
}

// link returns the connection to the target, and dials if there is none. Concurrent callers wait for the same attempt,
// each for as long as its own ctx allows. The attempt ends when the last of them has given up.
func (p *Pool) link(ctx context.Context, t Target, lane int) (*link, error) {
	key := peer{t.ID, t.Addr, lane}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, &DialError{t, stageConnect, errClosed}
	}
	l := p.links[key]
	if l == nil {
		dialling, end := context.WithCancelCause(context.Background())
		limit := time.AfterFunc(p.dialTimeout, func() { end(fmt.Errorf("no answer within %v", p.dialTimeout)) })
		cancel := func() {
			limit.Stop()
			end(nil)
		}
		l = &link{keys: []peer{key}, ready: make(chan struct{}), cancel: cancel, limit: limit,
			lost: make(chan struct{}), room: mostSessions}
		l.stage.Store(stageConnect)
		p.links[key] = l
		p.wg.Go(func() { p.dial(dialling, t, l) })
	}
	l.waiting++
	p.mu.Unlock()

	select {
	case <-l.ready:
	case <-ctx.Done():
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	l.waiting--
	select {
	case <-l.ready:
		return l, l.err // prefer a result over the end of ctx when both are there
	default:
	}
	if l.waiting == 0 {
		p.drop(l)
		l.cancel()
	}
	return nil, &DialError{t, l.stage.Load().(string), context.Cause(ctx)}
}

// dial connects a new link and then serves it until it is lost.
func (p *Pool) dial(ctx context.Context, t Target, l *link) {
	c, err := p.handshake(ctx, t, l)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // says more than "use of closed network connection"
	}
	l.cancel() // its timer would wake this process while the job runs

	p.mu.Lock()
	if err == nil && (p.closed || p.links[l.keys[0]] != l) {
		_ = c.Close() // every caller has given up
		err = errClosed
	}
	if err != nil {
		l.err = &DialError{t, l.stage.Load().(string), err}
		p.drop(l)
		close(l.ready)
		p.mu.Unlock()
		return
	}
	l.conn = c
	_ = tcp.Watch(c.tcp.Conn, p.ackTimeout) // fails only if the connection has ended
	if key := (peer{c.id, t.Addr, l.keys[0].lane}); p.links[key] == nil {
		l.keys = append(l.keys, key) // the caller gave no id
		p.links[key] = l
	}
	close(l.ready)
	p.mu.Unlock()

	started := time.Now()
	log := p.cfg.Logger.With("peer", t.Name, "id", c.id, "addr", t.Addr)
	log.Debug("connected", "version", string(c.ServerVersion()))
	var watch sync.WaitGroup
	watch.Go(func() { p.keepalive(l) })
	watch.Go(func() { ssh.DiscardRequests(c.reqs) })
	for ch := range c.chans {
		// Fails only if the connection does, which ends the loop.
		_ = ch.Reject(ssh.Prohibited, "paiinit's client accepts no channels")
	}
	close(l.lost)
	p.forget(l)
	watch.Wait()
	log.Debug("connection ended", "elapsed", time.Since(started), "err", c.Wait())
}

// keepalive sends keepalive requests until the connection is lost. It closes a connection whose peer does not answer.
func (p *Pool) keepalive(l *link) {
	tick := time.NewTimer(time.Duration(p.pause.Load()))
	defer tick.Stop()
	answered := make(chan struct{}, 1)
	waiting := false // for an answer
	for missed := 0; ; {
		select {
		case <-l.lost:
			if waiting {
				<-answered // the request fails with the connection
			}
			return
		case <-answered:
			waiting, missed = false, 0
			tick.Reset(time.Duration(p.pause.Load()))
		case <-tick.C:
			tick.Reset(keepalive)
			if waiting {
				if missed++; missed >= keepaliveMisses {
					p.cfg.Logger.Info("peer does not answer keepalives, closing the connection",
						"id", l.conn.id, "addr", l.keys[0].addr, "elapsed", keepalive*time.Duration(missed))
					l.close()
				}
				continue
			}
			waiting = true
			go func() {
				// Any answer will do, even that the request is unknown. After an error, lost is closed as well.
				_, _, _ = l.conn.SendRequest("keepalive@openssh.com", true, nil)
				answered <- struct{}{}
			}()
		}
	}
}

// forget closes a link and makes the next caller dial again.
func (p *Pool) forget(l *link) {
	p.mu.Lock()
	p.drop(l)
	p.mu.Unlock()
	l.close()
}

// drop makes the next caller dial again. The caller holds p.mu.
func (p *Pool) drop(l *link) {
	for _, k := range l.keys {
		if p.links[k] == l {
			delete(p.links, k)
		}
	}
}

// close ends a link in any state. It needs p.mu, or a link that is ready.
func (l *link) close() {
	l.cancel()
	if l.conn != nil {
		_ = l.conn.Close()
	}
}
