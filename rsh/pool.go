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
	Login string                        // user name to log in with; "" = "root"

	DialTimeout     time.Duration // for connecting, handshake and login together; 0 = 5 s
	Keepalive       time.Duration // between two requests for a sign of life on each connection; 0 = 15 s
	KeepaliveMisses int           // this many unanswered ones in a row end the connection; 0 = 3

	// Dial opens a stream to a peer; nil = TCP.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)

	Logger *slog.Logger // nil = discard
}

func (c Config) withDefaults() Config {
	if c.Login == "" {
		c.Login = "root"
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.Keepalive == 0 {
		c.Keepalive = 15 * time.Second
	}
	if c.KeepaliveMisses == 0 {
		c.KeepaliveMisses = 3
	}
	if c.Dial == nil {
		c.Dial = c.dialTCP
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Pool holds one connection to each peer, by ID and address. Its methods may be called at the same time.
type Pool struct {
	cfg    Config
	mu     sync.Mutex
	links  map[peer]*link
	closed bool
	wg     sync.WaitGroup // all goroutines; nothing is added once closed is set
}

type peer struct {
	id   string
	addr netip.AddrPort
}

// link is a connection that is being made (until ready is closed) or was made (conn) or could not be (err).
type link struct {
	keys    []peer // where the pool has it
	ready   chan struct{}
	cancel  context.CancelFunc // ends the dialling
	stage   atomic.Value       // string; how far the dialling is
	waiting int                // callers that wait for ready; under Pool.mu

	conn ssh.Conn
	id   string // the peer's id, proven
	lost chan struct{}
	err  error
}

var errClosed = errors.New("rsh: the pool is closed")

// New returns a pool without connections. Close it.
func New(cfg Config) *Pool {
	return &Pool{cfg: cfg.withDefaults(), links: map[peer]*link{}}
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

// Connect makes sure that there is a connection to the target, so that later calls need not wait for one, and returns the
// target with the ID that it proved. The error is a *DialError.
func (p *Pool) Connect(ctx context.Context, t Target) (Target, error) {
	l, err := p.link(ctx, t)
	if err != nil {
		return t, err
	}
	t.ID = l.id
	return t, nil
}

// Control opens the channel "control@paiinit" on the kept connection. Its Read ends with an error, io.EOF or another, as soon as
// the peer closes the channel or the connection is lost, and that is how a loss is noticed: there is no other signal.
// The error is a *DialError. The caller closes the channel.
func (p *Pool) Control(ctx context.Context, t Target) (io.ReadWriteCloser, error) {
	ch, reqs, _, err := p.open(ctx, t, "control@paiinit")
	if err != nil {
		return nil, err
	}
	if !p.start(func() { ssh.DiscardRequests(reqs) }) {
		_ = ch.Close()
		return nil, &DialError{t, StageChannel, errClosed}
	}
	return ch, nil
}

// open opens a channel. A kept connection that turns out to be dead is replaced once.
func (p *Pool) open(ctx context.Context, t Target, kind string) (ssh.Channel, <-chan *ssh.Request, *link, error) {
	for fresh := false; ; fresh = true {
		l, err := p.link(ctx, t)
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
			return nil, nil, nil, &DialError{t, StageChannel, err}
		}
		p.forget(l)
		l.close()
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
func (p *Pool) link(ctx context.Context, t Target) (*link, error) {
	key := peer{t.ID, t.Addr}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, &DialError{t, StageConnect, errClosed}
	}
	l := p.links[key]
	if l == nil {
		dialling, cancel := context.WithTimeoutCause(context.Background(), p.cfg.DialTimeout,
			fmt.Errorf("no answer within %v", p.cfg.DialTimeout))
		l = &link{keys: []peer{key}, ready: make(chan struct{}), cancel: cancel, lost: make(chan struct{})}
		l.stage.Store(StageConnect)
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
	conn, chans, reqs, id, err := p.handshake(ctx, t, &l.stage)

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
	l.conn, l.id = conn, id
	if key := (peer{id, t.Addr}); p.links[key] == nil {
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
	tick := time.NewTicker(p.cfg.Keepalive)
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
		case <-tick.C:
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
