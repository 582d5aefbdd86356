package rendezvous

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// gossip is everything that touches memberlist: one member that says our record and hears those of the others.
type gossip struct {
	list *memberlist.Memberlist
}

// gossipConfig is what decides how memberlist behaves for a job of size n. Gossip finds and watches; it is not on the
// critical path of a launch, where gossip.knock is, so its intervals are modest and compression, which costs three times the CPU of everything
// else at this record size, is off.
func gossipConfig(n int) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.EnableCompression = false
	c.GossipNodes = 3
	c.ProbeInterval, c.ProbeTimeout = 2*time.Second, time.Second
	c.SuspicionMult = 8
	c.TCPTimeout = 2 * time.Second
	c.HandoffQueueDepth = 4096
	c.GossipToTheDeadTime = 15 * time.Second
	c.PushPullInterval = 5 * time.Second
	// While the ranks of a job hear of each other, each sends GossipNodes packets in every interval, for as long as its queue lasts. At 200 ms,
	// 64 of them on a machine of two processors took a fifth of these for 14 s, and from whoever launched meanwhile. News is everywhere
	// after three or four intervals; whom rank 0 misses is with it sooner, by its own call or through another rank.
	c.GossipInterval = time.Second
	switch {
	case n <= 16:
		c.GossipInterval = 100 * time.Millisecond
	case n <= 32:
		c.GossipInterval = 300 * time.Millisecond
	case n > 128:
		c.PushPullInterval = 15 * time.Second
		c.SuspicionMult = 6
		c.TCPTimeout = 3 * time.Second
		c.HandoffQueueDepth = 16384
		c.GossipToTheDeadTime = 30 * time.Second
	}
	// A message is received about limit = RetransmitMult*ceil(log10(n+1)) times by each member, so that n*e^-limit ranks are never heard of
	// by rank 0 through gossip alone: here that is one job in twenty. They have the next push/pull, and the joins, which are a cheaper
	// repair than to say everything more often.
	c.RetransmitMult = int(math.Ceil((math.Log(float64(max(n, 2))) + math.Log(20)) / math.Ceil(math.Log10(float64(n+1)))))
	return c
}

func startGossip(ctx context.Context, port *Port, self Record, key []byte, label string, size int,
	known func(netip.Addr) bool, logger *slog.Logger, heard func(Record, bool), knocked, promised func(Record),
) (*gossip, error) {
	meta, err := self.encode()
	if err != nil {
		return nil, fmt.Errorf("rendezvous: own record: %w", err)
	}
	// An unknown size only changes the intervals, which ranks need not agree on.
	c := gossipConfig(cmp.Or(size, 64))
	c.Name = self.ID + "-" + self.Nonce // unique per start: a restarted container would be ignored for 38 s under its old name
	c.Label = label
	c.SecretKey = key
	c.Transport = &transport{ctx: ctx, port: port, advertise: self.Addr}
	c.BindAddr = self.Addr.Addr().String()
	c.BindPort = int(self.Addr.Port())
	c.AdvertiseAddr = self.Addr.Addr().String()
	c.AdvertisePort = int(self.Addr.Port())
	c.Delegate = delegate{meta, knocked, promised}
	c.Events = events{heard: heard, self: c.Name}
	c.Logger = log.New(logWriter{logger}, "", 0)
	port.admission.begin(size, known)
	list, err := memberlist.Create(c)
	if err != nil {
		return nil, fmt.Errorf("rendezvous: starting gossip: %w", err)
	}
	return &gossip{list: list}, nil
}

// join exchanges states with one address over TCP. memberlist bounds it by its TCPTimeout.
func (g *gossip) join(addr netip.AddrPort) error {
	_, err := g.list.Join([]string{addr.String()})
	return err
}

func (g *gossip) close() error { return g.list.Shutdown() }

// knock says in one packet that this container is here; it may be lost.
func (g *gossip) knock(addr netip.AddrPort, self *Record) error {
	return g.tell(addr, message{Type: announce, Record: self})
}

// tell sends one packet, sealed as all gossip is.
func (g *gossip) tell(addr netip.AddrPort, m message) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	return g.list.SendToAddress(memberlist.Address{Addr: addr.String()}, b)
}

// delegate says our record, hears knocks and their acknowledgements, and keeps nothing else.
type delegate struct {
	meta     []byte
	knocked  func(Record) // at rank 0
	promised func(Record) // by rank 0, which has heard a knock
}

func (d delegate) NodeMeta(int) []byte                        { return d.meta }
func (d delegate) GetBroadcasts(overhead, limit int) [][]byte { return nil }
func (d delegate) LocalState(bool) []byte                     { return nil }
func (d delegate) MergeRemoteState([]byte, bool)              {}

func (d delegate) NotifyMsg(b []byte) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size != uint64(len(b)-n) {
		return
	}
	m, err := decodeMessage(b[n:], nil)
	switch {
	case err != nil || m.Record == nil:
	case m.Type == announce:
		d.knocked(*m.Record)
	case m.Type == lead:
		d.promised(*m.Record)
	}
}

// events runs with memberlist's lock held: it copies and must not call back.
type events struct {
	heard func(r Record, alive bool)
	self  string
}

func (e events) NotifyJoin(n *memberlist.Node)   { e.tell(n, true) }
func (e events) NotifyUpdate(n *memberlist.Node) { e.tell(n, true) }
func (e events) NotifyLeave(n *memberlist.Node)  { e.tell(n, false) }

func (e events) tell(n *memberlist.Node, alive bool) {
	ip, ok := netip.AddrFromSlice(n.Addr)
	if !ok || n.Name == e.self {
		return
	}
	r, err := decodeRecord(n.Meta, netip.AddrPortFrom(ip.Unmap(), n.Port))
	if err != nil {
		return // a member of another format: the control connection tells its version
	}
	e.heard(r, alive)
}

// logWriter passes memberlist's lines on as debug records: what matters of them, rendezvous finds out and says itself.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(b []byte) (int, error) {
	if w.log.Enabled(context.Background(), slog.LevelDebug) {
		line := strings.TrimSpace(string(b))
		level, rest, ok := strings.Cut(line, "] memberlist: ")
		if ok {
			w.log.Debug("gossip: "+rest, "severity", strings.TrimPrefix(level, "["))
		} else {
			w.log.Debug("gossip: " + line)
		}
	}
	return len(b), nil
}

// backoff gives the waits between attempts: 50 ms doubling to 800 ms, or what the fields say, each spread over a
// quarter of itself so that ranks that start together do not stay in step.
type backoff struct {
	next time.Duration
	most time.Duration // 0 = longestPause
}

// longestPause is the longest that wait returns, unless backoff.most says something else.
const longestPause = 900 * time.Millisecond

func (b *backoff) wait() time.Duration {
	if b.next == 0 {
		b.next = 50 * time.Millisecond
	}
	d := b.next
	most := b.most
	if most == 0 {
		most = longestPause
	}
	b.next = min(2*b.next, most*8/9)
	return d - d/8 + rand.N(d/4)
}

func (b *backoff) reset() { b.next = 0 }

// pace lets work wait that is not urgent: longer where this process has waited for a processor itself. It then shares
// the processors with more work than they can do, most likely with other ranks in the same situation, and perhaps with
// rank 0.
type pace struct {
	delay func() time.Duration // Config.Delay; nil = not known
	limit time.Duration        // Config.Timeout: what is looked for is found, or not found, before it ends; 0 = none

	mu   sync.Mutex
	seen time.Duration // of delay
	late time.Duration // what delay grew by lately
}

const (
	lateEnough   = 20 * time.Millisecond // less is usual
	lateFactor   = 10                    // a process waits for others this many times as long as it was kept waiting
	longestExtra = 30 * time.Second
)

// sleep waits for d, and longer where this process is kept waiting. It reports false when ctx or over ended before.
func (p *pace) sleep(ctx context.Context, over <-chan struct{}, d time.Duration) bool {
	return p.sleepFor(ctx, over, d, lateFactor)
}

// sleepFor is sleep with another factor than lateFactor: 1 for what the launch waits for.
func (p *pace) sleepFor(ctx context.Context, over <-chan struct{}, d time.Duration, factor int) bool {
	return sleep(ctx, over, d) && sleep(ctx, over, p.extra(factor))
}

func sleep(ctx context.Context, over <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-over:
		return false
	case <-t.C:
		return true
	}
}

// extra is how much longer work waits that is not urgent.
func (p *pace) extra(factor int) time.Duration {
	if p.delay == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.delay()
	p.late, p.seen = max(now-p.seen, p.late/2), now
	if p.late < lateEnough {
		return 0
	}
	extra := min(time.Duration(factor)*p.late, longestExtra)
	if p.limit > 0 {
		extra = min(extra, p.limit/4)
	}
	return extra
}
