package timeline

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// at returns a time in seconds after the first container's start.
func at(seconds float64) time.Time {
	return time.Date(2026, 3, 1, 21, 30, 2, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

// rank returns a rank that comes without delay after its container has started.
func rank(n int, started float64) Rank {
	r := Rank{
		Rank: n, Name: fmt.Sprintf("worker-%d", n), Started: at(started), Heard: at(started + 0.1),
		Reachable: at(started + 0.2),
	}
	if n == 0 {
		r.Heard, r.Reachable = at(started), at(started)
	}
	return r
}

// launched lets the ranks commit and launch at the given time.
func launched(t Timeline, seconds float64) Timeline {
	for i := range t.Ranks {
		r := &t.Ranks[i]
		r.Committed, r.Launched = at(seconds), at(seconds+0.01*float64(min(i, 9)))
		if i > 0 && i < 9 {
			r.Session = at(seconds + 0.3)
		}
	}
	return t
}

// timelines are the launches of the goldens.
func timelines() map[string]Timeline {
	all := map[string]Timeline{}

	late := Timeline{Now: at(9), Ranks: []Rank{rank(0, 0), rank(1, 0.1), rank(2, 0.2), rank(3, 5)}}
	late.Ranks[3].Resolved = at(5.9)
	late.Ranks[3].Heard, late.Ranks[3].Reachable = at(6.1), at(6.4)
	late = launched(late, 6.5)
	for i := range late.Ranks {
		late.Ranks[i].Ended = at(8.2)
	}
	all["late"] = late

	all["even"] = launched(Timeline{Now: at(3), Ranks: []Rank{rank(0, 0), rank(1, 0.02)}}, 0.25)

	missing := Timeline{Now: at(41), Ranks: []Rank{rank(0, 0), rank(1, 0.3), {
		Rank: 2, Name: "job-worker-2.training.example.svc.cluster.local",
		Reason: "name job-worker-2.training.example.svc.cluster.local does not resolve; " +
			"is its pod scheduled and its service there?",
	}}}
	all["missing"] = missing

	lost := launched(Timeline{Now: at(60), Ranks: []Rank{rank(0, 0), rank(1, 1), rank(2, 2)}}, 2.5)
	lost.Ranks[2].Lost, lost.Ranks[2].Ended, lost.Ranks[2].Reason = true, at(2.9), "10.0.0.7:12345: connection refused"
	all["lost"] = lost

	all["one"] = Timeline{Now: at(4), Ranks: []Rank{rank(0, 0)}}
	all["none"] = Timeline{Now: at(0)}
	unknown := rank(-1, 2)
	unknown.Name, unknown.Started = "worker at 10.0.0.9", time.Time{}
	all["unknown"] = Timeline{Now: at(4), Ranks: []Rank{rank(0, 0), unknown}}

	many := Timeline{Now: at(12000)}
	for i := range 64 {
		many.Ranks = append(many.Ranks, rank(i, float64(i%13)/3))
	}
	many.Ranks[7] = rank(7, 38)
	all["many"] = launched(many, 38.4)

	thousand := Timeline{Now: at(100)}
	for i := range 1000 {
		thousand.Ranks = append(thousand.Ranks, rank(i, float64(i)/100))
		if i%20 == 19 {
			thousand.Ranks[i] = Rank{Rank: i, Name: fmt.Sprintf("worker-%d", i), Reason: "not heard by gossip"}
		}
	}
	all["thousand"] = thousand
	return all
}

func golden(t *testing.T, name, got string) {
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestText(t *testing.T) {
	for name, line := range timelines() {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			require.NoError(t, line.WriteText(&b))
			golden(t, name+".txt", b.String())
			require.LessOrEqual(t, strings.Count(b.String(), "\n"), 50)
			for line := range strings.Lines(b.String()) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
			}
		})
	}
}

// TestTrace checks each trace against the documented format: complete events have a duration, instants a scope, every
// process a name, and the stages of a process follow each other.
func TestTrace(t *testing.T) {
	for name, line := range timelines() {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			require.NoError(t, line.WriteTrace(&b))
			if name == "late" {
				golden(t, name+".json", b.String())
			}
			var got struct {
				DisplayTimeUnit string
				TraceEvents     []struct {
					Name string
					Ph   string
					TS   *int64
					Dur  *int64
					PID  *int
					TID  *int
					S    string
					Args map[string]any
				}
			}
			d := json.NewDecoder(strings.NewReader(b.String()))
			require.NoError(t, d.Decode(&got))
			require.Contains(t, []string{"ms", "ns"}, got.DisplayTimeUnit)
			named, ends := map[int]bool{}, map[int]int64{}
			for _, e := range got.TraceEvents {
				require.NotEmpty(t, e.Name)
				require.NotNil(t, e.PID)
				require.NotNil(t, e.TID)
				require.NotNil(t, e.TS)
				require.Positive(t, *e.PID)
				require.GreaterOrEqual(t, *e.TS, int64(0))
				switch e.Ph {
				case "M":
					require.NotEmpty(t, e.Args)
					named[*e.PID] = named[*e.PID] || e.Name == "process_name" && e.Args["name"] != ""
				case "X":
					require.NotNil(t, e.Dur)
					require.Positive(t, *e.Dur)
					require.GreaterOrEqual(t, *e.TS, ends[*e.PID])
					ends[*e.PID] = *e.TS + *e.Dur
				case "i":
					require.Equal(t, "t", e.S)
				default:
					t.Fatalf("%s is not used", e.Ph)
				}
			}
			require.Len(t, named, len(line.Ranks))
		})
	}
}

// page returns a page on a launch, with text in every value.
func page(line Timeline, text string) Page {
	p := Page{
		Job: "training-17" + text, Phase: "running", Made: line.Now, Timeline: line, Ended: text != "", Status: 1,
		Reason: "MPI rank 4 on worker-2 ended with status 1\n  Traceback: ValueError: loss is NaN" + text,
		Facts:  [][]string{{"paiinit", "1.2.3" + text}, {"Go", "go1.26"}},
		Drift: [][]string{
			{"libmpi", "/usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4, 1,132,568 bytes" + text, "3 ranks" + text},
			{"libmpi" + text, "/opt/ompi/lib/libmpi.so.40.20.3, 998,112 bytes", "worker-3"},
		},
	}
	if line.launched().IsZero() {
		p.Phase = "gathering"
	}
	p.Timeline.Ranks = append([]Rank(nil), line.Ranks...)
	for i := range p.Timeline.Ranks {
		r := &p.Timeline.Ranks[i]
		r.Name += text
		state := State{
			Rank: r.Rank, Name: r.Name, Address: fmt.Sprintf("10.0.0.%d:12345", i) + text, State: "present",
			Equipment: "8 slots, 8 GPUs, InfiniBand mlx5" + text,
		}
		switch {
		case r.absent():
			state.State, state.Reason, state.Equipment = "missing", r.Reason+text, text
		case r.Lost:
			state.State, state.Reason = "lost", r.Reason+text
		}
		p.States = append(p.States, state)
	}
	return p
}

func (p *Page) markup(t testing.TB) string {
	var b strings.Builder
	require.NoError(t, p.WriteHTML(&b))
	return b.String()
}

func TestPage(t *testing.T) {
	for name, line := range timelines() {
		p := page(line, "")
		got := p.markup(t)
		require.Equal(t, strings.Count(got, "<div"), strings.Count(got, "</div>"), name)
		require.NotContains(t, got, "http:", name)
		require.NotContains(t, got, "https:", name)
		require.NotContains(t, got, "<script", name)
		require.NotContains(t, got, "%!", name)
	}
	p := page(timelines()["late"], "")
	golden(t, "late.html", p.markup(t))
}

// unescaped counts the characters that could open a tag, end an attribute, or start an entity of a value's own.
func unescaped(page string) string {
	return fmt.Sprint(strings.Count(page, "<"), strings.Count(page, ">"), strings.Count(page, `"`))
}

// TestPageEscapes puts hostile text into every value.
func TestPageEscapes(t *testing.T) {
	line := timelines()["missing"]
	plain := page(line, "x")
	want := unescaped(plain.markup(t))
	for _, text := range []string{
		"</pre><script>alert(1)</script>", `" onmouseover="alert(1)`, "'><img src=x onerror=alert(1)>", "</style>",
		"]]>", "<!--", "\x00<b>", "&lt;script&gt;", "%s%d%!", "\xff\xfe<", "\u202e<b>", "\x1b[2J",
	} {
		p := page(line, text)
		got := p.markup(t)
		require.Equal(t, want, unescaped(got), text)
		require.True(t, utf8.ValidString(got), text)
		require.NotContains(t, got, "\x1b", text)
		require.NotContains(t, got, "\u202e", text)
	}
}

func FuzzPage(f *testing.F) {
	line := timelines()["missing"]
	plain := page(line, "x")
	want := unescaped(plain.markup(f))
	f.Add("<script>")
	f.Fuzz(func(t *testing.T, text string) {
		if text == "" {
			return // the page of a job that has not ended has fewer parts
		}
		p := page(line, text)
		require.Equal(t, want, unescaped(p.markup(t)))
	})
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.00 s", 40 * time.Millisecond: "0.04 s", 99 * time.Millisecond: "0.10 s", 2100 * time.Millisecond: "2.1 s",
		9940 * time.Millisecond: "9.9 s", 9950 * time.Millisecond: "10 s", 38 * time.Second: "38 s",
		99500 * time.Millisecond: "1 m 40 s", 3599600 * time.Millisecond: "1 h 0 m", 192 * time.Minute: "3 h 12 m",
		-time.Second: "-1.0 s",
	} {
		require.Equal(t, want, Span(d))
	}
}

func TestCut(t *testing.T) {
	require.Equal(t, "worker-1", cut("worker-1", 8))
	require.Equal(t, "workl~worker-17", cut("workload-a-very-long-worker-17", 15))
}

type broken struct{}

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestWriteErrors(t *testing.T) {
	line := timelines()["late"]
	p := page(line, "")
	require.ErrorIs(t, line.WriteText(broken{}), errBroken)
	require.ErrorIs(t, line.WriteTrace(broken{}), errBroken)
	require.ErrorIs(t, p.WriteHTML(broken{}), errBroken)
}

// A job that was stopped has not failed.
func TestPageOfAStoppedJob(t *testing.T) {
	for _, tt := range []struct {
		page Page
		want string
	}{
		{Page{Ended: true, Status: 143, Stopped: true}, "stopped, status 143"},
		{Page{Ended: true, Status: 3}, "failed, status 3"},
		{Page{Ended: true}, "succeeded"},
	} {
		words, _ := tt.page.badge()
		require.Equal(t, tt.want, words)
	}
}
