package rendezvous

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// spareJob is a job with spares, of which rank 0 may restart.
type spareJob struct {
	*world
	ranks   int
	nodes   []*Node         // by the number of the container
	members []int           // containers by rank
	waits   []chan gathered // by container: what Gather has returned to a spare
}

func newSpareJob(t *testing.T, ranks, spares int, edit func(*Config)) *spareJob {
	j := &spareJob{
		world: newWorld(t), ranks: ranks, nodes: make([]*Node, ranks+spares),
		waits: make([]chan gathered, ranks+spares),
	}
	for i := range j.nodes {
		j.startContainer(i, spares, edit)
	}
	for rank := range ranks {
		j.members = append(j.members, rank)
	}
	return j
}

func (j *spareJob) startContainer(i, spares int, edit func(*Config)) {
	cfg := j.config(i, j.ranks+spares)
	if i == 0 {
		cfg.Rejoin, cfg.Spares = true, spares
		if edit != nil {
			edit(&cfg)
		}
	}
	n, wait := j.start(cfg), make(chan gathered, 1)
	j.nodes[i], j.waits[i] = n, wait
	go func() {
		r, err := n.Gather(context.Background())
		wait <- gathered{r, err}
	}()
}

// gather waits until the members hold the same roster, and returns the numbers of its containers.
func (j *spareJob) gather() []int {
	j.t.Helper()
	var roster Roster
	for rank := range j.ranks {
		i := 0
		if rank > 0 {
			is := func(n *Node) bool { return n != nil && n.self.ID == roster.Members[rank].ID }
			i = slices.IndexFunc(j.nodes, is)
		}
		g := <-j.waits[i]
		require.NoError(j.t, g.err, "container %d", i)
		if rank == 0 {
			roster = g.roster
		}
		require.Equal(j.t, roster.Hash, g.roster.Hash)
		require.Len(j.t, g.roster.Members, j.ranks)
		m, ok := g.roster.Self(j.nodes[i].self.Nonce)
		require.True(j.t, ok)
		require.Equal(j.t, rank, m.Rank)
	}
	j.members = j.members[:0]
	for _, m := range roster.Members {
		j.members = append(j.members, m.Index)
	}
	return j.members
}

// again ends the generation, and begins the next one on the members that are there.
func (j *spareJob) again() {
	j.t.Helper()
	zero := j.nodes[0]
	var wg sync.WaitGroup
	for _, i := range j.members[1:] {
		n := j.nodes[i]
		if n == nil {
			continue
		}
		wg.Go(func() {
			next, o, err := j.obey(n, time.Millisecond)
			if assert.NoError(j.t, err) && assert.NotNil(j.t, next, "%v", o) {
				j.follows(i, next)
			}
		})
	}
	_, err := zero.Clear(j.t.Context(), nil)
	require.NoError(j.t, err)
	zero.Next()
	j.follows(0, j.follow(zero))
	wg.Wait()
}

func (j *spareJob) follows(i int, n *Node) {
	wait := make(chan gathered, 1)
	j.mu.Lock()
	j.nodes[i], j.waits[i] = n, wait
	j.mu.Unlock()
	go func() {
		r, err := n.Gather(context.Background())
		wait <- gathered{r, err}
	}()
}

// kill ends a container, whose address refuses then.
func (j *spareJob) kill(i int, block error) {
	n := j.nodes[i]
	j.nodes[i] = nil
	j.crash(n, block)
	if !slices.Contains(j.members, i) {
		<-j.waits[i]
	}
}

// standings counts the ranks and spares by what rank 0 says of them.
func (j *spareJob) standings() map[Standing]int {
	count := map[Standing]int{}
	for _, r := range j.nodes[0].View().Ranks {
		count[r.Standing]++
	}
	return count
}

func (j *spareJob) end() {
	j.t.Helper()
	require.NoError(j.t, j.nodes[0].Finish(j.t.Context(), Outcome{Status: 7}, 0))
	for i, n := range j.nodes {
		switch {
		case n == nil || i == 0:
		case slices.Contains(j.members, i):
			o, err := n.Wait(j.t.Context())
			require.NoError(j.t, err, "container %d", i)
			require.Equal(j.t, 7, o.Status)
		default:
			g := <-j.waits[i]
			var ended *EndedError
			require.ErrorAs(j.t, g.err, &ended, "container %d", i)
			require.Equal(j.t, 7, ended.Outcome.Status)
		}
	}
	for _, n := range j.nodes {
		if n != nil {
			assert.NoError(j.t, n.Close())
		}
	}
	j.wg.Wait()
}

// TestSpares: the lowest spare takes the place of a lost container at once, a container that comes back late is a
// spare, and spares end as the job does.
func TestSpares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newSpareJob(t, 3, 2, nil)
		require.Equal(t, []int{0, 1, 2}, j.gather())
		synctest.Wait()
		require.Equal(t, map[Standing]int{Present: 3, Spare: 2}, j.standings())
		time.Sleep(3 * time.Hour) // a spare has no deadline
		require.Equal(t, map[Standing]int{Present: 3, Spare: 2}, j.standings())

		j.kill(1, nil)
		l := <-j.nodes[0].Losses()
		require.Equal(t, 1, l.Rank)
		begin := time.Now()
		j.again()
		require.Equal(t, []int{0, 3, 2}, j.gather())
		require.Less(t, time.Since(begin), 100*time.Millisecond)

		j.startContainer(1, 2, nil)
		time.Sleep(10 * time.Second)
		require.Equal(t, map[Standing]int{Present: 3, Spare: 2}, j.standings())

		j.again() // no container is lost: each keeps its rank
		require.Equal(t, []int{0, 3, 2}, j.gather())

		j.kill(3, nil)
		<-j.nodes[0].Losses()
		j.kill(2, nil)
		<-j.nodes[0].Losses()
		j.again()
		require.Equal(t, []int{0, 1, 4}, j.gather())
		j.end()
	})
}

// TestSpareWaitsForTheLostContainer: SpareAfter is its time to come back.
func TestSpareWaitsForTheLostContainer(t *testing.T) {
	for _, back := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			j := newSpareJob(t, 2, 1, func(cfg *Config) { cfg.SpareAfter = 20 * time.Second })
			j.gather()
			j.kill(1, nil)
			<-j.nodes[0].Losses()
			begin := time.Now()
			j.again()
			if back {
				time.Sleep(10 * time.Second)
				j.startContainer(1, 1, nil)
				require.Equal(t, []int{0, 1}, j.gather())
				require.Less(t, time.Since(begin), 15*time.Second)
			} else {
				require.Equal(t, []int{0, 2}, j.gather())
				require.InDelta(t, 20, time.Since(begin).Seconds(), 1)
			}
			j.end()
		})
	}
}

// TestSpareWaitsAsLongAsTheJob: SpareAfter may be as long as the Timeout of a later generation, and a spare takes the
// place also of a rank that has cleared, and whose host is lost then.
func TestSpareWaitsAsLongAsTheJob(t *testing.T) {
	for _, rejoin := range []time.Duration{time.Second, 3 * time.Second, 30 * time.Second, 10 * time.Minute} {
		for _, clears := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				j := newSpareJob(t, 2, 1, func(cfg *Config) { cfg.SpareAfter = rejoin })
				j.gather()
				zero, one := j.nodes[0], j.nodes[1]
				j.nodes[1] = nil
				if !clears {
					j.crash(one, nil)
					<-zero.Losses()
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					if clears {
						<-one.Clears()
						one.Cleared(1, 0)
						_, err := one.Wait(t.Context())
						assert.True(t, errors.Is(err, ErrNext))
						j.crash(one, errors.New("no answer"))
					}
				})
				_, err := zero.Clear(t.Context(), nil)
				require.NoError(t, err)
				zero.Next()
				wg.Wait()
				cfg := zero.Following()
				cfg.Timeout = rejoin
				next := j.start(cfg)
				zero.Succeed(next)
				require.NoError(t, zero.Close())
				begin := time.Now()
				j.follows(0, next)
				require.Equal(t, []int{0, 2}, j.gather())
				require.GreaterOrEqual(t, time.Since(begin), rejoin)
				require.LessOrEqual(t, time.Since(begin), min(2*rejoin, rejoin+rejoinGap)+time.Second)
				j.end()
			})
		}
	}
}

// TestNoSpareForASlowRank: a rank that has cleared, and takes long to come again, keeps its place.
func TestNoSpareForASlowRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newSpareJob(t, 2, 1, nil)
		j.gather()
		zero, one := j.nodes[0], j.nodes[1]
		var wg sync.WaitGroup
		wg.Go(func() {
			<-one.Clears()
			one.Cleared(1, 0)
			_, err := one.Wait(t.Context())
			assert.True(t, errors.Is(err, ErrNext))
			time.Sleep(rejoinGap / 2)
			j.follows(1, j.follow(one))
		})
		_, err := zero.Clear(t.Context(), nil)
		require.NoError(t, err)
		zero.Next()
		j.follows(0, j.follow(zero))
		wg.Wait()
		require.Equal(t, []int{0, 1}, j.gather())
		j.end()
	})
}

// TestSpareComesAndGoes: neither ends the job, nor does the loss of rank 0 leave a spare behind.
func TestSpareComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newSpareJob(t, 2, 1, nil)
		j.gather()
		j.kill(2, syscall.EHOSTUNREACH)
		time.Sleep(time.Minute)
		require.Empty(t, j.nodes[0].losses)
		require.Equal(t, map[Standing]int{Present: 2}, j.standings())
		j.again()
		j.gather()
		j.startContainer(2, 1, nil)
		time.Sleep(10 * time.Second)
		require.Equal(t, map[Standing]int{Present: 2, Spare: 1}, j.standings())

		stopped, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begin := time.Now()
		told, alone := j.nodes[2].Withdraw(stopped, Outcome{Status: 143, Reason: "SIGTERM"})
		require.True(t, told)
		require.True(t, alone)
		require.Less(t, time.Since(begin), time.Second)
		require.Empty(t, j.nodes[0].Stops())
		j.kill(2, nil)
		time.Sleep(time.Minute)
		require.Equal(t, map[Standing]int{Present: 2}, j.standings())
		j.end()
	})
}

// TestDesertedSpare: a spare that has lost rank 0 waits for the next start of the job, for its own Timeout.
func TestDesertedSpare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newSpareJob(t, 2, 1, nil)
		j.gather()
		time.Sleep(10 * time.Minute)
		begin := time.Now()
		j.kill(0, nil)
		select {
		case g := <-j.waits[2]:
			var missing *MissingError
			require.ErrorAs(t, g.err, &missing)
			require.InDelta(t, time.Minute.Seconds(), time.Since(begin).Seconds(), 1)
		case <-time.After(5 * time.Minute):
			require.Fail(t, "the spare still waits")
		}
		_, err := j.nodes[1].Wait(t.Context())
		require.Error(t, err)
		for _, n := range j.nodes[1:] {
			require.NoError(t, n.Close())
		}
		j.wg.Wait()
	})
}

// TestNextStartWaitsAsLongAsTheJob: how long the job waits for a lost container does not depend on the Timeout of
// another one that is back.
func TestNextStartWaitsAsLongAsTheJob(t *testing.T) {
	const short = time.Second
	restarted := func(t *testing.T) *spareJob {
		j := newSpareJob(t, 3, 0, nil)
		j.gather()
		for _, i := range []int{1, 2} {
			j.kill(i, nil)
			<-j.nodes[0].Losses()
		}
		j.again()
		cfg := j.config(1, 3)
		cfg.Timeout = short
		j.follows(1, j.start(cfg))
		return j
	}
	t.Run("both are back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := restarted(t)
			time.Sleep(50 * time.Second)
			j.startContainer(2, 0, nil)
			require.Equal(t, []int{0, 1, 2}, j.gather())
			j.end()
		})
	})
	t.Run("one is missing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := restarted(t)
			begin := time.Now()
			g := <-j.waits[0]
			var missing *MissingError
			require.ErrorAs(t, g.err, &missing)
			require.InDelta(t, time.Minute.Seconds(), time.Since(begin).Seconds(), 1)
			require.NoError(t, j.nodes[0].Finish(t.Context(), Outcome{Status: 75}, 0))
			g = <-j.waits[1]
			var ended *EndedError
			require.ErrorAs(t, g.err, &ended)
			require.Equal(t, 75, ended.Outcome.Status)
			for _, n := range j.nodes[:2] {
				require.NoError(t, n.Close())
			}
			j.wg.Wait()
		})
	})
	t.Run("rank 0 is lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := restarted(t)
			time.Sleep(30 * time.Second)
			begin := time.Now()
			j.kill(0, nil)
			g := <-j.waits[1]
			var missing *MissingError
			require.ErrorAs(t, g.err, &missing)
			require.InDelta(t, short.Seconds(), time.Since(begin).Seconds(), 1)
			require.NoError(t, j.nodes[1].Close())
			j.wg.Wait()
		})
	})
}

// isIdle reports whether a job runs that has this container as a spare.
func (n *Node) isIdle() (idle bool) {
	n.ask(func() { idle = n.up.idle })
	return idle
}

// TestSparesGatherToo: the first launch waits for the spares.
func TestSparesGatherToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &spareJob{world: newWorld(t), ranks: 2, nodes: make([]*Node, 3), waits: make([]chan gathered, 3)}
		j.startContainer(0, 1, nil)
		j.startContainer(1, 1, nil)
		time.Sleep(10 * time.Second)
		s := j.nodes[0].View()
		require.Equal(t, Gathering, s.Phase)
		require.Equal(t, map[Standing]int{Present: 2, Absent: 1}, j.standings())
		require.Equal(t, "worker-2", s.Ranks[2].Alias)
		j.startContainer(2, 1, nil)
		require.Equal(t, []int{0, 1}, j.gather())
		j.end()
	})
}

// TestTheLowestSpare takes a place, although another one comes first.
func TestTheLowestSpare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newSpareJob(t, 2, 2, nil)
		j.gather()
		j.kill(1, nil)
		<-j.nodes[0].Losses()
		j.set(addrOf(2), nil, syscall.ETIMEDOUT)
		j.again()
		time.Sleep(spareSettle / 4)
		j.set(addrOf(2), j.nodes[2], nil)
		require.Equal(t, []int{0, 2}, j.gather())
		j.end()
	})
}
