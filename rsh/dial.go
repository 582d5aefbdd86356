package rsh

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/internal/tcp"
)

// The stages of reaching a peer, in their order. Other packages test for the first and the last one.
const (
	StageResolve   = "resolve"   // the name of the host is not known; only from ServeAgent
	stageConnect   = "connect"   // no connection: refused, no route, no answer
	stageHandshake = "handshake" // connected, but no key exchange with the right host
	stageLogin     = "login"     // the peer is the right one, but it refuses the login
	stageChannel   = "channel"   // logged in, but the peer opens no channel or refuses the command
	StageSession   = "session"   // the command was started, but the connection was lost before its status came
)

// The reasons why a peer is the wrong one, for errors.Is on a *DialError.
var (
	ErrNotPaiinit   = errors.New("the server is not paiinit")
	ErrOtherJob     = errors.New("it belongs to another job or to another attempt of this one")
	ErrOtherVersion = errors.New("it is another version of paiinit")    // of this job and attempt
	ErrOtherSecret  = errors.New("it has another secret")               // of this job and attempt
	ErrOtherID      = errors.New("it is another container of this job") // with the right secret
	errRefused      = errors.New("it refused our login")                // the right container, with the right secret
)

// DialError is a failure on the way to a target.
type DialError struct {
	Target Target
	Stage  string // one of the stages above
	Err    error
}

func (e *DialError) Error() string {
	return fmt.Sprintf("reaching %v: %s: %v", e.Target, e.Stage, e.Err)
}

func (e *DialError) Unwrap() error { return e.Err }

func (p *Pool) dialTCP(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	p.mu.Lock()
	ackTimeout := p.ackTimeout
	p.mu.Unlock()
	// The kernel repeats a SYN after 1 s, 3 s and 7 s. With a short timeout and a new attempt we reach a machine sooner
	// that was cut off for a while.
	d := net.Dialer{Timeout: min(ackTimeout/3, connectTimeout), KeepAlive: -1} // sets TCP_NODELAY
	conn, err := d.DialContext(ctx, "tcp", addr.String())
	if err == nil {
		_ = tcp.Watch(conn, ackTimeout) // fails only if the connection has ended
	}
	return conn, err
}

// connection is a connection that has logged in.
type connection struct {
	ssh.Conn
	tcp   *greeting
	chans <-chan ssh.NewChannel
	reqs  <-chan *ssh.Request
	id    string // the id that the peer has proven
}

// handshake connects, exchanges keys and logs in.
func (p *Pool) handshake(ctx context.Context, t Target, l *link) (*connection, error) {
	if !t.Addr.IsValid() {
		return nil, errors.New("its address is not known")
	}
	tcp, err := p.cfg.Dial(ctx, t.Addr)
	if err != nil {
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			err = errno // the rest repeats the address
		}
		return nil, err
	}
	l.stage.Store(stageHandshake)
	tcp, end, err := p.takeTurn(ctx, t, l, tcp)
	if err != nil {
		return nil, err
	}
	defer end()
	stop := context.AfterFunc(ctx, func() { _ = tcp.Close() })

	peer := &greeting{Conn: tcp, label: p.cfg.Label}
	var wrongKey error // from our check of the host key
	var loginRefused bool
	var id string
	conn, chans, reqs, err := ssh.NewClientConn(peer, t.Addr.String(), &ssh.ClientConfig{
		Config: ssh.Config{
			KeyExchanges: []string{ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519},
			Ciphers:      []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305},
			MACs:         []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM},
		},
		ClientVersion:     clientVersion,
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			if id, wrongKey = p.identify(t.ID, peer.id, key); wrongKey != nil {
				return wrongKey
			}
			l.stage.Store(stageLogin)
			return nil
		},
		User: "root", // every container accepts this login name, whatever its user is called
		Auth: []ssh.AuthMethod{ssh.PublicKeys(p.cfg.User)},
		AuthCallback: func(c *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
			// x/crypto calls it before the first attempt and after each failure.
			loginRefused = loginRefused || slices.Contains(c.TriedMethods, "publickey")
			return nil, nil
		},
	})
	ended := !stop()
	switch {
	case err == nil && ended:
		_ = conn.Close()
		return nil, net.ErrClosed
	case err == nil:
		return &connection{conn, peer, chans, reqs, id}, nil
	case peer.err != nil:
		return nil, peer.err
	case wrongKey != nil:
		return nil, wrongKey
	case loginRefused:
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil, err
}

// takeTurn waits until the login may begin. The peer's login timeout runs from the connection's start, so after a long
// wait takeTurn replaces the connection.
func (p *Pool) takeTurn(ctx context.Context, t Target, l *link, tcp net.Conn) (net.Conn, func(), error) {
	waits := l.limit.Stop() // false: ctx ends
	begin := time.Now()
	end, err := p.turns.wait(ctx)
	if err != nil {
		_ = tcp.Close()
		return nil, nil, err
	}
	if waits {
		l.limit.Reset(p.dialTimeout)
	}
	if time.Since(begin) < p.longestTurn {
		return tcp, end, nil
	}
	_ = tcp.Close()
	if tcp, err = p.cfg.Dial(ctx, t.Addr); err != nil {
		end()
		return nil, nil, err
	}
	return tcp, end, nil
}

// identify returns the id of the container that owns a host key. want is the expected id, or ""; claimed is the id in
// the peer's greeting. The key exchange proves later that the peer has the private key.
func (p *Pool) identify(want, claimed string, key ssh.PublicKey) (string, error) {
	is := func(id string) bool {
		expected := p.cfg.Host(id)
		return id != "" && expected != nil && bytes.Equal(expected.Marshal(), key.Marshal())
	}
	switch {
	case want == "" && is(claimed):
		return claimed, nil
	case want != "" && is(want):
		return want, nil
	case is(claimed):
		return "", fmt.Errorf("%w: it is %q, expected %q", ErrOtherID, claimed, want)
	case claimed == "":
		return "", fmt.Errorf("%w: its greeting does not name a container", ErrNotPaiinit)
	}
	return "", fmt.Errorf("%w: its host key is not the one of %q", ErrOtherSecret, claimed)
}

const (
	clientVersion = "SSH-2.0-paiinit"
	maxGreeting   = 255 // the longest line that RFC 4253 allows, including CR LF

	// wire is the version of the messages between containers and of the keys that they derive. Raise it when containers
	// of two versions cannot be in one job.
	wire = "2"
)

// Comment returns the comment that the SSH server of a container adds to its identification; with the id "gossip" it is
// the label of the job's gossip. The position and meaning of the label never change: containers of all versions
// recognise their own job by it.
func Comment(label, id string) string { return label + " " + id + " " + wire }

// greeting is a connection that checks the first line of the peer, "SSH-2.0-paiinit LABEL ID WIRE" (RFC 4253, 4.2:
// software version and comment), and fails at once if no paiinit of our job would send it. The line proves nothing, but
// without it all reasons would appear as a wrong host key. Reading it at once also saves a system call per byte.
type greeting struct {
	net.Conn
	label string // expected; "" = any

	id   string // the id that the peer claims
	err  error  // why the line is wrong
	seen bool
	rest []byte // bytes that were read ahead

	loss tcp.Loss
}

func (g *greeting) Read(p []byte) (int, error) {
	if !g.seen {
		if err := g.read(); err != nil {
			return 0, err
		}
	}
	if len(g.rest) > 0 {
		n := copy(p, g.rest)
		g.rest = g.rest[n:]
		return n, nil
	}
	n, err := g.Conn.Read(p)
	g.loss.Note(err)
	return n, err
}

func (g *greeting) Write(p []byte) (int, error) {
	n, err := g.Conn.Write(p)
	g.loss.Note(err)
	return n, err
}

func (g *greeting) read() error {
	g.seen = true
	var buf []byte
	for !bytes.ContainsRune(buf, '\n') && len(buf) < maxGreeting {
		chunk := make([]byte, 1024)
		n, err := g.Conn.Read(chunk)
		buf = append(buf, chunk[:n]...)
		if n > 0 && !couldBeSSH(buf) {
			break
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("it closed the connection and sent nothing")
				if len(buf) > 0 {
					err = fmt.Errorf("%w: it sent %s and closed the connection", ErrNotPaiinit, quote(buf))
				}
				g.err = err
			}
			return err
		}
	}
	g.id, g.err = readGreeting(buf, g.label)
	g.rest = buf
	return g.err
}

// Listener returns the label and the id that the paiinit at an address claims, which proves nothing. The error wraps
// ErrNotPaiinit if another program answers.
func Listener(ctx context.Context, addr netip.AddrPort) (label, id string, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return "", "", fmt.Errorf("finding out which paiinit listens on %v: %w", addr, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, _ = io.WriteString(conn, clientVersion+"\r\n") // paiinit distinguishes SSH from gossip by the first byte
	g := greeting{Conn: conn}
	if err := g.read(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", "", fmt.Errorf("finding out which paiinit listens on %v: %w", addr, err)
	}
	return strings.Split(string(g.rest), " ")[1], g.id, nil
}

// Owner says which program listens at an address, for a paiinit with this label that cannot listen there.
func Owner(ctx context.Context, addr netip.AddrPort, label string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // for a program that does not identify itself
	defer cancel()
	other, id, err := Listener(ctx, addr)
	switch {
	case errors.Is(err, ErrNotPaiinit):
		return "a program other than paiinit"
	case err != nil:
		return "a program that does not identify itself"
	case other == label:
		return id + " of this job, or of another job without a name of its own (--job)"
	}
	return fmt.Sprintf("%s of another job or attempt (label %s, ours is %s)", id, other, label)
}

func couldBeSSH(buf []byte) bool {
	const start = "SSH-2.0-"
	return strings.HasPrefix(start, string(buf[:min(len(buf), len(start))]))
}

// plain reports whether a word can be a label or an id. It is not a regexp, because every start of the program would
// pay for compiling it.
func plain(word string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	return word != "" && strings.Trim(word, letters+"0123456789._-") == ""
}

// readGreeting returns the id in the first line that a peer sends.
func readGreeting(buf []byte, label string) (id string, err error) {
	line, _, ok := bytes.Cut(buf, []byte("\n"))
	words := strings.Split(strings.TrimSuffix(string(line), "\r"), " ")
	switch {
	case !ok || len(line) >= maxGreeting || words[0] != clientVersion:
		return "", fmt.Errorf("%w: it sent %s", ErrNotPaiinit, quote(line))
	case len(words) < 3 || slices.ContainsFunc(words[1:], func(w string) bool { return !plain(w) }):
		return "", fmt.Errorf("%w: its greeting names no job: %s", ErrNotPaiinit, quote(line))
	case label != "" && words[1] != label:
		return "", fmt.Errorf("%w: its label is %s, ours %s", ErrOtherJob, words[1], label)
	case label != "" && (len(words) != 4 || words[3] != wire):
		return "", fmt.Errorf("%w: its protocol is %s, ours %s", ErrOtherVersion,
			cmp.Or(strings.Join(words[3:], " "), "older"), wire)
	}
	return words[2], nil
}

// quote shortens and quotes the bytes of a peer for a message.
func quote(b []byte) string {
	const limit = 60
	b = bytes.TrimRight(b, "\r\n")
	if len(b) > limit {
		return fmt.Sprintf("%q...", b[:limit])
	}
	return fmt.Sprintf("%q", b)
}
