package rendezvous

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// host is one container on a loopback address: the real port, real gossip, and unencrypted control connections over the
// port's SSH side.
type host struct {
	t    *testing.T
	port *Port
	node *Node
	ln   net.Listener
	wg   sync.WaitGroup
}

func dialClear(ctx context.Context, _ string, addr netip.AddrPort) (io.ReadWriteCloser, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err // not a nil *net.TCPConn in an interface
	}
	return c, nil
}

func startHost(t *testing.T, ip string, port int, edit func(*Config)) *host {
	t.Helper()
	p, err := listen(t.Context(), ip, port, nil, nil)
	require.NoError(t, err)
	cfg := Config{
		Status: testStatuses,
		Self: Record{Role: "worker", Index: -1, Rank: -1, Nonce: NewNonce(), Version: "1",
			Addr: netip.AddrPortFrom(netip.MustParseAddr(ip), 0)},
		Port: p, Key: make([]byte, 32), Label: "job", Dial: dialClear, Timeout: 2 * time.Minute,
	}
	edit(&cfg)
	cfg.Self.ID = MakeID(cfg.Self.Role, cfg.Self.Index, cfg.Self.Nonce)
	n, err := Start(cfg)
	require.NoError(t, err)
	h := &host{t: t, port: p, node: n, ln: p.SSH("")}
	h.wg.Go(func() {
		for {
			c, err := h.ln.Accept()
			if err != nil {
				return
			}
			h.wg.Go(func() { n.Accept(context.Background(), c, c.RemoteAddr()) })
		}
	})
	return h
}

func (h *host) close() {
	require.NoError(h.t, h.node.Close())
	require.NoError(h.t, h.ln.Close())
	require.NoError(h.t, h.port.Close())
	h.wg.Wait()
}

func freePort(t *testing.T, ip string) int {
	t.Helper()
	p, err := listen(t.Context(), ip, 0, nil, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	return p.Number()
}

func nodesOf(hosts []*host) (nodes []*Node) {
	for _, h := range hosts {
		nodes = append(nodes, h.node)
	}
	return nodes
}

func requireSameRoster(t *testing.T, hosts []*host, size int) Roster {
	t.Helper()
	res := gatherAll(t.Context(), nodesOf(hosts))
	for i, g := range res {
		require.NoError(t, g.err, "container %d", i)
		require.Equal(t, res[0].roster.Hash, g.roster.Hash)
	}
	require.Len(t, res[0].roster.Members, size)
	return res[0].roster
}

// Only gossip tells of the ranks: rank 0 knows no address, the others know rank 0's.
func TestGossipTellsRankZeroWhoIsThere(t *testing.T) {
	zero := startHost(t, "127.0.0.1", 0, func(c *Config) { c.Size, c.Self.Index, c.Self.Rank = 4, 0, 0 })
	hosts := []*host{zero}
	for i := 1; i < 4; i++ {
		hosts = append(hosts, startHost(t, fmt.Sprintf("127.0.0.%d", i+1), 0, func(c *Config) {
			c.Size, c.Self.Index, c.Self.Rank = 4, i, i
			c.Peers = []Peer{{ID: "worker-0", Rank: 0, Host: "127.0.0.1", Port: zero.port.Number()}}
		}))
	}
	requireSameRoster(t, hosts, 4)
	require.NoError(t, zero.node.Finish(t.Context(), Outcome{Status: 7}, time.Minute))
	for _, h := range hosts[1:] {
		o, err := h.node.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, 7, o.Status)
	}
	for _, h := range hosts {
		h.close()
	}
}

// Containers behind one name do not know their index: the ranks are agreed.
func TestUnknownRanksAreAgreed(t *testing.T) {
	port := freePort(t, "127.0.0.1")
	lookup := func(context.Context, string) ([]netip.Addr, error) {
		var a []netip.Addr
		for i := range 4 {
			a = append(a, netip.MustParseAddr(fmt.Sprintf("127.0.0.%d", i+1)))
		}
		return a, nil
	}
	var hosts []*host
	for i := range 4 {
		hosts = append(hosts, startHost(t, fmt.Sprintf("127.0.0.%d", i+1), port, func(c *Config) {
			c.Size, c.Lookup, c.Seeds = 4, lookup, []Seed{{Host: "worker", Port: port}}
		}))
	}
	r := requireSameRoster(t, hosts, 4)
	for i, m := range r.Members {
		require.Equal(t, fmt.Sprintf("worker-%d", i), m.Alias)
		require.Equal(t, fmt.Sprintf("127.0.0.%d", i+1), m.Addr.Addr().String())
	}
	for _, h := range hosts {
		h.close()
	}
}

// The container that cannot take part may be the first of the agreed order, and then has to tell the others.
func TestAnUnfitRankOfAnAgreedOrderEndsTheJob(t *testing.T) {
	for who, reason := range []string{`^no such command$`, `^worker at 127\.0\.0\.2: no such command$`} {
		port := freePort(t, "127.0.0.1")
		var hosts []*host
		for i := range 3 {
			hosts = append(hosts, startHost(t, fmt.Sprintf("127.0.0.%d", i+1), port, func(c *Config) {
				c.Size, c.Seeds = 3, []Seed{
					{Host: "127.0.0.1", Port: port}, {Host: "127.0.0.2", Port: port}, {Host: "127.0.0.3", Port: port}}
				if i == who {
					c.Unfit = &Outcome{Status: 127, Reason: "no such command"}
				}
			}))
		}
		var all sync.WaitGroup
		for _, h := range hosts {
			all.Go(func() {
				_, err := h.node.Gather(t.Context())
				var e *EndedError
				if assert.ErrorAs(t, err, &e) {
					assert.Equal(t, 127, e.Outcome.Status)
					assert.Regexp(t, reason, e.Outcome.Reason)
					assert.NoError(t, h.node.Finish(t.Context(), e.Outcome, time.Minute))
				}
			})
		}
		all.Wait()
		for _, h := range hosts {
			h.close()
		}
	}
}

// Rank 0 is declared, and names for the rest: rank 0 finds the others at the addresses of these names, its own among
// them.
func TestSeedsWithADeclaredRankZero(t *testing.T) {
	port := freePort(t, "127.0.0.1")
	lookup := func(_ context.Context, name string) ([]netip.Addr, error) {
		if name == "launcher" {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("127.0.0.2")}, nil
	}
	var hosts []*host
	for i := range 3 {
		hosts = append(hosts, startHost(t, fmt.Sprintf("127.0.0.%d", i+1), port, func(c *Config) {
			c.Size, c.Lookup, c.Seeds = 3, lookup, []Seed{{Host: "launcher", Port: port}, {Host: "worker", Port: port}}
			c.Self.Order = min(i, 1)
			if i == 0 {
				c.Self.Role, c.Self.Index, c.Self.Rank = "launcher", 0, 0
			}
		}))
	}
	r := requireSameRoster(t, hosts, 3)
	require.Equal(t, "launcher-0", r.Members[0].Alias)
	require.Equal(t, "worker-1", r.Members[1].Alias)
	for _, h := range hosts {
		h.close()
	}
}

// UDP does not have to work.
func TestWithoutUDP(t *testing.T) {
	zero := startHost(t, "127.0.0.1", 0, func(c *Config) {
		require.NoError(t, c.Port.udp.Close())
		c.Size, c.Self.Index, c.Self.Rank = 2, 0, 0
	})
	one := startHost(t, "127.0.0.2", 0, func(c *Config) {
		require.NoError(t, c.Port.udp.Close())
		c.Size, c.Self.Index, c.Self.Rank = 2, 1, 1
		c.Peers = []Peer{{ID: "worker-0", Rank: 0, Host: "127.0.0.1", Port: zero.port.Number()}}
	})
	requireSameRoster(t, []*host{zero, one}, 2)
	zero.node.cancel()
	_ = zero.node.Close()
	_ = one.node.Close()
	_ = zero.ln.Close()
	_ = one.ln.Close()
	_ = zero.port.Close()
	_ = one.port.Close()
	zero.wg.Wait()
	one.wg.Wait()
}

// Two containers on one address take different ports; peers are told apart by their identity.
func TestTakenPortTakesTheNext(t *testing.T) {
	a, err := listen(t.Context(), "127.0.0.1", 0, nil, nil)
	require.NoError(t, err)
	b, err := listen(t.Context(), "127.0.0.1", a.Number(), nil, nil)
	require.NoError(t, err)
	require.Greater(t, b.Number(), a.Number())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())

	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer udp.Close()
	n := udp.LocalAddr().(*net.UDPAddr).Port
	c, err := listen(t.Context(), "127.0.0.1", n, nil, nil)
	require.NoError(t, err)
	require.NotEqual(t, n, c.Number())
	require.NoError(t, c.Close())

	_, err = listen(t.Context(), "192.0.2.1", 1, nil, nil)
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
}

// waitFor sets how long the port waits for the first byte of the connections that it accepts from now on.
func (p *Port) waitFor(silence time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silence = silence
}

func TestPortTellsSSHFromGossip(t *testing.T) {
	p, err := listen(t.Context(), "127.0.0.1", 0, nil, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	ln := p.SSH("")
	dial := func(first string) net.Conn {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number())))
		require.NoError(t, err)
		_, err = io.WriteString(c, first)
		require.NoError(t, err)
		return c
	}
	accept := func() net.Conn {
		c, err := ln.Accept()
		require.NoError(t, err)
		return c
	}

	ssh := dial("SSH-2.0-x\r\n")
	got := accept()
	line, err := bufio.NewReader(got).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "SSH-2.0-x\r\n", line, "the byte that was looked at is given back")
	_ = got.Close()
	_ = ssh.Close()

	silent := dial("")
	got = accept() // after the silence, without a byte
	_, err = io.WriteString(got, "SSH-2.0-y\r\n")
	require.NoError(t, err)
	line, err = bufio.NewReader(silent).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "SSH-2.0-y\r\n", line)
	_ = got.Close()
	_ = silent.Close()

	p.admission.begin(2, nil)
	p.waitFor(time.Minute) // a busy machine may send the first byte late
	stream := dial(string([]byte{gossipByte, 1, 'x'}))
	got = <-p.streams
	b := make([]byte, 3)
	_, err = io.ReadFull(got, b)
	require.NoError(t, err)
	require.Equal(t, []byte{gossipByte, 1, 'x'}, b)
	_ = got.Close()
	_ = stream.Close()

	// A connection that closes silently costs nothing, and silent ones do not outlive the port.
	_ = dial("").Close()
	held := dial("")
	defer held.Close()
}

// TestPortTellsHTTP: with HTTP the first byte decides between three protocols; a client that is silent for a while is
// not greeted, and a client that was greeted speaks SSH.
func TestPortTellsHTTP(t *testing.T) {
	p, err := listen(t.Context(), "127.0.0.1", 0, nil, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	const greeting = "SSH-2.0-paiinit label worker-0\r\n"
	p.admission.begin(2, nil)
	ssh, probes := p.SSH(greeting), p.HTTP()
	require.Equal(t, silenceHTTP, p.silence)
	p.waitFor(time.Minute) // a busy machine may send the first byte late
	dial := func(first string) net.Conn {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number())))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.WriteString(c, first)
		require.NoError(t, err)
		return c
	}
	reads := func(ln net.Listener, want string) net.Conn {
		c, err := ln.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		b := make([]byte, len(want))
		_, err = io.ReadFull(c, b)
		require.NoError(t, err)
		require.Equal(t, want, string(b))
		return c
	}
	for _, request := range []string{"GET / HTTP/1.1\r\n", "HEAD / HTTP/1.1\r\n", "POST / HTTP/1.1\r\n", "Z"} {
		dial(request)
		reads(probes, request)
	}
	for _, other := range []string{
		"SSH-2.0-x\r\n", "SEARCH / HTTP/1.1\r\n", "get / HTTP/1.1\r\n", "\x16\x03\x01", "\n",
	} {
		dial(other)
		reads(ssh, other)
	}
	dial(string([]byte{gossipByte, 1}))
	require.NoError(t, (<-p.streams).Close())

	slow := dial("")
	time.Sleep(2 * silence) // a slow probe
	_, err = io.WriteString(slow, "GET /livez")
	require.NoError(t, err)
	_, err = io.WriteString(reads(probes, "GET /livez"), "HTTP/1.1 200 OK")
	require.NoError(t, err)
	b := make([]byte, 15)
	_, err = io.ReadFull(slow, b)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 200 OK", string(b))

	p.waitFor(time.Millisecond)
	late := dial("")
	b = make([]byte, len(greeting))
	_, err = io.ReadFull(late, b)
	require.NoError(t, err)
	require.Equal(t, greeting, string(b))
	_, err = io.WriteString(late, "GET /livez")
	require.NoError(t, err)
	reads(ssh, "GET /livez")

	require.NoError(t, probes.Close())
	_, err = probes.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

// TestPortForHTTPAlone closes everything else, and reads no packets.
func TestPortForHTTPAlone(t *testing.T) {
	p, ln, err := ListenHTTP(t.Context(), 0, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	require.Nil(t, p.udp)
	p.waitFor(time.Millisecond)
	dial := func(first string) net.Conn {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number())))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.WriteString(c, first)
		require.NoError(t, err)
		return c
	}
	for _, first := range []string{"SSH-2.0-x\r\n", "", "\x16\x03\x01", string([]byte{gossipByte, 1, 'x'})} {
		c := dial(first)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err, "%q", first)
		require.False(t, isTimeout(err), "%q", first)
	}
	p.waitFor(time.Minute) // a busy machine may send it late
	dial("GET / HTTP/1.1\r\n")
	c, err := ln.Accept()
	require.NoError(t, err)
	require.NoError(t, c.Close())

	next, _, err := ListenHTTP(t.Context(), p.Number(), nil)
	require.NoError(t, err)
	require.Greater(t, next.Number(), p.Number())
	require.NoError(t, next.Close())
}

// On a slow machine the first byte of a stream may come after the port has taken the silence for an SSH client: the
// byte decides all the same.
func TestTheFirstByteDecidesWheneverItComes(t *testing.T) {
	p, err := listen(t.Context(), "127.0.0.1", 0, nil, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	p.waitFor(time.Millisecond)
	p.mu.Lock()
	p.maxSilence = time.Minute
	p.mu.Unlock()
	const greeting = "SSH-2.0-paiinit label worker-0\r\n"
	ln := p.SSH(greeting)
	tr := &transport{ctx: t.Context(), port: p}
	p.admission.begin(2, nil)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number()))
	dial := func() net.Conn {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	said := func(c net.Conn, want string) {
		b := make([]byte, len(want))
		_, err := io.ReadFull(c, b)
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}

	// Gossip: the greeting is sent before the first byte comes.
	dialled, err := tr.DialTimeout(addr, time.Minute)
	require.NoError(t, err)
	defer dialled.Close()
	answered := make(chan net.Conn)
	go func() {
		got := <-p.streams
		_, _ = io.WriteString(got, "state")
		answered <- got
	}()
	require.NoError(t, dialled.SetDeadline(time.Now().Add(time.Minute)))
	raw, err := dialled.(*stream).Conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Read(func(fd uintptr) bool { // until there is something to read
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err == nil
	}))
	_, err = dialled.Write([]byte{gossipByte, 1, 'x'})
	require.NoError(t, err)
	got := <-answered
	defer got.Close()
	said(dialled, "state")
	said(got, string([]byte{gossipByte, 1, 'x'}))

	// An SSH client that waits for the identification gets it once.
	client := dial()
	said(client, greeting)
	_, err = io.WriteString(client, "SSH-2.0-x\r\n")
	require.NoError(t, err)
	server, err := ln.Accept()
	require.NoError(t, err)
	defer server.Close()
	n, err := io.WriteString(server, greeting)
	require.NoError(t, err)
	require.Equal(t, len(greeting), n)
	n, err = io.WriteString(server, "more")
	require.NoError(t, err)
	require.Equal(t, 4, n)
	said(client, "more")
	said(server, "SSH-2.0-x\r\n")

	// A connection that stays silent goes to the SSH server.
	p.mu.Lock()
	p.maxSilence = 2 * time.Millisecond
	p.mu.Unlock()
	mute := dial()
	server, err = ln.Accept()
	require.NoError(t, err)
	defer server.Close()
	_, err = io.WriteString(server, greeting+"more")
	require.NoError(t, err)
	said(mute, greeting+"more")
	_, err = io.WriteString(mute, "y")
	require.NoError(t, err)
	said(server, "y")
}

// Silent connections do not block a client that speaks: each new connection replaces the oldest silent one.
func TestPortIsNotBlockedBySilence(t *testing.T) {
	p, err := listen(t.Context(), "127.0.0.1", 0, nil, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	p.waitFor(time.Hour)
	ln := p.SSH("")
	dial := func() net.Conn {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number())))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	first := dial()
	for range p.undecided {
		dial()
	}
	got, err := ln.Accept()
	require.NoError(t, err)
	defer got.Close()
	require.Equal(t, first.LocalAddr(), got.RemoteAddr())

	speaker := dial()
	_, err = io.WriteString(speaker, "SSH-2.0-x\r\n")
	require.NoError(t, err)
	for range 2 { // it, and the one that went for it
		other, err := ln.Accept()
		require.NoError(t, err)
		defer other.Close()
		if other.RemoteAddr().String() == speaker.LocalAddr().String() {
			line, err := bufio.NewReader(other).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "SSH-2.0-x\r\n", line)
			return
		}
	}
	t.Fatal("it was not heard")
}

func TestOtherKeyIsNotHeard(t *testing.T) {
	zero := startHost(t, "127.0.0.1", 0, func(c *Config) { c.Size, c.Self.Index, c.Self.Rank = 2, 0, 0 })
	one := startHost(t, "127.0.0.2", 0, func(c *Config) {
		c.Size, c.Self.Index, c.Self.Rank = 2, 1, 1
		c.Key = []byte("another key of thirty-two bytes.")
		c.Peers = []Peer{{ID: "worker-0", Rank: 0, Host: "127.0.0.1", Port: zero.port.Number()}}
		c.Dial = func(context.Context, string, netip.AddrPort) (io.ReadWriteCloser, error) {
			return nil, fmt.Errorf("worker-0: %w", ErrOtherSecret)
		}
	})
	_, err := one.node.Gather(t.Context())
	var m *MissingError
	require.True(t, errors.As(err, &m) && m.OtherSecret(), "%v", err)
	zero.node.ask(func() { require.Empty(t, zero.node.find.heard) })
	zero.close()
	one.close()
}

func TestRestrictedPortIsDeaf(t *testing.T) {
	p, err := listen(t.Context(), "", 0, []netip.Addr{netip.MustParseAddr("127.0.0.2")}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	ln := p.SSH("")
	from := func(ip string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		c, err := d.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number())))
		require.NoError(t, err)
		_, err = io.WriteString(c, "SSH-2.0-x\r\n")
		require.NoError(t, err)
		return c
	}
	stranger := from("127.0.0.3")
	defer stranger.Close()
	_, err = stranger.Read(make([]byte, 1))
	require.Error(t, err, "the stranger's connection is closed without a word")
	friend := from("127.0.0.2")
	defer friend.Close()
	c, err := ln.Accept()
	require.NoError(t, err)
	require.Equal(t, "127.0.0.2", c.RemoteAddr().(*net.TCPAddr).IP.String())
	require.NoError(t, c.Close())
}

// After the launch no rank gossips: a stream that comes all the same is closed, and blocks nothing.
func TestGossipEndsWithTheLaunch(t *testing.T) {
	zero := startHost(t, "127.0.0.1", 0, func(c *Config) { c.Size, c.Self.Index, c.Self.Rank = 2, 0, 0 })
	one := startHost(t, "127.0.0.2", 0, func(c *Config) {
		c.Size, c.Self.Index, c.Self.Rank = 2, 1, 1
		c.Peers = []Peer{{ID: "worker-0", Rank: 0, Host: "127.0.0.1", Port: zero.port.Number()}}
	})
	requireSameRoster(t, []*host{zero, one}, 2)
	for _, h := range []*host{zero, one} {
		<-h.port.gossip.Done()
		h.port.waitFor(time.Minute) // a busy machine may send the first byte late
		c, err := net.Dial("tcp", h.node.Self().Addr.String())
		require.NoError(t, err)
		_, err = c.Write([]byte{gossipByte})
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NoError(t, c.Close())
	}
	zero.close()
	one.close()
}

// IPv6, and nine containers on one address: the address alone identifies no container.
func TestManyOnOneAddress(t *testing.T) {
	for _, ip := range []string{"::1", "127.0.0.1"} {
		t.Run(ip, func(t *testing.T) {
			const size = 9
			zero := startHost(t, ip, 0, func(c *Config) { c.Size, c.Self.Index, c.Self.Rank = size, 0, 0 })
			hosts := []*host{zero}
			for i := 1; i < size; i++ {
				hosts = append(hosts, startHost(t, ip, 0, func(c *Config) {
					c.Size, c.Self.Index, c.Self.Rank = size, i, i
					c.Peers = []Peer{{ID: "worker-0", Rank: 0, Host: ip, Port: zero.port.Number()}}
				}))
			}
			r := requireSameRoster(t, hosts, size)
			for i, m := range r.Members {
				require.Equal(t, hosts[i].port.Number(), int(m.Addr.Port()))
				require.Equal(t, netip.MustParseAddr(ip), m.Addr.Addr())
			}
			for _, h := range hosts {
				h.close()
			}
		})
	}
}

// A client without the secret announces 20 MB. The port closes the stream after the maximum length of this job's state.
func TestFloodOfGossip(t *testing.T) {
	zero := startHost(t, "127.0.0.1", 0, func(c *Config) { c.Size, c.Self.Index, c.Self.Rank = 2, 0, 0 })
	defer zero.close()
	zero.port.waitFor(time.Minute)
	const promised, buffers = 20 << 20, 12 << 20 // of the kernel, on both sides
	c, err := net.Dial("tcp", zero.node.Self().Addr.String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	encrypted := []byte{10} // memberlist v0.7 net.go, encryptMsg
	_, err = c.Write(slices.Concat([]byte{gossipByte, 3}, []byte("job"), encrypted,
		binary.BigEndian.AppendUint32(nil, promised)))
	require.NoError(t, err)
	n, err := io.Copy(c, io.LimitReader(zeros{}, promised))
	require.Error(t, err)
	require.False(t, isTimeout(err), "%v", err)
	require.Less(t, n, int64(buffers))
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A container that does not gossip closes every stream.
func TestAloneReadsNoGossip(t *testing.T) {
	one := startHost(t, "127.0.0.1", 0, func(c *Config) { c.Size, c.Self.Index, c.Self.Rank = 1, 0, 0 })
	defer one.close()
	require.Error(t, one.port.gossip.Err())
	one.port.waitFor(time.Minute) // a busy machine may send the first byte late
	c, err := net.Dial("tcp", one.node.Self().Addr.String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte{gossipByte})
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	require.False(t, isTimeout(err), "%v", err)
}

// FuzzFirstBytes: what a client sends reaches gossip, HTTP or SSH whole, as its first byte decides, and one of them.
func FuzzFirstBytes(f *testing.F) {
	for _, s := range []string{
		"SSH-2.0-x\r\n", "\x00", "\xf4", "\xf4\x01x\x0a\x00\x00", "\xf5\xf4", "GET / HTTP/1.1\r\n\r\n", "@", "[", "Z",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	open := func() *Port {
		p, err := listen(f.Context(), "127.0.0.1", 0, nil, nil)
		require.NoError(f, err)
		f.Cleanup(func() { require.NoError(f, p.Close()) })
		p.admission.begin(2, nil)
		return p
	}
	plain, probed := open(), open()
	probed.HTTP()
	plain.waitFor(time.Minute) // a busy machine may send the first byte late
	probed.waitFor(time.Minute)
	f.Fuzz(func(t *testing.T, b []byte, speaksHTTP bool) {
		p := plain
		if speaksHTTP {
			p = probed
		}
		if len(b) == 0 || len(b) > 16<<10 { // it is in the buffers of the kernel before it is read
			return
		}
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number())))
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write(b)
		require.NoError(t, err)
		require.NoError(t, c.(*net.TCPConn).CloseWrite())
		var got net.Conn
		select {
		case got = <-p.streams:
			require.Equal(t, byte(gossipByte), b[0])
		case got = <-p.http:
			require.True(t, speaksHTTP && isHTTP(b[0]))
		case got = <-p.ssh:
			require.NotEqual(t, byte(gossipByte), b[0])
			require.False(t, speaksHTTP && isHTTP(b[0]))
		}
		defer got.Close()
		all, err := io.ReadAll(got)
		require.NoError(t, err)
		require.Equal(t, b, all)
	})
}
