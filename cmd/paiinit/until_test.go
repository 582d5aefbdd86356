package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

// membersOf have these roles, in rank order.
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

func TestNeededRanks(t *testing.T) {
	for _, tt := range []struct{ until, roles, needed string }{
		{"", "worker worker", "worker-0 worker-1"},
		{"", "chief worker ps evaluator", "chief-0 worker-0"},
		{"", "Chief Worker PS Evaluator", "Chief-0 Worker-0"}, // TFJob's types
		{"", "worker ps_server ps_server", "worker-0"},        // OpenPAI's examples
		{"", "scheduler worker server", "scheduler-0 worker-0"},
		{"", "worker observer psyche", "worker-0 observer-0 psyche-0"},
		{"", "ps ps", "ps-0 ps-1"}, // nothing to wait for but themselves
		{"", "ps worker", "worker-0"},
		{"chief", "chief worker ps", "chief-0"},
		{"Worker,ps", "chief worker ps", "worker-0 ps-0"},
		{"rank0", "worker worker ps", "worker-0"},
		{"rank0", "ps worker", "ps-0"},
	} {
		s := settings{exec: execAll, until: untilOf(tt.until)}
		var needed []string
		for _, m := range s.neededRanks(membersOf(strings.Fields(tt.roles)...)) {
			needed = append(needed, m.Alias)
		}
		require.Equal(t, tt.needed, strings.Join(needed, " "), "%+v", tt)
	}
}

func TestCheckUntil(t *testing.T) {
	for _, tt := range []struct{ until, roles, says string }{
		{"", "ps worker", ""},
		{"rank0", "ps worker", ""},
		{"WORKER, chief", "Worker Chief", ""},
		{"chef,worker", "chief worker worker ps",
			"--until (PAIINIT_UNTIL) names chef, a role that no rank has; the roles are chief, ps, worker"},
		{"chief", "evaluator", ""}, // TFJob's evaluator is told of no other rank, and has the variables of all
	} {
		err := (&settings{exec: execAll, until: untilOf(tt.until)}).checkUntil(strings.Fields(tt.roles))
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
			r.Members[i].Exec = (&settings{exec: execAll, until: untilOf(v)}).whoRuns()
		}
		return checkExec(r)
	}
	require.Nil(t, said("", ""))
	require.Nil(t, said("chief,worker", "Worker, chief"))
	o := said("", "chief")
	require.Equal(t, statusConfig, o.Status)
	require.Contains(t, o.Reason, "chief-0 has --exec all, worker-0 has --exec all --until chief")
}

// A parameter server or an evaluator is told to end when the others have ended, and how it ends then does not count.
func TestJudgementOfServers(t *testing.T) {
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	end := func(rank, status, ms int, stopped bool) rendezvous.End {
		o := rendezvous.Outcome{Status: status, Reason: "rank " + strconv.Itoa(rank)}
		return rendezvous.End{Rank: rank, At: at(ms), Error: time.Millisecond, Stopped: stopped, Outcome: o}
	}
	const well = "the commands of all ranks of chief, worker ended with status 0; the others were told to end then"
	type ends = []rendezvous.End
	lost := []rendezvous.Loss{{Rank: 2, Name: "ps-0", Reason: "gone"}}
	for name, tt := range map[string]struct {
		ordered int // 0: not
		lost    []rendezvous.Loss
		ends    ends
		status  int
		reason  string
	}{
		"it ends when told": {
			90, nil, ends{end(0, 0, 50, false), end(1, 0, 80, false), end(2, 0, 100, true)},
			0, well,
		},
		"it fails when told": {
			90, nil, ends{end(0, 0, 50, false), end(1, 0, 80, false), end(2, 1, 100, true)},
			0, well,
		},
		"it had to be killed": {
			90, nil, ends{end(0, 0, 50, false), end(1, 0, 80, false), end(2, 137, 9000, true)},
			0, well,
		},
		"it fails as the others leave": {
			90, nil, ends{end(2, 1, 81, false), end(0, 0, 50, false), end(1, 0, 80, false)},
			0, well,
		},
		"it is lost then": {
			90, lost, ends{end(0, 0, 50, false), end(1, 0, 80, false)},
			0, well,
		},
		"it ended early": {
			0, nil, ends{end(2, 0, 10, false), end(0, 0, 50, false), end(1, 0, 80, false)}, 0,
			"the commands of all ranks of chief, worker ended with status 0",
		},
		"it fails while the others work": {
			40, nil, ends{end(2, 1, 30, false), end(0, 0, 50, true), end(1, 0, 80, true)},
			1, "rank 2",
		},
		"it fails, and the others are just done": {
			90, nil, ends{end(2, 4, 30, false), end(0, 0, 50, false), end(1, 0, 80, false)}, 4, "rank 2",
		},
		"a worker fails": {
			40, nil, ends{end(0, 0, 30, false), end(1, 7, 35, false), end(2, 0, 50, true)},
			7, "rank 1",
		},
		"it is lost while the others work": {
			40, lost, ends{end(0, 0, 50, true), end(1, 0, 80, true)}, 75, "rank 2 (ps-0) was lost: gone",
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := judgement{size: 3, needed: membersOf("chief", "worker"), ends: tt.ends, lost: tt.lost}
			if tt.ordered > 0 {
				j.ordered = at(tt.ordered)
			}
			require.Equal(t, rendezvous.Outcome{Status: tt.status, Reason: tt.reason}, j.outcome())
		})
	}
}

func TestUnclearEnds(t *testing.T) {
	end := func(rank, status int) rendezvous.End {
		return rendezvous.End{Rank: rank, Outcome: rendezvous.Outcome{Status: status}}
	}
	j := judgement{size: 3, needed: membersOf("chief", "worker")}
	for _, tt := range []struct {
		statuses []int
		want     int
	}{
		{[]int{0, 0, 0}, 0}, {[]int{1, 0, 0}, 0}, {[]int{1, 0, 1}, 2}, {[]int{0, 0, 1}, 3}, {[]int{1, 1, 1}, 3},
	} {
		j.ends = nil
		for rank, status := range tt.statuses {
			j.ends = append(j.ends, end(rank, status))
		}
		require.Len(t, j.unclear(), tt.want, "%v", tt.statuses)
		stopped := j
		stopped.stop = &rendezvous.Stop{}
		require.Empty(t, stopped.unclear())
	}
}
