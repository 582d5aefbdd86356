package main

import (
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// everyRank returns the settings of --exec all --until VALUE.
func everyRank(until string) *settings {
	return &settings{commandSettings: commandSettings{exec: execAll, until: launch.ParseUntil(until)}}
}

// membersOf returns members with these roles, in rank order.
func membersOf(roles ...string) (list []rendezvous.Member) {
	index := make(map[string]int)
	for rank, role := range roles {
		m := rendezvous.Member{Record: rendezvous.Record{Role: role, Index: index[role], Rank: rank}}
		m.Alias = role + "-" + strconv.Itoa(m.Index)
		index[role]++
		list = append(list, m)
	}
	return list
}

func TestCheckUntil(t *testing.T) {
	for _, tt := range []struct{ until, roles, says string }{
		{"", "ps worker", ""},
		{"rank0", "ps worker", ""},
		{"WORKER, chief", "Worker Chief", ""},
		{"chef,worker", "chief worker worker ps",
			"--until (PAIINIT_UNTIL) names chef, a role that no rank has; the roles are chief, ps, worker"},
		{"chief", "evaluator", ""}, // TFJob tells its evaluator about no other rank
	} {
		err := everyRank(tt.until).checkUntil(strings.Fields(tt.roles))
		if tt.says == "" {
			require.NoError(t, err, "%+v", tt)
			continue
		}
		require.EqualError(t, err, tt.says)
		require.Equal(t, statusUsage, statusOf(err))
	}
}

// --exec leader and --exec all --until rank0 are the same job.
func TestExecLeader(t *testing.T) {
	for _, tt := range []struct{ exec, until, runs, says string }{
		{execRank0, "", "rank0", ""},
		{execAll, "", "all", ""},
		{execAll, "Chief", "all --until chief", ""},
		{execAll, "rank0", "leader", ""},
		{execLeader, "", "leader", ""},
		{execLeader, "rank0", "leader", ""},
		{execLeader, "chief", "",
			`--until (PAIINIT_UNTIL) is "chief": with --exec leader the job ends with rank 0's command`},
	} {
		s := commandSettings{exec: tt.exec, until: tt.until}
		err := s.completeUntil()
		if tt.says != "" {
			require.EqualError(t, err, tt.says)
			require.Equal(t, statusUsage, statusOf(err))
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tt.runs, s.whoRuns())
		require.Equal(t, tt.runs == execLeader, s.hasLeader())
		require.NotEqual(t, execLeader, s.exec)
	}
}

func TestLeaderAloneIsWatched(t *testing.T) {
	for until, watched := range map[string][]bool{"": {true, true}, "rank0": {true, false}} {
		r := rendezvous.Roster{Members: membersOf("worker", "worker")}
		for rank := range r.Members {
			r.Members[rank].Nonce = strconv.Itoa(rank)
			id := identity{settings: *everyRank(until), nonce: strconv.Itoa(rank), log: slog.New(slog.DiscardHandler)}
			id.hang = time.Minute
			require.Equal(t, watched[rank], (&agreement{identity: &id, roster: r}).watching().After > 0, "%q", until)
		}
	}
}

func TestUntilMustBeAgreed(t *testing.T) {
	said := func(values ...string) *rendezvous.Outcome {
		r := rendezvous.Roster{Members: membersOf("chief", "worker")}
		for i, v := range values {
			r.Members[i].Exec = everyRank(v).whoRuns()
		}
		return new(settings).checkExec(r)
	}
	require.Nil(t, said("", ""))
	require.Nil(t, said("chief,worker", "Worker, chief"))
	require.Nil(t, said("rank0", "Rank0"))
	require.Contains(t, said("rank0", "").Reason, "chief-0 has --exec leader, worker-0 has --exec all")
	o := said("", "chief")
	require.Equal(t, statusConfig, o.Status)
	require.Contains(t, o.Reason, "chief-0 has --exec all, worker-0 has --exec all --until chief")
}
