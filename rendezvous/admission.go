package rendezvous

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// admission limits how many gossip streams memberlist reads at a time, and how many bytes of each. memberlist itself
// starts a goroutine per stream and buffers up to 20 MB before it checks the encryption (memberlist v0.7 net.go,
// decryptRemoteState); the label that opens a stream is public, because the SSH identification contains it.
//
// Streams from addresses of the job have places of their own; all other addresses share a quarter as many. A full queue
// refuses the stream, and memberlist repeats a push/pull.
type admission struct {
	begun chan struct{} // closed by begin, which sets the next two
	known func(netip.Addr) bool
	most  int64 // bytes of a stream

	mu            sync.Mutex
	ranks, others quota
	sources       map[netip.Prefix]*source // of other addresses
}

// quota counts the streams of the ranks, or of all other addresses.
type quota struct {
	streams, most int
	places        chan struct{} // one element per stream that memberlist reads
}

// source counts the streams of one address outside the job.
type source struct {
	streams int
	turns   chan struct{} // one element per stream that memberlist reads
}

const (
	// Bytes of ranks' streams that memberlist reads at a time; its buffers take about four times as much.
	streamBudget  = 4 << 20
	fewestStreams = 2
	mostStreams   = 32

	rankStreams   = 1024
	otherStreams  = 256
	sourceStreams = 32
	sourceTurns   = 2

	streamTimeout = 10 * time.Second
)

// newAdmission returns the admission of a process whose RLIMIT_NOFILE is files.
func newAdmission(files int) *admission {
	return &admission{
		begun:   make(chan struct{}),
		ranks:   quota{most: min(rankStreams, files/8)},
		others:  quota{most: min(otherStreams, files/8)},
		sources: make(map[netip.Prefix]*source),
	}
}

// begin admits streams of a job of n ranks (0 = unknown). known reports whether an address belongs to the job; nil
// means that no address does.
func (a *admission) begin(n int, known func(netip.Addr) bool) {
	a.known, a.most = known, streamLimit(n)
	places := min(max(streamBudget/int(a.most), fewestStreams), mostStreams)
	a.ranks.places, a.others.places = make(chan struct{}, places), make(chan struct{}, max(2, places/4))
	close(a.begun)
}

// streamLimit returns the maximum length of a push/pull in a job of n ranks. A rank takes about 350 bytes, and
// memberlist also sends the ranks that it remembers as dead.
func streamLimit(n int) int64 {
	if n < 1 {
		n = gossipMost
	}
	return int64(64<<10 + n<<10)
}

var (
	errCrowded    = errors.New("too many gossip streams wait")
	errNoTurn     = errors.New("a gossip stream had no turn in time")
	errLongStream = errors.New("a gossip stream is longer than the state of this job can be")
)

// admit waits until memberlist may read a stream, and returns it. Closing the returned stream admits the next one.
func (a *admission) admit(ctx context.Context, conn net.Conn) (net.Conn, error) {
	leave, err := a.wait(ctx, conn.RemoteAddr())
	if err != nil {
		return nil, err
	}
	return &admitted{Conn: conn, left: a.most, leave: leave}, nil
}

func (a *admission) wait(ctx context.Context, remote net.Addr) (leave func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, streamTimeout, errNoTurn)
	defer cancel()
	var undo []func()
	free := sync.OnceFunc(func() {
		for _, f := range slices.Backward(undo) {
			f()
		}
	})
	defer func() {
		if err != nil {
			free()
		}
	}()
	from, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return nil, err
	}
	l, s, gone, err := a.enter(from.Addr().Unmap().WithZone(""))
	if err != nil {
		return nil, err
	}
	undo = append(undo, gone)
	select {
	case <-a.begun:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	places := []chan struct{}{l.places}
	if s != nil {
		places = []chan struct{}{s.turns, l.places}
	}
	for _, place := range places {
		select {
		case place <- struct{}{}:
			undo = append(undo, func() { <-place })
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return free, nil
}

// enter counts a stream from an address; s is nil if the address belongs to the job. Before begin no address does.
func (a *admission) enter(from netip.Addr) (l *quota, s *source, gone func(), err error) {
	rank := false
	select {
	case <-a.begun:
		rank = a.known != nil && a.known(from)
	default:
	}
	key := network(from)
	a.mu.Lock()
	defer a.mu.Unlock()
	if l = &a.ranks; !rank {
		l = &a.others
		if s = a.sources[key]; s == nil {
			s = &source{turns: make(chan struct{}, sourceTurns)}
		}
	}
	if l.streams >= l.most || s != nil && s.streams >= sourceStreams {
		return nil, nil, nil, errCrowded
	}
	l.streams++
	if s != nil {
		s.streams++
		a.sources[key] = s
	}
	return l, s, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		l.streams--
		if s == nil {
			return
		}
		if s.streams--; s.streams == 0 {
			delete(a.sources, key)
		}
	}, nil
}

// network groups addresses that one host can use: it returns an IPv4 address itself, and the /64 of an IPv6 one.
func network(a netip.Addr) netip.Prefix {
	bits := 64
	if a.Is4() {
		bits = 32
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// admitted fails a stream that is longer than the limit, and gives its place back when it is closed.
type admitted struct {
	net.Conn
	left  int64 // bytes
	leave func()
}

func (a *admitted) Read(b []byte) (int, error) {
	if a.left <= 0 {
		return 0, errLongStream
	}
	n, err := a.Conn.Read(b[:min(int64(len(b)), a.left)])
	a.left -= int64(n)
	return n, err
}

func (a *admitted) Close() error {
	a.leave()
	return a.Conn.Close()
}
