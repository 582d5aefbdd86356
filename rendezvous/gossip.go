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

// gossipConfig returns memberlist's configuration for a job of n ranks. Gossip is not on the critical path of a launch
// (finder.announce is), so its intervals are modest. Compression would cost three times the CPU of everything else.
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
	// While the ranks of a job hear of each other, each sends GossipNodes packets per interval, until its queue is
	// empty. At 200 ms, 64 ranks on two processors took a fifth of these for 14 s, also from the launch. News reaches
	// every rank after three or four intervals; ranks that gossip missed reach rank 0 sooner by calling it directly.
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
	// Each member receives a message about limit = RetransmitMult*ceil(log10(n+1)) times, so that rank 0 never hears of
	// n*e^-limit ranks through gossip alone: here that is one job in twenty. The next push/pull and the joins repair
	// it, which is cheaper than more retransmits.
	limit := math.Log(float64(max(n, 2))) + math.Log(20)
	c.RetransmitMult = int(math.Ceil(limit / math.Ceil(math.Log10(float64(n+1)))))
	return c
}

// startGossip starts one member that announces our record and hears those of the others.
func startGossip(n *Node) (*memberlist.Memberlist, error) {
	self, port := n.self, n.cfg.Port
	meta, err := self.encode()
	if err != nil {
		return nil, fmt.Errorf("own record: %w", err)
	}
	// An unknown size only changes the intervals, on which ranks need not agree.
	c := gossipConfig(cmp.Or(n.cfg.Size, 64))
	// Unique per start: under its old name a restarted container would be ignored for 38 s.
	c.Name = self.ID + "-" + self.Nonce
	c.Label = n.cfg.Label
	c.SecretKey = n.cfg.Key
	c.Transport = &transport{ctx: n.ctx, port: port, advertise: self.Addr}
	c.BindAddr = self.Addr.Addr().String()
	c.BindPort = int(self.Addr.Port())
	c.AdvertiseAddr, c.AdvertisePort = c.BindAddr, c.BindPort
	c.Delegate = delegate{
		meta:      meta,
		announced: func(r Record) { n.post(func() { n.find.onAnnouncement(&r) }) },
		promised:  func(r Record, blocked string) { n.post(func() { n.up.onPromise(&r, blocked) }) },
	}
	c.Events = events{n, c.Name}
	c.Logger = log.New(logWriter{n.log}, "", 0)
	port.admission.begin(n.cfg.Size, func(a netip.Addr) bool {
		return n.cfg.Known != nil && n.cfg.Known(a) || n.find.names.has(a)
	})
	list, err := memberlist.Create(c)
	if err != nil {
		return nil, fmt.Errorf("starting gossip: %w", err)
	}
	return list, nil
}

// tell sends one packet, encrypted as all gossip is; it may be lost.
func (f *finder) tell(addr netip.AddrPort, m message) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	return f.gossip.SendToAddress(memberlist.Address{Addr: addr.String()}, b)
}

// delegate announces our record, and receives announcements and their acknowledgements.
type delegate struct {
	meta      []byte
	announced func(Record)                   // on rank 0
	promised  func(r Record, blocked string) // rank 0 has acknowledged an announcement
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
		d.announced(*m.Record)
	case m.Type == lead:
		d.promised(*m.Record, m.Reason)
	}
}

// events runs with memberlist's lock held: it copies, and must not call back.
type events struct {
	n    *Node
	self string
}

func (e events) NotifyJoin(m *memberlist.Node)   { e.tell(m, true) }
func (e events) NotifyUpdate(m *memberlist.Node) { e.tell(m, true) }
func (e events) NotifyLeave(m *memberlist.Node)  { e.tell(m, false) }

func (e events) tell(m *memberlist.Node, alive bool) {
	ip, ok := netip.AddrFromSlice(m.Addr)
	if !ok || m.Name == e.self {
		return
	}
	r, err := decodeRecord(m.Meta, netip.AddrPortFrom(ip.Unmap(), m.Port))
	if err == nil { // otherwise a member of another format: the control connection tells its version
		e.n.post(func() { e.n.find.onGossip(r, alive) })
	}
}

// logWriter passes memberlist's lines on as debug records; rendezvous itself logs what matters of them.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(b []byte) (int, error) {
	line := strings.TrimSpace(string(b))
	if level, rest, ok := strings.Cut(line, "] memberlist: "); ok {
		w.log.Debug("gossip: "+rest, "severity", strings.TrimPrefix(level, "["))
	} else {
		w.log.Debug("gossip: " + line)
	}
	return len(b), nil
}

// backoff returns waits: 50 ms doubling to 800 ms, or as the fields say, varied by a quarter so that ranks lose step.
type backoff struct {
	next time.Duration
	most time.Duration // 0 = longestPause
}

// longestPause is the longest wait unless backoff.most is set.
const longestPause = 900 * time.Millisecond

func (b *backoff) wait() time.Duration {
	d := cmp.Or(b.next, 50*time.Millisecond)
	b.next = min(2*d, cmp.Or(b.most, longestPause)*8/9)
	return d - d/8 + rand.N(d/4)
}

func (b *backoff) reset() { b.next = 0 }

// pace delays work that is not urgent, longer if this process has had to wait for a processor that it may share with
// other ranks in the same situation.
type pace struct {
	delay func() time.Duration // Config.Delay; nil = unknown
	limit time.Duration        // Config.Timeout, by which every search must have an answer; 0 = forever
	from  time.Duration        // delay when this container began to lead; only the loop touches it

	mu sync.Mutex
	// seen is delay at the last call, in the first generation from the start of the process on. known is false in a
	// later one before its first call: what was waited in the last generation does not count.
	seen  time.Duration
	known bool
	late  time.Duration // recent growth of delay
}

const (
	lateEnough   = 20 * time.Millisecond // less is usual
	lateFactor   = 10                    // how many times the delay of this process it waits for other processes
	longestExtra = 30 * time.Second
)

// lead notes from when on waited counts.
func (p *pace) lead() {
	if p.delay != nil {
		p.from = p.delay()
	}
}

// waited returns how long this process has waited for processors since it began to lead.
func (p *pace) waited() time.Duration {
	if p.delay == nil {
		return 0
	}
	return p.delay() - p.from
}

// sleep waits for d, and longer if this process waits for processors; false = ctx or over ended first.
func (p *pace) sleep(ctx context.Context, over <-chan struct{}, d time.Duration) bool {
	return p.sleepFor(ctx, over, d, lateFactor)
}

// sleepFor is sleep with another factor than lateFactor: 1 for work that the launch waits for.
func (p *pace) sleepFor(ctx context.Context, over <-chan struct{}, d time.Duration, factor int) bool {
	return sleep(ctx, over, d) && sleep(ctx, over, p.extra(factor))
}

func sleep(ctx context.Context, over <-chan struct{}, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil && !isClosed(over)
	}
	select {
	case <-ctx.Done():
		return false
	case <-over:
		return false
	case <-time.After(d):
		return true
	}
}

// rest waits for d, and on until this process no longer waits for processors, at the most for d and a quarter of
// Config.Timeout (30 s without one): a thousand ranks that share two processors need 30 s for their starts alone. It
// returns false if ctx or over ended first.
func (p *pace) rest(ctx context.Context, over <-chan struct{}, d time.Duration) bool {
	if !sleep(ctx, over, d) {
		return false
	}
	for left := cmp.Or(p.limit/4, longestExtra); left > 0; {
		extra := min(p.extra(lateFactor), left)
		if extra == 0 {
			return true
		}
		if !sleep(ctx, over, extra) {
			return false
		}
		left -= extra
	}
	return true
}

// most returns how much longer work that is not urgent waits at the most.
func (p *pace) most() time.Duration {
	if p.limit > 0 {
		return min(longestExtra, p.limit/4)
	}
	return longestExtra
}

// extra returns how much longer work that is not urgent waits.
func (p *pace) extra(factor int) time.Duration {
	if p.delay == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.delay()
	if !p.known {
		p.seen, p.known = now, true
	}
	p.late, p.seen = max(now-p.seen, p.late/2), now
	if p.late < lateEnough {
		return 0
	}
	return min(time.Duration(factor)*p.late, p.most())
}
