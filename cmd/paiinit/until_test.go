package main

import (
	"strconv"
	"strings"
	"testing"

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
	o := said("", "chief")
	require.Equal(t, statusConfig, o.Status)
	require.Contains(t, o.Reason, "chief-0 has --exec all, worker-0 has --exec all --until chief")
}
