package rsh

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/integration/testsignals"
)

// clientSocket turns a process of this test binary into the thin client: "rsh.test ARGS...".
const clientSocket = "RSH_TEST_SOCKET"

func TestMain(m *testing.M) {
	if socket, ok := os.LookupEnv(clientSocket); ok {
		signals := func() <-chan os.Signal {
			caught := make(chan os.Signal, 16)
			signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
				syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
			return caught
		}
		inv, err := Parse(os.Args[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(64)
		}
		c := Caller{Socket: socket, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Signals: signals,
			Term: os.Getenv("TERM"), Environ: os.Environ()}
		os.Exit(c.Run(context.Background(), inv))
	}
	if addr, ok := os.LookupEnv(agentPeer); ok {
		os.Exit(serveAgent(addr, os.Args[1]))
	}
	testsignals.Default()
	goleak.VerifyTestMain(m)
}

// missing skips the test because a requirement is missing, or fails it where that is not allowed.
func missing(tb testing.TB, why string) {
	tb.Helper()
	if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		tb.Fatal(why)
	}
	tb.Skip(why)
}

// agentPeer turns a process of this test binary into the agent of a job with one peer: "rsh.test SOCKET".
const agentPeer = "RSH_TEST_PEER"

func serveAgent(addr, socket string) int {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("listening")
	target := Target{Name: "worker-1", ID: "worker-1", Addr: netip.MustParseAddrPort(addr)}
	_ = New(testConfig("s")).ServeAgent(context.Background(), ln, Agent{
		Resolve: func(context.Context, string) (Target, bool) { return target, true },
	})
	return 0
}

// testKey derives the key of a name from a secret, as jobkey does.
func testKey(secret, name string) ssh.Signer {
	seed := sha256.Sum256([]byte(secret + "/" + name))
	s, err := ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(seed[:]))
	if err != nil {
		panic(err)
	}
	return s
}

func testConfig(secret string) Config {
	return Config{
		User:  testKey(secret, "user"),
		Host:  func(id string) ssh.PublicKey { return testKey(secret, "host "+id).PublicKey() },
		Label: "0123456789abcdef",
	}
}

// peerServer is a container's sshd with scripted behaviour.
type peerServer struct {
	t        testing.TB
	target   Target
	greeting string        // "" = "SSH-2.0-paiinit <label> <id> 2"
	hostKey  ssh.Signer    // nil = the right one
	userKey  ssh.PublicKey // nil = the right one
	raw      func(net.Conn) bool
	onExec   func(s *peerSession) bool // true = handled
	most     int                       // sessions on one connection; 0 = no limit, -1 = none

	ln       net.Listener
	wg       sync.WaitGroup
	mu       sync.Mutex
	conns    map[net.Conn]bool
	logins   atomic.Int32
	accepted atomic.Int32
	ended    chan string // commands whose channel was closed before they ended
}

// startPeer serves until the end of the test. set changes it before it starts.
func startPeer(t testing.TB, id string, set func(*peerServer)) *peerServer {
	s := &peerServer{t: t, conns: map[net.Conn]bool{}, ended: make(chan string, 16)}
	s.greeting = "SSH-2.0-paiinit " + Comment(testConfig("s").Label, id)
	s.hostKey, s.userKey = testKey("s", "host "+id), testKey("s", "user").PublicKey()
	if set != nil {
		set(s)
	}
	var err error
	s.ln, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.target = Target{Name: id, ID: id, Addr: s.ln.Addr().(*net.TCPAddr).AddrPort()}
	s.wg.Go(func() {
		for {
			c, err := s.ln.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (s *peerServer) stop() {
	_ = s.ln.Close()
	s.drop()
	s.wg.Wait()
}

// drop closes all connections.
func (s *peerServer) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

func (s *peerServer) serve(c net.Conn) {
	s.mu.Lock()
	s.conns[c] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = c.Close()
	}()
	s.accepted.Add(1)
	if s.raw != nil && s.raw(c) {
		return
	}
	cfg := &ssh.ServerConfig{
		ServerVersion: s.greeting,
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if !bytes.Equal(key.Marshal(), s.userKey.Marshal()) {
				return nil, errors.New("unknown key")
			}
			return nil, nil
		},
	}
	cfg.AddHostKey(s.hostKey)
	conn, chans, reqs, err := ssh.NewServerConn(c, cfg)
	if err != nil {
		return
	}
	s.logins.Add(1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for r := range reqs {
			_ = r.Reply(r.Type == "keepalive@openssh.com", nil)
		}
	})
	var sessions atomic.Int32
	for nc := range chans {
		switch nc.ChannelType() {
		case "session":
			if n := sessions.Add(1); s.most != 0 && int(n) > s.most {
				sessions.Add(-1)
				_ = nc.Reject(ssh.ResourceShortage, "too many sessions on this connection")
				continue
			}
			ch, reqs, err := nc.Accept()
			if err == nil {
				wg.Go(func() { defer sessions.Add(-1); s.session(conn, ch, reqs) })
			}
		case "control@paiinit":
			ch, reqs, err := nc.Accept()
			if err == nil {
				wg.Go(func() { ssh.DiscardRequests(reqs) })
				wg.Go(func() { // an echo
					_, _ = io.Copy(ch, ch)
					_ = ch.Close()
				})
			}
		default:
			_ = nc.Reject(ssh.UnknownChannelType, "no")
		}
	}
}

type peerSession struct {
	ssh.Channel
	server  *peerServer
	conn    *ssh.ServerConn
	kind    string // exec, shell, subsystem
	command string
	environ []string
	signals chan string
	gone    chan struct{} // the client closed the channel
}

func (s *peerSession) exit(code uint32) {
	_, _ = s.SendRequest("exit-status", false, ssh.Marshal(struct{ C uint32 }{code}))
	_ = s.Close()
}

func (s *peerServer) session(conn *ssh.ServerConn, ch ssh.Channel, reqs <-chan *ssh.Request) {
	ps := &peerSession{Channel: ch, server: s, conn: conn, signals: make(chan string, 16), gone: make(chan struct{})}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(ps.gone)
	for r := range reqs {
		switch r.Type {
		case "exec", "shell", "subsystem":
			var m struct{ C string }
			_ = ssh.Unmarshal(r.Payload, &m)
			ps.kind, ps.command = r.Type, m.C
			if m.C == "refuse" {
				_ = r.Reply(false, nil)
				continue
			}
			if m.C == "never answered" {
				continue
			}
			_ = r.Reply(true, nil)
			wg.Go(ps.run)
		case "user@paiinit":
			var m struct{ N string }
			_ = ssh.Unmarshal(r.Payload, &m)
			_ = r.Reply(m.N == "root", nil)
		case "env":
			var m struct{ N, V string }
			_ = ssh.Unmarshal(r.Payload, &m)
			ps.environ = append(ps.environ, m.N+"="+m.V)
			_ = r.Reply(false, nil)
		case "pty-req", "window-change":
			ps.signals <- fmt.Sprintf("%s %q", r.Type, r.Payload)
			_ = r.Reply(true, nil)
		case "signal":
			var m struct{ N string }
			_ = ssh.Unmarshal(r.Payload, &m)
			ps.signals <- m.N
		default:
			_ = r.Reply(false, nil)
			s.t.Errorf("unexpected request %q", r.Type)
		}
	}
}

// run implements a shell with a few commands.
func (s *peerSession) run() {
	word, rest, _ := strings.Cut(s.command, " ")
	if s.server.onExec != nil && s.server.onExec(s) {
		return
	}
	switch {
	case s.kind != "exec":
		_, _ = fmt.Fprintf(s, "%s %s", s.kind, s.command)
		s.exit(0)
	case word == "exit":
		n, _ := strconv.Atoi(rest)
		s.exit(uint32(n))
	case word == "killed":
		_, _ = s.SendRequest("exit-signal", false, ssh.Marshal(struct {
			S    string
			C    bool
			M, L string
		}{rest, false, "", ""}))
		_ = s.Close()
	case word == "echo":
		_, _ = fmt.Fprintln(s, rest)
		s.exit(0)
	case word == "environ":
		_, _ = fmt.Fprintf(s, "%q\n", s.environ)
		s.exit(0)
	case word == "both":
		_, _ = fmt.Fprint(s, "to stdout")
		_, _ = fmt.Fprint(s.Stderr(), "to stderr")
		s.exit(5)
	case word == "cat":
		_, _ = io.Copy(s, s)
		s.exit(0)
	case word == "big":
		n, _ := strconv.Atoi(rest)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(s, io.LimitReader(pattern{}, int64(n))) })
		wg.Go(func() { _, _ = io.Copy(s.Stderr(), io.LimitReader(pattern{}, int64(n))) })
		wg.Wait()
		s.exit(0)
	case word == "yes":
		for {
			select {
			case sig := <-s.signals:
				s.command = "killed " + sig
				s.run()
				return
			default:
				if _, err := io.WriteString(s, strings.Repeat("y\n", 500)); err != nil {
					return
				}
			}
		}
	case word == "signals": // prints the signals that it gets; TERM ends it
		for {
			select {
			case sig := <-s.signals:
				_, _ = fmt.Fprintln(s, sig)
				if sig == "TERM" {
					s.exit(42)
					return
				}
			case <-s.gone:
				s.server.ended <- s.command
				return
			}
		}
	case word == "nostatus":
		_ = s.Close()
	case word == "drop":
		_ = s.conn.Close()
	default: // hangs until the client closes
		_, _ = fmt.Fprintln(s, "started")
		<-s.gone
		s.server.ended <- s.command
	}
}

// pattern is a stream whose bytes depend on their offset.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i % 251)
	}
	n := len(p) / 251 * 251
	if n == 0 {
		n = len(p)
	}
	return n, nil
}

func testPool(t testing.TB, set func(*Config)) *Pool {
	cfg := testConfig("s")
	if set != nil {
		set(&cfg)
	}
	p := New(cfg)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// testCtx ends before the test's own timeout, so that a hang gives a message and not a panic.
func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func closedAddr(t testing.TB) netip.AddrPort {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).AddrPort()
}
