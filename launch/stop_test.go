package launch

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The command gets the signal once, however many containers get it; a second signal to the same container is passed on.
func TestSignalsOfAllContainersCountOnce(t *testing.T) {
	for ways, want := range map[string]string{
		"own":                  "terminated",
		"wish":                 "terminated",
		"wish wish own":        "terminated",
		"own wish wish":        "terminated",
		"own own":              "terminated terminated",
		"wish own own":         "terminated terminated",
		"abort own":            "terminated",
		"abort wish own own":   "terminated terminated",
		"hangup wish own":      "hangup terminated",
		"wish hangup own":      "terminated hangup",
		"own hangup wish":      "terminated hangup",
		"abort abort own wish": "terminated terminated",
	} {
		var got []string
		g := Stopper{
			Grace: time.Minute, Line: []string{"train"},
			Hard:      func(sig os.Signal) { got = append(got, sig.String()) },
			Launchers: func() []int { return nil },
		}
		for way := range strings.FieldsSeq(ways) {
			switch way {
			case "own":
				g.Own(syscall.SIGTERM)
			case "hangup":
				g.Own(syscall.SIGHUP)
			case "wish":
				g.Request(syscall.SIGTERM)
			case "abort":
				g.Abort(syscall.SIGTERM)
			}
		}
		require.Equal(t, want, strings.Join(got, " "), ways)
	}
}

// A repeated SIGTERM goes to the ranks, because a launcher that gets a second one kills them.
func TestRepeatedStopOfALauncher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		said := make(chan string, 10)
		say := func(to string) func(os.Signal) {
			return func(sig os.Signal) { said <- fmt.Sprintf("%v %s %v", time.Since(began), to, sig) }
		}
		g := Stopper{
			Grace: 8 * time.Second, Line: []string{"/usr/bin/mpirun", "train"}, Log: slog.New(slog.DiscardHandler),
			Hard: say("launcher"), Soft: say("ranks"),
		}
		g.Own(syscall.SIGTERM)
		time.Sleep(time.Second)
		g.Own(syscall.SIGTERM)
		g.Request(syscall.SIGTERM)
		g.Own(syscall.SIGINT)
		time.Sleep(time.Minute)
		require.True(t, g.End())
		want := "0s ranks terminated|1s ranks terminated|1s ranks interrupt|5s launcher terminated|8s launcher killed"
		for line := range strings.SplitSeq(want, "|") {
			require.Equal(t, line, <-said)
		}
		require.Empty(t, said)
	})
}

// A launcher gets the signal after its ranks, wherever it runs; a command without launchers gets it at once.
func TestLaunchersAreStoppedByTheirRanks(t *testing.T) {
	sleeper := exec.Command("sleep", "1000") // a launcher below a script
	require.NoError(t, sleeper.Start())
	t.Cleanup(func() { _ = sleeper.Process.Kill() })
	// start stops a command that has these launchers below it.
	start := func(command string, launchers []int, grace time.Duration) (*Stopper, chan string) {
		told := make(chan string, 4)
		return &Stopper{
			Grace: grace, Line: strings.Fields(command), Log: slog.New(slog.DiscardHandler),
			Hard:      func(os.Signal) { told <- "command" },
			Soft:      func(os.Signal) { told <- "ranks" },
			Launchers: func() []int { return launchers },
		}, told
	}
	below := []int{sleeper.Process.Pid}
	for name, tt := range map[string]struct {
		command   string
		launchers []int
		grace     time.Duration
		sig       os.Signal
		ranked    bool // the job ends with 128+n
		want      string
	}{
		"mpirun":               {"/usr/bin/mpirun a.out", nil, time.Minute, syscall.SIGTERM, true, "ranks"},
		"horovodrun":           {"python3 /usr/bin/horovodrun x", nil, time.Minute, syscall.SIGTERM, true, "ranks"},
		"a script with mpirun": {"sh train.sh", below, time.Minute, syscall.SIGTERM, true, "ranks"},
		"a script without":     {"sh train.sh", nil, time.Minute, syscall.SIGTERM, false, "command"},
		"no time":              {"sh train.sh", below, time.Second, syscall.SIGTERM, true, "command"},
		"another signal":       {"sh train.sh", below, time.Minute, syscall.SIGINT, true, "command"},
		"no end":               {"mpirun", nil, time.Minute, syscall.SIGUSR1, false, "command"},
	} {
		t.Run(name, func(t *testing.T) {
			g, told := start(tt.command, tt.launchers, tt.grace)
			g.Own(tt.sig)
			require.Equal(t, tt.want, <-told)
			require.Equal(t, tt.ranked, g.End())
			require.Empty(t, told)
		})
	}

	g, told := start("sh train.sh", below, time.Minute)
	g.Own(syscall.SIGTERM)
	require.Equal(t, "ranks", <-told)
	require.NoError(t, sleeper.Process.Kill())
	_ = sleeper.Wait() // killed
	require.Equal(t, "command", <-told, "otherwise the script would run its next command")
	require.True(t, g.End())
}
