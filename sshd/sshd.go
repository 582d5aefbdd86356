// Package sshd is the SSH server inside every container of a job: it runs commands for whoever holds a key of the job.
//
// It hides the SSH protocol (RFC 4251 to 4254), the life of the commands that clients start, and what a hostile or
// broken client can do to the process that embeds it. Connections are carried by gliderlabs/ssh; sessions, login
// deadlines, identities and limits are this package's own.
//
// Two classes of keys may log in. Those of Config.Authorized belong to the job and may do everything. Those of the file
// Config.AuthorizedKeys belong to people: they get shells, commands and SFTP within the options of their line, and no channel of
// Config.Channels.
//
// What it refuses, always: every login that is not by one of these keys (there is no password, no keyboard-interactive, no "none"
// and no certificate login), forwarding of TCP ports, Unix sockets, X11 and agents, subsystems other than sftp, and environment
// variables from the client other than LANG, LC_*, TERM and COLORTERM. Every session runs as the user of this process, so a login
// name must be one of that user: the name in the user database, USER, the number, or root, which clients use that cannot know it.
//
// Handshakes are queued. Those from addresses of Config.Known are never dropped; of the others 500 may wait for each
// address and 1,200 in all, beyond which the oldest is dropped.
//
// A command runs as "/bin/sh -c COMMAND" in a session (setsid) of its own. How it ends:
//
//	the command exits        its output is sent, then exit-status or exit-signal, EOF, and close. Processes that it
//	                         left behind live on; one that holds its output open does not delay the end
//	the client is gone       (channel closed or connection lost while the command runs) every process of the session
//	                         gets HUP and CONT, then TERM, then KILL. Processes that left by setsid are not touched
//	Shutdown                 TERM to the command's process group, at the end of the context KILL to the whole session
//
// Panics in goroutines of this package and in the handlers it calls end the connection that caused them and leave one line in the log.
// golang.org/x/crypto/ssh starts goroutines of its own, which nobody can guard from outside.
package sshd

import (
	"bytes"
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
	"os"
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

// ErrServerClosed is what Serve returns after Shutdown.
var ErrServerClosed = errors.New("sshd: server closed")

// Config says who may log in and what sessions get. HostKey is required; every other zero value has a meaning.
type Config struct {
	// HostKey proves to clients that they reached this container.
	HostKey ssh.Signer

	// Comment is appended to the identification string, which every client sees before it logs in:
	// "SSH-2.0-paiinit COMMENT" (RFC 4253 section 4.2). Printable ASCII, at most 200 bytes. Empty: no comment.
	Comment string

	// Authorized are the keys of the job. Empty: there are none.
	Authorized []ssh.PublicKey

	// AuthorizedKeys is a file with the keys of people, in the format of sshd(8). The options from (addresses, not names), expiry-time, command, restrict,
	// pty and no-pty are kept; no-*-forwarding, no-user-rc, permitopen and permitlisten are kept by what is never served. A line with any
	// other option is skipped, with a warning. The file is looked at for every login and read again when it has changed; one that
	// cannot be read, or that its group or everybody can write, admits nobody, and New fails. Empty: none.
	AuthorizedKeys string

	// SFTP is the program that serves the subsystem sftp on its standard input and output, with its arguments: one that calls ServeSFTP.
	// Empty: the subsystem is refused.
	SFTP []string

	// Hidden are absolute paths that SFTP gets as further arguments where the line of a person's key allows nothing
	// else (command="internal-sftp"); empty ones are passed over. A key that also opens a shell would reach them
	// anyway.
	Hidden []string

	// Known says that an address belongs to a peer of the job, whose connections are not limited. Nil: no address does.
	Known func(netip.Addr) bool

	// Environ is the environment of sessions as "name=value", complete and without secrets. USER, LOGNAME, HOME and
	// SHELL are added where they are missing, SSH_CONNECTION always. SSH_CLIENT is not set: Debian's bash reads
	// ~/.bashrc even for "-c" when it is.
	Environ []string

	// Extra is asked at the start of every session for variables that were not known when the server was made. They win over
	// Environ. Nil: none.
	Extra func() []string

	// Dir is the working directory of sessions when HOME is not a directory that can be entered. Empty, or not
	// a directory either: "/".
	Dir string

	// Shell runs the commands, called with "-c" and the command as it was received. Empty: /bin/sh.
	Shell string

	// Channels are further channel types by name, for example "control@paiinit"; not "session" and "default". The handler runs in a goroutine of its own
	// and owns ch: it closes it, when it returns or later. ctx ends with the connection. The package knows
	// that remote has logged in with an authorized key.
	Channels map[string]func(ctx context.Context, ch io.ReadWriteCloser, remote net.Addr)

	// Fork calls the function that starts a process, in the way in which processes have to be started here. Nil: it is called as it is.
	Fork func(start func() error) error

	// Admit is asked about everybody who has logged in, before he hears of it. It may take its time; an error closes the connection, and is
	// logged. It is not asked by SelfCheck. Nil: everybody is admitted.
	Admit func() error

	// OnCommand is called at the start and at the end of every command, from the goroutine that waits for
	// it: it must not block. Nil: nobody is told.
	OnCommand func(CommandEvent)

	// Grace is the time from HUP to TERM and from TERM to KILL for the processes of a session whose client is
	// gone. Zero: 5 seconds.
	Grace time.Duration

	// Logger gets one line for each login, refusal and command; those about keys of the job have level debug. Nil: nothing is logged.
	Logger *slog.Logger
}

// A CommandEvent tells that a command was started or has ended.
type CommandEvent struct {
	ID      uint64    // counts the commands of a server from 1; start and end of a command have the same
	Done    bool      // false: it was started; true: it has ended
	Key     string    // the key that logged in: "SHA256:" and its hash in base64, as ssh-keygen -l prints it
	Person  string    // the comment of the key in AuthorizedKeys, here or on the asking rank; empty for the job itself
	User    string    // the login name that the client gave; selects nothing
	Remote  net.Addr  // of the client
	Command string    // as it was received, or the one of the key's line
	Shell   bool      // no command: a shell that reads its input
	SFTP    bool      // no command: the subsystem
	PID     int       // of the shell, which leads session and process group of the command; 0: it could not be started
	Started time.Time // when the request came

	// The rest is set when Done.
	Status   int            // exit status; 128+n when a signal ended it; 255 when it could not be started
	Signal   syscall.Signal // that ended the command, or 0
	Lost     bool           // the client was gone before the command ended
	Duration time.Duration
}

// A Server serves SSH connections on any number of listeners.
type Server struct {
	cfg        Config
	starting   sync.RWMutex // held for reading from before a command's start until OnCommand has returned
	log        *slog.Logger
	version    string
	authorized map[string]struct{} // by wire encoding
	people     *people             // or nil
	names      map[string]struct{} // by which this user can be asked for
	environ    []string
	home       string
	pathShell  string // for a shell request with a terminal
	limits     limits

	door     *door
	commands atomic.Uint64
	silence  atomic.Int64 // of Watch
	pause    atomic.Int64 // of Watch
	logins   atomic.Int64 // since memory was given back
	calm     *time.Timer  // gives it back

	stopping chan struct{} // closed when Shutdown begins
	hurry    chan struct{} // closed when the time of Shutdown is over

	refusals refusals

	mu        sync.Mutex
	stopped   bool          // no goroutine may start any more
	active    int           // goroutines
	changed   chan struct{} // closed and replaced when active, running or conns shrink
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	running   map[*session]struct{} // from the request until the client has confirmed the end
}

// Watch sets for how long the machine of a peer may acknowledge nothing before its connection is lost, and the time between two requests
// for a sign of life of its process, also for the connections that there are; they are 20 s and 15 s without it. While nothing depends on
// a connection it is better kept where packets get lost; once something does, the end of the other machine must be noticed soon. The
// kernels see to that without waking anybody; a request wakes both ends, and does so in the middle of the job. Nothing changes for people.
func (s *Server) Watch(silence, keepalive time.Duration) {
	s.silence.Store(int64(silence))
	s.pause.Store(int64(keepalive))
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.peer.Load() { // one that logs in right now takes the new time itself, here or there
			c.watch(silence)
		}
	}
}

// limits bounds what clients can make the server spend. They are fields only for the tests.
type limits struct {
	login      time.Duration // accept to login, absolute, the queue included
	listen     time.Duration // how long a client may be silent before it counts as one that waits for our banner
	turn       time.Duration // how long a handshake keeps its place; afterwards it goes on beside the queue
	queue      time.Duration // how long a handshake waits for a place that all addresses of strangers share
	keepalive  time.Duration // between two keepalive requests; Watch changes it for peers
	misses     int           // so many of these intervals without an answer end a connection
	userTO     time.Duration // TCP_USER_TIMEOUT
	drainIdle  time.Duration // the command has exited, its output is still held open and nothing comes
	drainTotal time.Duration // the same, and something comes
	calm       time.Duration // without a login, after which memory of many is given back
	settle     time.Duration // for goroutines and last packets once Shutdown's time is over
	handshakes int           // at once, of peers; as many of strangers; a quarter of it of those that have said nothing
	turns      int           // handshakes at once from one address (IPv6: one /64), of strangers
	perSource  int           // connections without a login from one address, of strangers
	strangers  int           // the same from everywhere
	sessions   int           // per connection, running
	channels   int           // per connection, other types; for sessions so many times 4 that wait for the client's close
}

func defaultLimits() limits {
	return limits{
		login:      30 * time.Second,
		listen:     200 * time.Millisecond,
		turn:       2 * time.Second,
		queue:      250 * time.Millisecond,
		keepalive:  15 * time.Second,
		misses:     3,
		userTO:     60 * time.Second,
		drainIdle:  500 * time.Millisecond,
		drainTotal: 5 * time.Second,
		calm:       2 * time.Second,
		settle:     2 * time.Second,
		handshakes: 64,
		turns:      10,
		perSource:  500,
		strangers:  1200,
		sessions:   64,
		channels:   64,
	}
}

// New checks cfg and returns a server that does not listen yet.
func New(cfg Config) (*Server, error) {
	if cfg.HostKey == nil {
		return nil, errors.New("sshd: creating the server: no host key")
	}
	if len(cfg.Comment) > 200 {
		return nil, fmt.Errorf("sshd: creating the server: the comment has %d bytes, at most 200 fit into the identification", len(cfg.Comment))
	}
	for i := range len(cfg.Comment) {
		if b := cfg.Comment[i]; b < ' ' || b > '~' {
			return nil, fmt.Errorf("sshd: creating the server: comment %q: not printable ASCII", cfg.Comment)
		}
	}
	for name, handle := range cfg.Channels {
		if name == "session" || name == "default" || handle == nil {
			return nil, fmt.Errorf("sshd: creating the server: channel type %q: cannot be served by a handler, or has none", name)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Fork == nil {
		cfg.Fork = func(start func() error) error { return start() }
	}
	if cfg.Shell == "" {
		cfg.Shell = "/bin/sh"
	}
	if !filepath.IsAbs(cfg.Shell) {
		return nil, fmt.Errorf("sshd: creating the server: shell %q: not an absolute path", cfg.Shell)
	}
	if cfg.Grace <= 0 {
		cfg.Grace = 5 * time.Second
	}
	s := &Server{
		cfg:        cfg,
		log:        cfg.Logger,
		version:    strings.TrimSpace("paiinit " + cfg.Comment),
		authorized: make(map[string]struct{}),
		limits:     defaultLimits(),
		stopping:   make(chan struct{}),
		hurry:      make(chan struct{}),
		changed:    make(chan struct{}),
		listeners:  make(map[net.Listener]struct{}),
		conns:      make(map[*conn]struct{}),
		running:    make(map[*session]struct{}),
	}
	s.silence.Store(int64(20 * time.Second))
	for i, key := range cfg.Authorized {
		if key == nil {
			return nil, fmt.Errorf("sshd: creating the server: authorized key %d is nil", i)
		}
		if _, isCert := key.(*ssh.Certificate); isCert {
			return nil, fmt.Errorf("sshd: creating the server: authorized key %d is a certificate", i)
		}
		s.authorized[string(key.Marshal())] = struct{}{}
	}
	// Connections without a login leave three quarters of the descriptors to those that have one, and to commands.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		s.limits.strangers = min(s.limits.strangers, max(16, int(min(files.Cur, 1<<20))/4))
	}
	s.door = newDoor(&s.limits)
	s.calm = time.AfterFunc(s.limits.calm, s.giveBack)
	s.calm.Stop()
	if cfg.AuthorizedKeys != "" {
		s.people = &people{file: cfg.AuthorizedKeys, log: cfg.Logger}
		if err := s.people.refresh(); err != nil {
			return nil, fmt.Errorf("sshd: creating the server: %w", err)
		}
	}
	s.environ, s.home, s.pathShell, s.names = baseEnvironment(cfg.Environ, cfg.Shell)
	return s, nil
}

// Greeting is what the server writes first on every connection: its identification, with the end of the line.
func (s *Server) Greeting() string { return "SSH-2.0-" + s.version + "\r\n" }

// Serve accepts connections from ln until Shutdown, and then returns ErrServerClosed. It closes ln. Any other error is one of ln.
// When the process is out of file descriptors or memory it tries again, at most a second later.
func (s *Server) Serve(ln net.Listener) error {
	defer func() { _ = ln.Close() }()
	s.mu.Lock()
	if s.closed() {
		s.mu.Unlock()
		return ErrServerClosed
	}
	s.listeners[ln] = struct{}{}
	s.active++
	s.mu.Unlock()
	defer s.leave()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, ln)
		s.mu.Unlock()
	}()

	var delay time.Duration
	for {
		nc, err := ln.Accept()
		if err != nil {
			if s.closed() {
				return ErrServerClosed
			}
			if !passing(err) {
				return fmt.Errorf("sshd: accepting connections on %s: %w", ln.Addr(), err)
			}
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			s.log.Warn("ssh accept failed", "on", ln.Addr().String(), "err", err, "again_in", delay)
			select {
			case <-time.After(delay):
			case <-s.stopping:
			}
			continue
		}
		delay = 0
		s.accept(newConn(s, nc, s.limits.login))
	}
}

// manyLogins are so many that what their handshakes have left behind is worth a garbage collection: a third of the memory of their connections.
const manyLogins = 50

// loggedIn has memory given back some time after the last of many logins.
func (s *Server) loggedIn() {
	if s.logins.Add(1) >= manyLogins {
		s.calm.Reset(s.limits.calm)
	}
}

func (s *Server) giveBack() {
	if !s.enter() {
		return
	}
	defer s.leave()
	s.logins.Store(0)
	debug.FreeOSMemory()
}

// passing reports whether accept(2) can succeed later without anything being done about err.
func passing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EAGAIN, os.ErrDeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// accept starts to serve c, or closes it after Shutdown.
func (s *Server) accept(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed() {
		c.deadline.Stop()
		c.shut()
		return
	}
	c.enter()
	s.conns[c] = struct{}{}
	s.active++
	go c.serve()
}

// Connect connects this process with the server, which need not be serving.
func (s *Server) Connect() (net.Conn, error) {
	ours, theirs, err := unixsock.Pair()
	if err != nil {
		return nil, err
	}
	s.accept(newConn(s, theirs, s.limits.login))
	return ours, nil
}

// SelfCheck proves that the server lets nobody in who has no key of Config.Authorized: over a socket pair within the process
// it tries to log in with no method at all, then with an empty password if the server takes any, then with a new key. The
// server need not be serving. The error says which login was accepted, or why none could be tried.
func (s *Server) SelfCheck(ctx context.Context) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("sshd: checking the server: creating a key: %w", err)
	}
	signer, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		return fmt.Errorf("sshd: checking the server: creating a key: %w", err)
	}
	// All in one connection, in which the client tries nothing at all first: three would take 2 ms more of every start.
	what := "without any method"
	err = s.tryLogin(ctx, []ssh.AuthMethod{
		ssh.PasswordCallback(func() (string, error) {
			what = "with an empty password"
			return "", nil
		}),
		ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
			what = "with an unknown key"
			return []ssh.Signer{signer}, nil
		}),
	})
	if err != nil {
		return fmt.Errorf("sshd: checking that a login %s is refused: %w", what, err)
	}
	return nil
}

// tryLogin returns nil if the server has refused a login by auth.
func (s *Server) tryLogin(ctx context.Context, auth []ssh.AuthMethod) error {
	ours, theirs, err := unixsock.Pair()
	if err != nil {
		return err
	}
	defer func() { _ = ours.Close() }()
	defer context.AfterFunc(ctx, func() { _ = ours.Close() })()
	// ctx bounds it: that the machine is slow is no reason to distrust the server.
	c := newConn(s, theirs, math.MaxInt64)
	c.check = true
	s.accept(c)
	met := false
	client, _, _, err := ssh.NewClientConn(ours, "self-check", &ssh.ClientConfig{
		// The way to the keys of the connection makes no difference to who is let in; this is the shortest.
		Config: ssh.Config{KeyExchanges: []string{ssh.KeyExchangeCurve25519}},
		User:   "root",
		Auth:   auth,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			if !bytes.Equal(key.Marshal(), s.cfg.HostKey.PublicKey().Marshal()) {
				return errors.New("the server shows another host key than its own")
			}
			met = true
			return nil
		},
	})
	switch {
	case err == nil:
		_ = client.Close()
		return errors.New("it was accepted")
	case ctx.Err() != nil:
		return ctx.Err()
	case !met || !strings.Contains(err.Error(), "unable to authenticate"):
		return fmt.Errorf("it could not be tried: %w", err)
	}
	return nil
}

// Shutdown stops accepting, sends TERM to the process groups of all running commands and waits for them and for their clients until ctx ends. Then it
// sends KILL to the sessions that are left, closes all connections, also those that are still logging in, and
// waits for every goroutine of the server. Commands that end in time have sent their status to their clients.
//
// The error is ctx's when commands had to be killed. Goroutines that do not end although their connections are closed (a
// handler of Config.Channels, a process that KILL does not end) are given two seconds and then named in the error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed() {
		close(s.stopping)
	}
	for ln := range s.listeners {
		_ = ln.Close()
	}
	s.calm.Stop()
	var idle []*conn
	for c := range s.conns {
		if !c.loggedIn.Load() {
			idle = append(idle, c)
		}
	}
	running := slices.Collect(maps.Keys(s.running))
	s.mu.Unlock()
	for _, c := range idle {
		c.shut()
	}
	for _, r := range running {
		r.terminate()
	}

	var result error
	if !s.wait(ctx, func() bool { return len(s.running) == 0 }) {
		s.mu.Lock()
		result = fmt.Errorf("sshd: shutting down: %d commands did not end: %w", len(s.running), ctx.Err())
		select {
		case <-s.hurry:
		default:
			close(s.hurry)
		}
		s.mu.Unlock()
		settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.settle)
		s.wait(settle, func() bool { return len(s.running) == 0 })
		cancel()
	}

	s.mu.Lock()
	rest := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range rest {
		c.shut()
	}
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.settle)
	defer cancel()
	if !s.wait(settle, func() bool {
		s.stopped = s.active == 0
		return s.stopped
	}) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return errors.Join(result, fmt.Errorf("sshd: shutting down: %d goroutines did not end, %d of them commands", s.active, len(s.running)))
	}
	return result
}

// wait returns true once done, called with the lock held, does; false when ctx ends first.
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

// shrunk wakes wait. The lock is held.
func (s *Server) shrunk() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) closed() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// enter counts the calling goroutine; false means that Shutdown is over and the goroutine has to end at once.
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

// AwaitStarts returns once every command that runs now was reported to Config.OnCommand. A command may call back into
// this process before its start is reported.
func (s *Server) AwaitStarts() {
	s.starting.Lock()
	s.starting.Unlock() //nolint:staticcheck // an empty critical section: only the waiting counts
}

// tell calls Config.OnCommand.
func (s *Server) tell(e CommandEvent) {
	if s.cfg.OnCommand != nil {
		s.cfg.OnCommand(e)
	}
}

// cut shortens what came from a client to what belongs into a log line.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(text[:n], ""), len(text))
}
