package rendezvous

import (
	"context"
	"errors"
	"net"
	"net/netip"
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
	sources       map[netip.Prefix]*quota // of other addresses
}

// quota counts the streams of the ranks, of all other addresses, or of one of these.
type quota struct {
	streams, most int
	places        chan struct{} // one element per stream that memberlist reads
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
		sources: make(map[netip.Prefix]*quota),
	}
}

// begin admits streams of a job of n ranks (0 = unknown). known reports whether an address belongs to it; nil = none.
func (a *admission) begin(n int, known func(netip.Addr) bool) {
	a.known, a.most = known, streamLimit(n)
	places := min(max(streamBudget/int(a.most), fewestStreams), mostStreams)
	a.ranks.places, a.others.places = make(chan struct{}, places), make(chan struct{}, max(2, places/4))
	close(a.begun)
}

// streamLimit returns the maximum length of a push/pull in a job of n ranks. A rank takes about 350 bytes, and
// memberlist also sends the ranks that it remembers as dead. An unknown n counts as 1,000.
func streamLimit(n int) int64 {
	if n < 1 {
		n = 1000
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
	ctx, cancel := context.WithTimeoutCause(ctx, streamTimeout, errNoTurn)
	defer cancel()
	from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return nil, err
	}
	quotas, gone, err := a.enter(from.Addr().Unmap().WithZone(""))
	if err != nil {
		return nil, err
	}
	taken := 0
	leave := sync.OnceFunc(func() {
		for _, q := range quotas[:taken] {
			<-q.places
		}
		gone()
	})
	select {
	case <-a.begun:
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
	for _, q := range quotas {
		select {
		case q.places <- struct{}{}:
			taken++
		case <-ctx.Done():
			leave()
			return nil, context.Cause(ctx)
		}
	}
	return &admitted{Conn: conn, left: a.most, leave: leave}, nil
}

// enter counts a stream from an address, which is a rank's only after begin, and returns the quotas that it needs.
func (a *admission) enter(from netip.Addr) (quotas []*quota, gone func(), err error) {
	isRank := isClosed(a.begun) && a.known != nil && a.known(from)
	key := network(from)
	a.mu.Lock()
	defer a.mu.Unlock()
	if isRank {
		quotas = []*quota{&a.ranks}
	} else {
		one := a.sources[key]
		if one == nil {
			one = &quota{most: sourceStreams, places: make(chan struct{}, sourceTurns)}
		}
		quotas = []*quota{one, &a.others}
	}
	for _, q := range quotas {
		if q.streams >= q.most {
			return nil, nil, errCrowded
		}
	}
	if !isRank {
		a.sources[key] = quotas[0]
	}
	for _, q := range quotas {
		q.streams++
	}
	return quotas, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, q := range quotas {
			q.streams--
		}
		if !isRank && quotas[0].streams == 0 {
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
