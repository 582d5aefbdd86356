package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

func TestCheckLaunchers(t *testing.T) {
	const four, five = "mpirun=Open_MPI_4.1.4", "mpirun=Open_MPI_5.0.7"
	const unknown, unasked = "mpirun=?", "mpirun=? mpiexec.hydra=MPICH_4.0.2"
	for name, tt := range map[string]struct {
		found    []string
		required bool
		refused  string
		warned   bool
	}{
		"the same":              {[]string{four, four}, true, "", false},
		"different":             {[]string{four, five}, false, "", true},
		"different, refused":    {[]string{four, five}, true, "Open MPI 5.0.7 on worker-1", false},
		"not known in time":     {[]string{four, ""}, false, "", false},
		"missing, refused":      {[]string{four, ""}, true, "none on worker-1", false},
		"rank 0 has none":       {[]string{"", four}, false, "", false},
		"overloaded":            {[]string{four, unasked}, false, "", false},
		"overloaded, refused":   {[]string{four, unasked}, true, "unknown version on worker-1", false},
		"rank 0 overloaded":     {[]string{unknown, four}, true, "worker-0 has no launcher of a known version", false},
		"none at all, required": {[]string{"", ""}, true, "worker-0 has no launcher of a known version", false},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c := &container{identity: identity{log: slog.New(slog.NewTextHandler(&log, nil))}}
			c.exec, c.sameLauncher = execRank0, tt.required
			var r rendezvous.Roster
			for i, f := range tt.found {
				alias := []string{"worker-0", "worker-1"}[i]
				r.Members = append(r.Members, rendezvous.Member{Alias: alias, Record: rendezvous.Record{Launch: f}})
			}
			o := c.checkLaunchers(r)
			if tt.refused == "" {
				require.Nil(t, o)
			} else {
				require.Equal(t, statusUnmendable, o.Status)
				require.Contains(t, o.Reason, tt.refused)
			}
			const warning = "mpirun is not the same on all ranks"
			require.Equal(t, tt.warned, strings.Contains(log.String(), warning), log.String())
		})
	}
}

// A kind of launcher gets one warning, however many ranks have it.
func TestHearLate(t *testing.T) {
	const four, five, six = "mpirun=Open_MPI_4.1.4", "mpirun=Open_MPI_5.0.7", "mpirun=Open_MPI_6.0.0"
	var log bytes.Buffer
	c := &container{identity: identity{log: slog.New(slog.NewTextHandler(&log, nil))}}
	c.versions.Ask(func() string { return four })()
	require.Equal(t, four, c.ownLauncher("worker-0"))
	for i, found := range []string{four, five, five, six, four, five, "mpirun=? mpiexec.hydra=MPICH_4.0.2"} {
		c.hearLate(rendezvous.Record{ID: fmt.Sprintf("worker-%d", i+1), Launch: found})
	}
	require.Equal(t, 2, strings.Count(log.String(), "level=WARN"), log.String())
	require.Contains(t, log.String(), "Open MPI 4.1.4 on worker-0; Open MPI 5.0.7 on worker-2")
	require.Contains(t, log.String(), "Open MPI 6.0.0 on worker-4")
}

// If the launcher of rank 0 answers last, rank 0 compares the earlier answers with it then.
func TestLauncherOfRankZeroAnswersLast(t *testing.T) {
	const four, five, six, seven = "mpirun=Open_MPI_4.1.4", "mpirun=Open_MPI_5.0.7", "mpirun=Open_MPI_6.0.0",
		"mpirun=Open_MPI_7.0.0"
	var log bytes.Buffer
	c := &container{identity: identity{log: slog.New(slog.NewTextHandler(&log, nil))}}
	c.exec, c.job.Rank = execRank0, 0
	answer := make(chan string)
	go c.versions.Ask(func() string { return <-answer })()
	require.Empty(t, c.ownLauncher("worker-0"))
	require.True(t, c.versions.Awaited())
	member := func(id, found string) rendezvous.Member {
		return rendezvous.Member{Alias: id, Record: rendezvous.Record{ID: id, Launch: found}}
	}
	members := []rendezvous.Member{member("worker-0", ""), member("worker-1", five), member("worker-2", four),
		member("worker-3", ""), member("worker-4", "")}
	require.Nil(t, c.checkLaunchers(rendezvous.Roster{Members: members}))
	c.hearLate(rendezvous.Record{ID: "worker-4", Launch: seven})
	require.Empty(t, log.String())
	answer <- four
	require.Equal(t, four, c.versions.Answer("worker-0", nil, c.log))
	c.hearLate(rendezvous.Record{ID: "worker-3", Launch: six})
	require.Equal(t, 3, strings.Count(log.String(), "level=WARN"), log.String())
	for _, other := range []string{"5.0.7 on worker-1", "6.0.0 on worker-3", "7.0.0 on worker-4"} {
		require.Contains(t, log.String(), "Open MPI 4.1.4 on worker-0; Open MPI "+other)
	}
}
