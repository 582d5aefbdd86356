package rendezvous

import (
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// unready returns what rank 0 and another rank say, which must be the same.
func unready(t *testing.T, nodes ...*Node) string {
	t.Helper()
	synctest.Wait()
	why := nodes[0].Unready(t.Context())
	for _, n := range nodes[1:] {
		require.Equal(t, why, n.Unready(t.Context()))
		require.Equal(t, why, n.Status(t.Context()).Unready)
	}
	require.NotContains(t, why, "\n")
	return why
}

// TestUnready asks the ranks of a job in every phase, where each of them runs a command.
func TestUnready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		start := func(rank int) *Node {
			cfg := w.config(rank, 3)
			cfg.Everyone = true
			return w.start(cfg)
		}
		nodes := []*Node{nil, start(1)}
		require.Equal(t, "gathering: waiting for rank 0: worker-0 (never heard)", unready(t, nodes[1]))
		nodes[0] = start(0)
		time.Sleep(2 * time.Second)
		require.Equal(t, "gathering: waiting for ranks: 2 of 3 present; "+
			"missing: worker-2 (10.0.0.2:12345: connection refused)", unready(t, nodes...))
		nodes = append(nodes, start(2))
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		const wait = "ranks do not run their command yet: "
		require.Equal(t, "running: 3 of 3 "+wait+"worker-[0-2]", unready(t, nodes...))
		nodes[0].CommandAwaits("tcp:8000: connection\nrefused")
		nodes[0].CommandRuns()
		require.Equal(t, "running: rank 0 is not ready: tcp:8000: connection refused", unready(t, nodes...))
		nodes[0].CommandAwaits("")
		nodes[2].CommandRuns()
		require.Equal(t, "running: 1 of 3 "+wait+"worker-1", unready(t, nodes...))
		w.set(addrOf(1), nil, syscall.ECONNREFUSED)
		w.cut(addrOf(1))
		nodes[1].CommandRuns() // rank 0 hears of it later
		synctest.Wait()
		require.Regexp(t, `^running: 1 of 3 ranks are lost: worker-1 \(.*connection.*\)$`,
			unready(t, nodes[0], nodes[2]))
		require.Equal(t, "running: the connection to rank 0 is lost", unready(t, nodes[1]))
		w.set(addrOf(1), nodes[1], nil)
		time.Sleep(10 * time.Second)
		require.Empty(t, unready(t, nodes...))

		nodes[2].Report(End{At: time.Now()})
		require.Equal(t, "running: the command of 1 of 3 ranks has ended: worker-2", unready(t, nodes...))
		require.NoError(t, nodes[0].Finish(t.Context(), Outcome{Status: 3}, 0))
		require.Equal(t, "ended: the job has ended with status 3", unready(t, nodes...))
		w.close(nodes...)
		require.Equal(t, "the rendezvous is closed", nodes[0].Unready(t.Context()))
	})
}

// TestUnreadyWithOneCommand: without a command of its own a rank needs to be present only.
func TestUnreadyWithOneCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 3)), w.start(w.config(1, 3)), w.start(w.config(2, 3))}
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		require.Equal(t, "running: 1 of 3 ranks do not run their command yet: worker-0", unready(t, nodes...))
		nodes[0].CommandRuns()
		require.Empty(t, unready(t, nodes...))
		nodes[0].Order(15, "stop")
		require.Equal(t, "running: the job is being ended", unready(t, nodes...))
		nodes[0].CommandEnded()
		require.Regexp(t, "^running: the command of 1 of 3 ranks has ended: worker-0", unready(t, nodes...))
		done := make(chan error)
		go func() {
			_, err := nodes[0].Clear(t.Context(), nil)
			done <- err
		}()
		require.Equal(t, "restarting: the processes of the last launch are being ended", unready(t, nodes...))
		nodes[1].Cleared(0, 0)
		nodes[2].Cleared(0, 0)
		require.NoError(t, <-done)
		nodes[0].Next()
		require.Equal(t, "restarting: the next generation begins", unready(t, nodes...))
		w.close(nodes...)
	})
}

// TestUnreadyWithoutAnswer: a rank 0 that is frozen does not hold up a probe, before and after the launch.
func TestUnreadyWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nodes := []*Node{w.start(w.config(0, 3)), w.start(w.config(1, 3))}
		frozen := func(want string) {
			thaw := make(chan struct{})
			nodes[0].post(func() { <-thaw })
			begin := time.Now()
			require.Equal(t, want+": rank 0 does not answer", nodes[1].Unready(t.Context()))
			require.Equal(t, readyTimeout, time.Since(begin))
			close(thaw)
		}
		time.Sleep(time.Second)
		frozen("gathering")
		nodes = append(nodes, w.start(w.config(2, 3)))
		for _, g := range gatherAll(t.Context(), nodes) {
			require.NoError(t, g.err)
		}
		frozen("running")
		w.close(nodes...)
	})
}

func TestOneLine(t *testing.T) {
	require.Equal(t, "a b c [31m", oneLine("a\nb\tc\x1b[31m"))
	require.Equal(t, strings.Repeat("x", maxLine-1)+" ...", oneLine(strings.Repeat("x", maxLine-1)+"é"))
}
