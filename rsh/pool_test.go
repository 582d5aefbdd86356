package rsh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

func TestControl(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	ch, err := p.Control(testCtx(t), peer.target)
	require.NoError(t, err)
	_, err = io.WriteString(ch, "ping")
	require.NoError(t, err)
	buf := make([]byte, 4)
	_, err = io.ReadFull(ch, buf)
	require.NoError(t, err)
	require.Equal(t, "ping", string(buf))
	require.Positive(t, ch.(interface{ RoundTrip() time.Duration }).RoundTrip())

	// A command and a second control channel share the connection.
	other, err := p.Control(testCtx(t), peer.target)
	require.NoError(t, err)
	st, err := p.Exec(testCtx(t), peer.target, request{Command: "exit 3"})
	require.NoError(t, err)
	require.Equal(t, Status{Code: 3}, st)
	require.EqualValues(t, 1, peer.logins.Load())
	require.NoError(t, other.Close())

	// The end of the connection is the end of Read.
	peer.drop()
	_, err = ch.Read(buf)
	require.Error(t, err)
	_ = ch.Close()
}

func TestRedial(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	for i := range 20 {
		st, err := p.Exec(testCtx(t), peer.target, request{Command: "exit 7"})
		require.NoError(t, err, i)
		require.Equal(t, Status{Code: 7}, st)
		peer.drop() // the pool may not have noticed yet when the next command comes
	}
	require.EqualValues(t, 20, peer.logins.Load())
}

// If the peer drops the connection while the pool opens a channel, the pool replaces the connection once, and only
// once.
func TestRedialOnOpen(t *testing.T) {
	for _, tt := range []struct {
		name   string
		bad    int32
		logins int32
		ok     bool
	}{{"first is dead", 1, 2, true}, {"all are dead", 1000, 2, false}} {
		t.Run(tt.name, func(t *testing.T) {
			var served atomic.Int32
			peer := startPeer(t, "worker-1", nil)
			dying := startPeer(t, "worker-1", func(s *peerServer) {
				s.raw = func(c net.Conn) bool {
					if served.Add(1) > tt.bad {
						return false
					}
					loginThenDie(c, s)
					return true
				}
			})
			_ = peer
			p := testPool(t, nil)
			st, err := p.Exec(testCtx(t), dying.target, request{Command: "exit 7"})
			require.Equal(t, tt.logins, served.Load())
			if tt.ok {
				require.NoError(t, err)
				require.Equal(t, Status{Code: 7}, st)
				return
			}
			var dial *DialError
			require.ErrorAs(t, err, &dial)
			require.Equal(t, stageChannel, dial.Stage)
		})
	}
}

// loginThenDie accepts a login and drops the connection when the client opens a channel.
func loginThenDie(c net.Conn, s *peerServer) {
	anyKey := func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }
	cfg := &ssh.ServerConfig{ServerVersion: s.greeting, PublicKeyCallback: anyKey}
	cfg.AddHostKey(s.hostKey)
	conn, chans, reqs, err := ssh.NewServerConn(c, cfg)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { ssh.DiscardRequests(reqs) })
	<-chans
	_ = conn.Close()
	for range chans {
	}
	wg.Wait()
}

// Concurrent callers share one login; each waits for as long as its own ctx allows.
func TestSingleFlight(t *testing.T) {
	hold := make(chan struct{})
	var once sync.Once
	release := func() { once.Do(func() { close(hold) }) }
	peer := startPeer(t, "worker-1", func(s *peerServer) {
		s.raw = func(net.Conn) bool { <-hold; return false }
	})
	defer release()
	p := testPool(t, nil)
	ctx := testCtx(t)

	impatient, give := context.WithCancel(ctx)
	first := make(chan error, 1)
	go func() {
		_, err := p.Connect(impatient, peer.target)
		first <- err
	}()
	const n = 20
	done := make(chan error, n)
	for range n {
		go func() {
			st, err := p.Exec(ctx, peer.target, request{Command: "exit 9"})
			if err == nil && st.Code != 9 {
				err = fmt.Errorf("status %d", st.Code)
			}
			done <- err
		}()
	}
	waitFor(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		l := p.links[keyOf(peer.target)]
		return l != nil && l.waiting == n+1
	})
	give()
	err := <-first
	require.ErrorIs(t, err, context.Canceled)
	var dial *DialError
	require.ErrorAs(t, err, &dial)
	release()
	for range n {
		require.NoError(t, <-done)
	}
	require.EqualValues(t, 1, peer.accepted.Load())
}

// When the last caller has left, the attempt ends, and a later caller makes a new one.
func TestLastCallerLeaves(t *testing.T) {
	var calls atomic.Int32
	closed := make(chan struct{})
	peer := startPeer(t, "worker-1", func(s *peerServer) {
		s.raw = func(c net.Conn) bool {
			if calls.Add(1) > 1 {
				return false
			}
			_, _ = io.Copy(io.Discard, c)
			close(closed)
			return true
		}
	})
	p := testPool(t, nil)
	p.dialTimeout = time.Minute
	ctx, cancel := context.WithCancel(testCtx(t))
	done := make(chan error, 1)
	go func() {
		_, err := p.Connect(ctx, peer.target)
		done <- err
	}()
	waitFor(t, func() bool { return calls.Load() == 1 })
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	<-closed
	_, err := p.Connect(testCtx(t), peer.target)
	require.NoError(t, err)
}

func keyOf(t Target) peer { return peer{t.ID, t.Addr, 0} }

// waitFor waits for a condition that another goroutine of this process makes true.
func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(t, "the condition did not become true in time")
		}
	}
}

func TestErrors(t *testing.T) {
	label := testConfig("s").Label
	all := []error{ErrNotPaiinit, ErrOtherJob, ErrOtherVersion, ErrOtherSecret, ErrOtherID, errRefused}
	says := func(s string) func(*peerServer) {
		return func(p *peerServer) {
			p.raw = func(c net.Conn) bool {
				_, _ = io.WriteString(c, s)
				_, _ = io.Copy(io.Discard, c)
				return true
			}
		}
	}
	greets := func(s string) func(*peerServer) { return func(p *peerServer) { p.greeting = s } }
	tests := []struct {
		name  string
		set   func(*peerServer)
		stage string
		is    error
		text  string // after "reaching worker-1 (ADDR): "
	}{
		{"other label", greets("SSH-2.0-paiinit ffffffffffffffff worker-1"), stageHandshake, ErrOtherJob,
			"handshake: it belongs to another job or to another attempt of this one: " +
				"its label is ffffffffffffffff, ours " + label},
		{"later version", greets("SSH-2.0-paiinit " + label + " worker-1 3 and more"), stageHandshake, ErrOtherVersion,
			"handshake: it is another version of paiinit: its protocol is 3 and more, ours 2"},
		{"older version", greets("SSH-2.0-paiinit " + label + " worker-1"), stageHandshake, ErrOtherVersion,
			"handshake: it is another version of paiinit: its protocol is older, ours 2"},
		{"other label and version", greets("SSH-2.0-paiinit ffffffffffffffff worker-1 3"), stageHandshake, ErrOtherJob,
			"handshake: it belongs to another job or to another attempt of this one: " +
				"its label is ffffffffffffffff, ours " + label},
		{"other secret", func(p *peerServer) { p.hostKey = testKey("other", "host worker-1") }, stageHandshake,
			ErrOtherSecret,
			`handshake: it has another secret: its host key is not the one of "worker-1"`},
		{"other secret and id", func(p *peerServer) {
			p.greeting, p.hostKey = "SSH-2.0-paiinit "+label+" worker-2 2", testKey("other", "host worker-2")
		}, stageHandshake, ErrOtherSecret,
			`handshake: it has another secret: its host key is not the one of "worker-2"`},
		{"other container", func(p *peerServer) {
			p.greeting, p.hostKey = "SSH-2.0-paiinit "+label+" worker-2 2", testKey("s", "host worker-2")
		}, stageHandshake, ErrOtherID,
			`handshake: it is another container of this job: it is "worker-2", expected "worker-1"`},
		{"claims to be us", func(p *peerServer) { p.hostKey = testKey("s", "host worker-2") }, stageHandshake,
			ErrOtherSecret,
			`handshake: it has another secret: its host key is not the one of "worker-1"`},
		{"login refused", func(p *peerServer) { p.userKey = testKey("other", "user").PublicKey() }, stageLogin,
			errRefused, ""},
		{"OpenSSH", greets("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3"), stageHandshake, ErrNotPaiinit,
			`handshake: the server is not paiinit: it sent "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3"`},
		{"paiinit without a comment", greets("SSH-2.0-paiinit"), stageHandshake, ErrNotPaiinit,
			`handshake: the server is not paiinit: its greeting names no job: "SSH-2.0-paiinit"`},
		{"HTTP", says("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n400 Bad Request"), stageHandshake,
			ErrNotPaiinit,
			`handshake: the server is not paiinit: it sent "HTTP/1.1 400 Bad Request"`},
		{"garbage", says("\x00\xff\x01\x02"), stageHandshake, ErrNotPaiinit,
			`handshake: the server is not paiinit: it sent "\x00\xff\x01\x02"`},
		{"endless line", says("SSH-2.0-" + string(make([]byte, 4000))), stageHandshake, ErrNotPaiinit, ""},
		{"garbage after the greeting", says("SSH-2.0-paiinit " + label + " worker-1 2\r\n" + string(make([]byte,
			4000))), stageHandshake, nil, ""},
		{"silent", says(""), stageHandshake, nil, "handshake: no answer within 10s"},
		{"half a greeting", says("SSH-2.0-pai"), stageHandshake, nil, "handshake: no answer within 10s"},
		{"closes", func(p *peerServer) { p.raw = func(net.Conn) bool { return true } }, stageHandshake, nil, ""},
		{"silent after the greeting", says("SSH-2.0-paiinit " + label + " worker-1 2\r\n"), stageHandshake, nil,
			"handshake: no answer within 10s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			peer := startPeer(t, "worker-1", tt.set)
			p := testPool(t, nil)
			p.dialTimeout = 10 * time.Second
			if tt.is != nil || tt.text == "" {
				p.dialTimeout = time.Minute // must not be the reason for the end
			}
			_, err := p.Connect(testCtx(t), peer.target)
			var dial *DialError
			require.ErrorAs(t, err, &dial)
			require.Equal(t, tt.stage, dial.Stage, err)
			require.Equal(t, peer.target, dial.Target)
			for _, e := range all {
				require.Equal(t, errors.Is(tt.is, e), errors.Is(err, e), "%v: %v", e, err)
			}
			if tt.text != "" {
				require.EqualError(t, err, "reaching worker-1 ("+peer.target.Addr.String()+"): "+tt.text)
			}
			// A failed attempt leaves nothing behind: the next caller makes a new one.
			require.Empty(t, p.links)
		})
	}
}

// TestLoginPatience: where many ranks share few processors, a peer may need longer than usual to answer.
func TestLoginPatience(t *testing.T) {
	for _, patience := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe() // never answered
			p := New(Config{Patience: patience, Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
				return ours, nil
			}})
			begin := time.Now()
			_, err := p.Connect(t.Context(), Target{Name: "w", ID: "w", Addr: netip.MustParseAddrPort("10.0.0.1:1")})
			require.ErrorContains(t, err, "no answer within "+(dialTimeout+patience).String())
			require.Equal(t, dialTimeout+patience, time.Since(begin))
			require.NoError(t, p.Close())
			require.NoError(t, theirs.Close())
		})
	}
}

// TestLimitEndsWithTheLogin: otherwise its timer would wake the agent while the job runs.
func TestLimitEndsWithTheLogin(t *testing.T) {
	p := testPool(t, nil)
	l, err := p.link(testCtx(t), startPeer(t, "worker-1", nil).target, 0)
	require.NoError(t, err)
	require.False(t, l.limit.Stop(), "was the timer still running?")
}

func TestConnectErrors(t *testing.T) {
	p := testPool(t, nil)
	addr := closedAddr(t)
	_, err := p.Connect(testCtx(t), Target{Name: "worker-1", ID: "worker-1", Addr: addr})
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.EqualError(t, err, "reaching worker-1 ("+addr.String()+"): connect: connection refused")

	_, err = p.Connect(testCtx(t), Target{Name: "worker-1", ID: "worker-1"})
	require.EqualError(t, err, "reaching worker-1: connect: its address is not known")

	ctx, cancel := context.WithCancelCause(testCtx(t))
	cancel(errors.New("the job is over"))
	_, err = p.Exec(ctx, Target{Name: "worker-1", ID: "worker-1", Addr: addr}, request{})
	require.Error(t, err)

	require.NoError(t, p.Close())
	_, err = p.Control(testCtx(t), Target{Name: "worker-1", ID: "worker-1", Addr: addr})
	require.ErrorIs(t, err, errClosed)
}

// Without an ID, the peer's claim counts once it is proven, and the connection serves the target with and without the
// ID.
func TestLearnID(t *testing.T) {
	peer := startPeer(t, "4fd2a0c1", nil)
	p := testPool(t, nil)
	unknown := Target{Name: "10.0.0.7", Addr: peer.target.Addr}
	known, err := p.Connect(testCtx(t), unknown)
	require.NoError(t, err)
	require.Equal(t, Target{Name: "10.0.0.7", ID: "4fd2a0c1", Addr: peer.target.Addr}, known)
	for _, target := range []Target{known, unknown, peer.target} {
		st, err := p.Exec(testCtx(t), target, request{Command: "exit 4"})
		require.NoError(t, err)
		require.Equal(t, Status{Code: 4}, st)
	}
	require.EqualValues(t, 1, peer.logins.Load())
	peer.drop()
	waitFor(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.links) == 0 })

	liar := startPeer(t, "4fd2a0c1", func(s *peerServer) { s.hostKey = testKey("other", "host 4fd2a0c1") })
	_, err = p.Connect(testCtx(t), Target{Addr: liar.target.Addr})
	require.ErrorIs(t, err, ErrOtherSecret)
}

// Two containers on one address have separate connections, and so has one container after a change of its address.
func TestKeyedByIDAndAddr(t *testing.T) {
	a := startPeer(t, "worker-1", nil)
	b := startPeer(t, "worker-2", nil)
	p := testPool(t, nil)
	for _, s := range []*peerServer{a, b, a, b} {
		_, err := p.Connect(testCtx(t), s.target)
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, a.accepted.Load())
	require.EqualValues(t, 1, b.accepted.Load())
	_, err := p.Connect(testCtx(t), Target{Name: "worker-1", ID: "worker-1", Addr: b.target.Addr})
	require.ErrorIs(t, err, ErrOtherID)
}

func TestCloseEndsEverything(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	ctx := testCtx(t)
	ch, err := p.Control(ctx, peer.target)
	require.NoError(t, err)
	out := &lines{got: make(chan string, 8)}
	done := make(chan error, 1)
	session, err := p.openSession(ctx, peer.target)
	require.NoError(t, err)
	started := make(chan struct{})
	go func() {
		_, err := p.exec(ctx, peer.target, session, request{Command: "hang", Stdout: out}, func() { close(started) })
		done <- err
	}()
	require.Equal(t, "started\n", <-out.got)
	<-started // output may come before the answer to the request has been read
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = ch.Read(make([]byte, 1))
	require.Error(t, err)
	err = <-done
	var dial *DialError
	require.ErrorAs(t, err, &dial)
	require.Equal(t, StageSession, dial.Stage)
	require.Equal(t, "hang", <-peer.ended)
}

// Close ends pending attempts and their callers.
func TestCloseWhileDialling(t *testing.T) {
	peer := startPeer(t, "worker-1", func(s *peerServer) {
		s.raw = func(c net.Conn) bool { _, _ = io.Copy(io.Discard, c); return true }
	})
	p := testPool(t, nil)
	p.dialTimeout = time.Hour
	done := make(chan error, 1)
	go func() {
		_, err := p.Connect(testCtx(t), peer.target)
		done <- err
	}()
	waitFor(t, func() bool { return peer.accepted.Load() == 1 })
	require.NoError(t, p.Close())
	require.Error(t, <-done)
}

// The keepalive runs in virtual time, over a connection in memory.
func TestKeepalive(t *testing.T) {
	for _, tt := range []struct {
		name    string
		answers int           // the peer answers this many requests, then none
		watch   time.Duration // the new interval that Watch sets after the first request; 0 = no call of Watch
		lost    time.Duration // when the connection is lost, after the start; 0 = never
	}{
		{"answers all", 1 << 30, 0, 0},
		{"silent from the start", 0, 0, 60 * time.Second},
		{"silent after the third", 3, 0, (3*15 + 60) * time.Second},
		{"seldom asked", 3, 5 * time.Minute, 2*15*time.Second + 2*5*time.Minute + 45*time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signer := testKey("s", "host worker-1")
				var server sync.WaitGroup
				cfg := testConfig("s")
				cfg.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
					ours, theirs := memoryPipe()
					server.Go(func() { answerKeepalives(theirs, cfg.Label, signer, tt.answers) })
					return ours, nil
				}
				p := New(cfg)
				start := time.Now()
				ch, err := p.Control(t.Context(), Target{ID: "worker-1", Addr: netip.MustParseAddrPort("192.0.2.1:22")})
				require.NoError(t, err)
				if tt.watch > 0 {
					time.AfterFunc(20*time.Second, func() { p.Watch(time.Minute, tt.watch) })
				}
				lost := make(chan time.Duration, 1)
				go func() {
					_, _ = ch.Read(make([]byte, 1))
					lost <- time.Since(start)
				}()
				select {
				case d := <-lost:
					require.Equal(t, tt.lost, d)
				case <-time.After(time.Hour):
					require.Zero(t, tt.lost)
				}
				require.NoError(t, p.Close())
				server.Wait()
			})
		})
	}
}

// memoryPipe is net.Pipe with a buffer. Without it, both ends of an SSH connection would block in their first write.
func memoryPipe() (a, b net.Conn) {
	x, y := newHalf(), newHalf()
	return &memoryConn{in: x, out: y}, &memoryConn{in: y, out: x}
}

type half struct {
	mu     sync.Mutex
	more   *sync.Cond
	buf    bytes.Buffer
	closed bool
}

func newHalf() *half {
	h := &half{}
	h.more = sync.NewCond(&h.mu)
	return h
}

func (h *half) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.more.Broadcast()
}

type memoryConn struct {
	net.Conn // for the methods that are never called
	in, out  *half
}

func (c *memoryConn) Read(p []byte) (int, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	for c.in.buf.Len() == 0 && !c.in.closed {
		c.in.more.Wait()
	}
	return c.in.buf.Read(p)
}

func (c *memoryConn) Write(p []byte) (int, error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	defer c.out.more.Broadcast()
	if c.out.closed {
		return 0, net.ErrClosed
	}
	return c.out.buf.Write(p)
}

func (c *memoryConn) Close() error {
	c.in.close()
	c.out.close()
	return nil
}

func (c *memoryConn) RemoteAddr() net.Addr { return &net.TCPAddr{} }
func (c *memoryConn) LocalAddr() net.Addr  { return &net.TCPAddr{} }

func answerKeepalives(c net.Conn, label string, key ssh.Signer, answers int) {
	cfg := &ssh.ServerConfig{
		ServerVersion:     "SSH-2.0-paiinit " + label + " worker-1 2",
		PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil },
	}
	cfg.AddHostKey(key)
	conn, chans, reqs, err := ssh.NewServerConn(c, cfg)
	if err != nil {
		return
	}
	defer conn.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for r := range reqs {
			if answers--; answers >= 0 {
				_ = r.Reply(true, nil)
			}
		}
	})
	for nc := range chans {
		_, reqs, err := nc.Accept()
		if err == nil {
			wg.Go(func() { ssh.DiscardRequests(reqs) })
		}
	}
}

func FuzzGreeting(f *testing.F) {
	for _, s := range []string{"SSH-2.0-paiinit l worker-1 2\r\n", "SSH-2.0-paiinit l worker-1 2\nrest",
		"SSH-2.0-paiinit l worker-1 2\r\n",
		"SSH-2.0-OpenSSH\r\n", "\n", "", "SSH-2.0-paiinit  \n"} {
		f.Add([]byte(s), "l")
	}
	f.Fuzz(func(t *testing.T, b []byte, label string) {
		id, err := readGreeting(b, label)
		if err != nil {
			require.Empty(t, id)
			require.True(t, errors.Is(err, ErrNotPaiinit) || errors.Is(err, ErrOtherJob) || errors.Is(err,
				ErrOtherVersion))
			return
		}
		require.Regexp(t, `^[A-Za-z0-9._-]+$`, id)
		require.True(t, couldBeSSH(b))
	})
}

// A peer's greeting may arrive in any pieces, and the bytes after it must not get lost.
func TestGreetingInPieces(t *testing.T) {
	const in = "SSH-2.0-paiinit l worker-1 2\r\nand the rest"
	for cut := range len(in) + 1 {
		ours, theirs := net.Pipe()
		go func() {
			for _, s := range []string{in[:cut], in[cut:]} {
				if s != "" {
					_, _ = io.WriteString(theirs, s)
				}
			}
			_ = theirs.Close()
		}()
		g := &greeting{Conn: ours, label: "l"}
		got, err := io.ReadAll(g)
		require.NoError(t, err)
		require.Equal(t, in, string(got))
		require.Equal(t, "worker-1", g.id)
		_ = ours.Close()
	}
}

// If a peer allows few sessions on a connection, the pool opens more connections while it needs them.
func TestLanes(t *testing.T) {
	peer := startPeer(t, "worker-1", func(s *peerServer) { s.most = 3 })
	p := testPool(t, nil)
	ctx, cancel := context.WithCancel(testCtx(t))
	var wg sync.WaitGroup
	var out lines
	out.got = make(chan string)
	for range 10 {
		wg.Go(func() {
			_, err := p.Exec(ctx, peer.target, request{Command: "hang", Stdout: &out})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	for range 10 {
		require.Equal(t, "started\n", <-out.got)
	}
	require.EqualValues(t, 4, peer.logins.Load())
	cancel()
	wg.Wait()
	status, err := p.Exec(testCtx(t), peer.target, request{Command: "exit 3"})
	require.NoError(t, err)
	require.Equal(t, 3, status.Code)
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Len(t, p.links, 1) // the others were closed
}

func TestNoRoomAtAll(t *testing.T) {
	peer := startPeer(t, "worker-1", func(s *peerServer) { s.most = -1 })
	p := testPool(t, nil)
	_, err := p.Exec(testCtx(t), peer.target, request{Command: "exit 3"})
	var dial *DialError
	require.ErrorAs(t, err, &dial)
	require.Equal(t, stageChannel, dial.Stage)
	require.True(t, mayBeTemporary(dial))
}

// The kernel watches a connection before Watch and after it, and a channel reports why the connection was lost. The
// integration tests check with real hosts that this detects a silent machine.
func TestWatch(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	ch, err := p.Control(testCtx(t), peer.target)
	require.NoError(t, err)
	l, err := p.link(testCtx(t), peer.target, 0)
	require.NoError(t, err)
	option := func(level, name int) (value int) {
		raw, err := l.conn.tcp.Conn.(*net.TCPConn).SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), level, name) }))
		require.NoError(t, err)
		return value
	}
	require.Equal(t, 20_000, option(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
	require.Equal(t, 1, option(unix.SOL_SOCKET, unix.SO_KEEPALIVE))
	require.Equal(t, 3, option(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE))
	p.Watch(6*time.Second, time.Minute)
	require.Equal(t, 6_000, option(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
	require.Equal(t, 1, option(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE))
	require.Equal(t, 1, option(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL))

	l.conn.tcp.loss.Note(&net.OpError{Op: "read", Err: syscall.ETIMEDOUT})
	peer.drop()
	_, err = io.Copy(io.Discard, ch)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
}
