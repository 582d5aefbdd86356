package launch_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
)

// newConductor returns a conductor of three ranks, and what it sends and logs.
func newConductor(first bool) (c *launch.Conductor, sent *[]string, log *bytes.Buffer) {
	sent, log = new([]string), new(bytes.Buffer)
	c = &launch.Conductor{
		Verdict: launch.Verdict{LostStatus: 75},
		Grace:   8 * time.Second, Log: slog.New(slog.NewTextHandler(log, nil)),
		Order: func(signal int, reason string) { *sent = append(*sent, fmt.Sprintf("order %d %s", signal, reason)) },
		Pass:  func(sig os.Signal) { *sent = append(*sent, fmt.Sprint("pass ", sig)) },
		First: func() bool { defer func() { first = false }(); return first },
	}
	for rank := range 3 {
		name := fmt.Sprint("worker-", rank)
		c.Verdict.Ranks = append(c.Verdict.Ranks, launch.Rank{Rank: rank, Role: "worker", Name: name, Needed: true})
	}
	return c, sent, log
}

func TestConductor(t *testing.T) {
	term := launch.Stop{Name: "worker-0", Signal: int(syscall.SIGTERM), Reason: "stopped"}
	kill := launch.Stop{Name: "worker-0", Signal: int(syscall.SIGKILL), Reason: "killed"}
	failure := launch.End{Rank: 2, Outcome: launch.Outcome{Status: 3, Reason: "failed\nmore"}}
	loss := launch.Loss{Rank: 1, Name: "worker-1", Reason: "gone"}
	const ordered, passed = "order 15 stopped", "pass terminated"
	for name, tt := range map[string]struct {
		do   func(*launch.Conductor)
		want []string
		says string
	}{
		"a signal": {func(c *launch.Conductor) { c.Signal(term) }, []string{ordered, passed}, "reason=stopped"},
		"two signals": {
			func(c *launch.Conductor) { c.Signal(term); c.Signal(term) }, []string{ordered, passed, passed}, "",
		},
		"SIGKILL only": {
			func(c *launch.Conductor) { c.Signal(kill) }, []string{"order 9 killing the job", "pass killed"}, "",
		},
		"a request": {
			func(c *launch.Conductor) { c.Stop(launch.Stop{Name: "worker-1", Reason: "enough"}) },
			[]string{"order 0 enough", passed}, "peer=worker-1 reason=enough",
		},
		"a request that a signal repeats": {
			func(c *launch.Conductor) { c.Stop(term); c.Signal(term); c.Signal(term) },
			[]string{ordered, passed, passed}, "a rank wants the job to stop",
		},
		"a failure": {
			func(c *launch.Conductor) { require.True(t, c.Ended(failure)) },
			[]string{"order 0 failed\nmore", passed}, "reason=failed\n",
		},
		"a failure after the order": {
			func(c *launch.Conductor) { c.Signal(term); require.False(t, c.Ended(failure)) },
			[]string{ordered, passed}, "",
		},
		"a success": {func(c *launch.Conductor) { require.False(t, c.Ended(launch.End{Rank: 1})) }, nil, ""},
		"a loss": {
			func(c *launch.Conductor) { c.Lost(loss); c.Lost(loss) },
			[]string{"order 0 rank 1 (worker-1) was lost: gone", passed}, "a rank is lost",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, sent, log := newConductor(true)
			tt.do(c)
			require.Equal(t, tt.want, *sent)
			require.Contains(t, log.String(), tt.says)
			require.Equal(t, tt.want == nil || name == "SIGKILL only", c.Overtime == nil)
		})
	}
}

func TestConductorGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, log := newConductor(false)
		begin := time.Now()
		c.Ended(launch.End{Rank: 1, Name: "worker-1", Outcome: launch.Outcome{Status: 3, Reason: "failed"}})
		<-c.Overtime
		require.Equal(t, 11*time.Second, time.Since(begin))
		require.Equal(t, []string{"worker-0", "worker-2"}, c.Verdict.Running())
		c.GiveUp()
		require.Empty(t, c.Verdict.Running())
		require.Contains(t, log.String(), "ranks=worker-0,worker-2")
		require.Equal(t, launch.Outcome{Status: 3, Reason: "failed"}, c.Verdict.Outcome())
	})
}

// A job that succeeds does not start again, so the commands that go on have all of --grace.
func TestConductorShortensTheGraceOnlyAfterAFailure(t *testing.T) {
	for status, want := range map[int]time.Duration{0: 11 * time.Second, 3: 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c, sent, _ := newConductor(false)
			c.RestartGrace = 2 * time.Second
			for i, needed := range launch.Needed([]string{"worker", "worker", "worker"}, launch.UntilRank0) {
				c.Verdict.Ranks[i].Needed = needed
			}
			begin := time.Now()
			c.Ended(launch.End{Rank: 1}) // it has simply finished
			require.Empty(t, *sent)
			c.Ended(launch.End{Rank: 0, Outcome: launch.Outcome{Status: status}})
			require.Len(t, *sent, 2)
			require.Equal(t, []string{"worker-2"}, c.Verdict.Running())
			require.Equal(t, status != 0, c.Kill != nil)
			<-c.Overtime
			require.Equal(t, want, time.Since(begin))
		})
	}
}

func TestEndSignal(t *testing.T) {
	for n, want := range map[int]syscall.Signal{-1: syscall.SIGTERM, 0: syscall.SIGTERM, 2: syscall.SIGINT} {
		require.Equal(t, want, launch.EndSignal(n))
	}
}
