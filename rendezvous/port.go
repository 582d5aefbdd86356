package rendezvous

import (
	"bufio"
	"bytes"
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// Streams of memberlist with a label begin with this byte (memberlist v0.7 net.go, hasLabelMsg); ours have one.
	// SSH identification strings begin with "SSH-" (RFC 4253, section 4.2).
	gossipByte = 244

	// Methods of HTTP/1 begin with a capital letter. This one is SSH's: no method that is answered has it.
	sshByte = 'S'

	// A connection that has sent nothing for this long may be an SSH client that waits for our identification, and gets
	// it. It may also be a slow gossip stream: the first byte still decides, and our gossip skips the identification.
	silence = 200 * time.Millisecond

	// The same where the port answers HTTP: the client that sends an HTTP request must not read the identification.
	silenceHTTP = 2 * time.Second

	// A connection that has sent nothing after this time goes to the SSH server and its login deadline.
	maxSilence = 10 * time.Second

	// At most this many connections await their first byte; one more sends the oldest to the SSH server.
	maxUndecided = 1024

	portTries = 64
)

// Port is the one port of a container: SSH, gossip streams and, where it is wanted, HTTP on TCP; gossip packets on UDP
// with the same number.
type Port struct {
	tcp     net.Listener
	udp     net.PacketConn // nil = UDP is not available
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	log     *slog.Logger
	refused repeats
	wg      sync.WaitGroup
	done    chan struct{}
	once    sync.Once

	ssh     chan net.Conn
	http    chan net.Conn
	streams chan net.Conn
	packets chan *memberlist.Packet

	admission *admission
	gossip    context.Context // ends with gossip, or at once in a container that does not gossip
	mute      context.CancelFunc
	allowed   map[netip.Addr]bool // nil = every address

	mu         sync.Mutex
	waits      list.List     // of net.Conn: connections that await their first byte, the oldest first
	undecided  int           // maximum length of waits
	silence    time.Duration // until the identification is sent
	maxSilence time.Duration // until the connection goes to the SSH server
	greeting   string        // the identification; "" = only the SSH server sends it
	speaksHTTP bool
}

// Listen opens the port on all addresses, IPv6 and IPv4. If the number is taken on TCP or UDP, it takes the next free
// one of the 63 above it; 0 lets the kernel choose. A job without a secret drops what comes from elsewhere than only.
func Listen(ctx context.Context, port int, only []netip.Addr, logger *slog.Logger) (*Port, error) {
	return listen(ctx, "", port, only, logger)
}

func listen(ctx context.Context, host string, port int, only []netip.Addr, logger *slog.Logger) (*Port, error) {
	var allowed map[netip.Addr]bool
	if only != nil {
		allowed = make(map[netip.Addr]bool, len(only))
		for _, a := range only {
			allowed[a.Unmap()] = true
		}
	}
	tcp, udp, err := bindNext(ctx, host, port, true)
	if err != nil {
		return nil, err
	}
	return newPort(tcp, udp, (&net.Dialer{}).DialContext, allowed, logger), nil
}

// ListenHTTP opens the port of a container that is the whole job, and needs it for HTTP alone: TCP, as Listen does. It
// closes every other connection.
func ListenHTTP(ctx context.Context, port int, logger *slog.Logger) (*Port, net.Listener, error) {
	tcp, _, err := bindNext(ctx, "", port, false)
	if err != nil {
		return nil, nil, err
	}
	p := newPort(tcp, nil, nil, nil, logger)
	p.mute()
	p.wg.Go(func() {
		for {
			select {
			case conn := <-p.ssh:
				_ = conn.Close()
			case <-p.done:
				return
			}
		}
	})
	return p, p.HTTP(), nil
}

// bindNext takes the port, or the next free one.
func bindNext(ctx context.Context, host string, port int, gossips bool) (net.Listener, net.PacketConn, error) {
	var first error
	for try := range portTries {
		n := port
		if port != 0 {
			n += try
		}
		if n > 65535 {
			break
		}
		tcp, udp, err := bind(ctx, host, n, gossips)
		if err == nil {
			return tcp, udp, nil
		}
		first = cmp.Or(first, err)
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, nil, fmt.Errorf("listening on port %d: %w", port, first)
}

func newPort(
	tcp net.Listener, udp net.PacketConn, dial func(context.Context, string, string) (net.Conn, error),
	allowed map[netip.Addr]bool, logger *slog.Logger,
) *Port {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	files := openFiles()
	p := &Port{
		tcp: tcp, udp: udp, dial: dial, log: logger, allowed: allowed, refused: repeats{log: logger},
		done:      make(chan struct{}),
		admission: newAdmission(files),
		ssh:       make(chan net.Conn),
		http:      make(chan net.Conn),
		streams:   make(chan net.Conn),
		packets:   make(chan *memberlist.Packet, 256),
		undecided: min(maxUndecided, files/8), silence: silence, maxSilence: maxSilence,
	}
	p.gossip, p.mute = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	if udp != nil {
		p.wg.Go(p.receive)
	}
	return p
}

// openFiles returns RLIMIT_NOFILE. Connections that have not authenticated yet get at most about half of it: an eighth
// before their first byte, an eighth each for gossip of ranks and of other addresses, a quarter in the SSH server.
func openFiles() int {
	limit := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) // if it fails, the usual limit stays
	return int(max(64, min(limit.Cur, 1<<20)))
}

func bind(ctx context.Context, host string, port int, gossips bool) (net.Listener, net.PacketConn, error) {
	var lc net.ListenConfig
	tcp, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil || !gossips {
		return tcp, nil, err
	}
	port = tcp.Addr().(*net.TCPAddr).Port
	udp, err := lc.ListenPacket(ctx, "udp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err == nil {
		return tcp, udp, nil
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		_ = tcp.Close()
		return nil, nil, err
	}
	return tcp, nil, nil // UDP is not available: gossip uses TCP alone
}

// Number returns the port that was taken.
func (p *Port) Number() int { return p.tcp.Addr().(*net.TCPAddr).Port }

// SSH returns the listener of the connections that are neither gossip nor HTTP; closing it closes only the listener.
// greeting is the identification that the SSH server writes first: the port sends it to a client that waits for it, and
// drops it from what the server writes. With "" the server gets every connection that is silent at first.
func (p *Port) SSH(greeting string) net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.greeting = greeting
	return &portListener{port: p, conns: p.ssh, closed: make(chan struct{})}
}

// HTTP has the port tell HTTP from SSH, and returns the listener of these connections; closing it closes only the
// listener. Without a call of HTTP they go to the SSH server.
func (p *Port) HTTP() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.speaksHTTP, p.silence = true, silenceHTTP
	return &portListener{port: p, conns: p.http, closed: make(chan struct{})}
}

// isHTTP reports whether a connection whose first byte is this one is HTTP.
func isHTTP(first byte) bool { return 'A' <= first && first <= 'Z' && first != sshByte }

func (p *Port) mayCome(from net.Addr) bool {
	if p.allowed == nil {
		return true
	}
	ap, err := netip.ParseAddrPort(from.String())
	return err == nil && p.allowed[ap.Addr().Unmap()]
}

// refuse logs a connection from outside the list of hosts.
func (p *Port) refuse(remote net.Addr) {
	from := remote.String()
	if ap, err := netip.ParseAddrPort(from); err == nil {
		from = network(ap.Addr().Unmap()).String()
	}
	p.refused.warn(from, "refused a connection from outside the list of hosts", "remote", remote)
}

// Close stops listening, ends undecided connections, and waits for every goroutine.
func (p *Port) Close() error {
	var err error
	p.once.Do(func() {
		close(p.done)
		p.mute()
		err = p.tcp.Close()
		if p.udp != nil {
			err = errors.Join(err, p.udp.Close())
		}
		p.mu.Lock()
		for e := p.waits.Front(); e != nil; e = e.Next() {
			_ = e.Value.(net.Conn).Close()
		}
		p.mu.Unlock()
	})
	p.wg.Wait()
	p.refused.end()
	return err
}

func (p *Port) accept() {
	pause := time.Duration(0)
	for {
		conn, err := p.tcp.Accept()
		if err != nil {
			if isClosed(p.done) {
				return
			}
			// Out of descriptors, or a connection was reset in the queue: go on, but do not spin.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			p.refused.warn("", "accepting a connection", "err", err)
			sleep(context.Background(), p.done, pause)
			continue
		}
		pause = 0
		if !p.mayCome(conn.RemoteAddr()) {
			p.refuse(conn.RemoteAddr())
			_ = conn.Close()
			continue
		}
		p.mu.Lock()
		if isClosed(p.done) { // Close may have ended the others already
			p.mu.Unlock()
			_ = conn.Close()
			return
		}
		if p.waits.Len() >= p.undecided {
			front := p.waits.Front()
			oldest := p.waits.Remove(front).(net.Conn)
			front.Value = nil // for greet
			_ = oldest.SetReadDeadline(time.Now())
		}
		_ = conn.SetReadDeadline(time.Now().Add(p.silence))
		place := p.waits.PushBack(conn)
		p.mu.Unlock()
		p.wg.Go(func() { p.decide(conn, place) })
	}
}

// decide reads the first byte of a connection, puts it back, and passes the connection on.
func (p *Port) decide(conn net.Conn, place *list.Element) {
	var first [1]byte
	n, err := conn.Read(first[:])
	sent := ""
	if n == 0 && isTimeout(err) {
		if sent = p.greet(conn, place); sent != "" {
			n, err = conn.Read(first[:])
		}
	}

	p.mu.Lock()
	p.waits.Remove(place) // it may be gone already
	speaksHTTP := p.speaksHTTP
	p.mu.Unlock()
	_ = conn.SetReadDeadline(time.Time{})

	to := p.ssh
	switch {
	case n == 1 && first[0] == gossipByte:
		p.passStream(&peeked{Conn: conn, first: first[:]})
		return
	case n == 1 && speaksHTTP && isHTTP(first[0]) && sent == "":
		to, conn = p.http, &peeked{Conn: conn, first: first[:]}
	case n == 1, isTimeout(err):
		conn = &peeked{Conn: conn, first: first[:n], sent: sent}
	default:
		_ = conn.Close()
		return
	}
	select {
	case to <- conn:
	case <-p.done:
		_ = conn.Close()
	}
}

// passStream hands a stream to memberlist once admission has a place.
func (p *Port) passStream(conn net.Conn) {
	s, err := p.admission.admit(p.gossip, conn)
	if err != nil {
		p.log.Debug("a gossip stream is refused", "remote", conn.RemoteAddr(), "reason", err)
		_ = conn.Close()
		return
	}
	select {
	case p.streams <- s:
	case <-p.gossip.Done():
		_ = s.Close()
	}
}

// greet sends the identification to a silent client, unless it has to make room for another one, and returns it.
func (p *Port) greet(conn net.Conn, place *list.Element) string {
	p.mu.Lock()
	greeting := p.greeting
	if place.Value == nil {
		greeting = ""
	} else if greeting != "" {
		_ = conn.SetReadDeadline(time.Now().Add(p.maxSilence - p.silence))
	}
	p.mu.Unlock()
	if greeting == "" {
		return ""
	}
	// The send buffer of a new connection has room for it; the reader finds a lost connection.
	_, _ = io.WriteString(conn, greeting)
	return greeting
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// receive passes UDP packets to memberlist; it drops them when the queue is full, as the network may.
func (p *Port) receive() {
	buf := make([]byte, 65536)
	for {
		n, from, err := p.udp.ReadFrom(buf)
		switch {
		case err != nil && (isClosed(p.done) || errors.Is(err, net.ErrClosed)):
			return
		case err != nil: // an ICMP error of an earlier packet
		case n > 0 && buf[0] == gossipByte && p.mayCome(from):
			offer(p.packets, &memberlist.Packet{Buf: bytes.Clone(buf[:n]), From: from, Timestamp: time.Now()})
		}
	}
}

// peeked is a connection whose first byte was read, and to which the greeting may have been sent.
type peeked struct {
	net.Conn
	mu    sync.Mutex
	first []byte // not returned yet
	sent  string // part of the greeting that the client has, and the server still writes
}

var errGreeting = errors.New("the server does not begin with the identification that was sent")

func (c *peeked) Write(b []byte) (int, error) {
	c.mu.Lock()
	sent := c.sent
	c.sent = ""
	c.mu.Unlock()
	if sent == "" {
		return c.Conn.Write(b)
	}
	rest, ok := bytes.CutPrefix(b, []byte(sent))
	switch {
	case !ok:
		return 0, errGreeting
	case len(rest) == 0:
		return len(b), nil
	}
	n, err := c.Conn.Write(rest)
	return len(sent) + n, err
}

func (c *peeked) Read(b []byte) (int, error) {
	c.mu.Lock()
	n := copy(b, c.first)
	c.first = c.first[n:]
	c.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	return c.Conn.Read(b)
}

// SyscallConn lets the SSH server set socket options.
func (c *peeked) SyscallConn() (syscall.RawConn, error) {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return sc.SyscallConn()
}

// portListener is the listener of one protocol on the port.
type portListener struct {
	port   *Port
	conns  <-chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *portListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
	case <-l.port.done:
	}
	return nil, net.ErrClosed
}

func (l *portListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *portListener) Addr() net.Addr { return l.port.tcp.Addr() }

// transport is memberlist's view of the port.
type transport struct {
	// Ends the dialled streams, which memberlist itself lets run until they time out.
	ctx       context.Context
	port      *Port
	advertise netip.AddrPort
}

func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.advertise.Addr().Unmap().AsSlice(), int(t.advertise.Port()), nil
}

var errNoUDP = errors.New("no UDP here")

func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	if t.port.udp == nil {
		return time.Time{}, errNoUDP
	}
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, fmt.Errorf("gossip to %q: %w", addr, err)
	}
	_, err = t.port.udp.WriteTo(b, net.UDPAddrFromAddrPort(ap))
	return time.Now(), err
}

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.port.packets }

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	conn, err := t.port.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	forget := context.AfterFunc(t.ctx, func() { _ = conn.Close() })
	return &stream{Conn: conn, forget: forget, in: bufio.NewReaderSize(conn, maxGreeting)}, nil
}

// stream is a gossip stream that we opened. It skips the identification, sent there if our first byte comes late.
type stream struct {
	net.Conn
	forget func() bool
	begun  bool
	in     *bufio.Reader
}

// maxGreeting is the longest identification (RFC 4253, section 4.2).
const maxGreeting = 255

func (s *stream) Read(b []byte) (int, error) {
	if !s.begun {
		s.begun = true
		if err := s.skipGreeting(); err != nil {
			return 0, err
		}
	}
	return s.in.Read(b)
}

func (s *stream) skipGreeting() error {
	if first, err := s.in.Peek(1); err != nil || first[0] != 'S' { // no memberlist message begins with it
		return err
	}
	_, err := s.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return errNotGossip
	}
	return err
}

var errNotGossip = errors.New("no gossip answers there")

func (s *stream) Close() error {
	s.forget()
	return s.Conn.Close()
}

func (t *transport) StreamCh() <-chan net.Conn { return t.port.streams }

// Shutdown refuses new gossip streams. The port belongs to its creator, and SSH connections go on.
func (t *transport) Shutdown() error {
	t.port.mute()
	return nil
}
