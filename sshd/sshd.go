// Package sshd is the SSH server inside every container of a job: it runs commands for the holders of a key of the job.
//
// gliderlabs/ssh carries connections (RFC 4251 to 4253); this package has its own sessions, login deadlines, identities
// and limits against hostile and broken clients.
//
// Two classes of keys may log in. The keys in Config.Authorized belong to the job and may do everything. The keys in
// the file Config.AuthorizedKeys belong to people, who get shells, commands and SFTP within the options of their line,
// and no channel of Config.Channels.
//
// The server always refuses logins without one of these keys, forwarding, subsystems other than sftp, and environment
// variables from the client other than LANG, LC_*, TERM and COLORTERM. Every session runs as the user of this process,
// so the login name must belong to that user: the name in the user database, USER, the number, or root for clients that
// cannot know it.
//
// Handshakes queue. The server never drops those from addresses of Config.Known. Of other connections without a login,
// 500 may wait from each address and 1,200 in all; beyond that it drops the oldest.
//
// A command runs as "/bin/sh -c COMMAND" in a session (setsid) of its own. It ends in one of these ways:
//
//	the command exits        The client gets its output, exit-status or exit-signal, EOF and close. Processes that it
//	                         left behind live on; holding its output open does not delay the end.
//	the client is gone       The channel was closed or the connection lost while the command ran: every process of the
//	                         session gets HUP and CONT, then TERM, then KILL, except what left by setsid.
//	Shutdown                 The command's process group gets TERM; when the context ends, the session gets KILL.
//
// A panic in a goroutine of this package, or in a handler that it calls, ends the connection that caused it and leaves
// one line in the log. golang.org/x/crypto/ssh starts goroutines that this package cannot guard.
package sshd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/unixsock"
)

// ErrServerClosed is returned by Serve after Shutdown.
var ErrServerClosed = errors.New("the SSH server is closed")

// Config says which keys may log in and what sessions get. Only HostKey is required.
type Config struct {
	HostKey    ssh.Signer      // proves to clients that they reached this container
	Authorized []ssh.PublicKey // the keys of the job

	// Comment ends the identification string, which every client gets before it logs in: "SSH-2.0-paiinit COMMENT" (RFC
	// 4253 section 4.2). It has printable ASCII, at most 200 bytes.
	Comment string

	// AuthorizedKeys is a file with the keys of people, in the format of sshd(8), which the server reads again when it
	// has changed. The server applies the options from (addresses, not names), expiry-time, command, restrict, pty and
	// no-pty. It accepts no-*-forwarding, no-user-rc, permitopen and permitlisten, because it never serves these
	// features. It skips a line with any other option, with a warning. If the file cannot be read, or its group or
	// others can write it, no person can log in, and New fails.
	AuthorizedKeys string

	// SFTP is the program, with arguments, that serves the subsystem sftp on standard input and output by ServeSFTP.
	// Without it the subsystem is refused.
	SFTP []string

	// Hidden are absolute paths that SFTP gets as further arguments if a person's key allows nothing else
	// (command="internal-sftp"). A key that also opens a shell could reach them anyway. Empty paths are ignored.
	Hidden []string

	// Known says whether an address belongs to a peer of the job, whose connections are not limited. Nil means none.
	Known func(netip.Addr) bool

	// Environ is the environment of sessions as "name=value", complete and without secrets. The server adds USER,
	// LOGNAME, HOME and SHELL if they are missing, and always SSH_CONNECTION. It does not set SSH_CLIENT, with which
	// Debian's bash reads ~/.bashrc even for "-c". Sessions start in HOME, or in "/" if it cannot be entered.
	Environ []string

	Extra func() []string // returns the variables of one session, which win over Environ; nil = none
	Shell string          // gets "-c" and the command as received; "" = /bin/sh

	// Channels are handlers of further channel types by name, for example "control@paiinit"; "session" and "default"
	// are reserved. A handler runs in a goroutine of its own and owns ch: it closes it, when it returns or later. ctx
	// ends with the connection. remote has logged in with a key of Authorized.
	Channels map[string]func(ctx context.Context, ch io.ReadWriteCloser, remote net.Addr)

	// StartWithSlack calls the function that starts a process, so that the process gets the job's timer slack. It may
	// be nil.
	StartWithSlack func(start func() error) error

	// Patience is how much longer than usual a login may take, because many ranks log in at the same moment.
	Patience time.Duration

	// Admit is called after authentication, before the client is told. It may block. An error closes the connection and
	// is logged. SelfCheck does not call it. It may be nil.
	Admit func() error

	// OnCommand is called at the start and at the end of every command, from the goroutine that waits for the command:
	// it must not block. It may be nil.
	OnCommand func(CommandEvent)

	// Grace is the time from HUP to TERM and from TERM to KILL for the processes of a session whose client is gone. The
	// default is 5 seconds.
	Grace time.Duration

	// Logger gets one line for each login, refusal and command. Lines about keys of the job have level debug. Nil logs
	// nothing.
	Logger *slog.Logger
}

// A CommandEvent tells that a command started or ended.
type CommandEvent struct {
	ID      uint64 // counts the commands of a server from 1; the same at start and end
	Done    bool   // the command ended
	Key     string // the key that logged in: "SHA256:" and its hash in base64, as ssh-keygen -l prints it
	Person  string // the comment of the key in AuthorizedKeys, here or on the calling rank; empty for the job
	Command string // as received, or the key's forced command
	SFTP    bool   // the subsystem without a command
	PID     int    // of the shell, which leads the command's session and process group; 0 if it did not start

	// The rest is set if Done.
	Status int            // exit status; 128+n if signal n ended it; 255 if it did not start
	Signal syscall.Signal // the signal that ended the command, or 0
	Lost   bool           // the client disconnected before the command ended
}

// A Server serves SSH connections on any number of listeners.
type Server struct {
	cfg        Config
	starting   sync.RWMutex // read-locked from before a command's start until OnCommand returns
	version    string
	authorized map[string]struct{} // by wire encoding
	people     *people             // or nil
	names      map[string]struct{} // login names of this user
	environ    []string
	home       string
	pathShell  string // for a shell request with a terminal
	limits     limits

	admission     *admission
	commands      atomic.Uint64
	peerTimeout   atomic.Int64 // set by Watch
	peerKeepalive atomic.Int64 // set by Watch
	logins        atomic.Int64 // since the last freeMemory
	freeTimer     *time.Timer  // calls freeMemory

	stopping context.Context // ends when Shutdown begins
	stop     context.CancelFunc
	hurry    chan struct{} // closed when Shutdown's context ends

	repeats repeats

	mu      sync.Mutex
	stopped bool          // no further goroutine may start
	active  int           // goroutines
	changed chan struct{} // closed and replaced when active, running or conns shrink
	conns   map[*conn]struct{}
	running map[*session]struct{} // from the request until the client confirms the end
}

// Watch sets how long a peer's machine may acknowledge nothing before its connection is lost (until then 20 s), and the
// interval of keepalive requests (15 s), also for open connections, for the reasons of rsh.Pool.Watch. Connections of
// people keep the defaults.
func (s *Server) Watch(timeout, keepalive time.Duration) {
	s.peerTimeout.Store(int64(timeout))
	s.peerKeepalive.Store(int64(keepalive))
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.peer.Load() { // a connection that is logging in uses the new timeout, set here or by login
			c.setKeepalive(timeout)
		}
	}
}

// limits bounds what clients can make the server spend. They are fields so that tests can change them.
type limits struct {
	login, listen, turn, queue, keepalive, userTimeout, drainIdle, drainTotal, freeDelay, settle time.Duration
	misses, handshakes, turns, perSource, pending, sessions, channels                            int
}

func defaultLimits() limits {
	return limits{
		login:       30 * time.Second,       // from accept to login, with the queue
		listen:      200 * time.Millisecond, // of silence, then a client counts as waiting for our identification
		turn:        2 * time.Second,        // how long a handshake keeps its place; then it continues beside the queue
		queue:       250 * time.Millisecond, // for a place that all addresses outside of the job share
		keepalive:   15 * time.Second,       // between two keepalive requests; Watch changes it for peers
		misses:      3,                      // after this many intervals without an answer, the connection ends
		userTimeout: 60 * time.Second,       // TCP_USER_TIMEOUT
		drainIdle:   500 * time.Millisecond, // the command has exited, its output is still open, and nothing comes
		drainTotal:  5 * time.Second,        // the same, and something comes
		freeDelay:   2 * time.Second,        // from the last of many logins until memory is freed
		settle:      2 * time.Second,        // for goroutines and last packets after Shutdown's deadline
		handshakes:  64,                     // at once, of peers; as many of others; a quarter as many silent ones
		turns:       10,                     // handshakes at once from one address (IPv6: one /64) outside of the job
		perSource:   500,                    // connections without a login from one such address
		pending:     1200,                   // connections without a login from all such addresses
		sessions:    64,                     // running, per connection; 4 times as many may await the client's close
		channels:    64,                     // channels of other types per connection
	}
}

// New checks cfg and returns a server that does not listen yet.
func New(cfg Config) (*Server, error) {
	if cfg.HostKey == nil {
		return nil, errors.New("creating the SSH server: no host key")
	}
	if len(cfg.Comment) > 200 {
		return nil, fmt.Errorf("creating the SSH server: the comment has %d bytes, at most 200 fit into the "+
			"identification", len(cfg.Comment))
	}
	if strings.ContainsFunc(cfg.Comment, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, fmt.Errorf("creating the SSH server: comment %q: not printable ASCII", cfg.Comment)
	}
	for name, handle := range cfg.Channels {
		if name == "session" || name == "default" || handle == nil {
			return nil, fmt.Errorf("creating the SSH server: channel type %q: it is reserved or has no handler", name)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.StartWithSlack == nil {
		cfg.StartWithSlack = func(start func() error) error { return start() }
	}
	if cfg.OnCommand == nil {
		cfg.OnCommand = func(CommandEvent) {}
	}
	if cfg.Extra == nil {
		cfg.Extra = func() []string { return nil }
	}
	cfg.Shell = cmp.Or(cfg.Shell, "/bin/sh")
	if !filepath.IsAbs(cfg.Shell) {
		return nil, fmt.Errorf("creating the SSH server: shell %q: not an absolute path", cfg.Shell)
	}
	if cfg.Grace <= 0 {
		cfg.Grace = 5 * time.Second
	}
	s := &Server{
		cfg:        cfg,
		version:    strings.TrimSpace("paiinit " + cfg.Comment),
		authorized: make(map[string]struct{}),
		limits:     defaultLimits(),
		hurry:      make(chan struct{}),
		changed:    make(chan struct{}),
		conns:      make(map[*conn]struct{}),
		running:    make(map[*session]struct{}),
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.peerTimeout.Store(int64(20 * time.Second))
	for i, key := range cfg.Authorized {
		if key == nil {
			return nil, fmt.Errorf("creating the SSH server: authorized key %d is nil", i)
		}
		if _, isCert := key.(*ssh.Certificate); isCert {
			return nil, fmt.Errorf("creating the SSH server: authorized key %d is a certificate", i)
		}
		s.authorized[string(key.Marshal())] = struct{}{}
	}
	// Connections without a login leave three quarters of the file descriptors to other connections and to commands.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		s.limits.pending = min(s.limits.pending, max(16, int(min(files.Cur, 1<<20))/4))
	}
	s.limits.login += cfg.Patience
	s.admission = newAdmission(&s.limits)
	s.freeTimer = time.AfterFunc(s.limits.freeDelay, s.freeMemory)
	s.freeTimer.Stop()
	if cfg.AuthorizedKeys != "" {
		s.people = &people{file: cfg.AuthorizedKeys, log: cfg.Logger}
		if err := s.people.refresh(); err != nil {
			return nil, fmt.Errorf("creating the SSH server: %w", err)
		}
	}
	s.environ, s.home, s.pathShell, s.names = baseEnvironment(cfg.Environ, cfg.Shell)
	return s, nil
}

// Greeting returns the identification, the line that the server writes first on every connection.
func (s *Server) Greeting() string { return "SSH-2.0-" + s.version + "\r\n" }

// Serve accepts connections from ln until Shutdown, and then returns ErrServerClosed, or until ln fails. It closes ln.
func (s *Server) Serve(ln net.Listener) error {
	defer func() { _ = ln.Close() }()
	if !s.enter() {
		return ErrServerClosed
	}
	defer s.leave()
	defer context.AfterFunc(s.stopping, func() { _ = ln.Close() })()
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			s.accept(newConn(s, nc, s.limits.login))
		case s.closed():
			return ErrServerClosed
		default:
			return fmt.Errorf("accepting connections on %s: %w", ln.Addr(), err)
		}
	}
}

// loginsBeforeFree logins leave enough garbage for a collection: a third of the memory of their connections.
const loginsBeforeFree = 50

// loggedIn schedules freeMemory after the last of many logins.
func (s *Server) loggedIn() {
	if s.logins.Add(1) >= loginsBeforeFree {
		s.freeTimer.Reset(s.limits.freeDelay)
	}
}

// freeMemory returns the memory of many handshakes to the system.
func (s *Server) freeMemory() {
	if !s.enter() {
		return
	}
	defer s.leave()
	s.logins.Store(0)
	debug.FreeOSMemory()
}

// accept starts serving c, or closes it after Shutdown.
func (s *Server) accept(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed() {
		c.deadline.Stop()
		c.shut()
		return
	}
	c.joinPending()
	s.conns[c] = struct{}{}
	s.active++
	go c.serve()
}

// Connect returns a connection of this process to the server, which need not be serving.
func (s *Server) Connect() (net.Conn, error) {
	ours, theirs, err := unixsock.Pair()
	if err != nil {
		return nil, err
	}
	s.accept(newConn(s, theirs, s.limits.login))
	return ours, nil
}

// SelfCheck proves that the server refuses logins without a key of Config.Authorized: over a socket pair within the
// process it tries to log in without any method, with an empty password if the server offers passwords, and with a new
// key. The server need not be serving. The error says which login was accepted, or why none could be tried.
func (s *Server) SelfCheck(ctx context.Context) error {
	_, key, _ := ed25519.GenerateKey(rand.Reader) // crypto/rand never fails
	signer, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		return fmt.Errorf("checking the SSH server: creating a key: %w", err)
	}
	// One connection, in which the client first tries no method: three would make every start 2 ms slower.
	what := "without any method"
	err = s.tryLogin(ctx,
		ssh.PasswordCallback(func() (string, error) {
			what = "with an empty password"
			return "", nil
		}),
		ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
			what = "with an unknown key"
			return []ssh.Signer{signer}, nil
		}))
	if err != nil {
		return fmt.Errorf("checking that a login %s is refused: %w", what, err)
	}
	return nil
}

// tryLogin returns nil if the server refuses a login by auth.
func (s *Server) tryLogin(ctx context.Context, auth ...ssh.AuthMethod) error {
	ours, theirs, err := unixsock.Pair()
	if err != nil {
		return err
	}
	defer func() { _ = ours.Close() }()
	defer context.AfterFunc(ctx, func() { _ = ours.Close() })()
	// Only ctx bounds it: on a slow machine the check must not fail.
	c := newConn(s, theirs, math.MaxInt64)
	c.check = true
	s.accept(c)
	met := false
	client, _, _, err := ssh.NewClientConn(ours, "self-check", &ssh.ClientConfig{
		// The key exchange does not influence the decision; this one is the shortest.
		Config: ssh.Config{KeyExchanges: []string{ssh.KeyExchangeCurve25519}},
		User:   "root",
		Auth:   auth,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			if !bytes.Equal(key.Marshal(), s.cfg.HostKey.PublicKey().Marshal()) {
				return errors.New("the server presented a wrong host key")
			}
			met = true
			return nil
		},
	})
	switch {
	case err == nil:
		_ = client.Close()
		return errors.New("the login was accepted")
	case ctx.Err() != nil:
		return ctx.Err()
	case !met || !strings.Contains(err.Error(), "unable to authenticate"):
		return fmt.Errorf("the login could not be tried: %w", err)
	}
	return nil
}

// Shutdown stops accepting, sends TERM to the process groups of all running commands, and waits for them and their
// clients until ctx ends. Then it sends KILL to the sessions that are left, closes all connections, and waits for every
// goroutine of the server. Commands that end in time send their status to their clients.
//
// The error is ctx's if commands had to be killed. If goroutines do not end within two seconds after their connections
// were closed (a handler of Config.Channels, a process that KILL does not end), the error counts them.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.stop()
	s.freeTimer.Stop()
	for c := range s.conns {
		if !c.loggedIn.Load() {
			c.shut()
		}
	}
	running := slices.Collect(maps.Keys(s.running))
	s.mu.Unlock()
	for _, r := range running {
		r.terminate()
	}

	var result error
	ended := func() bool { return len(s.running) == 0 }
	settle := func(done func() bool) bool {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.settle)
		defer cancel()
		return s.wait(ctx, done)
	}
	if !s.wait(ctx, ended) {
		s.mu.Lock()
		result = fmt.Errorf("shutting down the SSH server: %d commands did not end: %w", len(s.running), ctx.Err())
		if !isClosed(s.hurry) {
			close(s.hurry)
		}
		s.mu.Unlock()
		settle(ended)
	}

	s.mu.Lock()
	for c := range s.conns {
		c.shut()
	}
	s.mu.Unlock()
	if !settle(func() bool { s.stopped = s.active == 0; return s.stopped }) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return errors.Join(result,
			fmt.Errorf("shutting down the SSH server: %d goroutines did not end, %d of them commands",
				s.active, len(s.running)))
	}
	return result
}

// wait calls done with the lock held until it returns true. It returns false if ctx ends first.
func (s *Server) wait(ctx context.Context, done func() bool) bool {
	for {
		s.mu.Lock()
		ok, changed := done(), s.changed
		s.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// shrunk wakes wait. The caller holds the lock.
func (s *Server) shrunk() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) closed() bool { return s.stopping.Err() != nil }

// enter counts the calling goroutine. False means that Shutdown has finished: the goroutine must end at once.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.active++
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	s.shrunk()
}

// Sessions counts the sessions with a command, from the request until the client confirms the end.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.running)
}

// AwaitStarts returns once Config.OnCommand got every command that runs now. A command may call back into this process
// before OnCommand gets its start.
func (s *Server) AwaitStarts() {
	s.starting.Lock()
	s.starting.Unlock() //nolint:staticcheck // an empty critical section: only the waiting counts
}

// cut shortens a client's text for a log line.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(text[:n], ""), len(text))
}
