// Package rsh runs commands on the other containers of a job, the way rsh and ssh would, for mpirun and its relatives.
//
// It hides three things. A Pool keeps one authenticated SSH connection to each peer, dialled when it is first needed and
// again when it was lost, so that a command costs two round trips instead of a login; a control channel between two
// containers goes over the same connection. Parse reads the command lines that launchers make for a remote shell. And ServeAgent
// with Run are the two halves of the remote shell itself: Run, in the process that the launcher starts, only hands its
// standard files and its command line to ServeAgent in the container's own paiinit, which has the warm connections.
//
// It refuses to talk to anybody whose host key is not the one derived for that container: there is no "accept new", no
// known_hosts and no option for it. It never asks a person, forwards nothing, and reads no file.
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

// Target is a container to reach. Name is used in messages, ID selects the host key that it must prove to have. If ID
// is empty, the container's own claim selects it; it still has to prove that key, and so that it belongs to the job.
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

// Config says who we are and whom we accept.
type Config struct {
	User  ssh.Signer                    // the job's login key
	Host  func(id string) ssh.PublicKey // the host key to expect of the container with this id; nil result = of nobody
	Label string                        // the label of our job and attempt; "" = do not compare labels

	DialTimeout     time.Duration // for connecting, which has 5 s of it at most, handshake and login together; 0 = 20 s
	Keepalive       time.Duration // between two requests for a sign of life on each connection, which Watch may change; 0 = 15 s
	KeepaliveMisses int           // the connection is lost when one is not answered for so many times Keepalive; 0 = 3

	Sessions int // on one connection before another one is made; fewer where the peer refuses; 0 = 64

	// Silence is for how long the machine of a peer may acknowledge nothing before the connection is lost; 0 = 20 s. A process that is
	// stopped is not silent: its kernel answers. Watch changes it.
	Silence time.Duration

	// Dial opens a stream to a peer; nil = TCP.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)

	Logger *slog.Logger // nil = discard
}

func (c Config) withDefaults() Config {
	if c.DialTimeout == 0 {
		c.DialTimeout = 20 * time.Second
	}
	if c.Keepalive == 0 {
		c.Keepalive = 15 * time.Second
	}
	if c.KeepaliveMisses == 0 {
		c.KeepaliveMisses = 3
	}
	if c.Sessions == 0 {
		c.Sessions = 64
	}
	if c.Silence == 0 {
		c.Silence = 20 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Pool holds one connection to each peer, by ID and address, and more while that one has no room for another session. Its methods may be called at the same time.
type Pool struct {
	cfg    Config
	mu     sync.Mutex
	links  map[peer]*link
	watch  time.Duration // Config.Silence, or what Watch has made of it
	pause  atomic.Int64  // Config.Keepalive, or what Watch has made of it
	turns  turns
	closed bool
	wg     sync.WaitGroup // all goroutines; nothing is added once closed is set

	longestTurn time.Duration // longestTurn, except in tests
}

type peer struct {
	id   string
	addr netip.AddrPort
	lane int // 0, and more where a peer has more sessions than it allows on one connection
}

// link is a connection that is being made (until ready is closed) or was made (conn) or could not be (err).
type link struct {
	keys    []peer // where the pool has it
	ready   chan struct{}
	cancel  context.CancelFunc // ends the dialling
	limit   *time.Timer        // does the same; stopped while the login waits for its turn
	stage   atomic.Value       // string; how far the dialling is
	waiting int                // callers that wait for ready; under Pool.mu

	sessions, room int // that are open or being opened, and how many can be; under Pool.mu

	conn ssh.Conn
	tcp  *greeting
	id   string // the peer's id, proven
	lost chan struct{}
	err  error
}

var errClosed = errors.New("rsh: the pool is closed")

// New returns a pool without connections. Close it.
func New(cfg Config) *Pool {
	cfg = cfg.withDefaults()
	p := &Pool{cfg: cfg, watch: cfg.Silence, links: map[peer]*link{}, longestTurn: longestTurn}
	p.pause.Store(int64(cfg.Keepalive))
	return p
}

// Watch changes Config.Silence and the time between two requests for a sign of life, also for the connections that there are. While
// nothing depends on a connection it is better kept where packets get lost; once something does, the end of its machine must be noticed
// soon. The kernels see to that without waking anybody; a request wakes both ends, and does so in the middle of the job.
func (p *Pool) Watch(silence, keepalive time.Duration) {
	p.pause.Store(int64(keepalive))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = silence
	for _, l := range p.links {
		if l.tcp != nil {
			_ = tcp.Watch(l.tcp.Conn, silence) // it fails where the connection has ended
		}
	}
}

// Close closes all connections, which ends what runs over them, and waits for every goroutine of the pool. It may be
// called more than once.
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

// start runs f in a goroutine that Close waits for, or says that the pool is closed.
func (p *Pool) start(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Go(f)
	return true
}

// Control opens the channel "control@paiinit" on the kept connection. Its Read ends with an error, io.EOF or another,
// as soon as the peer closes the channel or the connection is lost, and that is how a loss is noticed: there is no
// other signal. Where the machine of the peer has fallen silent, it is syscall.ETIMEDOUT. Close ends Read and Write at
// once, also when the peer's processes are frozen. Write may still read its argument after that, so the caller does not
// change what it has written. The error is a *DialError. The caller closes the channel.
func (p *Pool) Control(ctx context.Context, t Target) (io.ReadWriteCloser, error) {
	ch, reqs, l, err := p.open(ctx, t, "control@paiinit")
	if err != nil {
		return nil, err
	}
	in, pump := io.Pipe()
	c := &control{ch: ch, in: in, tcp: l.tcp, pool: p, closed: make(chan struct{})}
	if !p.start(func() { ssh.DiscardRequests(reqs) }) ||
		!p.start(func() { _ = pump.CloseWithError(copyControl(pump, ch, l.tcp)) }) {
		_ = ch.Close()
		return nil, &DialError{t, stageChannel, errClosed}
	}
	return c, nil
}

// control is a channel that Close ends without the peer. Read and Write of an ssh.Channel wait for the peer's own
// close, and Close for room in the socket: a frozen peer gives none of them until its connection ends. They run in
// goroutines that Pool.Close waits for.
type control struct {
	ch     ssh.Channel
	in     *io.PipeReader
	tcp    *greeting
	pool   *Pool
	closed chan struct{}
	once   sync.Once
}

func (c *control) Read(b []byte) (int, error) { return c.in.Read(b) }

func (c *control) Write(b []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	written := make(chan result, 1)
	if !c.pool.start(func() {
		n, err := c.ch.Write(b)
		written <- result{n, err}
	}) {
		return 0, errClosed
	}
	select {
	case r := <-written:
		return r.n, r.err
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

// LocalAddr returns the address of this container on the connection.
func (c *control) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

func (c *control) Close() error {
	c.once.Do(func() {
		close(c.closed)
		_ = c.in.Close()
		c.pool.start(func() { _ = c.ch.Close() }) // a closed pool has ended the connection already
	})
	return nil
}

// copyControl hands on what the peer sends until its channel ends, and returns why it ended.
func copyControl(to io.Writer, ch ssh.Channel, tcp *greeting) error {
	b := make([]byte, controlBuffer)
	for {
		n, err := ch.Read(b)
		if n > 0 {
			if _, werr := to.Write(b[:n]); werr != nil {
				return werr
			}
		}
		if err != nil {
			return tcp.loss.Explain(err)
		}
	}
}

// controlBuffer holds nearly every message between two ranks.
const controlBuffer = 1024

// open opens a channel. A kept connection that turns out to be dead is replaced once.
func (p *Pool) open(ctx context.Context, t Target, kind string) (ssh.Channel, <-chan *ssh.Request, *link, error) {
	for fresh := false; ; fresh = true {
		l, err := p.link(ctx, t, 0)
		if err != nil {
			return nil, nil, nil, err
		}
		ch, reqs, err := p.openOn(ctx, l, kind)
		if err == nil {
			return ch, reqs, l, nil
		}
		// A peer that answers, even with a refusal, is not dead; and nobody waits any more when ctx has ended.
		var refused *ssh.OpenChannelError
		if fresh || errors.As(err, &refused) || ctx.Err() != nil {
			return nil, nil, nil, &DialError{t, stageChannel, err}
		}
		p.forget(l)
		l.close()
	}
}

// opened is a session channel and its place on a connection.
type opened struct {
	ch      ssh.Channel
	reqs    <-chan *ssh.Request
	link    *link
	release func() // once it is closed
}

// openSession is open for a session: on the first connection that has room for it. The caller calls release.
func (p *Pool) openSession(ctx context.Context, t Target) (*opened, error) {
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
		ch, reqs, err := p.openOn(ctx, l, "session")
		if err == nil {
			return &opened{ch, reqs, l, func() { p.leave(l) }}, nil
		}
		var refused *ssh.OpenChannelError
		switch full := p.leave(l); {
		case errors.As(err, &refused) && refused.Reason == ssh.ResourceShortage && (full > 0 || lane == 0):
			// Without any of ours the peer still ends some that we have left.
			p.limit(l, full)
			lane++
		case fresh || refused != nil || ctx.Err() != nil:
			return nil, &DialError{t, stageChannel, err}
		default:
			fresh = true
			p.forget(l)
			l.close()
		}
	}
}

// enter takes a place for a session on a connection, if there is one.
func (p *Pool) enter(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.sessions >= l.room {
		return false
	}
	l.sessions++
	return true
}

// leave gives a place back and returns how many are still taken. An extra connection without any is closed.
func (p *Pool) leave(l *link) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.sessions--
	if l.sessions == 0 && l.keys[0].lane > 0 {
		l.room = 0 // for somebody who has it already
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

// openOn opens a channel on one connection, which may not answer for as long as its keepalive allows.
//
// Nobody waits for its goroutine: when the connection ends in the moment between OpenChannel's making the channel and its
// sending the request, that call never returns (x/crypto v0.58 ssh/mux.go: loop ends the channels it knows, then closes the
// connection).
func (p *Pool) openOn(ctx context.Context, l *link, kind string) (ssh.Channel, <-chan *ssh.Request, error) {
	type opened struct {
		ch   ssh.Channel
		reqs <-chan *ssh.Request
		err  error
	}
	done := make(chan opened)
	go func() {
		ch, reqs, err := l.conn.OpenChannel(kind, nil)
		select {
		case done <- opened{ch, reqs, err}:
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
		return o.ch, o.reqs, o.err
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	case <-l.lost:
		return nil, nil, errLost
	}
}

// link returns the connection to the target, and makes one if there is none. All callers that come while it is being
// made wait for the same attempt, each for as long as its own ctx allows; when the last of them has left, it ends.
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
		limit := time.AfterFunc(p.cfg.DialTimeout, func() { end(fmt.Errorf("no answer within %v", p.cfg.DialTimeout)) })
		cancel := func() {
			limit.Stop()
			end(nil)
		}
		l = &link{keys: []peer{key}, ready: make(chan struct{}), cancel: cancel, limit: limit,
			lost: make(chan struct{}), room: p.cfg.Sessions}
		l.stage.Store(stageConnect)
		p.links[key] = l
		p.wg.Go(func() { p.dial(dialling, t, l) })
	}
	l.waiting++
	p.mu.Unlock()

	var gone error
	select {
	case <-l.ready:
	case <-ctx.Done():
		gone = context.Cause(ctx)
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
	return nil, &DialError{t, l.stage.Load().(string), gone}
}

// dial makes the connection of a new link and then looks after it until it is lost.
func (p *Pool) dial(ctx context.Context, t Target, l *link) {
	defer l.cancel()
	conn, greeted, chans, reqs, id, err := p.handshake(ctx, t, l)

	p.mu.Lock()
	if err == nil && (p.closed || p.links[l.keys[0]] != l) {
		_ = conn.Close() // nobody waits for it any more
		err = errClosed
	}
	if err != nil {
		l.err = &DialError{t, l.stage.Load().(string), err}
		p.drop(l)
		close(l.ready)
		p.mu.Unlock()
		return
	}
	l.conn, l.tcp, l.id = conn, greeted, id
	_ = tcp.Watch(greeted.Conn, p.watch) // it fails where the connection has ended
	if key := (peer{id, t.Addr, l.keys[0].lane}); p.links[key] == nil {
		l.keys = append(l.keys, key) // it was asked for without an id
		p.links[key] = l
	}
	close(l.ready)
	p.mu.Unlock()

	started := time.Now()
	log := p.cfg.Logger.With("peer", t.Name, "id", id, "addr", t.Addr)
	log.Debug("connected", "version", string(conn.ServerVersion()))
	var watch sync.WaitGroup
	watch.Go(func() { p.keepalive(l) })
	watch.Go(func() { ssh.DiscardRequests(reqs) })
	for ch := range chans {
		// Fails only if the connection does, which ends the loop.
		_ = ch.Reject(ssh.Prohibited, "paiinit's client accepts no channels")
	}
	close(l.lost)
	p.forget(l)
	l.close()
	watch.Wait()
	log.Debug("connection ended", "elapsed", time.Since(started), "err", conn.Wait())
}

// keepalive asks the peer for a sign of life until the connection is lost, or loses it itself when none comes.
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
			tick.Reset(p.cfg.Keepalive)
			if waiting {
				if missed++; missed >= p.cfg.KeepaliveMisses {
					p.cfg.Logger.Info("peer is silent, closing the connection", "id", l.id, "addr", l.keys[0].addr,
						"elapsed", p.cfg.Keepalive*time.Duration(missed))
					l.close()
				}
				continue
			}
			waiting = true
			go func() {
				// Any answer will do, also that the request is unknown. An error is followed by lost.
				_, _, _ = l.conn.SendRequest("keepalive@openssh.com", true, nil)
				answered <- struct{}{}
			}()
		}
	}
}

// forget makes the next caller dial again.
func (p *Pool) forget(l *link) {
	p.mu.Lock()
	p.drop(l)
	p.mu.Unlock()
}

// drop is forget with p.mu held.
func (p *Pool) drop(l *link) {
	for _, k := range l.keys {
		if p.links[k] == l {
			delete(p.links, k)
		}
	}
}

// close ends a link, whatever state it is in. It needs p.mu, or a link that is ready.
func (l *link) close() {
	l.cancel()
	if l.conn != nil {
		_ = l.conn.Close()
	}
}
