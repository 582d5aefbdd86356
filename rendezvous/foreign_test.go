package rendezvous

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A container that answers in place of a rank counts only if it is met again, after a while without any other result,
// at an address that was resolved again.
func TestForeign(t *testing.T) {
	const ms = time.Millisecond
	secret, job := fmt.Errorf("x: %w", ErrOtherSecret), fmt.Errorf("x: %w", ErrOtherJob)
	version := fmt.Errorf("x: %w", ErrOtherVersion)
	type meeting struct {
		at       time.Duration
		err      error
		resolved time.Duration // when the address was, -1 = now
	}
	for name, tt := range map[string]struct {
		met    []meeting
		proven bool
	}{
		"once":                  {[]meeting{{0, secret, -1}}, false},
		"twice, at once":        {[]meeting{{0, secret, -1}, {secretProofTime - ms, secret, -1}}, false},
		"twice, later":          {[]meeting{{0, secret, -1}, {secretProofTime, secret, -1}}, true},
		"the address is as old": {[]meeting{{0, secret, -1}, {time.Minute, secret, 0}}, false},
		"no answer in between": {[]meeting{
			{0, secret, -1}, {time.Second, context.DeadlineExceeded, -1}, {secretProofTime, secret, -1},
		}, true},
		"gone in between": {[]meeting{
			{0, secret, -1}, {time.Second, syscall.ECONNREFUSED, -1}, {secretProofTime, secret, -1},
		}, false},
		"one of ours in between": {[]meeting{
			{0, secret, -1}, {time.Second, nil, -1}, {secretProofTime, secret, -1},
		}, false},
		"proven, and gone": {[]meeting{
			{0, secret, -1}, {secretProofTime, secret, -1}, {time.Minute, syscall.ECONNREFUSED, -1},
		}, true},
		"proven, and one of ours": {[]meeting{
			{0, secret, -1}, {secretProofTime, secret, -1}, {time.Minute, nil, -1},
		}, false},
		"another job, while one may end":       {[]meeting{{0, job, -1}, {jobProofTime - ms, job, -1}}, false},
		"another job, for long":                {[]meeting{{0, job, -1}, {jobProofTime, job, -1}}, true},
		"another job, then another secret":     {[]meeting{{0, job, -1}, {jobProofTime, secret, -1}}, false},
		"another version, while one may end":   {[]meeting{{0, version, -1}, {jobProofTime - ms, version, -1}}, false},
		"another version, for long":            {[]meeting{{0, version, -1}, {jobProofTime, version, -1}}, true},
		"another version, then another secret": {[]meeting{{0, version, -1}, {jobProofTime, secret, -1}}, false},
		"another secret, when it is awaited": {[]meeting{
			{0, syscall.ECONNREFUSED, -1}, {time.Minute, secret, -1},
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f foreign
				begin := time.Now()
				for _, m := range tt.met {
					time.Sleep(time.Until(begin.Add(m.at)))
					resolved := time.Now()
					if m.resolved >= 0 {
						resolved = begin.Add(m.resolved)
					}
					f.met(m.err, resolved)
				}
				require.Equal(t, tt.proven, f.proof() != nil)
			})
		})
	}
}

// TestForeignRankZero: ranks that share a secret leave alike if rank 0 has another secret or belongs to another job,
// unless a rank 0 of their job answers at one of its addresses.
func TestForeignRankZero(t *testing.T) {
	for name, tt := range map[string]struct {
		err     error
		addrs   int // of rank 0's name; the last one is of our job
		gone    time.Duration
		patient time.Duration
		check   func(t *testing.T, err error)
	}{
		"another secret": {ErrOtherSecret, 1, 0, secretProofTime, func(t *testing.T, err error) {
			var m *MissingError
			require.ErrorAs(t, err, &m)
			require.True(t, m.OtherSecret())
		}},
		"another job": {ErrOtherJob, 1, 0, jobProofTime, func(t *testing.T, err error) {
			var c *ConflictError
			require.ErrorAs(t, err, &c)
			require.ErrorContains(t, err, "another job")
		}},
		"another version": {ErrOtherVersion, 1, 0, jobProofTime, func(t *testing.T, err error) {
			var m *MissingError
			require.ErrorAs(t, err, &m)
			require.True(t, m.OtherVersion())
			require.False(t, m.OtherSecret())
			require.ErrorContains(t, err, "another version of paiinit")
		}},
		"another secret, and ours beside it": {ErrOtherSecret, 2, 0, 0, nil},
		"yesterday's, which ends":            {ErrOtherSecret, 1, secretProofTime / 2, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				begin := time.Now()
				ours := p.record(0)
				dial := func(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error) {
					if addr == addrOf(0) && id == "worker-0" {
						if tt.gone > 0 && time.Since(begin) > tt.gone {
							return nil, syscall.ECONNREFUSED
						}
						return nil, fmt.Errorf("worker-0: %w", tt.err)
					}
					return p.dial(ctx, id, addr)
				}
				p.listen(9, true)
				calls, over := p.calls[addrOf(9)], make(chan struct{})
				p.wg.Go(func() { // rank 0 of ours knows of the rank, and does not call it back
					for {
						select {
						case l := <-calls:
							l.want(announce)
							l.w.send(message{Type: lead, Record: &ours})
							l.ended()
						case <-over:
							return
						}
					}
				})
				cfg := Config{Status: testStatuses, Self: p.record(1), Size: 3, Dial: dial, Timeout: 2 * time.Minute,
					Peers: []Peer{{ID: "worker-0", Rank: 0, Host: "zero", Port: 12345},
						{ID: "worker-2", Rank: 2, Host: addrOf(2).Addr().String(), Port: 12345}},
					Lookup: func(context.Context, string) ([]netip.Addr, error) {
						return []netip.Addr{addrOf(0).Addr(), addrOf(9).Addr()}[:tt.addrs], nil
					}}
				n, err := Start(cfg)
				require.NoError(t, err)
				n.post(func() { n.find.onGossip(p.record(2), true) }) // another one has our secret
				_, err = n.Gather(t.Context())
				if tt.check == nil {
					var m *MissingError
					require.ErrorAs(t, err, &m)
					require.Equal(t, cfg.Timeout, time.Since(begin).Truncate(time.Second))
					// A container of an earlier job may have answered as well.
					require.Equal(t, tt.gone > 0, m.OtherSecret())
					require.Equal(t, tt.gone > 0, strings.Contains(m.Error(), "has another secret; now "), "%v", m)
				} else {
					tt.check(t, err)
					require.GreaterOrEqual(t, time.Since(begin), tt.patient)
					require.Less(t, time.Since(begin), tt.patient+6*time.Second)
				}
				close(over)
				p.end(n)
			})
		})
	}
}

// TestSizesThatDiffer: rank 0 ends the job at once if a rank was told another number of ranks, and tells that rank why.
func TestSizesThatDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var nodes []*Node
		for i, size := range []int{3, 2} {
			nodes = append(nodes, w.start(w.config(i, size)))
		}
		begin := time.Now()
		_, err := nodes[0].Gather(t.Context())
		var conflict *ConflictError
		require.ErrorAs(t, err, &conflict)
		require.ErrorContains(t, err, "was told that the job has 2 ranks, worker-0 that it has 3")
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 78, Reason: err.Error()}, 0))
		_, err = nodes[1].Gather(t.Context())
		var ended *EndedError
		require.ErrorAs(t, err, &ended)
		require.Equal(t, 78, ended.Outcome.Status)
		require.Less(t, time.Since(begin), 3*time.Second)
		w.close(nodes...)
	})
}

// TestARankThatLeavesEarly: when rank 0 comes, it learns of a rank that has left, from that rank or from another one,
// but not of a start that has a successor.
func TestARankThatLeavesEarly(t *testing.T) {
	for name, tt := range map[string]struct{ stays, late, again, ends bool }{
		"it is still there":                 {stays: true, ends: true},
		"it has left":                       {ends: true},
		"it has left, and was there before": {late: true, ends: true},
		"it was started again":              {again: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				config := func(i int) Config {
					cfg := w.config(i, 4)
					cfg.Rejoin = true // changes nothing before the first launch
					return cfg
				}
				one := w.start(config(1))
				w.set(addrOf(2), nil, syscall.ECONNREFUSED)
				var two *Node
				if !tt.late {
					two = w.start(config(2))
				}
				time.Sleep(time.Second)
				leaving, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				left := make(chan bool, 1)
				go func() {
					told, _ := one.Withdraw(leaving, Outcome{Status: 143, Reason: "it was stopped", Stopped: true})
					left <- told
				}()
				if tt.late {
					time.Sleep(2 * time.Second)
					two = w.start(config(2))
				}
				nodes := []*Node{two}
				if tt.stays {
					time.Sleep(2 * time.Second)
				} else {
					require.False(t, <-left)
					require.NoError(t, one.Close())
					w.set(addrOf(1), nil, syscall.ECONNREFUSED)
				}
				if tt.again {
					one = w.start(config(1))
				}
				zero := w.start(config(0))
				nodes = append(nodes, zero)
				if tt.stays || tt.again {
					nodes = append(nodes, one)
				}
				begin := time.Now()
				if tt.again { // the last rank comes when the withdrawal would have ended the job
					time.Sleep(withdrawDelay + time.Second)
					nodes = append(nodes, w.start(config(3)))
				}
				_, err := zero.Gather(t.Context())
				if tt.ends {
					var ended *EndedError
					require.ErrorAs(t, err, &ended)
					require.Equal(t, 143, ended.Outcome.Status)
					require.Less(t, time.Since(begin), 3*time.Second)
					require.NoError(t, zero.Finish(t.Context(), ended.Outcome, 5*time.Second))
				} else {
					require.NoError(t, err)
				}
				if tt.stays {
					require.True(t, <-left)
				}
				w.close(nodes...)
			})
		})
	}
}

// A rank that has to wait for processors ends its proof all the same before rank 0, which may find the same, has left.
func TestForeignToAnOverloadedRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.others = ErrOtherJob
		begin := time.Now()
		n, err := Start(Config{
			Status: testStatuses, Self: p.record(1), Size: 2, Dial: p.dial, Timeout: 2 * time.Minute,
			Peers: []Peer{{ID: MakeID("worker", 0, ""), Rank: 0, Host: addrOf(0).Addr().String(), Port: 12345}},
			Delay: func() time.Duration { return time.Since(begin) * 4 / 5 },
		})
		require.NoError(t, err)
		_, err = n.Gather(t.Context())
		var conflict *ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Less(t, time.Since(begin), 2*jobProofTime)
		p.end(n)
	})
}
