package restart

import (
	"bytes"
	"encoding/json"
	"flag"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/joblog"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares got with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	name = "testdata/" + name
	if *update {
		require.NoError(t, os.WriteFile(name, got, 0o600))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

const lostText = "rank 5 (worker-4) was lost: connection refused"

// lived returns the history of a job that lost rank 5, whose command then failed, and which hangs at last.
func lived(p Policy) *History {
	h := New(p, "step 1")
	now := begin.Add(3*time.Hour + 12*time.Minute)
	h.Add(End{
		Generation: 1, Status: 75, Rank: 5, Name: "worker-4", Cause: lostText, Kind: Lost, Own: true,
		Ran: 3*time.Hour + 12*time.Minute, Progress: "step 1",
	}, now)
	now = now.Add(2310 * time.Millisecond)
	h.Resumed(Resumption{
		Generation: 2, Clear: 41 * time.Millisecond, Rejoin: 2200 * time.Millisecond, Commit: 24 * time.Millisecond,
	}, now)
	now = now.Add(41 * time.Second)
	h.Add(End{
		Generation: 2, Status: 1, Rank: NoRank, Cause: "rank 0's command mpirun ended with status 1\n  more",
		Kind: Failed, Ran: 41 * time.Second, Progress: "step 2",
	}, now)
	now = now.Add(1090 * time.Millisecond)
	h.Resumed(Resumption{Generation: 4, Clear: 63 * time.Millisecond, Commit: 24 * time.Millisecond}, now)
	now = now.Add(time.Minute)
	h.Add(End{
		Generation: 4, Status: 75, Rank: 0, Name: "worker-0", Cause: `rank 0 (worker-0) has written nothing for 1m0s`,
		Kind: Hung, Own: true, Ran: time.Minute + time.Second, Progress: "step 2",
	}, now)
	return h
}

func TestEncodeGolden(t *testing.T) {
	golden(t, "empty.json", append(New(limited(3), "").Encode(), '\n'))
	golden(t, "lived.json", append(lived(limited(3)).Encode(), '\n'))
	golden(t, "over.json", append(lived(limited(2)).Encode(), '\n'))
	many := New(limited(Unlimited), "")
	added(many, repeated(failure, 40)...)
	golden(t, "many.json", append(many.Encode(), '\n'))
}

func TestFinal(t *testing.T) {
	none := New(limited(3), "")
	once := New(limited(3), "")
	added(once, with(failure, func(e *End) { e.Cause = "it failed" }))
	twice := New(limited(3), "")
	added(twice, failure, success)
	unlimited, success7 := New(limited(Unlimited), ""), New(limited(Unlimited), "")
	added(unlimited, repeated(failure, 1)...)
	added(success7, append(repeated(failure, 7), success)...)
	first := New(limited(3), "")
	added(first, own(status(failure, 69)))
	off := New(limited(0), "")
	added(off, failure)
	ended := New(limited(3), "")
	added(ended, failure, stopped(status(failure, 143)))
	for name, test := range map[string]struct {
		history *History
		status  int
		reason  string
		want    string
	}{
		"off":            {off, 1, "a\nb", "a\nb"},
		"never launched": {none, 75, "gave up", "gave up"},
		"first end is final": {first, 69, "no device", "no device\n" +
			"not restarted: paiinit itself ended the job with status 69"},
		"success":                        {twice, 0, "it ended", "it ended, after 1 of 3 restarts"},
		"success without a limit":        {success7, 0, "it ended", "it ended, after 7 restarts"},
		"an end while waiting":           {once, 75, "gave up", "after 1 of 3 restarts: gave up"},
		"an end while waiting, no limit": {unlimited, 75, "gave up", "after 1 restart: gave up"},
		"without a reason":               {once, 1, "", "after 1 of 3 restarts: it failed"},
		"stopped":                        {ended, 143, "SIGTERM", "after 1 of 3 restarts: SIGTERM"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, test.history.Final(test.status, test.reason)) })
	}
}

func TestFinalGolden(t *testing.T) {
	var all bytes.Buffer
	say := func(title string, h *History, status int, reason string) {
		text := h.Final(status, reason)
		require.LessOrEqual(t, len(text), 2048)
		all.WriteString("-- " + title + " --\n" + text + "\n")
	}
	hung := "rank 0 (worker-0) has written nothing for 1m0s\nsee its stack"
	say("used up", lived(limited(1)), 1, "rank 0's command mpirun ended with status 1")
	say("used up by several causes", lived(limited(2)), 75, hung)

	p := limited(3)
	p.NotOn = []int{1}
	say("--no-restart-on", lived(p), 1, "rank 0's command mpirun ended with status 1")
	stalled := New(limited(Unlimited), "a")
	added(stalled, repeated(progressed(hang, "a"), 3)...)
	say("no progress", stalled, 75, hung)

	loop := New(limited(3), "")
	added(loop, repeated(with(crash, func(e *End) { e.Cause = "rank 5's command ended with status 1" }), 3)...)
	say("crash loop", loop, 1, "rank 5's command ended with status 1\nother commands failed")

	reset := New(limited(1), "")
	added(reset, failure, ran(failure, time.Hour), failure)
	say("two budgets", reset, 1, "it failed")
	reset = New(limited(1), "")
	added(reset, failure, own(ran(status(failure, 69), time.Hour)))
	say("a verdict after a reset", reset, 69, "versions differ")

	many := New(limited(40), "")
	added(many, append(repeated(with(failure, func(e *End) { e.Cause = strings.Repeat("long ", 99) }), 40),
		ran(failure, 0))...)
	say("many", many, 1, "it failed")
	eight, nine := New(limited(7), ""), New(limited(8), "")
	added(eight, repeated(failure, 8)...)
	added(nine, repeated(failure, 9)...)
	say("eight", eight, 1, "")
	say("nine", nine, 1, "")
	golden(t, "final", all.Bytes())
}

// logged returns the three formats of a record.
func logged(message string, attrs []any) string {
	var all strings.Builder
	for _, format := range []joblog.Format{joblog.FormatText, joblog.FormatLogfmt, joblog.FormatJSON} {
		var b bytes.Buffer
		slog.New(joblog.Handler(&b, format, slog.LevelInfo)).Info(message, attrs...)
		_, line, _ := strings.Cut(b.String(), "paiinit: ")
		if format != joblog.FormatText {
			line = b.String()[strings.Index(b.String(), "msg"):]
		}
		all.WriteString(line)
	}
	return all.String()
}

func TestAttrsGolden(t *testing.T) {
	var all bytes.Buffer
	lost := New(limited(3), "")
	lost.Add(End{
		Generation: 1, Status: 75, Rank: 5, Name: "worker-4", Cause: lostText, Kind: Lost, Own: true,
		Ran: 3*time.Hour + 12*time.Minute,
	}, begin)
	all.WriteString(logged("restarting the job", lost.RestartingAttrs()))
	require.Nil(t, lost.ResumedAttrs())
	lost.Resumed(Resumption{
		Generation: 2, Clear: 41 * time.Millisecond, Rejoin: 2200 * time.Millisecond, Commit: 24 * time.Millisecond,
	}, begin.Add(2310*time.Millisecond))
	all.WriteString(logged("the job runs again", lost.ResumedAttrs()))

	unlimited := lived(limited(Unlimited))
	all.WriteString(logged("restarting the job", unlimited.RestartingAttrs()))
	unlimited.Resumed(Resumption{Generation: 5}, begin)
	all.WriteString(logged("the job runs again", unlimited.ResumedAttrs()))

	unlaunched := New(limited(3), "")
	added(unlaunched, ran(failure, 0))
	all.WriteString(logged("restarting the job", unlaunched.RestartingAttrs()))
	golden(t, "log", all.Bytes())

	over := New(limited(3), "")
	require.Nil(t, over.RestartingAttrs())
	require.Nil(t, over.ResumedAttrs())
	added(over, success)
	require.Nil(t, over.RestartingAttrs())
	require.Nil(t, over.ResumedAttrs())
}

func TestRestartsGolden(t *testing.T) {
	b, err := json.MarshalIndent(lived(limited(3)).Restarts(), "", "  ")
	require.NoError(t, err)
	golden(t, "restarts", append(b, '\n'))
	over := New(limited(3), "")
	added(over, success)
	for _, h := range []*History{over, New(limited(0), "")} {
		b, err = json.Marshal(h.Restarts())
		require.NoError(t, err)
		require.Equal(t, "[]", string(b))
	}
}

func TestVariables(t *testing.T) {
	lines := func(vars []Variable) string {
		var all []string
		for _, v := range vars {
			all = append(all, v.Name+"="+v.Value)
		}
		return strings.Join(all, " ")
	}
	require.Empty(t, New(limited(0), "").Variables(1, true))
	require.Equal(t, "PAIINIT_GENERATION=1 PAIINIT_RESTARTS=0", lines(New(limited(3), "").Variables(1, false)))
	require.Equal(t, "PAIINIT_GENERATION=1 PAIINIT_RESTARTS=0 TORCHELASTIC_RESTART_COUNT=0",
		lines(New(limited(Unlimited), "").Variables(1, true)))
	h := New(limited(3), "")
	added(h, loss)
	require.Equal(t, "PAIINIT_GENERATION=2 PAIINIT_RESTARTS=1 PAIINIT_RESTART_REASON=lost PAIINIT_PREVIOUS_STATUS=75",
		lines(h.Variables(2, false)))
	// After a reset the count of restarts goes on: it is the job's, not the budget's.
	require.Equal(t, "PAIINIT_GENERATION=7 PAIINIT_RESTARTS=3 TORCHELASTIC_RESTART_COUNT=3 "+
		"PAIINIT_RESTART_REASON=hung PAIINIT_PREVIOUS_STATUS=75", lines(lived(limited(3)).Variables(7, true)))
}
