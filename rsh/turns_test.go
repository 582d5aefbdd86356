package rsh

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Logins share one processor, on which all of them together take longer than the timeout of each. So logins that have
// begun must end before more begin.
func TestTurnsEndWhatWasBegun(t *testing.T) {
	for name, tt := range map[string]struct {
		work   time.Duration
		beyond int // the number that may be under way at a time
	}{
		"quick": {time.Millisecond, 2},
		"slow":  {250 * time.Millisecond, 2},
		// Logins that end slowly but steadily are not stuck.
		"overloaded": {time.Second, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const logins = 512
				var turns turns
				var mu sync.Mutex
				under, most, longest := 0, 0, time.Duration(0)
				processor := make(chan struct{}, 1)
				var all sync.WaitGroup
				for range logins {
					all.Go(func() {
						end, err := turns.wait(t.Context())
						require.NoError(t, err)
						begin := time.Now()
						mu.Lock()
						under++
						most = max(most, under)
						mu.Unlock()
						processor <- struct{}{}
						time.Sleep(tt.work)
						<-processor
						mu.Lock()
						under--
						longest = max(longest, time.Since(begin))
						mu.Unlock()
						end()
					})
				}
				all.Wait()
				require.LessOrEqual(t, most, mostLogins+tt.beyond)
				require.LessOrEqual(t, longest, time.Duration(mostLogins+tt.beyond)*tt.work)
				require.Zero(t, turns.under)
				require.Nil(t, turns.more)
			})
		})
	}
}

// Peers that never answer delay the others for a while, but not for ever.
func TestTurnsAreNotHeldByTheSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns turns
		var ends []func()
		for range mostLogins {
			end, err := turns.wait(t.Context())
			require.NoError(t, err)
			ends = append(ends, end)
		}
		begin := time.Now()
		for i := range 3 {
			soon, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			end, err := turns.wait(soon)
			require.NoError(t, err)
			require.Equal(t, time.Duration(i+1)*stuckAfter, time.Since(begin))
			defer end()
		}
		// A login that gives up while it waits releases its place.
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		time.AfterFunc(time.Millisecond, func() { cancel(gone) })
		_, err := turns.wait(ctx)
		require.ErrorIs(t, err, gone)
		require.Equal(t, mostLogins+3, turns.under)
		require.Nil(t, turns.more)
		for _, end := range ends {
			end()
		}
		end, err := turns.wait(t.Context())
		require.NoError(t, err)
		end()
	})
}

// A connection of the pool waits for its turn to log in. The wait counts neither against our timeout nor against the
// peer's, because the pool replaces a connection that has waited long.
func TestALoginTakesItsTurn(t *testing.T) {
	var begun atomic.Bool
	silent := make(chan error, 1)
	peer := startPeer(t, "worker-1", func(s *peerServer) {
		s.raw = func(c net.Conn) bool {
			if !begun.CompareAndSwap(false, true) {
				return false
			}
			n, err := c.Read(make([]byte, 1))
			if n > 0 {
				err = errors.New("it began its login")
			}
			silent <- err
			return true
		}
	})
	p := testPool(t, nil)
	p.longestTurn, p.dialTimeout = 0, time.Hour
	p.turns.gap = time.Hour // so that no login begins because another one is stuck
	var ends []func()
	for range mostLogins {
		end, err := p.turns.wait(t.Context())
		require.NoError(t, err)
		ends = append(ends, end)
	}
	connected := make(chan error, 1)
	go func() {
		_, err := p.Connect(testCtx(t), peer.target)
		connected <- err
	}()
	waitFor(t, func() bool {
		select {
		case err := <-connected:
			require.FailNow(t, "the pool connected before the login's turn", "%v", err)
		case err := <-silent:
			require.FailNow(t, "the login began before its turn", "%v", err)
		default:
		}
		p.turns.mu.Lock()
		defer p.turns.mu.Unlock()
		return len(p.turns.queue) == 1 && begun.Load()
	})
	p.mu.Lock()
	runs := p.links[keyOf(peer.target)].limit.Stop()
	p.mu.Unlock()
	require.False(t, runs, "the timeout runs while the login waits for its turn")
	ends[0]()
	require.NoError(t, <-connected)
	require.ErrorIs(t, <-silent, io.EOF)
	for _, end := range ends[1:] {
		end()
	}
}
