package restart

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// anEnd draws an end, also one with impossible values.
func anEnd(t *rapid.T, generation int) End {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
		"", "rank 5 (worker-4) was lost: connection refused", strings.Repeat(`"`, 500), strings.Repeat("𝄞", 200),
		"\n", "a\nb", "a\rb\x1b[2J", "\xff\xfe", "<&>",
	}))
	return End{
		Generation: generation,
		Status: rapid.OneOf(rapid.SampledFrom([]int{0, 1, 1, 2, 75, 69}),
			rapid.IntRange(-2, 300)).Draw(t, "status"),
		Rank:    rapid.OneOf(rapid.IntRange(-1, 2), rapid.Int()).Draw(t, "rank"),
		Name:    text.Draw(t, "name"),
		Cause:   text.Draw(t, "cause"),
		Kind:    rapid.SampledFrom([]Kind{Failed, Lost, Hung, "", "odd"}).Draw(t, "kind"),
		Stopped: rapid.IntRange(0, 20).Draw(t, "stopped") == 0,
		Own:     rapid.IntRange(0, 5).Draw(t, "own") == 0,
		Ran: rapid.OneOf(rapid.SampledFrom([]time.Duration{0, 1, 9 * time.Second, time.Minute, time.Hour}),
			rapid.Map(rapid.Int64(), func(n int64) time.Duration { return time.Duration(n) })).Draw(t, "ran"),
		Progress: rapid.SampledFrom([]string{"", "a", "b", "\xff"}).Draw(t, "progress"),
	}
}

func aPolicy(t *rapid.T) Policy {
	p := limited(rapid.SampledFrom([]int{0, 1, 3, 40, Unlimited}).Draw(t, "restarts"))
	p.On = rapid.SampledFrom([]Causes{OnAny, OnAny, OnLost}).Draw(t, "on")
	p.NotOn = rapid.SliceOfN(rapid.IntRange(1, 255), 0, 2).Draw(t, "not on")
	p.CrashCount = rapid.SampledFrom([]int{0, 3}).Draw(t, "crashes")
	return p
}

// step is one step of a job, on rank 0 or on its successor.
func step(t *rapid.T, h *History, now *time.Time, generation *int) (End, Decision) {
	*now = now.Add(time.Duration(rapid.Int64Range(-1e9, 1e12).Draw(t, "passed")))
	end := anEnd(t, *generation)
	d := h.Add(end, *now)
	*generation += rapid.IntRange(1, 3).Draw(t, "skipped")
	if rapid.Bool().Draw(t, "resumed") {
		took := rapid.Map(rapid.Int64(), func(n int64) time.Duration { return time.Duration(n) })
		h.Resumed(Resumption{
			Generation: *generation, Clear: took.Draw(t, "clear"), Rejoin: took.Draw(t, "rejoin"),
			Commit: took.Draw(t, "commit"),
		}, now.Add(time.Duration(rapid.Int64Range(-1e9, 1e12).Draw(t, "downtime"))))
	}
	return end, d
}

// What holds in every job, whether rank 0 stays or is replaced between any two generations.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := aPolicy(t)
		h := New(p, rapid.SampledFrom([]string{"", "a"}).Draw(t, "at launch"))
		now, generation := begin, 1
		restarts, sinceReset, delay, over := 0, 0, time.Duration(0), false
		for range rapid.IntRange(1, 60).Draw(t, "ends") {
			end, d := step(t, h, &now, &generation)
			if end.Ran >= p.Reset {
				sinceReset, delay = 0, 0
			}
			switch {
			case d.Again != (d.Why == ""):
				t.Fatalf("both a restart and a reason against it, or neither: %+v", d)
			case over && d.Again:
				t.Fatalf("a restart after the end of the job: %+v", d)
			case d.Again && (end.Status == 0 || end.Stopped):
				t.Fatalf("%+v after %+v", d, end)
			case d.Delay < delay && d.Again, d.Delay < 0, d.Delay > time.Minute:
				t.Fatalf("delay %v after %v", d.Delay, delay)
			}
			over = !d.Again
			if d.Again {
				restarts++
				sinceReset++
				delay = d.Delay
				if d.Number != sinceReset || d.Of != p.Restarts || p.Restarts != Unlimited && sinceReset > p.Restarts {
					t.Fatalf("%+v is restart %d", d, sinceReset)
				}
			}
			if rapid.Bool().Draw(t, "replaced") {
				h = recoded(t, p, h)
			}
			saysOneLineEach(t, h)
		}
		for _, v := range h.Variables(generation, true) {
			if v.Name == "PAIINIT_RESTARTS" && v.Value != decimal(restarts) {
				t.Fatalf("%d restarts are told as %s", restarts, v.Value)
			}
		}
	})
}

func decimal(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// recoded returns a history as another rank gets it.
func recoded(t require.TestingT, p Policy, h *History) *History {
	b := h.Encode()
	require.LessOrEqual(t, len(b), MaxEncoded)
	other, err := Decode(p, b)
	require.NoError(t, err, "%s", b)
	require.Equal(t, string(b), string(other.Encode()))
	require.Equal(t, h.state, other.state)
	require.WithinDuration(t, h.ended, other.ended, 0)
	return other
}

// saysOneLineEach asserts that nothing which the history tells can forge a line, and that it is short.
func saysOneLineEach(t require.TestingT, h *History) {
	text := h.Final(1, "")
	require.LessOrEqual(t, len(text), 2048)
	require.LessOrEqual(t, strings.Count(text, "\n"), 1+listedFirst+1+listedLast)
	for _, r := range strings.ReplaceAll(text, "\n", "") {
		require.True(t, unicode.IsPrint(r), "%q", text)
	}
	require.LessOrEqual(t, len(h.Restarts()), keptFirst+keptLast)
}

// The largest history, each value at its longest.
func TestMaxEncoded(t *testing.T) {
	for _, char := range []string{`"`, "<", "𝄞", "\xff"} {
		size := len(recoded(t, limited(Unlimited), largest(strings.Repeat(char, 1000))).Encode())
		if char == `"` {
			require.Greater(t, size, MaxEncoded*3/4, "MaxEncoded could be smaller")
		}
	}
}

// largest returns a history with this text and the largest numbers.
func largest(wide string) *History {
	h := New(limited(Unlimited), "")
	for i := range 100 {
		h.Add(End{
			Generation: maxCount - 300 + 2*i, Status: 255, Rank: math.MaxInt, Name: wide, Cause: wide, Kind: Failed,
			Ran: time.Duration(math.MaxInt64 - i), Progress: wide[i:],
		}, time.Unix(0, math.MinInt64))
		h.Resumed(Resumption{
			Generation: maxCount - 300 + 2*i + 1, Clear: math.MaxInt64, Rejoin: math.MaxInt64, Commit: math.MaxInt64,
		}, time.Unix(0, math.MaxInt64))
	}
	return h
}

// A thousand restarts keep no more than the first and the last.
func TestHistoryIsBounded(t *testing.T) {
	p := limited(Unlimited)
	h := New(p, "")
	size := 0
	for i := range 1000 {
		require.True(t, h.Add(with(failure, func(e *End) { e.Generation = i + 1 }), begin).Again)
		h.Resumed(Resumption{Generation: i + 2}, begin)
		if i == 500 {
			size = cap(h.state.Kept)
		}
	}
	require.Equal(t, size, cap(h.state.Kept))
	var generations []int
	for _, r := range recoded(t, p, h).Restarts() {
		generations = append(generations, r.Generation)
	}
	require.Equal(t, []int{2, 3, 4, 5, 990, 991, 992, 993, 994, 995, 996, 997, 998, 999, 1000, 1001}, generations)
}

// A monotonic clock measures the downtime; after rank 0 was replaced the time of day does.
func TestDowntimeAcrossRanks(t *testing.T) {
	p := limited(3)
	for _, test := range []struct {
		later time.Duration
		want  float64
	}{{2310 * time.Millisecond, 2.31}, {-time.Hour, 0}} {
		h := New(p, "")
		h.Add(with(loss, func(e *End) { e.Generation = 1 }), begin)
		h = recoded(t, p, h)
		h.Resumed(Resumption{Generation: 2, Clear: -1}, begin.Add(test.later))
		require.InDelta(t, test.want, h.Restarts()[0].Downtime, 0)
		require.Zero(t, h.Restarts()[0].Clear)
	}
}

// wireOf returns the encoding of a history with these changes to its JSON: keys are "ends" or "kept.0.rank".
func wireOf(t *testing.T, h *History, key string, value any) []byte {
	t.Helper()
	var all map[string]any
	dec := json.NewDecoder(bytes.NewReader(h.Encode()))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&all))
	at := all
	if rest, ok := strings.CutPrefix(key, "kept."); ok {
		index, field, _ := strings.Cut(rest, ".")
		at, key = all["kept"].([]any)[int(index[0]-'0')].(map[string]any), field
	}
	require.Contains(t, at, key)
	at[key] = value
	b, err := json.Marshal(all)
	require.NoError(t, err)
	return b
}

func TestDecodeRefuses(t *testing.T) {
	p := limited(3)
	h := New(p, "")
	for i, e := range []End{failure, loss, failure} {
		e.Generation = 2*i + 1
		h.Add(e, begin)
		h.Resumed(Resumption{Generation: 2*i + 3}, begin)
	}
	refused := New(p, "") // the last end is final
	added(refused, failure, success)
	recoded(t, p, h)
	recoded(t, p, refused)
	for _, test := range []struct {
		history *History
		key     string
		value   any
		want    string
	}{
		{h, "ends", 4, "4 ends, of which 3 are kept"},
		{h, "ends", -1, "-1 ends, of which 3 are kept"},
		{h, "ends", 1 << 31, "2147483648 ends, of which 3 are kept"},
		{h, "kept", nil, "3 ends, of which 0 are kept"},
		{h, "total", 2, "2 restarts, 3 of them used, after 3 ends"},
		{refused, "total", 2, "2 restarts, 1 of them used, after 2 ends"},
		{h, "used", 4, "3 restarts, 4 of them used, after 3 ends"},
		{h, "used", -1, "3 restarts, -1 of them used, after 3 ends"},
		{h, "used", 2, "end 2: restart 3"},
		{h, "crashes", -1, "-1 crashes and 0 stalls in 3 ends"},
		{h, "crashes", 4, "4 crashes and 0 stalls in 3 ends"},
		{h, "stalls", -1, "0 crashes and -1 stalls in 3 ends"},
		{h, "stalls", 4, "0 crashes and 4 stalls in 3 ends"},
		{h, "progress", "step 7", `"step 7" is not a progress`},
		{h, "progress", strings.Repeat("0", 17), `"00000000000000000" is not a progress`},
		{h, "of", -2, "restart 3 of -2 after 2s"},
		{h, "of", 1 << 31, "restart 3 of 2147483648 after 2s"},
		{h, "delay", -1, "restart 3 of 3 after -1ns"},
		{refused, "delay", 1, "restart 1 of 3 after 1ns"},
		{refused, "why", "a\nb", "a decision without an end, or one that is not a short printable line"},
		{refused, "why", strings.Repeat("a", 301), "a decision without an end"},
		{New(p, ""), "why", "why", "a decision without an end"},
		{New(p, ""), "of", 3, "a decision without an end"},
		{New(p, ""), "delay", 3, "a decision without an end"},
		{h, "why", "why", "3 restarts, 3 of them used, after 3 ends"},
		{h, "kept.0.status", 256, "end 0: {Generation:1 Status:256 "},
		{h, "kept.0.status", -1, "values that no end has"},
		{h, "kept.0.rank", -2, "values that no end has"},
		{h, "kept.0.rank", 1 << 31, "values that no end has"},
		{h, "kept.0.generation", 0, "values that no end has"},
		{h, "kept.0.generation", 1 << 31, "values that no end has"},
		{h, "kept.0.kind", "odd", "values that no end has"},
		{h, "kept.0.kind", "", "values that no end has"},
		{h, "kept.0.ran", -1, "values that no end has"},
		{h, "kept.0.cause", "a\nb", "values that no end has"},
		{h, "kept.0.cause", "\x1b[2J", "values that no end has"},
		{h, "kept.0.cause", "", "values that no end has"},
		{h, "kept.0.cause", strings.Repeat("a", 201), "values that no end has"},
		{h, "kept.0.name", "a\u2028b", "values that no end has"},
		{h, "kept.0.name", strings.Repeat("a", 101), "values that no end has"},
		{h, "kept.0.restart", -1, "end 0: restart -1, generation 3"},
		{h, "kept.0.restart", 0, "end 0: restart 0"},
		{h, "kept.0.restart", 4, "end 0: restart 4"},
		{refused, "kept.1.restart", 1, "end 1: restart 1"},
		{refused, "kept.1.next", 3, "end 1: generation 3 without a restart"},
		{refused, "kept.1.clear", 3, "end 1: generation 0 without a restart"},
		{h, "kept.0.next", -1, "end 0: restart 1, generation -1"},
		{h, "kept.2.next", 1 << 31, "end 2: restart 3, generation 2147483648"},
		{h, "kept.0.next", 1, "end 0: generations 1 and 1 in the wrong order"},
		{h, "kept.0.next", 4, "end 0: generations 1 and 4 in the wrong order"},
		{h, "kept.1.generation", 1, "end 0: generations 1 and 3 in the wrong order"},
		{h, "kept.0.downtime", -1, "end 0: a negative duration"},
		{h, "kept.0.clear", -1, "end 0: a negative duration"},
		{h, "kept.0.rejoin", -1, "end 0: a negative duration"},
		{h, "kept.0.commit", -1, "end 0: a negative duration"},
		{h, "kept.0.rank", "five", "cannot unmarshal string"},
	} {
		_, err := Decode(p, wireOf(t, test.history, test.key, test.value))
		require.ErrorContains(t, err, test.want, "%s %v", test.key, test.value)
		require.ErrorContains(t, err, "reading a history of restarts: ")
	}
	many := New(limited(Unlimited), "")
	added(many, repeated(failure, 20)...)
	tooMany := strings.NewReplacer(`"ends":20`, `"ends":2147483648`, `"total":20`, `"total":2147483648`)
	for text, want := range map[string]string{
		tooMany.Replace(string(many.Encode())): "2147483648 ends, of which 16 are kept",

		"":                                       "unexpected end of JSON input",
		"[]":                                     "cannot unmarshal array",
		string(h.Encode()) + "{}":                "invalid character",
		strings.Repeat(" ", MaxEncoded) + "{}\n": "it has 16387 bytes, more than 16384",
	} {
		_, err := Decode(p, []byte(text))
		require.ErrorContains(t, err, want)
	}
}

func FuzzDecode(f *testing.F) {
	seeds, err := filepath.Glob("testdata/*.json")
	require.NoError(f, err)
	require.NotEmpty(f, seeds)
	for _, name := range seeds {
		b, err := os.ReadFile(filepath.Clean(name))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"ends":1,"kept":[{}]}`))
	p := limited(3)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Decode(p, b)
		if err != nil {
			return
		}
		h = recoded(t, p, h)
		saysOneLineEach(t, h)
		h.RestartingAttrs()
		h.ResumedAttrs()
		h.Variables(1, true)
		h.Resumed(Resumption{Generation: maxCount}, begin)
		recoded(t, p, h)
		h.Add(with(failure, func(e *End) { e.Generation = maxCount }), begin)
		recoded(t, p, h)
	})
}
