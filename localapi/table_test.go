package localapi

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the screens of testdata/status")

// changingJob answers with one phase after the other.
type changingJob struct {
	*job
	phases []Phase
	asked  int
}

func (j *changingJob) Status(ctx context.Context) *Status {
	s := j.job.Status(ctx)
	s.Phase, j.phases = j.phases[0], j.phases[1:]
	j.asked++
	s.Ranks[0].RTT = float64(j.asked) // is no change
	s.Ranks[0].Since = s.Ranks[0].Since.Add(time.Duration(j.asked))
	return s
}

func TestChanges(t *testing.T) {
	for every, want := range map[bool][]Phase{
		false: {Gathering, Ended},
		true:  {Gathering, Gathering, Ended},
	} {
		c := startServer(t, &changingJob{job: newJob(), phases: []Phase{Gathering, Gathering, Ended, Gathering}})
		var seen []Phase
		for s, err := range c.Changes(t.Context(), every) {
			require.NoError(t, err)
			seen = append(seen, s.Phase)
		}
		require.Equal(t, want, seen)

		for s, err := range c.Changes(t.Context(), every) {
			require.NoError(t, err)
			require.Equal(t, Gathering, s.Phase)
			break // without a second question, for which there is no phase
		}
	}
	errors := 0
	for _, err := range (Client{Socket: "/nowhere"}).Changes(t.Context(), false) {
		var dial *DialError
		require.ErrorAs(t, err, &dial)
		errors++
	}
	require.Equal(t, 1, errors)
}

// now is the time at which the statuses of the tests are printed.
func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func ago(d time.Duration) time.Time { return now().Add(-d) }

// display joins names as rendezvous.Display does.
func display(own, alias string) string {
	if own == alias || strings.HasSuffix(own, "-"+alias) {
		return own
	}
	return own + " (" + alias + ")"
}

// testRanks returns n present ranks of a job, whose containers are called as the format says; compose counts from 1.
func testRanks(n, first int, format string, slots, gpus int, fabric string) (ranks []Rank) {
	for i := range n {
		ranks = append(ranks, Rank{
			Rank: i, Alias: fmt.Sprintf("worker-%d", i), Name: fmt.Sprintf(format, i+first),
			Host: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), Port: 12345, State: Present, Since: ago(168 * time.Second),
			Slots: slots, GPUs: gpus, Fabric: fabric, RTT: 0.1 + float64(i%7)/16,
		})
	}
	ranks[0].RTT = 0
	return ranks
}

// miss makes ranks missing.
func miss(ranks []Rank, reason string, which ...int) []Rank {
	for _, i := range which {
		r := &ranks[i]
		r.State, r.Reason, r.Slots, r.GPUs, r.Fabric, r.RTT = Missing, reason, -1, -1, "", 0
		r.Reason = strings.ReplaceAll(reason, "ADDR", r.address())
	}
	return ranks
}

func screens() map[string]*Status {
	deadline := now().Add(7*time.Minute + 12*time.Second)
	gathering := func(ranks []Rank) *Status {
		return &Status{Phase: Gathering, Size: len(ranks), Ranks: ranks, Deadline: deadline, Name: ranks[0].Name,
			Timings: map[string]float64{"listen": 0.0123}}
	}
	four := func() []Rank { return testRanks(4, 1, "proj-worker-%d", 2, 0, "none") }
	running := func(ranks []Rank) *Status {
		return &Status{Phase: Running, Rank: 1, Size: len(ranks), Ranks: ranks, Epoch: 2,
			Hash: strings.Repeat("ab", 32), Timings: map[string]float64{"listen": 0.01, "gather": 1, "launch": 1.5}}
	}
	const infiniband = "8 InfiniBand 400 Gb/s"
	lost := running(four())
	lost.Ranks[3].State, lost.Ranks[3].Reason = Lost, "10.0.0.4:12345: connection refused"
	lost.Ranks[3].Since, lost.Ranks[3].RTT = ago(5*time.Second), 0
	ended := running(four())
	ended.Phase, ended.Outcome = Ended, &Outcome{Status: 137, Reason: "MPI rank 4 on proj-worker-3 (worker-2) was " +
		"killed by SIGKILL: out of memory, 1 kill in its cgroup\nsecond line\x1b[2J of the cause"}
	lost.NotReady = "running: 1 of 4 ranks are lost: worker-3 (10.0.0.4:12345: connection refused)"
	loading := running(four())
	loading.NotReady = "running: rank 0 is not ready: http:8000/health: 10.0.0.1:8000: " +
		"GET /health is answered with status 503"
	restarted := running(four())
	restarted.Generation, restarted.Restarts = 3, []Restart{
		{Restart: 1, Generation: 2, Cause: "rank 2 (worker-2) was lost: connection refused"},
		{Restart: 2, Generation: 3, Cause: "rank 1's command python3 ended with status 3 on worker-1 (10.0.0.2)"},
	}
	again := gathering(miss(four(), "10.0.0.3:12345: connection refused", 2))
	again.Restarts = []Restart{{Restart: 1, Cause: "rank 2 (worker-2) was lost: connection refused"}}
	slow := gathering(four())
	slow.Ranks[2].Reason = "it is present, but still examines its devices"
	nameless := gathering(miss(testRanks(4, 1, "proj-worker-%d", 2, 0, "none"), "", 3))
	nameless.Rank = -1
	for i := range nameless.Ranks {
		r := &nameless.Ranks[i]
		r.Rank, r.Alias = -1, r.Name
	}
	nameless.Ranks[3] = Rank{Rank: -1, Alias: "1 rank", Name: "1 rank", State: Missing, Since: ago(168 * time.Second),
		Reason: "never heard: worker has 3 addresses", Slots: -1, GPUs: -1}
	long := gathering(testRanks(4, 0, "a-very-long-name-of-a-training-job-with-many-parts-by-a-careful-author-%d", 8, 8,
		infiniband))
	miss(long.Ranks, "name a-very-long-name-of-a-training-job-with-many-parts-by-a-careful-author-2."+
		"a-very-long-name-of-a-training-job-with-many-parts-by-a-careful-author.default does not resolve", 2)
	many := gathering(miss(testRanks(512, 0, "train-%d", 8, 8, infiniband), "ADDR: connection refused", 17, 18, 400))
	apart := gathering(miss(testRanks(64, 0, "train-%d", 8, 8, infiniband), "ADDR: connection refused",
		3, 4, 5, 6, 7, 8, 9, 20, 40, 63))
	mixed := running(testRanks(64, 0, "train-%d", 8, 8, infiniband))
	for i := range mixed.Ranks {
		if i%2 == 1 {
			mixed.Ranks[i].Slots, mixed.Ranks[i].GPUs, mixed.Ranks[i].Fabric = 4, 4, "1 device, not usable: no address"
		}
	}
	mixed.Ranks[0].Slots, mixed.Ranks[0].GPUs = 0, 0
	v6 := running(testRanks(2, 0, "train-%d", 1, 1, ""))
	v6.Ranks[1].Host = "2001:db8:1234:5678:9abc:def0:1234:5678"
	return map[string]*Status{
		"one-missing": gathering(miss(four(), "name worker-3.proj does not resolve", 2)),
		"blocked":     gathering(miss(four(), "hears us; its 12345/tcp is closed", 2)),
		"slow":        slow,
		"nameless":    nameless,
		"long-name":   long,
		"no-deadline": {Phase: Gathering, Rank: 1, Size: -1, Name: "worker-1", Ranks: []Rank{
			{Rank: 0, Alias: "worker-0", Name: "worker-0", State: Missing, Reason: "never heard", Slots: -1, GPUs: -1},
			{Rank: 1, Alias: "worker-1", Name: "worker-1", State: Present, Slots: 1, GPUs: 1},
			{Rank: 2, Alias: "worker-2", Name: "worker-2", State: Heard, Slots: 1, GPUs: 1},
		}},
		"prepared":          {Phase: Prepared, Size: 4, Ranks: four()},
		"running":           running(four()),
		"alone":             running(testRanks(1, 0, "worker-%d", 16, 0, "none")),
		"lost":              lost,
		"loading":           loading,
		"restarted":         restarted,
		"starting-again":    again,
		"ended":             ended,
		"ended-unknown":     {Phase: Ended, Size: 4, Ranks: four()},
		"64-ranks":          running(testRanks(64, 0, "train-%d", 8, 8, infiniband)),
		"64-mixed":          mixed,
		"64-ten-missing":    apart,
		"512-three-missing": many,
		"ipv6":              v6,
	}
}

// Every screen fits 80 columns, and has its most urgent lines first.
func TestScreens(t *testing.T) {
	for name, s := range screens() {
		for _, all := range []bool{false, true} {
			var b bytes.Buffer
			require.NoError(t, Layout{All: all, Display: display}.WriteTable(&b, s, now()))
			for line := range strings.Lines(b.String()) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, "%s: %s", name, line)
				require.Equal(t, strings.TrimRight(line, " \n")+"\n", line)
				require.NotContains(t, line, "\x1b")
			}
			file := filepath.Join("testdata", "status", name)
			if all {
				file += "-all"
				if len(s.Ranks) > 4 {
					continue
				}
			}
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), b.String(), name)
		}
	}
}

// A terminal gets lines that fit it, whatever the names are.
func TestWidths(t *testing.T) {
	for width := 40; width < 130; width++ {
		for name, s := range screens() {
			for _, line := range (Layout{Width: width, Display: display}).lines(s, now()) {
				require.LessOrEqual(t, utf8.RuneCountInString(line), width, "%s: %s", name, line)
			}
			if width < 80 { // the table of all ranks needs that
				continue
			}
			for _, line := range (Layout{Width: width, All: true, Display: display}).lines(s, now()) {
				require.LessOrEqual(t, utf8.RuneCountInString(line), width, "%s: %s", name, line)
			}
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59999 * time.Millisecond: "59s", time.Minute: "1m00s", 3599 * time.Second: "59m59s",
		time.Hour: "1h00m", 24*time.Hour - 1: "23h59m", 52 * time.Hour: "2d04h",
	} {
		require.Equal(t, want, duration(d))
	}
}

func TestRankList(t *testing.T) {
	for want, ranks := range map[string][]int{
		"": nil, "3": {3}, "0-16,18-39": append(seq(0, 16), seq(18, 39)...), "1,3,5": {1, 3, 5}, "-": {-1, -1},
		"0,-": {0, -1, -1},
	} {
		var list []Rank
		for _, n := range ranks {
			list = append(list, Rank{Rank: n})
		}
		require.Equal(t, want, rankList(list))
	}
}

func seq(first, last int) (out []int) {
	for i := first; i <= last; i++ {
		out = append(out, i)
	}
	return out
}

// Elsewhere than on a terminal a view prints what is new, and nothing for times that pass.
func TestViewPrintsChanges(t *testing.T) {
	var b strings.Builder
	v := View{Out: &b, Layout: Layout{Display: display}}
	show := func(after time.Duration, s *Status) string {
		b.Reset()
		require.NoError(t, v.Show(s, now().Add(after)))
		return b.String()
	}
	s := screens()["one-missing"]
	require.Equal(t, file(t, "one-missing"), show(0, s))
	later := *s
	later.Ranks = append([]Rank(nil), s.Ranks...)
	later.Ranks[1].RTT, later.Ranks[1].Since = 7, now()
	require.Empty(t, show(time.Minute, &later))
	blocked := screens()["blocked"]
	require.Equal(t, `03:05:05 gathering: 3 of 4 ranks are present; gives up in 6m12s
  2   missing for 3m48s: proj-worker-3 (worker-2)
      hears us; its 12345/tcp is closed
`, show(time.Minute, blocked))
	running := screens()["running"]
	require.Equal(t, `03:05:06 running: all 4 ranks are present
  2   present: 2 slots, no GPU, no RDMA
`, show(61*time.Second, running))
	require.Empty(t, show(62*time.Second, running))
	require.Equal(t, `03:05:07 running: all 4 ranks are present
    not ready: rank 0 is not ready: http:8000/health: 10.0.0.1:8000: GET /health
    is answered with status 503
`, show(62*time.Second, screens()["loading"]))
	require.Equal(t, `03:05:08 ended with status 137
    MPI rank 4 on proj-worker-3 (worker-2) was killed by SIGKILL: out of memory,
    1 kill in its cgroup
    second line [2J of the cause
`, show(63*time.Second, screens()["ended"]))
}

func file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "status", name))
	require.NoError(t, err)
	return string(b)
}

// On a terminal a view draws over the status before, whether the new one is longer or shorter.
func TestViewDraws(t *testing.T) {
	var b strings.Builder
	rows := 24
	v := View{Out: &b, Size: func() (int, int) { return 80, rows }, Layout: Layout{Display: display}}
	term := &terminal{rows: 24}
	show := func(name string) string {
		b.Reset()
		require.NoError(t, v.Show(screens()[name], now()))
		term.write(t, b.String())
		return term.text()
	}
	for _, name := range []string{"one-missing", "ended", "running", "lost", "long-name", "running"} {
		require.Equal(t, file(t, name), show(name), name)
	}
	rows, term = 8, &terminal{rows: 8}
	v.drawn = 0
	v.Layout.All = true
	show("64-ranks")
	require.Equal(t, show("64-ranks"), show("64-ranks"))
	require.Equal(t, 7, strings.Count(term.text(), "\n"))
	require.Contains(t, term.text(), "... and 65 more lines\n")
	require.True(t, strings.HasPrefix(term.text(), "running: all 64 ranks are present\n"), term.text())
}

// terminal understands the few sequences that a View writes.
type terminal struct {
	rows  int
	lines []string
	at    int
}

func (v *terminal) write(t *testing.T, s string) {
	t.Helper()
	for s != "" {
		switch {
		case strings.HasPrefix(s, "\x1b[J"):
			v.lines, s = v.lines[:v.at], s[3:]
		case strings.HasPrefix(s, "\x1b["):
			n := 0
			_, err := fmt.Sscanf(s, "\x1b[%dA", &n)
			require.NoError(t, err)
			v.at -= n
			require.GreaterOrEqual(t, v.at, max(0, len(v.lines)-v.rows+1), "the cursor stays on the terminal")
			s = s[strings.Index(s, "A")+1:]
		default:
			line, rest, ok := strings.Cut(s, "\n")
			require.True(t, ok && strings.HasPrefix(line, "\r") && strings.HasSuffix(line, "\x1b[K"), "%q", line)
			below := v.lines[min(v.at+1, len(v.lines)):]
			v.lines = slices.Concat(v.lines[:v.at], []string{line[1 : len(line)-3]}, below)
			v.at++
			s = rest
		}
	}
}

func (v *terminal) text() string { return strings.Join(v.lines, "\n") + "\n" }
