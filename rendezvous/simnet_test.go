package rendezvous

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// simNet is a network of streams in memory and virtual time. A stream behaves like TCP: it keeps the order, a lost
// segment comes later, a process that dies ends its streams, and a cut network holds them up until they time out.
type simNet struct {
	delay  time.Duration // one way
	jitter time.Duration
	loss   float64 // of segments; each loss costs a retransmission
	rng    *rand.Rand

	mu    sync.Mutex
	hosts map[netip.AddrPort]*simHost
	cuts  map[[2]netip.AddrPort]time.Time // from, to
	conns map[*simConn]struct{}
	seen  simHook // every message when it is sent; with mu held
	came  simHook // and when it arrives
	wg    sync.WaitGroup

	bytes, messages map[netip.AddrPort]int // sent and received, by host
	table           []byte                 // the last long segment

	udpLoss float64 // of packets; one in ten of the rest comes twice, and any may be overtaken
	met     tally

	cpu *simCPU // nil = no work takes any time
}

// tally counts what happened, over all runs of a test.
type tally map[string]int

type simHook func(from *simHost, to netip.AddrPort, k kind, b []byte)

// simHost answers at an address.
type simHost struct {
	addr   netip.AddrPort
	node   *Node // nil = nothing listens
	id     string
	secret string // a dialler with another one is turned away, and so is one of another attempt
	try    int
	silent bool // dials and what is sent vanish
	closed bool // a firewall drops connections to it, and lets its own pass
	paused bool
	resume chan struct{} // closed when it is not paused

	streams chan net.Conn // of gossip; nil = it does not gossip
	packets []packet      // that have arrived
	arrived sync.Cond
	deaf    bool      // to packets
	sent    time.Time // its last long segment

	work   []*simWork    // for the processors; under their lock
	ready  time.Time     // since when it waits for its turn
	waited time.Duration // for them
}

type packet struct {
	from netip.AddrPort
	b    []byte
}

func newSimNet(rng *rand.Rand) *simNet {
	return &simNet{
		delay: 100 * time.Microsecond, rng: rng,
		hosts: map[netip.AddrPort]*simHost{}, cuts: map[[2]netip.AddrPort]time.Time{}, conns: map[*simConn]struct{}{},
		bytes: map[netip.AddrPort]int{}, messages: map[netip.AddrPort]int{}, met: tally{},
	}
}

const (
	simRetransmit = 200 * time.Millisecond
	simKeepalive  = 10 * time.Second // a stream without a way dies after it
	simNotice     = 6 * time.Second  // the same for the side that notices last, as cmd shortens the keepalive
)

// simPauses are the pauses after which a kernel repeats the first packet of a connection, and at last the rest of the
// time that rsh allows.
var simPauses = [...]time.Duration{time.Second, 2 * time.Second, 2 * time.Second}

// listen puts a host at its address, in place of the one before.
func (s *simNet) listen(h *simHost) *simHost {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.resume == nil {
		h.resume = make(chan struct{})
		close(h.resume)
	}
	h.arrived.L = &s.mu
	s.hosts[h.addr] = h
	return h
}

// nodeOf returns the node of a host, nil if it has ended.
func (s *simNet) nodeOf(h *simHost) *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.node
}

// dialer is Config.Dial of the host.
func (s *simNet) dialer(h *simHost) func(context.Context, string, netip.AddrPort) (io.ReadWriteCloser, error) {
	return func(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error) {
		wait := func(d time.Duration) error {
			select {
			case <-time.After(d):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := s.awake(ctx, h); err != nil {
			return nil, err
		}
		if err := wait(s.way() + s.way()); err != nil {
			return nil, err
		}
		var to *simHost
		nobody := false
		for i := 0; ; i++ {
			s.mu.Lock()
			to = s.hosts[addr]
			lost := to != nil && (to.silent || to.closed) || h.silent || s.cut(h.addr, addr) || s.cut(addr, h.addr)
			nobody = to == nil || to.node == nil
			s.mu.Unlock()
			if !lost {
				break
			}
			if i == 0 {
				s.meet("silent dial")
			}
			if i == len(simPauses) {
				return nil, os.ErrDeadlineExceeded
			}
			if err := wait(simPauses[i]); err != nil {
				return nil, err
			}
		}
		if nobody {
			s.meet("refused dial")
			return nil, syscall.ECONNREFUSED
		}
		if err := s.awake(ctx, to); err != nil { // only the kernel answers
			return nil, err
		}
		if err := s.login(ctx, h, to); err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		node := to.node
		switch {
		case node == nil || s.hosts[addr] != to || s.hosts[h.addr] != h:
			return nil, syscall.ECONNREFUSED
		case to.secret != h.secret:
			s.met["dial that meets another secret"]++
			return nil, &simKeyError{ErrOtherSecret}
		case to.try != h.try:
			s.met["dial that meets another attempt"]++
			return nil, &simKeyError{ErrOtherJob}
		case id != "" && id != to.id:
			s.met["dial that meets somebody else"]++
			return nil, fmt.Errorf("the container there %w", ErrOtherContainer)
		}
		a, b := s.pipe(h, to)
		s.wg.Go(func() { node.Accept(context.Background(), b, nil) })
		return a, nil
	}
}

// simLogin is rsh's timeout of a login.
const simLogin = 20 * time.Second

// login uses the processor time of a login, which is lost if the login times out.
func (s *simNet) login(ctx context.Context, h, to *simHost) error {
	if s.cpu == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, simLogin)
	defer cancel()
	for _, host := range []*simHost{h, to, h, to} {
		s.cpu.use(ctx, host, "logins", s.cpu.cost.step)
		if ctx.Err() != nil {
			s.meet("login cut half way")
			return ctx.Err()
		}
	}
	s.meet("login")
	return nil
}

// cpuCosts returns the costs of work; zero where it takes no time.
func (s *simNet) cpuCosts() simCosts {
	if s.cpu == nil {
		return simCosts{}
	}
	return s.cpu.cost
}

// pipe is a stream between two hosts; the net's lock is held.
func (s *simNet) pipe(h, to *simHost) (a, b *simConn) {
	a, b = &simConn{net: s, host: h, to: to.addr}, &simConn{net: s, host: to, to: h.addr}
	a.peer, b.peer = b, a
	a.cond.L, b.cond.L = &s.mu, &s.mu
	s.conns[a], s.conns[b] = struct{}{}, struct{}{}
	return a, b
}

func (s *simNet) meet(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.met[what]++
}

type simKeyError struct{ err error }

func (e *simKeyError) Error() string { return "the container there " + e.err.Error() }
func (e *simKeyError) Unwrap() error { return e.err }

func (s *simNet) awake(ctx context.Context, h *simHost) error {
	s.mu.Lock()
	c := h.resume
	s.mu.Unlock()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// way returns the time that one segment takes to the other side.
func (s *simNet) way() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wayLocked()
}

func (s *simNet) wayLocked() time.Duration {
	d := s.delay
	if s.jitter > 0 {
		d += time.Duration(s.rng.Int64N(int64(s.jitter)))
	}
	for again := simRetransmit; s.loss > 0 && s.rng.Float64() < s.loss && again < 4*time.Second; again *= 2 {
		d += again
	}
	return d
}

func (s *simNet) cut(from, to netip.AddrPort) bool {
	_, cut := s.cuts[[2]netip.AddrPort{from, to}]
	return cut
}

// setCut cuts or restores one direction.
func (s *simNet) setCut(from, to netip.AddrPort, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := [2]netip.AddrPort{from, to}
	if !cut {
		delete(s.cuts, key)
		for c := range s.conns {
			c.pump()
		}
		return
	}
	if s.cut(from, to) {
		return
	}
	at := time.Now()
	s.cuts[key] = at
	time.AfterFunc(simKeepalive, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.cuts[key].Equal(at) {
			return
		}
		for c := range s.conns {
			if c.host.addr == from && c.to == to {
				c.fail(syscall.ETIMEDOUT)
				c.peer.fail(syscall.ETIMEDOUT)
			}
		}
	})
}

// tear ends the streams of a host that is cut off: on the other side at once, and here when it notices that.
func (s *simNet) tear(h *simHost) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.host == h {
			c.peer.fail(syscall.EHOSTUNREACH)
			time.AfterFunc(simNotice, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				c.fail(syscall.ETIMEDOUT)
			})
		}
	}
}

func (s *simNet) pause(h *simHost, paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.paused == paused {
		return
	}
	h.paused = paused
	if paused {
		h.resume = make(chan struct{})
		return
	}
	close(h.resume)
	h.arrived.Broadcast()
	for c := range s.conns {
		c.cond.Broadcast()
	}
}

// kill ends the process at a host, and the kernel closes its streams. A host that loses its power sends nothing, and
// the others find out when their streams time out.
func (s *simNet) kill(h *simHost, power bool) {
	s.pause(h, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	h.node = nil
	h.silent = h.silent || power
	h.deaf = true
	h.arrived.Broadcast()
	for c := range s.conns {
		if c.host != h {
			continue
		}
		if power {
			p := c.peer
			c.fail(io.ErrClosedPipe)
			time.AfterFunc(simKeepalive, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				p.fail(syscall.ETIMEDOUT)
			})
			continue
		}
		c.closeLocked()
	}
}

// simConn is one side of a stream.
type simConn struct {
	net  *simNet
	host *simHost
	to   netip.AddrPort
	peer *simConn
	cond sync.Cond

	out    []segment // on the way to peer
	last   time.Time // when the last of them arrives
	in     []byte
	eof    bool
	closed bool
	err    error
	gossip bool
	begun  bool      // its first bytes were read
	until  time.Time // deadlines
	write  time.Time
}

// longSegment is the least length of a segment with the table of a large job. Thousands of copies of it at one moment
// would fill the memory.
const longSegment = 64 << 10

type segment struct {
	at  time.Time
	b   []byte
	fin bool
}

func (c *simConn) Write(b []byte) (int, error) {
	s := c.net
	s.mu.Lock()
	defer s.mu.Unlock()
	c.tell(s.seen, b)
	for c.host.paused && !c.closed && c.err == nil {
		c.cond.Wait()
	}
	if !c.write.IsZero() && !time.Now().Before(c.write) {
		return 0, os.ErrDeadlineExceeded
	}
	switch {
	case c.closed:
		return 0, io.ErrClosedPipe
	case c.err != nil:
		return 0, c.err
	}
	for _, a := range []netip.AddrPort{c.host.addr, c.to} {
		s.bytes[a] += len(b)
		s.messages[a]++
	}
	c.push(segment{b: s.copyOf(b)})
	return len(b), nil
}

// copyOf returns a copy of what was written. Thousands of ranks get the same table at one moment: they share its copy.
func (s *simNet) copyOf(b []byte) []byte {
	if len(b) < longSegment {
		return bytes.Clone(b)
	}
	if !bytes.Equal(b, s.table) {
		s.table = bytes.Clone(b)
	}
	return s.table
}

// push sends a segment; the net's lock is held.
func (c *simConn) push(g segment) {
	sent := time.Now()
	if len(g.b) >= longSegment { // a host sends them one after the other, so that few ranks unpack one at a time
		if last := c.host.sent; !sent.After(last) {
			sent = last.Add(time.Nanosecond)
		}
		c.host.sent = sent
	}
	g.at = sent.Add(c.net.wayLocked())
	if g.at.Before(c.last) {
		g.at = c.last
	}
	c.last = g.at
	c.out = append(c.out, g)
	time.AfterFunc(time.Until(g.at), func() {
		c.net.mu.Lock()
		defer c.net.mu.Unlock()
		c.pump()
	})
}

// pump delivers the segments that have arrived.
func (c *simConn) pump() {
	now := time.Now()
	for len(c.out) > 0 && !c.out[0].at.After(now) && !c.net.cut(c.host.addr, c.to) {
		g := c.out[0]
		c.out = c.out[1:]
		p := c.peer
		switch {
		case g.fin:
			p.eof = true
		case p.closed:
			c.fail(syscall.ECONNRESET)
		default:
			c.tell(c.net.came, g.b)
			if len(p.in) == 0 {
				p.in = slices.Clip(g.b) // without a copy
			} else {
				p.in = append(p.in, g.b...)
			}
		}
		p.cond.Broadcast()
	}
}

func (c *simConn) fail(err error) {
	if c.err == nil {
		c.err = err
		c.out = nil
		c.cond.Broadcast()
	}
}

func (c *simConn) Read(b []byte) (int, error) {
	n, err := c.read(b)
	switch {
	case n == 0:
	case !c.gossip:
		c.net.cpu.use(context.Background(), c.host, "messages", c.net.cpuCosts().message)
	case !c.begun:
		c.begun = true
		c.net.cpu.use(context.Background(), c.host, "gossip streams", c.net.cpuCosts().stream)
	}
	return n, err
}

func (c *simConn) read(b []byte) (int, error) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, io.ErrClosedPipe
		case c.host.paused:
		case len(c.in) > 0:
			n := copy(b, c.in)
			if c.in = c.in[n:]; len(c.in) == 0 {
				c.in = nil
			}
			return n, nil
		case c.err != nil:
			return 0, c.err
		case c.eof:
			return 0, io.EOF
		case !c.until.IsZero() && !time.Now().Before(c.until):
			return 0, os.ErrDeadlineExceeded
		}
		c.cond.Wait()
	}
}

func (c *simConn) Close() error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	for c.host.paused && !c.closed { // a frozen process closes nothing, though its timers run here
		c.cond.Wait()
	}
	c.closeLocked()
	return nil
}

func (c *simConn) closeLocked() {
	if c.closed {
		return
	}
	c.closed = true
	if c.err == nil && !c.host.silent {
		c.push(segment{fin: true})
	}
	c.cond.Broadcast()
	if c.peer.closed {
		delete(c.net.conns, c)
		delete(c.net.conns, c.peer)
	}
}

// tell splits written bytes into messages.
func (c *simConn) tell(f simHook, b []byte) {
	for f != nil && !c.gossip && len(b) > 0 {
		size, n := binary.Uvarint(b)
		if n <= 0 || size == 0 || size > uint64(len(b)-n) {
			return
		}
		f(c.host, c.to, kind(b[n]), b[n:n+int(size)])
		b = b[n+int(size):]
	}
}

// These methods are what memberlist needs of a stream.

func (c *simConn) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(c.host.addr) }
func (c *simConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.to) }

func (c *simConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *simConn) SetReadDeadline(t time.Time) error  { return c.deadline(&c.until, t) }
func (c *simConn) SetWriteDeadline(t time.Time) error { return c.deadline(&c.write, t) }

func (c *simConn) deadline(which *time.Time, t time.Time) error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	*which = t
	c.cond.Broadcast()
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), func() {
			c.net.mu.Lock()
			defer c.net.mu.Unlock()
			c.cond.Broadcast()
		})
	}
	return nil
}

// port returns the host's port for gossip.
func (s *simNet) port(h *simHost) *Port {
	h.streams = make(chan net.Conn, 64)
	closed := make(chan struct{})
	l := &simListener{h, closed, sync.Once{}}
	p := newPort(l, &simPackets{s, h}, func(ctx context.Context, _, addr string) (net.Conn, error) {
		ap, err := netip.ParseAddrPort(addr)
		if err != nil {
			return nil, err
		}
		return s.dialGossip(ctx, h, ap)
	}, nil, slog.New(slog.DiscardHandler))
	ssh := p.SSH("SSH-2.0-simulated\r\n")
	p.wg.Go(func() { // only gossip streams come to this port, so that none belongs here
		for {
			c, err := ssh.Accept()
			if err != nil {
				return
			}
			s.meet("gossip stream taken for SSH")
			_ = c.Close()
		}
	})
	return p
}

func (s *simNet) dialGossip(ctx context.Context, h *simHost, addr netip.AddrPort) (net.Conn, error) {
	if err := s.awake(ctx, h); err != nil {
		return nil, err
	}
	select {
	case <-time.After(s.way() + s.way()):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	to := s.hosts[addr]
	lost := to != nil && (to.silent || to.closed) || h.silent || s.cut(h.addr, addr) || s.cut(addr, h.addr)
	if lost {
		s.mu.Unlock()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	a, err := s.openGossip(h, to)
	s.mu.Unlock()
	if err == nil { // connected, and our first byte comes when we have our turn
		s.cpu.use(ctx, h, "gossip streams", s.cpuCosts().stream)
	}
	return a, err
}

// openGossip does what the kernels do; the net's lock is held.
func (s *simNet) openGossip(h, to *simHost) (net.Conn, error) {
	if to == nil || to.node == nil || to.streams == nil || s.hosts[h.addr] != h {
		return nil, syscall.ECONNREFUSED
	}
	a, b := s.pipe(h, to)
	a.gossip, b.gossip = true, true
	select {
	case to.streams <- b:
		s.met["gossip stream"]++
		return a, nil
	default:
		return nil, syscall.ECONNREFUSED
	}
}

type simListener struct {
	host   *simHost
	closed chan struct{}
	once   sync.Once
}

func (l *simListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.host.streams:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *simListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *simListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.host.addr) }

// simPackets is UDP: packets may be lost, come twice, late, or in another order.
type simPackets struct {
	net  *simNet
	host *simHost
}

const simSocketBuffer = 128 // packets

func (u *simPackets) WriteTo(b []byte, to net.Addr) (int, error) {
	s, h := u.net, u.host
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.deaf {
		return 0, net.ErrClosed
	}
	addr := to.(*net.UDPAddr).AddrPort()
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	p := packet{h.addr, append([]byte(nil), b...)}
	s.met["gossip packet"]++
	if s.rng.Float64() < s.udpLoss {
		s.met["gossip packet lost"]++
		return len(b), nil
	}
	copies := 1
	if s.udpLoss > 0 && s.rng.IntN(10) == 0 {
		copies = 2
		s.met["gossip packet twice"]++
	}
	for range copies {
		d := s.delay + time.Duration(s.rng.Int64N(int64(s.jitter)+1))
		if s.udpLoss > 0 {
			switch s.rng.IntN(8) {
			case 0:
				d += time.Duration(s.rng.IntN(5000)) * time.Millisecond
				s.met["gossip packet late"]++
			case 1, 2:
				d += time.Duration(s.rng.IntN(200)) * time.Millisecond // overtaken by the next ones
				s.met["gossip packet overtaken"]++
			}
		}
		time.AfterFunc(d, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			to := s.hosts[addr]
			switch {
			case to == nil || to.deaf || s.cut(h.addr, addr) || len(to.packets) >= simSocketBuffer:
				s.met["gossip packet to nobody"]++
			default:
				to.packets = append(to.packets, p)
				to.arrived.Broadcast()
			}
		})
	}
	return len(b), nil
}

func (u *simPackets) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := u.readFrom(b)
	if err == nil {
		u.net.cpu.use(context.Background(), u.host, "packets", u.net.cpuCosts().packet)
	}
	return n, from, err
}

func (u *simPackets) readFrom(b []byte) (int, net.Addr, error) {
	u.net.mu.Lock()
	defer u.net.mu.Unlock()
	h := u.host
	for h.paused || len(h.packets) == 0 {
		if h.deaf {
			return 0, nil, net.ErrClosed
		}
		h.arrived.Wait()
	}
	p := h.packets[0]
	h.packets = h.packets[1:]
	return copy(b, p.b), net.UDPAddrFromAddrPort(p.from), nil
}

func (u *simPackets) Close() error {
	u.net.mu.Lock()
	defer u.net.mu.Unlock()
	u.host.deaf = true
	u.host.arrived.Broadcast()
	return nil
}

func (u *simPackets) LocalAddr() net.Addr              { return net.UDPAddrFromAddrPort(u.host.addr) }
func (u *simPackets) SetDeadline(time.Time) error      { return nil }
func (u *simPackets) SetReadDeadline(time.Time) error  { return nil }
func (u *simPackets) SetWriteDeadline(time.Time) error { return nil }
