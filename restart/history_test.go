package restart

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// begin is when the jobs of the tests begin.
var begin = time.Date(2026, 5, 4, 20, 53, 38, 0, time.UTC)

// limited is the default policy with so many restarts.
func limited(restarts int) Policy {
	p := Defaults()
	p.Restarts = restarts
	return p
}

func (d Decision) String() string {
	if d.Again {
		return fmt.Sprintf("again %d/%d in %v", d.Number, d.Of, d.Delay)
	}
	return fmt.Sprintf("no %d/%d: %s", d.Number, d.Of, d.Why)
}

// added adds ends to a history as its next generations, and returns the decisions.
func added(h *History, ends ...End) (decisions []string) {
	now := begin
	for i, e := range ends {
		e.Generation = i + 1
		now = now.Add(e.Ran + time.Second)
		decisions = append(decisions, h.Add(e, now).String())
	}
	return decisions
}

// Ends of generations.
var (
	success = End{Status: 0, Rank: 0, Ran: time.Minute}
	failure = End{Status: 1, Rank: 5, Kind: Failed, Ran: time.Minute}
	crash   = End{Status: 1, Rank: 5, Kind: Failed, Ran: 9999 * time.Millisecond}
	loss    = End{Status: 75, Rank: 5, Kind: Lost, Own: true, Ran: time.Minute}
	hang    = End{Status: 75, Rank: 5, Kind: Hung, Own: true, Ran: time.Minute}
)

// with returns an end with changes.
func with(e End, change func(*End)) End {
	change(&e)
	return e
}

func ran(e End, d time.Duration) End     { return with(e, func(e *End) { e.Ran = d }) }
func status(e End, n int) End            { return with(e, func(e *End) { e.Status = n }) }
func byRank(e End, rank int) End         { return with(e, func(e *End) { e.Rank = rank }) }
func progressed(e End, token string) End { return with(e, func(e *End) { e.Progress = token }) }
func own(e End) End                      { return with(e, func(e *End) { e.Own = true }) }
func stopped(e End) End                  { return with(e, func(e *End) { e.Stopped = true }) }
func repeated(e End, n int) (ends []End) {
	for range n {
		ends = append(ends, e)
	}
	return ends
}

func TestAdd(t *testing.T) {
	none := func(*Policy) {}
	for name, test := range map[string]struct {
		restarts int
		policy   func(*Policy)
		ends     []End
		want     []string
	}{
		"off": {0, none, []End{failure, loss}, []string{"no 0/0: restarts are off", "no 0/0: restarts are off"}},
		"success": {3, none, []End{failure, success}, []string{
			"again 1/3 in 0s", "no 1/3: status 0 is success",
		}},
		"no end after the last": {3, none, []End{success, failure}, []string{
			"no 0/3: status 0 is success", "no 0/3: status 0 is success",
		}},
		"a loss, a hang, a failure": {3, none, []End{loss, hang, failure, loss}, []string{
			"again 1/3 in 0s", "again 2/3 in 1s", "again 3/3 in 2s", "no 3/3: 3 of 3 restarts are used up",
		}},
		"a signal from outside": {3, none, []End{stopped(status(failure, 143))}, []string{
			"no 0/3: a signal to a container asked for the end",
		}},
		"a command with a status of paiinit": {Unlimited, none, []End{
			status(failure, 64), status(failure, 69), status(failure, 70), status(failure, 75), status(failure, 77),
			status(failure, 78), status(failure, 126), status(failure, 127),
		}, []string{
			"again 1/-1 in 0s", "again 2/-1 in 1s", "again 3/-1 in 2s", "again 4/-1 in 4s", "again 5/-1 in 8s",
			"again 6/-1 in 16s", "again 7/-1 in 32s", "again 8/-1 in 1m0s",
		}},
		"ranks missing": {3, none, []End{own(status(failure, 75))}, []string{
			"no 0/3: paiinit itself ended the job with status 75",
		}},
		"another verdict on a loss": {3, none, []End{status(loss, 69)}, []string{
			"no 0/3: paiinit itself ended the job with status 69",
		}},
		"a rank lost with the command's status": {3, none, []End{with(status(loss, 9), func(e *End) { e.Own = false })},
			[]string{"again 1/3 in 0s"}},
		"--no-restart-on": {3, func(p *Policy) { p.NotOn = []int{2, 9} }, []End{failure, status(failure, 9)}, []string{
			"again 1/3 in 0s", "no 1/3: --no-restart-on lists status 9",
		}},
		"--no-restart-on 75": {3, func(p *Policy) { p.NotOn = []int{75} }, []End{loss}, []string{
			"no 0/3: --no-restart-on lists status 75",
		}},
		"--restart-on lost: failure": {3, func(p *Policy) { p.On = OnLost }, []End{loss, failure}, []string{
			"again 1/3 in 0s", "no 1/3: --restart-on lost allows restarts only after the loss of a rank",
		}},
		"--restart-on lost: hang": {3, func(p *Policy) { p.On = OnLost }, []End{hang}, []string{
			"no 0/3: --restart-on lost allows restarts only after the loss of a rank",
		}},
		"reset": {2, none, []End{
			failure, failure, ran(failure, 10*time.Minute), failure, ran(failure, 599*time.Second),
		}, []string{
			"again 1/2 in 0s", "again 2/2 in 1s", "again 1/2 in 0s", "again 2/2 in 1s",
			"no 2/2: 2 of 2 restarts are used up",
		}},
		"no reset": {2, func(p *Policy) { p.Reset = 0 }, repeated(ran(failure, 1000*time.Hour), 3), []string{
			"again 1/2 in 0s", "again 2/2 in 1s", "no 2/2: 2 of 2 restarts are used up",
		}},
		"crash loop": {Unlimited, none, repeated(crash, 3), []string{
			"again 1/-1 in 0s", "again 2/-1 in 1s", "no 2/-1: crash loop: 3 generations in a row ended " +
				"less than 10 s after the launch, each with status 1",
		}},
		"crash loop of no rank": {3, none, repeated(byRank(crash, NoRank), 3), []string{
			"again 1/3 in 0s", "again 2/3 in 1s", "no 2/3: crash loop: 3 generations in a row ended " +
				"less than 10 s after the launch, each with status 1",
		}},
		"crash loop of losses": {3, none, repeated(ran(loss, 1), 3), []string{
			"again 1/3 in 0s", "again 2/3 in 1s", "no 2/3: crash loop: 3 generations in a row ended " +
				"less than 10 s after the launch, each with status 75",
		}},
		"crash loop after others": {9, none, []End{failure, status(crash, 4), crash, crash, crash}, []string{
			"again 1/9 in 0s", "again 2/9 in 1s", "again 3/9 in 2s", "again 4/9 in 4s",
			"no 4/9: crash loop: 3 generations in a row ended " +
				"less than 10 s after the launch, each with status 1",
		}},
		"the budget comes before the crash loop": {2, none, repeated(crash, 3), []string{
			"again 1/2 in 0s", "again 2/2 in 1s", "no 2/2: 2 of 2 restarts are used up",
		}},
		"crash loop of several ranks": {3, none, []End{crash, crash, byRank(crash, 6)}, []string{
			"again 1/3 in 0s", "again 2/3 in 1s", "no 2/3: crash loop: 3 generations in a row ended " +
				"less than 10 s after the launch, each with status 1",
		}},
		"losses of other ranks": {3, none, []End{ran(loss, 1), ran(loss, 1), byRank(ran(loss, 1), 6)}, []string{
			"again 1/3 in 0s", "again 2/3 in 1s", "again 3/3 in 2s",
		}},
		"crashes with other statuses": {3, none, []End{crash, crash, status(crash, 2)}, []string{
			"again 1/3 in 0s", "again 2/3 in 1s", "again 3/3 in 2s",
		}},
		"a crash that came late": {4, none, []End{crash, crash, ran(crash, 10*time.Second), crash}, []string{
			"again 1/4 in 0s", "again 2/4 in 1s", "again 3/4 in 2s", "again 4/4 in 4s",
		}},
		"not launched": {4, none, []End{crash, crash, ran(crash, 0), crash}, []string{
			"again 1/4 in 0s", "again 2/4 in 1s", "again 3/4 in 2s", "again 4/4 in 4s",
		}},
		"a shorter crash loop": {4, func(p *Policy) { p.CrashCount, p.CrashWindow = 2, 2*time.Second }, []End{
			ran(crash, 2*time.Second), ran(crash, time.Second), ran(crash, 1999*time.Millisecond),
		}, []string{
			"again 1/4 in 0s", "again 2/4 in 1s",
			"no 2/4: crash loop: 2 generations in a row ended less than 2 s after the launch, each with status 1",
		}},
		"no crash loop by count":  {9, func(p *Policy) { p.CrashCount = 0 }, repeated(crash, 4), fourOfNine()},
		"no crash loop by window": {9, func(p *Policy) { p.CrashWindow = 0 }, repeated(crash, 4), fourOfNine()},
		"no progress": {9, none, repeated(progressed(failure, "a"), 4), []string{
			"again 1/9 in 0s", "again 2/9 in 1s", "again 3/9 in 2s",
			"no 3/9: no progress: the progress file did not change in 3 generations in a row",
		}},
		"no progress for hours": {1, none, repeated(ran(progressed(failure, "a"), time.Hour), 4), []string{
			"again 1/1 in 0s", "again 1/1 in 0s", "again 1/1 in 0s",
			"no 0/1: no progress: the progress file did not change in 3 generations in a row",
		}},
		"progress between": {9, none, []End{
			progressed(failure, "a"), progressed(failure, "a"), progressed(failure, "a"), progressed(failure, "b"),
			progressed(failure, "b"), progressed(failure, "b"),
		}, append(fourOfNine(), "again 5/9 in 8s", "again 6/9 in 16s")},
		"progress unknown for once": {9, none, []End{
			progressed(failure, "a"), progressed(failure, "a"), loss, progressed(failure, "a"), loss,
			progressed(failure, "a"),
		}, append(fourOfNine(), "again 5/9 in 8s",
			"no 5/9: no progress: the progress file did not change in 3 generations in a row")},
		"no progress file": {9, none, repeated(failure, 4), fourOfNine()},
		"progress is no rule": {9, func(p *Policy) { p.Stalls = 0 }, repeated(progressed(failure, "a"), 4),
			fourOfNine()},
		"impossible values": {9, none, []End{
			{Status: -1, Rank: -7, Kind: "odd", Ran: -1}, {Status: 256, Kind: Lost},
		}, []string{"again 1/9 in 0s", "again 2/9 in 1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := limited(test.restarts)
			test.policy(&p)
			require.Equal(t, test.want, added(New(p, ""), test.ends...))
		})
	}
}

// fourOfNine returns the decisions on four ends that no rule but the budget of 9 restarts concerns.
func fourOfNine() []string {
	return []string{"again 1/9 in 0s", "again 2/9 in 1s", "again 3/9 in 2s", "again 4/9 in 4s"}
}

// Where the progress at the first launch is known, the first generation may be one without progress.
func TestAddComparesWithTheFirstLaunch(t *testing.T) {
	h := New(limited(9), "a")
	require.Equal(t, []string{"again 1/9 in 0s", "again 2/9 in 1s",
		"no 2/9: no progress: the progress file did not change in 3 generations in a row",
	}, added(h, repeated(progressed(failure, "a"), 3)...))
}

// Every status that paiinit gives by itself is final.
func TestOwnVerdicts(t *testing.T) {
	for _, n := range []int{64, 69, 70, 75, 77, 78, 126, 127} {
		d := New(limited(3), "").Add(own(status(failure, n)), begin)
		require.Equal(t, fmt.Sprintf("paiinit itself ended the job with status %d", n), d.Why)
	}
}

// A generation ends once, however many ranks report it, and a successor of rank 0 may not know that it was recorded.
func TestAddOnce(t *testing.T) {
	h := New(limited(3), "")
	first := h.Add(with(loss, func(e *End) { e.Generation = 4 }), begin)
	before := string(h.Encode())
	for _, generation := range []int{-1, 0, 1, 4} {
		again := h.Add(with(failure, func(e *End) { e.Generation = generation }), begin.Add(time.Hour))
		require.Equal(t, first, again)
		require.Equal(t, before, string(h.Encode()))
	}
	h.Resumed(Resumption{Generation: 7}, begin)
	before = string(h.Encode())
	h.Add(with(failure, func(e *End) { e.Generation = 6 }), begin) // abandoned before its launch
	require.Equal(t, before, string(h.Encode()))
	require.Equal(t, 2, h.Add(with(failure, func(e *End) { e.Generation = 7 }), begin).Number)
}

func TestResumedIgnores(t *testing.T) {
	h := New(limited(3), "")
	h.Resumed(Resumption{Generation: 1}, begin)
	require.Empty(t, h.Restarts())
	added(h, failure)
	before := string(h.Encode())
	for _, generation := range []int{-1, 0, 1, maxCount + 1} {
		h.Resumed(Resumption{Generation: generation}, begin)
		require.Equal(t, before, string(h.Encode()), generation)
	}
	added(h, failure, success)
	before = string(h.Encode())
	h.Resumed(Resumption{Generation: 9}, begin)
	require.Equal(t, before, string(h.Encode()))
}

func TestNewer(t *testing.T) {
	p := limited(9)
	none, one, running, two := New(p, ""), New(p, ""), New(p, ""), New(p, "")
	added(one, failure)
	added(running, failure)
	running.Resumed(Resumption{Generation: 2}, begin)
	added(two, failure, failure)
	order := []*History{none, one, running, two}
	for i, a := range order {
		for j, b := range order {
			require.Equal(t, i > j, a.Newer(b), "%d %d", i, j)
		}
	}
}

func TestLeft(t *testing.T) {
	h := New(limited(1), "")
	require.True(t, h.Left())
	h.Add(failure, begin)
	require.False(t, h.Left())
	require.True(t, lived(limited(Unlimited)).Left())
}
