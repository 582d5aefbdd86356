package launch

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// withServer returns a job whose chief and worker must succeed, while its parameter server never ends by itself.
func withServer() []Rank {
	return []Rank{
		{Rank: 0, Role: "chief", Name: "chief-0", Needed: true},
		{Rank: 1, Role: "worker", Name: "worker-0", Needed: true},
		{Rank: 2, Role: "ps", Name: "ps-0"},
	}
}

func TestNeeded(t *testing.T) {
	for _, tt := range []struct{ until, roles, needed string }{
		{"", "worker worker", "worker-0 worker-1"},
		{"", "chief worker ps evaluator", "chief-0 worker-0"},
		{"", "Chief Worker PS Evaluator", "Chief-0 Worker-0"}, // TFJob's types
		{"", "worker ps_server ps_server", "worker-0"},        // OpenPAI's examples
		{"", "scheduler worker server", "scheduler-0 worker-0"},
		{"", "worker observer psyche", "worker-0 observer-0 psyche-0"},
		{"", "ps ps", "ps-0 ps-1"}, // there are no other ranks to wait for
		{"", "ps worker", "worker-0"},
		{"chief", "chief worker ps", "chief-0"},
		{"ps,worker", "chief Worker ps", "Worker-0 ps-0"},
		{"rank0", "worker worker ps", "worker-0"},
		{"rank0", "ps worker", "ps-0"},
	} {
		roles, index := strings.Fields(tt.roles), make(map[string]int)
		var needed []string
		for rank, is := range Needed(roles, tt.until) {
			if role := roles[rank]; is {
				needed = append(needed, role+"-"+strconv.Itoa(index[role]))
			}
			index[roles[rank]]++
		}
		require.Equal(t, tt.needed, strings.Join(needed, " "), "%+v", tt)
	}
}

func TestVerdict(t *testing.T) {
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	end := func(rank, status, ms int, stopped bool) End {
		o := Outcome{Status: status, Reason: "rank " + strconv.Itoa(rank)}
		name := "worker-" + strconv.Itoa(rank)
		return End{Rank: rank, Name: name, At: at(ms), Stopped: stopped, Outcome: o}
	}
	vague := func(e End, ms int) End {
		e.Error = time.Duration(ms) * time.Millisecond
		return e
	}
	said := func(e End, text string) End {
		e.Outcome.Reason += ": " + text
		return e
	}
	type ends = []End
	lost := []Loss{{Rank: 1, Name: "worker-1", Reason: "gone"}}
	stop := func(signal int) *Stop { return &Stop{Signal: signal, Reason: "by a person"} }
	also := func(list string) string { return "\nother commands failed at about the same time: " + list }
	for name, tt := range map[string]struct {
		v      Verdict
		status int
		reason string
	}{
		"all well": {
			Verdict{ends: ends{end(1, 0, 5, false), end(0, 0, 9, false)}},
			0, "the commands of all 2 ranks ended with status 0",
		},
		"the first by its own clock, not by arrival": {
			Verdict{ordered: at(8), ends: ends{end(1, 1, 7, false), end(2, 3, 5, false), end(0, 143, 9, true)}},
			3, "rank 2" + also("rank 1 (worker-1) with 1 after 2ms"),
		},
		"what fails later is another story": {
			Verdict{ordered: at(500), ends: ends{end(1, 1, 256, false), end(2, 3, 5, false), end(0, 2, 255, false)}},
			3, "rank 2" + also("rank 0 (worker-0) with 2 after 250ms"),
		},
		"equal times": {
			Verdict{ordered: at(8), ends: ends{end(2, 3, 5, false), end(1, 1, 5, false)}},
			1, "rank 1" + also("rank 2 (worker-2) with 3 after 0s"),
		},
		"it failed just before it was told to end": {
			Verdict{ordered: at(8), ends: ends{end(1, 1, 7, false), end(2, 3, 5, true), end(0, 143, 9, true)}},
			3, "rank 2" + also("rank 1 (worker-1) with 1 after 2ms"),
		},
		"aborted by a library at about the same time": {
			Verdict{ordered: at(20), ends: ends{
				vague(end(1, 134, 5, false), 2), vague(end(2, 3, 7, false), 1), end(0, 1, 8, false),
			}},
			3, "rank 2" + also("rank 1 (worker-1) with 134 after 0s, rank 0 (worker-0) with 1 after 1ms"),
		},
		"aborted clearly before": {
			Verdict{ordered: at(60), ends: ends{vague(end(1, 134, 4, false), 1), vague(end(2, 3, 57, false), 1)}},
			134, "rank 1" + also("rank 2 (worker-2) with 3 after 53ms"),
		},
		"several ended alike, and were noticed before the rank that ended otherwise": {
			Verdict{ordered: at(5), ends: ends{end(0, 1, 4, false), end(1, 1, 5, false), end(2, 3, 7, false)}},
			3, "rank 2" + also("rank 0 (worker-0) with 1 after 0s, rank 1 (worker-1) with 1 after 0s"),
		},
		"it complains about a connection, and was noticed before": {
			Verdict{ordered: at(5), ends: ends{
				said(end(0, 1, 4, false), "Connection reset by peer"), end(1, 1, 5, false),
			}},
			1, "rank 1" + also("rank 0 (worker-0) with 1 after 0s"),
		},
		"it complains about a connection, and the cause was noticed much later": {
			Verdict{ordered: at(5), ends: ends{
				said(end(0, 1, 4, false), "Connection closed by peer"), end(1, 3, 65, false),
			}},
			3, "rank 1" + also("rank 0 (worker-0) with 1 after 0s"),
		},
		"it complains about a connection, and what was noticed later may follow from it": {
			Verdict{ordered: at(5), ends: ends{
				said(end(0, 1, 4, false), "Connection closed by peer"), end(1, 134, 65, false),
			}},
			1, "rank 0: Connection closed by peer" + also("rank 1 (worker-1) with 134 after 61ms"),
		},
		"it complains about a connection, and fails long before another": {
			Verdict{ordered: at(500), ends: ends{
				said(end(0, 1, 4, false), "Connection closed by peer"), end(1, 3, 260, false),
			}},
			1, "rank 0: Connection closed by peer",
		},
		"all complain": {
			Verdict{ordered: at(5), ends: ends{
				said(end(0, 1, 4, false), "Broken pipe"), said(end(1, 1, 5, false), "broken pipe"),
			}},
			1, "rank 0: Broken pipe" + also("rank 1 (worker-1) with 1 after 1ms"),
		},
		"stopped": {
			Verdict{stop: stop(15), ordered: at(2), ends: ends{end(1, 0, 1, false), end(0, 143, 9, true)}},
			143, "by a person; rank 0",
		},
		"two at the same moment, by rank": {
			Verdict{ordered: at(20), ends: ends{end(2, 3, 5, false), end(0, 143, 9, true), end(1, 4, 5, false)}},
			4, "rank 1" + also("rank 2 (worker-2) with 3 after 0s, rank 0 (worker-0) with 143 after 4ms"),
		},
		"stopped, and all saved their work": {
			Verdict{stop: stop(15), ordered: at(2), ends: ends{end(1, 0, 9, true), end(0, 0, 9, true)}},
			0, "by a person; the commands of all ranks ended with status 0",
		},
		"stopped, and a command saved its work with a status of its own": {
			Verdict{stop: stop(2), ordered: at(2), ends: ends{end(1, 5, 9, true), end(0, 0, 9, false)}},
			5, "by a person; rank 1",
		},
		"stopped, and the first rank that ended otherwise": {
			Verdict{stop: stop(15), ordered: at(2), ends: ends{
				end(3, 6, 4, true), end(1, 5, 9, true), end(2, 7, 5, true), end(0, 0, 9, true)}},
			5, "by a person; rank 1",
		},
		"stopped, and nothing was heard": {Verdict{stop: stop(2), ordered: at(2)}, 130, "by a person"},
		"stopped without a signal":       {Verdict{stop: stop(0), ordered: at(2)}, 143, "by a person"},
		"a rank was lost": {
			Verdict{lost: lost, ordered: at(3), ends: ends{end(0, 1, 9, false)}},
			75, "rank 1 (worker-1) was lost: gone; rank 0",
		},
		"a rank was lost, and the others saved their work": {
			Verdict{lost: lost, ordered: at(3), ends: ends{end(0, 0, 9, true)}},
			75, "rank 1 (worker-1) was lost: gone",
		},
		"told to end for no reason that is known": {
			Verdict{ordered: at(3), ends: ends{end(0, 0, 9, true)}},
			75, "some ranks did not report how their commands ended",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.v.LostStatus = 75
			for rank := range max(2, len(tt.v.ends)) {
				r := Rank{Rank: rank, Role: "worker", Name: "worker-" + strconv.Itoa(rank), Needed: true}
				tt.v.Ranks = append(tt.v.Ranks, r)
			}
			want := Outcome{Status: tt.status, Reason: tt.reason}
			want.Stopped = tt.v.stop != nil && strings.HasPrefix(tt.reason, tt.v.stop.Reason)
			require.Equal(t, want, tt.v.Outcome())
		})
	}
}

// A parameter server or an evaluator is stopped when the others have ended, and its exit status does not count.
func TestVerdictOnServers(t *testing.T) {
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	end := func(rank, status, ms int, stopped bool) End {
		o := Outcome{Status: status, Reason: "rank " + strconv.Itoa(rank)}
		return End{Rank: rank, At: at(ms), Error: time.Millisecond, Stopped: stopped, Outcome: o}
	}
	const well = "the commands of all ranks of chief, worker ended with status 0; the others were stopped then"
	type ends = []End
	lost := []Loss{{Rank: 2, Name: "ps-0", Reason: "gone"}}
	for name, tt := range map[string]struct {
		ordered int // 0 if there was no order
		lost    []Loss
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
			v := Verdict{Ranks: withServer(), LostStatus: 75, ends: tt.ends, lost: tt.lost}
			if tt.ordered > 0 {
				v.ordered = at(tt.ordered)
			}
			require.Equal(t, Outcome{Status: tt.status, Reason: tt.reason}, v.Outcome())
		})
	}
}

// The end of a leader decides. Its workers fail when it closes its connections, which is before it is reaped.
func TestVerdictOnALeader(t *testing.T) {
	begin := time.Now()
	end := func(rank, status, ms int, stopped bool) End {
		o := Outcome{Status: status, Reason: "rank " + strconv.Itoa(rank)}
		return End{Rank: rank, At: begin.Add(time.Duration(ms) * time.Millisecond), Stopped: stopped, Outcome: o}
	}
	const well = "the command of rank 0 (head) ended with status 0; the others were stopped then"
	for name, tt := range map[string]struct {
		ends   []End // in the order of arrival
		status int
		reason string
	}{
		"it ends, and its workers when told": {
			[]End{end(0, 0, 50, false), end(1, 143, 60, true), end(2, 0, 61, true)}, 0, well,
		},
		"a worker fails at that": {
			[]End{end(0, 0, 50, false), end(1, 1, 51, false), end(2, 0, 61, true)}, 0, well,
		},
		"a worker is noticed before": {
			[]End{end(1, 1, 20, false), end(0, 0, 50, false), end(2, 0, 61, true)}, 0, well,
		},
		"a worker fails, and it ends when told": {
			[]End{end(1, 1, 20, false), end(0, 0, 50, true), end(2, 0, 61, true)}, 1, "rank 1",
		},
		"a worker ended before": {
			[]End{end(1, 0, 20, false), end(0, 0, 50, false), end(2, 0, 61, true)}, 0, well,
		},
		"it fails": {
			[]End{end(1, 0, 20, false), end(0, 4, 50, false), end(2, 0, 61, true)}, 4, "rank 0",
		},
	} {
		v := Verdict{Leader: true, LostStatus: 75, Ranks: []Rank{
			{Rank: 0, Name: "head", Needed: true}, {Rank: 1, Name: "a"}, {Rank: 2, Name: "b"},
		}}
		orders := 0
		for _, e := range tt.ends {
			if v.Ended(e, e.At) != nil {
				orders++
			}
		}
		require.Equal(t, Outcome{Status: tt.status, Reason: tt.reason}, v.Outcome(), name)
		require.Equal(t, 1, orders, name)
		if tt.status == 0 {
			require.Empty(t, v.Unclear(), name)
		}
	}
}

func TestUnclearEnds(t *testing.T) {
	end := func(rank, status int) End {
		return End{Rank: rank, Outcome: Outcome{Status: status}}
	}
	v := Verdict{Ranks: withServer()}
	for _, tt := range []struct {
		statuses []int
		want     int
	}{
		{[]int{0, 0, 0}, 0}, {[]int{1, 0, 0}, 0}, {[]int{1, 0, 1}, 2}, {[]int{0, 0, 1}, 3}, {[]int{1, 1, 1}, 3},
	} {
		v.ends = nil
		for rank, status := range tt.statuses {
			v.ends = append(v.ends, end(rank, status))
		}
		require.Len(t, v.Unclear(), tt.want, "%v", tt.statuses)
		stopped := v
		stopped.stop = &Stop{}
		require.Empty(t, stopped.Unclear())
	}
	begin := time.Now()
	later := func(rank, status int) End {
		return End{Rank: rank, Outcome: Outcome{Status: status}, At: begin.Add(time.Second), Stopped: true}
	}
	v = Verdict{Ranks: withServer()}
	v.Ended(End{Rank: 2, Outcome: Outcome{Status: 137}, At: begin}, begin)
	v.Ended(later(0, 143), begin)
	v.Ended(later(1, 143), begin)
	require.Empty(t, v.Unclear(), "they ended because they were told")
	v.ends[1].Stopped = false
	require.Equal(t, []int{2, 0}, v.Unclear())
}

// Only the first event that ends the job returns an order, and the verdict is about its consequences.
func TestVerdictOrders(t *testing.T) {
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	end := func(rank, status, ms int, stopped bool) End {
		o := Outcome{Status: status, Reason: "rank " + strconv.Itoa(rank)}
		return End{Rank: rank, At: at(ms), Stopped: stopped, Outcome: o}
	}
	newVerdict := func() *Verdict { return &Verdict{Ranks: withServer(), LostStatus: 75} }

	t.Run("the needed ranks succeed", func(t *testing.T) {
		v := newVerdict()
		require.Nil(t, v.Ended(end(1, 0, 1, false), at(1)))
		require.Equal(t, []string{"chief-0", "ps-0"}, v.Running())
		const well = "the commands of all ranks of chief, worker ended with status 0"
		require.Equal(t, &Stop{Reason: well}, v.Ended(end(0, 0, 2, false), at(2)))
		require.Nil(t, v.Ended(end(2, 143, 9, true), at(9)), "one order is enough")
		require.Empty(t, v.Running())
		require.Equal(t, Outcome{Status: 0, Reason: well + "; the others were stopped then"}, v.Outcome())
	})
	t.Run("all end by themselves", func(t *testing.T) {
		v := newVerdict()
		for rank := range 3 {
			require.Nil(t, v.Ended(end(2-rank, 0, rank, false), at(rank)))
		}
		require.False(t, v.Ordered())
	})
	t.Run("a failure", func(t *testing.T) {
		v := newVerdict()
		failure := end(2, 3, 1, false)
		failure.Outcome.Next = "see the log of rank 2"
		require.Equal(t, &Stop{Reason: "rank 2"}, v.Ended(failure, at(1)))
		order, news := v.Lost(Loss{0, "chief-0", "gone"}, at(2))
		require.True(t, news)
		require.Nil(t, order)
		require.Nil(t, v.Stop(Stop{"worker-0", 15, "by a person"}, at(3)), "the job was ending already")
		require.Nil(t, v.Ended(end(1, 143, 4, true), at(4)))
		require.Equal(t, Outcome{Status: 75, Reason: "rank 0 (chief-0) was lost: gone; rank 2"}, v.Outcome())
	})
	t.Run("a loss", func(t *testing.T) {
		v := newVerdict()
		order, news := v.Lost(Loss{1, "worker-0", "gone"}, at(1))
		require.True(t, news)
		require.Equal(t, &Stop{Reason: "rank 1 (worker-0) was lost: gone"}, order)
		_, news = v.Lost(Loss{1, "worker-0", "again"}, at(2))
		require.False(t, news)
		_, news = v.Lost(Loss{7, "worker-7", "of another job"}, at(2))
		require.False(t, news)
		v.Ended(end(0, 0, 3, true), at(3))
		_, news = v.Lost(Loss{0, "chief-0", "left when its command had ended"}, at(4))
		require.False(t, news)
		require.Equal(t, []string{"ps-0"}, v.Running())
		require.Equal(t, 75, v.Outcome().Status)
	})
	t.Run("a request to stop", func(t *testing.T) {
		v := newVerdict()
		require.Equal(t, &Stop{Signal: 2, Reason: "by a person"}, v.Stop(Stop{"chief-0", 2, "by a person"}, at(1)))
		v.Ended(end(2, 9, 5, true), at(5))
		require.Equal(t, Outcome{Status: 9, Reason: "by a person; rank 2", Stopped: true}, v.Outcome())
	})
	t.Run("clocks that are compared at the end", func(t *testing.T) {
		v := newVerdict()
		v.Ended(end(0, 1, 60, false), at(60))
		v.Ended(end(1, 2, 61, false), at(61))
		require.Equal(t, []int{0, 1}, v.Unclear())
		v.Align(1, at(1), time.Millisecond)
		require.Equal(t, 2, v.Outcome().Status)
	})
}

// TestLossBeforeAHang: a rank that waits for a lost one hangs as well.
func TestLossBeforeAHang(t *testing.T) {
	v := Verdict{LostStatus: 75, Ranks: []Rank{{Rank: 0, Needed: true}, {Rank: 1, Needed: true}}}
	now := time.Now()
	v.Ended(End{Rank: 0, At: now, Outcome: Outcome{Status: 75, Reason: "no progress", Hung: true}}, now)
	require.True(t, v.Outcome().Hung)
	v.Lost(Loss{Rank: 1, Name: "b", Reason: "gone"}, now)
	o := v.Outcome()
	require.False(t, o.Hung)
	require.Equal(t, "rank 1 (b) was lost: gone; no progress", o.Reason)
}
