package rsh

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Logins share one processor, on which all of them together take longer than each may: what was begun ends before more
// is begun.
func TestTurnsEndWhatWasBegun(t *testing.T) {
	for name, work := range map[string]time.Duration{"quick": time.Millisecond, "slow": 250 * time.Millisecond} {
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
						time.Sleep(work)
						<-processor
						mu.Lock()
						under--
						longest = max(longest, time.Since(begin))
						mu.Unlock()
						end()
					})
				}
				all.Wait()
				require.LessOrEqual(t, most, mostLogins+2)
				require.LessOrEqual(t, longest, (mostLogins+2)*work)
				require.Zero(t, turns.under)
				require.Nil(t, turns.more)
			})
		})
	}
}

// Peers that never answer hold up the others for a while, and not for good.
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
			end, err := turns.wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, time.Duration(i+1)*stuckAfter, time.Since(begin))
			defer end()
		}
		// A login that gives up while it waits takes no place.
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
