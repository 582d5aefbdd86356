package sshd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gssh "github.com/gliderlabs/ssh"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/internal/tcp"
)

// conn is one connection: the socket, its place among the handshakes, and what is known about the client.
// It is also the net.Conn that the SSH library sees, which is how the login deadline stays ours: gliderlabs/ssh
// replaces the deadline of its connection at every read and write.
type conn struct {
	net.Conn
	srv    *Server
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc

	deadline *time.Timer // closes the connection; stopped by the login
	expired  atomic.Bool // the deadline did it
	crowded  atomic.Bool // there were too many
	loggedIn atomic.Bool // authentication has succeeded
	peer     atomic.Bool // with the job's own key
	loss     tcp.Loss
	check    bool         // by SelfCheck: its refusal is no news
	heard    bool         // it had said something when its handshake began
	head     []byte       // what that was, as far as it is not read
	opening  opening      // of the goroutine that reads
	glctx    gssh.Context // of gliderlabs/ssh; holds the ServerConn from the end of the handshake on
	source   *source      // where it comes from; nil for a peer
	leave    func()       // the door, at the login or the end
	release  func()       // gives the place among the handshakes back; can be called again

	// For the log, written and read by the goroutine of the handshake only.
	user    string
	id      identity // that was verified
	offered []string // fingerprints of the keys that were tried, as far as they are not verified
	denied  error    // why the last of them does not do
	tried   bool     // to log in
	failure error

	mu       sync.Mutex
	sessions int // running, or without a command yet
	opened   int // sessions until the client has confirmed their end
	others   int // channels of other types
}

// identity is who has logged in. It is created when the signature of the key has been verified, and reaches sessions only
// through the permissions of the authenticated connection.
type identity struct {
	fingerprint string
	person      *person // nil: the key is of the job
}

// level is that of lines about what the holder does. A launch of the job logs in on every host, and says so itself.
func (id identity) level() slog.Level {
	if id.person != nil {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

func (id identity) who() string {
	if id.person != nil {
		return id.person.name
	}
	return "job"
}

type identityKey struct{}

// newConn makes a connection that has limit for its login.
func newConn(s *Server, nc net.Conn, limit time.Duration) *conn {
	c := &conn{Conn: nc, srv: s, leave: func() {}, release: func() {}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.deadline = time.AfterFunc(limit, func() {
		if !c.loggedIn.Load() {
			c.expired.Store(true)
			c.shut()
		}
	})
	return c
}

// SetDeadline, SetReadDeadline and SetWriteDeadline do nothing.
func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

func (c *conn) Read(p []byte) (int, error) {
	n, err := 0, error(nil)
	if len(c.head) > 0 {
		n = copy(p, c.head)
		c.head = c.head[n:]
	} else {
		n, err = c.Conn.Read(p)
	}
	if bad := c.opening.feed(p[:n]); bad != nil {
		n, err = 0, bad
	}
	c.loss.Note(err)
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.loss.Note(err)
	return n, err
}

func (c *conn) Close() error {
	c.cancel()
	return c.Conn.Close()
}

// shut closes the connection; whoever uses it notices.
func (c *conn) shut() { _ = c.Close() }

// guard is deferred by every goroutine that works for the connection: a panic ends the connection, not the process.
func (c *conn) guard(doing string) {
	if p := recover(); p != nil {
		c.srv.log.Error("ssh panic, connection closed", "remote", address(c.RemoteAddr()), "in", doing,
			"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		c.shut()
	}
}

// spawn runs f in a counted and guarded goroutine; false means that Shutdown is over and f will not run.
func (c *conn) spawn(doing string, f func()) bool {
	if !c.srv.enter() {
		return false
	}
	go func() {
		defer c.srv.leave()
		defer c.guard(doing)
		f()
	}()
	return true
}

// enter takes note of a stranger. The server's lock is held.
func (c *conn) enter() {
	from := ipOf(c.RemoteAddr())
	if c.check || c.srv.cfg.Known != nil && c.srv.cfg.Known(from) {
		return
	}
	source, leave, oldest, told := c.srv.door.enter(c, from)
	c.source, c.leave = source, leave
	if oldest != nil {
		oldest.crowded.Store(true)
		oldest.leave()
		oldest.shut()
	}
	if told > 0 {
		c.srv.log.Warn("ssh connections dropped: too many that do not log in", "remote", address(oldest.RemoteAddr()), "count", told)
	}
}

// serve is the life of a connection.
func (c *conn) serve() {
	s := c.srv
	defer s.leave()
	defer func() {
		c.shut()
		c.deadline.Stop()
		c.release()
		c.leave()
		s.mu.Lock()
		delete(s.conns, c)
		s.shrunk()
		s.mu.Unlock()
	}()
	defer c.guard("connection")

	if timeout := tcp.SetUserTimeout(c.Conn, s.limits.userTO); timeout != nil {
		s.log.Debug("ssh connection without TCP_USER_TIMEOUT", "remote", address(c.RemoteAddr()), "err", timeout)
	}
	if c.admit() {
		c.server().HandleConn(c)
	}
	if !c.loggedIn.Load() {
		c.refused()
	}
}

// admit waits for a place among the handshakes. A client that has sent its identification, as almost all do at once, does not queue behind those that
// say nothing.
func (c *conn) admit() bool {
	c.hear()
	release, ok := c.srv.door.wait(c.ctx, c.source, c.heard)
	c.release = release
	return ok && c.ctx.Err() == nil
}

// hear waits a moment for the first bytes of the client.
func (c *conn) hear() {
	buf := make([]byte, 64)
	_ = c.Conn.SetReadDeadline(time.Now().Add(c.srv.limits.listen))
	n, err := c.Conn.Read(buf)
	_ = c.Conn.SetReadDeadline(time.Time{})
	c.head, c.heard = buf[:n], n > 0
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.failure = err
		c.shut()
	}
}

// server returns the gliderlabs/ssh server of this one connection. Nothing in it is shared between connections: the
// library keeps user and permissions of the first attempt for all later ones, and changes the configuration it is given.
func (c *conn) server() *gssh.Server {
	srv := &gssh.Server{
		HostSigners: []gssh.Signer{c.srv.cfg.HostKey},
		Version:     c.srv.version,
		ConnCallback: func(ctx gssh.Context, nc net.Conn) net.Conn {
			c.glctx = ctx
			return nc
		},
		ConnectionFailedCallback: func(_ net.Conn, err error) { c.failure = err },
		// Without this handler the library would set NoClientAuth.
		PublicKeyHandler: func(_ gssh.Context, key gssh.PublicKey) bool {
			_, err := c.identify(key)
			if err == nil {
				err = errUnproven
			}
			c.denied = err
			if len(c.offered) < 8 {
				c.offered = append(c.offered, ssh.FingerprintSHA256(key))
			}
			return errors.Is(err, errUnproven)
		},
		ServerConfigCallback: func(gssh.Context) *ssh.ServerConfig { return c.config() },
		ChannelHandlers: map[string]gssh.ChannelHandler{
			"session": c.handler(c.session),
			"default": c.handler(c.refuseChannel),
		},
		RequestHandlers: map[string]gssh.RequestHandler{"default": c.request},
	}
	for name, handle := range c.srv.cfg.Channels {
		srv.ChannelHandlers[name] = c.handler(func(sc *ssh.ServerConn, id identity, nc ssh.NewChannel) {
			if id.person != nil { // what ranks say to each other is not for people
				c.refuseChannel(sc, id, nc)
				return
			}
			c.custom(nc, handle)
		})
	}
	return srv
}

// config returns a new configuration for one handshake. The algorithms are those that need no excuse today and that every maintained
// client has; counter mode with encrypt-then-mac is there for clients without AEAD ciphers (paramiko 2), and the last two MACs are
// for libssh2 before 1.11, which curl of Debian 12 uses and which has no others.
func (c *conn) config() *ssh.ServerConfig {
	return &ssh.ServerConfig{
		Config: ssh.Config{
			KeyExchanges: []string{ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519},
			Ciphers: []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305,
				ssh.CipherAES256CTR, ssh.CipherAES128CTR},
			MACs: []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM, ssh.HMACSHA256, ssh.HMACSHA512},
		},
		PublicKeyAuthAlgorithms: []string{ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519,
			ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKECDSA256,
			ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512},
		MaxAuthTries: 6,
		// Refuses "none" even if a library should ever switch NoClientAuth on.
		NoClientAuthCallback: func(ssh.ConnMetadata) (*ssh.Permissions, error) {
			return nil, errors.New("a key is required")
		},
		VerifiedPublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey, _ *ssh.Permissions, _ string) (*ssh.Permissions, error) {
			id, err := c.identify(key)
			if _, ok := c.srv.names[meta.User()]; err == nil && !ok {
				err = errors.New("the login name is none of the user of this container")
			}
			if c.denied = err; err != nil {
				return nil, err
			}
			c.id = id
			return &ssh.Permissions{ExtraData: map[any]any{identityKey{}: id}}, nil
		},
		AuthLogCallback: func(meta ssh.ConnMetadata, method string, err error) {
			c.user, c.tried = meta.User(), true
			if err == nil && c.admitted() {
				c.login(meta, method)
			}
		},
	}
}

// errUnproven stands until the signature of an authorized key was verified.
var errUnproven = errors.New("the key is authorized, and was not proven by a signature")

// identify says whose key it is, if it may log in from here and now.
func (c *conn) identify(key ssh.PublicKey) (identity, error) {
	id := identity{fingerprint: ssh.FingerprintSHA256(key)}
	if _, ok := c.srv.authorized[string(key.Marshal())]; ok {
		return id, nil
	}
	if c.srv.people == nil {
		return id, errUnknownKey
	}
	var err error
	id.person, err = c.srv.people.find(key, ipOf(c.RemoteAddr()), time.Now())
	return id, err
}

// admitted closes the connection of somebody whom Config.Admit does not let in.
func (c *conn) admitted() bool {
	if c.srv.cfg.Admit == nil || c.check {
		return true
	}
	err := c.srv.cfg.Admit()
	if err != nil {
		c.denied = err
		c.srv.log.Error("nobody is let in", "remote", address(c.RemoteAddr()), "err", err)
		c.shut()
	}
	return err == nil
}

// login ends the deadline and starts the watch over the connection. method is what the client logged in by.
func (c *conn) login(meta ssh.ConnMetadata, method string) {
	c.loggedIn.Store(true)
	c.deadline.Stop()
	c.release()
	c.leave()
	if method != "publickey" { // cannot happen; if it does, let it be visible and harmless
		c.srv.log.Error("ssh login by an unexpected method, connection closed", "remote", address(c.RemoteAddr()), "method", method)
		c.shut()
		return
	}
	c.srv.log.Log(c.ctx, c.id.level(), "ssh login", "remote", address(c.RemoteAddr()), "who", c.id.who(), "key", c.id.fingerprint, "user", cut(c.user, 64),
		"client", cut(string(meta.ClientVersion()), 64))
	c.srv.loggedIn()
	if c.id.person == nil {
		c.peer.Store(true)
		c.watch(time.Duration(c.srv.silence.Load()))
	}
	c.spawn("keepalive", c.keepalive)
}

// refused writes the line about a connection that ended without a login.
func (c *conn) refused() {
	reason := "connection closed"
	kind := "" // of the reason, without the addresses that a system call's error holds
	switch {
	case c.expired.Load():
		reason = fmt.Sprintf("no login within %v", c.srv.limits.login)
	case c.crowded.Load():
		reason = "too many connections that do not log in"
	case c.denied != nil:
		reason = c.denied.Error()
	case c.tried:
		reason = "no key was offered"
	case c.failure != nil:
		var call *net.OpError
		reason = c.failure.Error()
		if errors.Is(c.failure, io.EOF) || errors.As(c.failure, &call) { // which of them, is chance
			kind = "closed"
		}
	}
	user, keys := cut(c.user, 64), strings.Join(c.offered, " ")
	attrs := []any{"remote", address(c.RemoteAddr()), "user", user, "keys", keys, "reason", cut(reason, 300)}
	// No news: the end of the server, what a line was written for, a check whether the port is open, and a peer that
	// gave its login up and tries again: it says itself what keeps it.
	ended := c.srv.closed() || errors.Is(c.failure, net.ErrClosed) && !c.expired.Load()
	// A peer's address that every machine has, such as that of docker0, leads a peer back to its own machine.
	from := ipOf(c.RemoteAddr())
	itself := from == ipOf(c.LocalAddr()) && !from.IsLoopback()
	retries := (c.source == nil || itself) && c.gaveUp()
	if c.check || ended || retries || c.crowded.Load() || !c.heard && errors.Is(c.failure, io.EOF) {
		c.srv.log.Debug("ssh login refused", attrs...)
		return
	}
	host, _, _ := net.SplitHostPort(address(c.RemoteAddr()))
	log := c.srv.log.Debug
	if warn, unsaid := c.srv.refusals.warn(fmt.Sprintf("%s %q %q %s", host, user, keys, cmp.Or(kind, cut(reason, 300))),
		time.Now()); warn {
		log = c.srv.log.Warn
		if unsaid > 0 {
			attrs = append(attrs, "again", unsaid)
		}
	}
	log("ssh login refused", attrs...)
}

// gaveUp reports that the client closed or lost the connection, and that no key was refused.
func (c *conn) gaveUp() bool {
	left := c.loss.Cause() != nil // the SSH library turns some errors into others
	for _, e := range []error{io.EOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT} {
		left = left || errors.Is(c.failure, e)
	}
	return left && !c.expired.Load() && (c.denied == nil || errors.Is(c.denied, errUnproven))
}

// keepalive asks the client for a sign of life. Any answer will do: clients that do not know the request say no.
func (c *conn) keepalive() {
	s := c.srv
	for {
		pause := s.limits.keepalive
		if watched := s.pause.Load(); watched > 0 && c.peer.Load() {
			pause = time.Duration(watched)
		}
		tick := time.NewTimer(pause)
		select {
		case <-c.ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		// The library has no hook for a finished handshake; its context holds the connection right after it.
		sc, ok := c.glctx.Value(gssh.ContextKeyConn).(*ssh.ServerConn)
		if !ok {
			continue
		}
		patience := time.Duration(s.limits.misses) * s.limits.keepalive
		silence := time.AfterFunc(patience, func() {
			s.log.Warn("ssh connection lost", "remote", address(c.RemoteAddr()), "reason", fmt.Sprintf("no answer to a keepalive for %v", patience))
			c.shut()
		})
		_, _, err := sc.SendRequest("keepalive@openssh.com", true, nil)
		silence.Stop()
		if err != nil {
			return
		}
	}
}

// request answers a global request. There is none that we serve: forwardings are refused, keys of
// the host are never rotated, and "no" is as good an answer to a keepalive as any.
func (c *conn) request(_ gssh.Context, _ *gssh.Server, req *ssh.Request) (ok bool, payload []byte) {
	defer c.guard("global request")
	switch req.Type {
	case "keepalive@openssh.com":
		return true, nil
	case "tcpip-forward", "streamlocal-forward@openssh.com":
		c.srv.log.Warn("ssh forwarding refused", "remote", address(c.RemoteAddr()), "request", req.Type)
	}
	return false, nil
}

// handler counts, guards and identifies for a channel handler, which the library calls in a goroutine of its own.
func (c *conn) handler(handle func(*ssh.ServerConn, identity, ssh.NewChannel)) gssh.ChannelHandler {
	return func(_ *gssh.Server, sc *ssh.ServerConn, nc ssh.NewChannel, _ gssh.Context) {
		if !c.srv.enter() {
			return
		}
		defer c.srv.leave()
		defer c.guard("channel " + cut(nc.ChannelType(), 64))
		id, ok := identityOf(sc)
		if !ok {
			c.srv.log.Error("ssh channel without a login, connection closed", "remote", address(c.RemoteAddr()))
			c.shut()
			return
		}
		handle(sc, id, nc)
	}
}

func identityOf(sc *ssh.ServerConn) (identity, bool) {
	if sc.Permissions == nil {
		return identity{}, false
	}
	id, ok := sc.Permissions.ExtraData[identityKey{}].(identity)
	return id, ok
}

func (c *conn) refuseChannel(_ *ssh.ServerConn, id identity, nc ssh.NewChannel) {
	kind := nc.ChannelType()
	c.srv.log.Warn("ssh channel refused", "remote", address(c.RemoteAddr()), "who", id.who(), "key", id.fingerprint, "type", cut(kind, 64))
	reason := ssh.UnknownChannelType
	switch kind {
	case "direct-tcpip", "direct-streamlocal@openssh.com", "tun@openssh.com", "x11", "forwarded-tcpip", "auth-agent@openssh.com":
		reason = ssh.Prohibited
	}
	_ = nc.Reject(reason, "not served here")
}

// custom hands a channel of Config.Channels over.
func (c *conn) custom(nc ssh.NewChannel, handle func(context.Context, io.ReadWriteCloser, net.Addr)) {
	if !c.take(&c.others, c.srv.limits.channels) {
		_ = nc.Reject(ssh.ResourceShortage, "too many channels")
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		c.put(&c.others)
		return
	}
	c.spawn("channel requests", func() {
		defer c.put(&c.others)
		for req := range reqs {
			_ = req.Reply(false, nil)
		}
	})
	handle(c.ctx, custom{ch, c}, c.RemoteAddr())
}

// custom is a channel that tells why its connection was lost.
type custom struct {
	ssh.Channel
	conn *conn
}

func (c custom) Read(p []byte) (int, error) {
	n, err := c.Channel.Read(p)
	return n, c.conn.loss.Explain(err)
}

// take adds one to a counter of the connection unless it has reached limit; put takes it away.
func (c *conn) take(counter *int, limit int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *counter >= limit {
		return false
	}
	*counter++
	return true
}

func (c *conn) put(counter *int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*counter--
}

// watch has the kernel lose the connection when the other machine has acknowledged nothing for that long.
func (c *conn) watch(silence time.Duration) {
	if err := tcp.Watch(c.Conn, silence); err != nil {
		c.srv.log.Debug("ssh connection that is not watched", "remote", address(c.RemoteAddr()), "err", err)
	}
}

// address prints an address that may be missing.
func address(a net.Addr) string {
	if a == nil {
		return "unknown"
	}
	return a.String()
}
