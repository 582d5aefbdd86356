package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The command is told once, however many containers are; a second signal to the same one is passed on.
func TestOneWishToEnd(t *testing.T) {
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
		g := gentle{
			c:         &container{identity: identity{settings: settings{grace: time.Minute, command: []string{"train"}}}},
			hard:      func(sig os.Signal) { got = append(got, sig.String()) },
			launchers: func() []int { return nil },
		}
		for way := range strings.FieldsSeq(ways) {
			switch way {
			case "own":
				g.own(syscall.SIGTERM)
			case "hangup":
				g.own(syscall.SIGHUP)
			case "wish":
				g.wish(syscall.SIGTERM)
			case "abort":
				g.abort(syscall.SIGTERM)
			}
		}
		require.Equal(t, want, strings.Join(got, " "), ways)
	}
}

// What repeats a SIGTERM goes to the ranks of a launcher, which kills them when it gets a second one itself.
func TestRepeatedStopOfALauncher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		said := make(chan string, 10)
		say := func(to string) func(os.Signal) {
			return func(sig os.Signal) { said <- fmt.Sprintf("%v %s %v", time.Since(began), to, sig) }
		}
		s := settings{grace: 8 * time.Second, command: []string{"/usr/bin/mpirun", "train"}}
		g := gentle{c: &container{identity: identity{settings: s}, log: slog.New(slog.DiscardHandler)}, hard: say("launcher"),
			soft: say("ranks")}
		g.own(syscall.SIGTERM)
		time.Sleep(time.Second)
		g.own(syscall.SIGTERM)
		g.wish(syscall.SIGTERM)
		g.own(syscall.SIGINT)
		time.Sleep(time.Minute)
		require.True(t, g.end())
		want := "0s ranks terminated|1s ranks terminated|1s ranks interrupt|5s launcher terminated|8s launcher killed"
		for line := range strings.SplitSeq(want, "|") {
			require.Equal(t, line, <-said)
		}
		require.Empty(t, said)
	})
}

// A launcher, wherever it runs, is told after its ranks; whatever runs none is told at once.
func TestLaunchersAreStoppedByTheirRanks(t *testing.T) {
	sleeper := exec.Command("sleep", "1000") // a launcher below a script
	require.NoError(t, sleeper.Start())
	t.Cleanup(func() { _ = sleeper.Process.Kill() })
	// start has a command with these launchers below it told to end.
	start := func(command string, launchers []int, grace time.Duration) (*gentle, chan string) {
		told := make(chan string, 4)
		s := settings{grace: grace, command: strings.Fields(command)}
		return &gentle{
			c:         &container{identity: identity{settings: s}, log: slog.New(slog.DiscardHandler)},
			hard:      func(os.Signal) { told <- "command" },
			soft:      func(os.Signal) { told <- "ranks" },
			launchers: func() []int { return launchers },
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
			g.own(tt.sig)
			require.Equal(t, tt.want, <-told)
			require.Equal(t, tt.ranked, g.end())
			require.Empty(t, told)
		})
	}

	g, told := start("sh train.sh", below, time.Minute)
	g.own(syscall.SIGTERM)
	require.Equal(t, "ranks", <-told)
	require.NoError(t, sleeper.Process.Kill())
	_ = sleeper.Wait() // killed
	require.Equal(t, "command", <-told, "the script would go on with its next command")
	require.True(t, g.end())
}

// paiinit asks the launchers of the image for their versions, also after the launch. These have no ranks.
func TestVersionsAreNoLaunchers(t *testing.T) {
	script := filepath.Join(t.TempDir(), "mpirun")
	text := []byte("#!/bin/sh\necho ready\nread x\n")
	require.NoError(t, os.WriteFile(script, text, 0o755)) //nolint:gosec // a program
	for words, want := range map[string]bool{"--version": false, "": true, "-np 2 train --version": true} {
		cmd := exec.CommandContext(t.Context(), script, strings.Fields(words)...)
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = stdout.Read(make([]byte, 10))
		require.NoError(t, err)
		require.Equal(t, want, slices.Contains(new(container).rankLaunchers(), cmd.Process.Pid), words)
		require.NoError(t, stdin.Close())
		_ = cmd.Wait() // read has found no line
	}
}
