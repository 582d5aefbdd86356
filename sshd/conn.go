package sshd

import (
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

// conn is one connection: the socket, its place among the handshakes, and what is known about the client. It is also
// the net.Conn that the SSH library uses: gliderlabs/ssh replaces the deadline of its connection at every read and
// write, and would replace the login deadline.
type conn struct {
	net.Conn
	srv    *Server
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc

	deadline *time.Timer // closes the connection; the login stops it
	expired  atomic.Bool // the deadline closed it
	crowded  atomic.Bool // it was dropped because there were too many
	loggedIn atomic.Bool // authentication succeeded
	peer     atomic.Bool // logged in with a key of the job
	loss     tcp.Loss
	check    bool         // made by SelfCheck: its refusal is expected
	greeted  bool         // the client sent something before its handshake began
	greeting []byte       // bytes from the client that the handshake has not read yet
	opening  opening      // used by the goroutine that reads
	glctx    gssh.Context // of gliderlabs/ssh; has the ServerConn after the handshake
	source   *source      // the client's host; nil for a peer
	leave    func()       // leaves admission, at the login or the end
	release  func()       // frees the place among the handshakes; may be called twice

	// For the log. Only the goroutine of the handshake uses them.
	user    string
	id      identity // verified by a signature
	offered []string // fingerprints of the keys that the client offered
	denied  error    // why the last of them was refused
	tried   bool     // the client tried to log in
	failure error

	mu       sync.Mutex
	sessions int // sessions that run, or have no command yet
	opened   int // sessions whose end the client has not confirmed
	others   int // channels of other types
}

// identity is the key that logged in. It is created when its signature was verified, and reaches sessions only through
// the permissions of the authenticated connection.
type identity struct {
	fingerprint string
	person      *person // nil: the key belongs to the job
}

// level returns the level of log lines about the holder's actions. A launch logs in on every host and is logged itself.
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

// newConn returns a connection that must log in within limit.
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
	if len(c.greeting) > 0 {
		n = copy(p, c.greeting)
		c.greeting = c.greeting[n:]
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

// shut closes the connection: its reads and writes then fail.
func (c *conn) shut() { _ = c.Close() }

func (c *conn) log() *slog.Logger { return c.srv.cfg.Logger.With("remote", address(c.RemoteAddr())) }

// guard lets a panic end the connection, not the process. Every goroutine of the connection defers it.
func (c *conn) guard(doing string) {
	if p := recover(); p != nil {
		stack := string(debug.Stack())
		c.log().Error("ssh panic, connection closed", "in", doing, "panic", fmt.Sprint(p), "stack", stack)
		c.shut()
	}
}

// spawn runs f in a counted and guarded goroutine. False means that Shutdown has finished: f does not run.
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

// joinPending adds a connection from outside of the job to admission. The caller holds the server's lock.
func (c *conn) joinPending() {
	from := ipOf(c.RemoteAddr())
	if c.check || c.srv.cfg.Known != nil && c.srv.cfg.Known(from) {
		return
	}
	source, leave, oldest, told := c.srv.admission.enter(c, from)
	c.source, c.leave = source, leave
	if oldest != nil {
		oldest.crowded.Store(true)
		oldest.leave()
		oldest.shut()
	}
	if told > 0 {
		oldest.log().Warn("ssh connections dropped: too many without a login", "count", told)
	}
}

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

	if err := tcp.SetUserTimeout(c.Conn, s.limits.userTimeout); err != nil {
		c.log().Debug("ssh connection without TCP_USER_TIMEOUT", "err", err)
	}
	c.readGreeting()
	release, ok := s.admission.wait(c.ctx, c.source, c.greeted)
	c.release = release
	if ok && c.ctx.Err() == nil {
		c.server().HandleConn(c)
	}
	if !c.loggedIn.Load() {
		c.refused()
	}
}

// readGreeting waits a moment for the first bytes of the client. A client that has sent its identification, as almost
// all do at once, does not queue behind silent ones.
func (c *conn) readGreeting() {
	buf := make([]byte, 64)
	_ = c.Conn.SetReadDeadline(time.Now().Add(c.srv.limits.listen))
	n, err := c.Conn.Read(buf)
	_ = c.Conn.SetReadDeadline(time.Time{})
	c.greeting, c.greeted = buf[:n], n > 0
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.failure = err
		c.shut()
	}
}

// server returns the gliderlabs/ssh server of this connection. Connections share nothing in it: the library keeps user
// and permissions of the first attempt for all later ones, and changes the configuration that it gets.
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
			if id.person != nil { // only ranks may open these channels
				c.refuseChannel(sc, id, nc)
				return
			}
			c.custom(nc, handle)
		})
	}
	return srv
}

// config returns a new configuration for one handshake. The algorithms are considered safe, and every maintained client
// has some of them. Counter mode with encrypt-then-mac serves clients without AEAD ciphers (paramiko 2), and the last
// two MACs serve libssh2 before 1.11, which curl of Debian 12 uses.
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
		// Refuses "none" even if a library sets NoClientAuth.
		NoClientAuthCallback: func(ssh.ConnMetadata) (*ssh.Permissions, error) {
			return nil, errors.New("a key is required")
		},
		VerifiedPublicKeyCallback: func(
			meta ssh.ConnMetadata, key ssh.PublicKey, _ *ssh.Permissions, _ string,
		) (*ssh.Permissions, error) {
			id, err := c.identify(key)
			if _, ok := c.srv.names[meta.User()]; err == nil && !ok {
				err = errors.New("the login name does not belong to this container's user")
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

// errUnproven holds until the signature of an authorized key is verified.
var errUnproven = errors.New("the key is authorized, but no signature proved it")

// identify returns whose key it is, if the key may log in from the client's address now.
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

// admitted calls Config.Admit and closes the connection if it refuses.
func (c *conn) admitted() bool {
	if c.srv.cfg.Admit == nil || c.check {
		return true
	}
	err := c.srv.cfg.Admit()
	if err != nil {
		c.denied = err
		c.log().Error("ssh logins are refused", "err", err)
		c.shut()
	}
	return err == nil
}

// login stops the deadline and starts the keepalives. method is the authentication method.
func (c *conn) login(meta ssh.ConnMetadata, method string) {
	c.loggedIn.Store(true)
	c.deadline.Stop()
	c.release()
	c.leave()
	if method != "publickey" { // cannot happen; if it does, it must be visible and harmless
		c.log().Error("ssh login by an unexpected method, connection closed", "method", method)
		c.shut()
		return
	}
	c.log().Log(c.ctx, c.id.level(), "ssh login", "who", c.id.who(), "key", c.id.fingerprint, "user", cut(c.user, 64),
		"client", cut(string(meta.ClientVersion()), 64))
	c.srv.loggedIn()
	if c.id.person == nil {
		c.peer.Store(true)
		c.setKeepalive(time.Duration(c.srv.peerTimeout.Load()))
	}
	c.spawn("keepalive", c.keepalive)
}

// refused logs a connection that ended without a login.
func (c *conn) refused() {
	reason := "connection closed"
	kind := "" // all refusals before a login was tried: which error it is may be chance
	switch {
	case c.expired.Load():
		reason = fmt.Sprintf("no login within %v", c.srv.limits.login)
	case c.crowded.Load():
		reason = "too many connections without a login"
	case c.denied != nil:
		reason = c.denied.Error()
		kind = reason
	case c.tried:
		reason = "no key was offered"
		kind = reason
	case c.hungUp():
		reason = "the client closed the connection before a login"
	case c.failure != nil:
		reason = c.failure.Error()
	}
	user, keys := cut(c.user, 64), strings.Join(c.offered, " ")
	attrs := []any{"user", user, "keys", keys, "reason", cut(reason, 300)}
	// No warning at the end of the server, for a dropped connection, which has its own line, for a check whether the
	// port is open, or for a peer that gave up its login: it retries and logs its reason itself.
	ended := c.srv.closed() || errors.Is(c.failure, net.ErrClosed) && !c.expired.Load()
	// A peer that calls an address that every machine has, such as docker0's, reaches its own machine.
	from := ipOf(c.RemoteAddr())
	itself := from == ipOf(c.LocalAddr()) && !from.IsLoopback()
	retries := (c.source == nil || itself) && c.gaveUp()
	if c.check || ended || retries || c.crowded.Load() || !c.greeted && errors.Is(c.failure, io.EOF) {
		c.log().Debug("ssh login refused", attrs...)
		return
	}
	c.logRepeated(slog.LevelWarn, "ssh login refused", kind, attrs...)
}

// logRepeated logs an event that the client can repeat. It logs repetitions of the same kind at level debug, and their
// number in the next line.
func (c *conn) logRepeated(level slog.Level, message, kind string, attrs ...any) {
	log, again, many := c.srv.repeats.note(ipOf(c.RemoteAddr()), message+" "+kind, time.Now())
	if !log {
		level = slog.LevelDebug
	}
	if again > 0 {
		attrs = append(attrs, "again", again)
	}
	if many {
		attrs = append(attrs, "hosts", "many others too")
	}
	c.log().Log(c.ctx, level, message, attrs...)
}

// gaveUp reports whether the client closed or lost the connection before any key was refused.
func (c *conn) gaveUp() bool {
	left := c.loss.Cause() != nil || // the SSH library turns some errors into others
		c.hungUp() || errors.Is(c.failure, syscall.ETIMEDOUT)
	return left && !c.expired.Load() && (c.denied == nil || errors.Is(c.denied, errUnproven))
}

// hungUp reports whether the client closed the connection.
func (c *conn) hungUp() bool {
	return errors.Is(c.failure, io.EOF) || errors.Is(c.failure, syscall.ECONNRESET) ||
		errors.Is(c.failure, syscall.EPIPE)
}

// keepalive sends keepalive requests. Any answer counts: clients that do not know the request refuse it.
func (c *conn) keepalive() {
	s := c.srv
	for {
		pause := s.limits.keepalive
		if watched := s.peerKeepalive.Load(); watched > 0 && c.peer.Load() {
			pause = time.Duration(watched)
		}
		select {
		case <-c.ctx.Done():
			return
		case <-time.After(pause):
		}
		// The library has no hook for the end of the handshake. Its context has the connection from then on.
		sc, ok := c.glctx.Value(gssh.ContextKeyConn).(*ssh.ServerConn)
		if !ok {
			continue
		}
		timeout := time.Duration(s.limits.misses) * s.limits.keepalive
		timer := time.AfterFunc(timeout, func() {
			c.log().Warn("ssh connection lost", "reason", fmt.Sprintf("no answer to a keepalive for %v", timeout))
			c.shut()
		})
		_, _, err := sc.SendRequest("keepalive@openssh.com", true, nil)
		timer.Stop()
		if err != nil {
			return
		}
	}
}

// request answers a global request. It refuses all but keepalives.
func (c *conn) request(_ gssh.Context, _ *gssh.Server, req *ssh.Request) (ok bool, payload []byte) {
	defer c.guard("global request")
	switch req.Type {
	case "keepalive@openssh.com":
		return true, nil
	case "tcpip-forward", "streamlocal-forward@openssh.com":
		c.logRepeated(slog.LevelWarn, "ssh forwarding refused", req.Type, "request", req.Type)
	}
	return false, nil
}

// handler returns the library's handler for a channel type, which counts its goroutine, guards it, and finds the
// identity.
func (c *conn) handler(handle func(*ssh.ServerConn, identity, ssh.NewChannel)) gssh.ChannelHandler {
	return func(_ *gssh.Server, sc *ssh.ServerConn, nc ssh.NewChannel, _ gssh.Context) {
		if !c.srv.enter() {
			return
		}
		defer c.srv.leave()
		defer c.guard("channel " + cut(nc.ChannelType(), 64))
		if sc.Permissions != nil {
			if id, ok := sc.Permissions.ExtraData[identityKey{}].(identity); ok {
				handle(sc, id, nc)
				return
			}
		}
		c.log().Error("ssh channel without a login, connection closed")
		c.shut()
	}
}

func (c *conn) refuseChannel(_ *ssh.ServerConn, id identity, nc ssh.NewChannel) {
	kind := nc.ChannelType()
	c.logRepeated(slog.LevelWarn, "ssh channel refused", cut(kind, 64),
		"who", id.who(), "key", id.fingerprint, "type", cut(kind, 64))
	reason := ssh.UnknownChannelType
	switch kind {
	case "direct-tcpip", "direct-streamlocal@openssh.com", "tun@openssh.com", "x11", "forwarded-tcpip",
		"auth-agent@openssh.com":
		reason = ssh.Prohibited
	}
	_ = nc.Reject(reason, "not supported")
}

// custom passes a channel to a handler of Config.Channels.
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

// custom is a channel whose Read returns why the connection was lost.
type custom struct {
	ssh.Channel
	conn *conn
}

func (c custom) Read(p []byte) (int, error) {
	n, err := c.Channel.Read(p)
	return n, c.conn.loss.Explain(err)
}

// take increments a counter of the connection unless it has reached limit. put decrements it.
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

// setKeepalive lets the kernel end the connection when the other machine acknowledges nothing for the timeout.
func (c *conn) setKeepalive(timeout time.Duration) {
	if err := tcp.Watch(c.Conn, timeout); err != nil {
		c.log().Debug("ssh connection without TCP keepalive", "err", err)
	}
}

// address returns an address as text; it may be missing.
func address(a net.Addr) string {
	if a == nil {
		return "unknown"
	}
	return a.String()
}
