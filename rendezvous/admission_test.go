package rendezvous

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// remote is a connection from any address.
type remote struct {
	net.Conn
	addr   netip.AddrPort
	said   io.Reader
	closed bool
}

func (c *remote) RemoteAddr() net.Addr       { return net.TCPAddrFromAddrPort(c.addr) }
func (c *remote) Read(b []byte) (int, error) { return c.said.Read(b) }
func (c *remote) Close() error               { c.closed = true; return nil }

func conn(addr string, said string) *remote {
	return &remote{addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 999), said: strings.NewReader(said)}
}

const rankAddr = "10.0.0.1"

func isRank(a netip.Addr) bool { return a == netip.MustParseAddr(rankAddr) }

// Streams from outside the job do not delay those of ranks, and streams of one address do not delay those of another.
func TestGateHasRoomForRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newAdmission(8192)
		g.begin(64, isRank)
		ctx, cancel := context.WithCancel(t.Context())
		in := make(chan net.Conn, 1000)
		come := func(n int, addr string) {
			for range n {
				go func() {
					if s, err := g.admit(ctx, conn(addr, "")); err == nil {
						in <- s
					}
				}()
			}
			synctest.Wait()
		}
		come(sourceStreams, "192.0.2.1")
		require.Len(t, in, sourceTurns)
		come(30, "2001:db8::1")
		require.Len(t, in, 2*sourceTurns)
		come(30, "2001:db8::ffff:1") // of the same network
		require.Len(t, in, 2*sourceTurns)
		for i := range 100 {
			come(1, fmt.Sprintf("198.51.100.%d", i))
		}
		require.Len(t, in, mostStreams/4)
		come(100, rankAddr)
		require.Len(t, in, mostStreams/4+mostStreams)

		_, err := g.admit(ctx, conn("192.0.2.1", ""))
		require.ErrorIs(t, err, errCrowded)
		require.NoError(t, (<-in).Close())
		synctest.Wait()
		require.Len(t, in, mostStreams/4+mostStreams, "the next one")
		cancel()
		synctest.Wait()
		for len(in) > 0 {
			s := <-in
			require.NoError(t, s.Close())
			require.NoError(t, s.Close(), "makes room once")
		}
		require.Empty(t, g.sources)
		require.Zero(t, g.ranks.streams+g.others.streams+len(g.ranks.places)+len(g.others.places))
	})
}

func TestGateEndsEachWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newAdmission(8192)
		begin := time.Now()
		_, err := g.admit(t.Context(), conn(rankAddr, "")) // before begin
		require.ErrorIs(t, err, errNoTurn)
		require.Equal(t, streamTimeout, time.Since(begin))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = g.admit(ctx, conn(rankAddr, ""))
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, g.sources)

		g.begin(4000, isRank)
		for range fewestStreams {
			_, err := g.admit(t.Context(), conn(rankAddr, ""))
			require.NoError(t, err)
		}
		_, err = g.admit(t.Context(), conn(rankAddr, ""))
		require.ErrorIs(t, err, errNoTurn)
	})
}

func TestGateCutsLongStreams(t *testing.T) {
	g := newAdmission(8192)
	g.begin(3, nil)
	most := 64<<10 + 3<<10
	for _, n := range []int{0, 1, most, most + 1, 20 << 20} {
		s, err := g.admit(t.Context(), conn(rankAddr, strings.Repeat("x", n)))
		require.NoError(t, err)
		read, err := io.Copy(io.Discard, s)
		require.EqualValues(t, min(n, most), read)
		if n < most {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, errLongStream)
		}
		require.NoError(t, s.Close())
	}
}
