package inspect

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files") //nolint:gochecknoglobals // a flag of the test

// facts makes facts of NAME=VALUE pairs.
func facts(pairs ...string) []Fact {
	list := []Fact{}
	for _, p := range pairs {
		name, value, _ := strings.Cut(p, "=")
		list = append(list, Fact{name, value})
	}
	return list
}

// workers returns n ranks of a role with equal facts.
func workers(role string, from, n, gpus int, pairs ...string) (ranks []Rank) {
	for i := range n {
		name := fmt.Sprintf("%s-%d", role, i)
		ranks = append(ranks, Rank{
			Rank: from + i, ID: name, Name: name, Role: role, GPUs: gpus, Facts: facts(pairs...),
		})
	}
	return ranks
}

func TestCompare(t *testing.T) {
	with := func(ranks []Rank, change func([]Rank)) []Rank {
		change(ranks)
		return ranks
	}
	nccl := func(version string) string {
		return "libnccl=" + version + ", 176301234 bytes in /usr/lib/x86_64-linux-gnu"
	}
	for _, tt := range []struct {
		name  string
		ranks []Rank
	}{
		{"none", nil},
		{"equal", workers("worker", 0, 3, 8, "image=a", nccl("2.18.3"))},
		{"two of 64", with(workers("worker", 0, 64, 8, "image=Debian", nccl("2.18.3"), "GPUs=8"), func(r []Rank) {
			r[7].Facts = facts("image=Debian", nccl("2.16.2"), "GPUs=8")
			r[9].Facts = facts("image=Debian", nccl("2.16.2"), "GPUs=7")
		})},
		{"folded names", with(workers("worker", 0, 64, 8, "/dev/shm=64 GiB"), func(r []Rank) {
			for _, i := range []int{1, 2, 3, 9, 12, 13, 40} {
				r[i].Facts = facts("/dev/shm=64 MiB")
			}
			r[40].Name, r[50].Name = "worker-040", "db"
			r[50].Facts = facts("/dev/shm=64 MiB")
		})},
		{"many runs", with(workers("worker", 0, 64, 8, "kernel=6"), func(r []Rank) {
			for i := 0; i < 60; i += 2 {
				r[i].Facts = facts("kernel=5")
			}
		})},
		{"one against one", slices.Concat(
			workers("master", 0, 1, 8, "NCCL_ALGO=Ring"), workers("worker", 1, 1, 8, "NCCL_ALGO=Tree"),
		)},
		{"a variable that one rank lacks", with(workers("worker", 0, 3, 0, "NCCL_DEBUG=INFO", "libmpi=4"),
			func(r []Rank) {
				r[2].Facts = facts()
			})},
		{"unknown facts", with(workers("worker", 0, 3, 0, "image=a"), func(r []Rank) { r[1].Facts = nil })},
		{
			"a healthy job of many roles", with(slices.Concat(
				workers("launcher", 0, 1, 0, "image=Ubuntu", "file /usr/bin/mpirun=a", "libmpi=5", "GPUs=0"),
				workers("worker", 1, 2, 8, "image=Debian", "libmpi=4", nccl("2"), "GPUs=8", "NCCL_DEBUG=INFO"),
				workers("ps", 3, 2, 0, "image=Alpine", "GPUs=0", "/dev/shm=64 MiB"),
				workers("evaluator", 5, 1, 1, "image=CUDA", nccl("2"), "GPUs=1"),
			), func(r []Rank) { r[1].Facts = append(r[1].Facts, Fact{FilePrefix + "/app/run.sh", "b"}) }),
		},
		{"a launcher with the role of workers", with(workers("worker", 0, 3, 8, "GPUs=8", "libnccl=2"), func(r []Rank) {
			r[0].LaunchOnly, r[0].GPUs, r[0].Facts = true, 0, facts("GPUs=0")
		})},
		{"a script", with(workers("worker", 0, 3, 0, "file /train.py=9 bytes, sha256 aaaa"), func(r []Rank) {
			r[1].Facts = facts("file /train.py=does not exist")
			r[2].Facts = facts()
		})},
		{"clocks", with(append(workers("a", 0, 1, 0, "clock=as on rank 0"), workers("b", 1, 1, 0)...), func(r []Rank) {
			r[1].Facts = facts("clock=1m3.2s ahead of rank 0")
		})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			drifts := Compare(tt.ranks)
			var b strings.Builder
			fmt.Fprintf(&b, "warn: %v\n\n%s\n\n", Matter(drifts), strings.Join(Lines(drifts), "\n"))
			for _, row := range Rows(drifts) {
				fmt.Fprintln(&b, strings.Join(row, " | "))
			}
			name := filepath.Join("testdata", "drift", strings.ReplaceAll(tt.name, " ", "-")+".txt")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
				require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o644))
			}
			want, err := os.ReadFile(name)
			require.NoError(t, err)
			require.Equal(t, string(want), b.String())
		})
	}
}

func drawRanks(t *rapid.T) (ranks []Rank) {
	names := []string{"image", "libnccl", "NCCL_DEBUG", "GPUs", FilePrefix + "/x", ClockFact, kernelFact}
	for i := range rapid.IntRange(0, 12).Draw(t, "size") {
		role := rapid.SampledFrom([]string{"worker", "ps"}).Draw(t, "role")
		r := Rank{
			Rank: i, Name: fmt.Sprintf("%s-%d", role, i), Role: role, GPUs: rapid.IntRange(0, 1).Draw(t, "GPUs"),
			LaunchOnly: rapid.Bool().Draw(t, "launch only"),
		}
		if rapid.IntRange(0, 5).Draw(t, "known") > 0 {
			r.Facts = []Fact{}
			for _, name := range names {
				if v := rapid.IntRange(0, 2).Draw(t, name); v > 0 {
					r.Facts = append(r.Facts, Fact{name, fmt.Sprint(v)})
				}
			}
		}
		ranks = append(ranks, r)
	}
	return ranks
}

func TestCompareProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := drawRanks(t)
		drifts := Compare(ranks)

		shuffled := slices.Clone(ranks)
		seed := rapid.Uint64().Draw(t, "seed")
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(shuffled), func(i, j int) {
			shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
		})
		require.Equal(t, drifts, Compare(shuffled), "the order of the ranks matters")

		for _, d := range drifts {
			require.Greater(t, len(d.Values), 1)
			names := make(map[string]bool)
			for i, v := range d.Values {
				require.NotEmpty(t, v.Names)
				require.LessOrEqual(t, len(v.Names), len(d.Values[0].Names), "value %d is more frequent", i)
				for _, name := range v.Names {
					require.False(t, names[name], "%s has two values", name)
					names[name] = true
				}
			}
		}

		equal := slices.Clone(ranks)
		for i := range equal {
			if equal[i].Facts != nil {
				equal[i].Facts = facts("image=a", "libnccl=2", "NCCL_DEBUG=INFO")
			}
		}
		require.Empty(t, Compare(equal), "equal facts differ")
	})
}

// A job of 512 ranks is compared in a few milliseconds.
func BenchmarkCompare(b *testing.B) {
	var pairs []string
	for i := range 40 {
		pairs = append(pairs, fmt.Sprintf("NCCL_%d=%d", i, i))
	}
	var board Board
	ranks := workers("worker", 0, 512, 8, pairs...)
	for _, r := range ranks {
		board.Put(r.ID, factsNote, Encode(r.Facts), 0)
	}
	for b.Loop() {
		board.Compare(ranks)
	}
}

func TestEncode(t *testing.T) {
	some := facts("image=Debian", "NCCL_X=<&>")
	require.Equal(t, some, decode(Encode(some)))
	require.Equal(t, []Fact{}, decode(Encode(nil)))
	require.Nil(t, decode([]byte("{}")))
	require.Nil(t, decode(nil))
	require.Equal(t, facts("a?=b?"), decode([]byte(`[["a\n","b\u001b"]]`)), "no container forges our lines")
	var many []Fact
	for i := range 300 {
		many = append(many, Fact{fmt.Sprintf("NCCL_%d", i), strings.Repeat("x", maxValue)})
	}
	b := Encode(many)
	require.LessOrEqual(t, len(b), maxEncoded)
	require.Equal(t, many[:len(decode(b))], decode(b))
	require.Greater(t, len(decode(b)), 70)
}

func TestBoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		ranks := workers("worker", 0, 3, 8)
		compare := func() []string {
			drifts, _ := b.Compare(ranks)
			return Lines(drifts)
		}
		require.Empty(t, compare())
		require.Empty(t, b.Suspects(ranks))
		b.Skew("worker-0", time.Hour, 0) // without facts

		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		time.AfterFunc(100*time.Millisecond, func() { b.Put("worker-0", factsNote, Encode(facts("libnccl=2.18")), 0) })
		time.AfterFunc(200*time.Millisecond, func() {
			b.Put("worker-1", factsNote, Encode(facts("libnccl=2.16")), 90*time.Second)
		})
		require.Equal(t, ranks[2:], b.Await(soon, ranks))
		require.Equal(t, time.Second, time.Since(begin))
		require.Equal(t, []string{"libnccl  2.18 on worker-0; 2.16 on worker-1"}, compare())

		time.AfterFunc(100*time.Millisecond, func() {
			b.Put("worker-2", factsNote, Encode(facts("libnccl=2.18")), -2*time.Second)
		})
		require.Empty(t, b.Await(t.Context(), ranks))
		require.Equal(t, 1100*time.Millisecond, time.Since(begin))

		require.Equal(t, ranks[1:], b.Suspects(ranks))
		b.Skew("worker-1", -90*time.Second, time.Millisecond)
		b.Skew("worker-2", 1500*time.Millisecond, time.Second) // may be less than a second
		require.Equal(t, []string{
			"libnccl  2.18 on worker-0, worker-2; 2.16 on worker-1",
			"clock    as on rank 0 on worker-0, worker-2; 1m30s behind rank 0 on worker-1",
		}, compare())
	})
}

// testNode is a rendezvous whose answers the test sets.
type testNode struct {
	mu    sync.Mutex
	told  []string
	ahead time.Duration
}

func (n *testNode) Tell(kind string, text []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, kind+" "+string(text))
}

func (n *testNode) Rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

func (n *testNode) ClockAhead(context.Context, int) (ahead, bound time.Duration, ok bool) {
	return n.ahead, time.Millisecond, true
}

// put tells a fact of each rank with a value.
func put(c *Comparison, values ...string) []Rank {
	for i, value := range values {
		if value != "" {
			c.Put(fmt.Sprintf("worker-%d", i), factsNote, Encode(facts("NCCL_ALGO="+value)), 0)
		}
	}
	return workers("worker", 0, len(values), 0)
}

const drifted = "NCCL_ALGO  Ring on worker-0; Tree on worker-1"

func TestRefuse(t *testing.T) {
	for _, tt := range []struct {
		mode   string
		values []string
		reason string
		retry  bool
	}{
		{CheckRequire, []string{"Ring", "Tree"}, "the ranks differ, and --check is require:\n  " + drifted, false},
		{CheckRequire, []string{"Ring", "Ring"}, "", false},
		{
			CheckRequire, []string{"Ring", ""}, "--check is require, but these ranks have not told their facts " +
				"within 1s: " +
				"worker-1; give every rank the same --check", true,
		},
		{CheckRequire, []string{""}, "", false},
		{CheckWarn, []string{"Ring", "Tree"}, "", false},
		{CheckOff, []string{"Ring", "Tree"}, "", false},
	} {
		c := NewComparison(tt.mode, "", nil)
		reason, retry := c.Refuse(put(c, tt.values...))
		require.Equal(t, tt.reason, reason)
		require.Equal(t, tt.retry, retry)
	}
	require.Zero(t, NewComparison(CheckWarn, "", nil).Wait())
	require.Equal(t, time.Second, NewComparison(CheckRequire, "", nil).Wait())
}

func TestRankZeroWarns(t *testing.T) {
	for _, tt := range []struct {
		mode   string
		self   int
		values []string
		ahead  time.Duration
		log    string
		after  time.Duration
	}{
		{CheckWarn, 0, []string{"Ring", "Tree"}, 0, drifted, 0},
		{CheckWarn, 0, []string{"Ring", "Tree", ""}, 0, drifted, 10 * time.Second},
		{
			CheckRequire, 0, []string{"Ring", "Ring"}, -time.Hour,
			"clock  as on rank 0 on worker-0; 1h0m0s behind rank 0 on worker-1", 0,
		},
		{CheckWarn, 0, []string{"Ring", "Ring"}, 0, "", 0},
		{CheckWarn, 0, []string{"Ring", "Ring", ""}, 0, "", 10 * time.Second},
		{CheckWarn, 0, []string{"Ring"}, 0, "", 0},
		{CheckWarn, 1, []string{"Ring", "Tree"}, 0, "", 0},
		{CheckOff, 0, []string{"Ring", "Tree"}, 0, "", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var b strings.Builder
			c := NewComparison(tt.mode, "", slog.New(slog.NewJSONHandler(&b, nil)))
			_, _, err := c.Table()
			require.EqualError(t, err, "the ranks are compared once all are present")
			ranks := put(c, tt.values...)
			if tt.ahead != 0 {
				c.Put("worker-1", factsNote, Encode(facts("NCCL_ALGO=Ring")), -tt.ahead)
			}
			begin := time.Now()
			var serve sync.WaitGroup
			c.Agreed(t.Context(), &serve, ranks, tt.self, &testNode{ahead: tt.ahead})
			serve.Wait()
			require.Equal(t, tt.after, time.Since(begin))
			rows, absent, err := c.Table()
			if tt.self != 0 {
				require.EqualError(t, err,
					"rank 0 compares the ranks; ask there: paiinit rsh worker-0 paiinit status --drift")
			}
			if tt.log == "" {
				require.Empty(t, b.String())
				return
			}
			require.NoError(t, err)
			require.Len(t, rows, 2)
			require.Len(t, absent, len(tt.values)-2)
			var line struct{ Msg, Drift string }
			require.NoError(t, json.Unmarshal([]byte(b.String()), &line), "one line")
			require.Equal(t, "facts differ between ranks", line.Msg)
			require.Equal(t, tt.log, line.Drift)
		})
	}
}

// Facts that come late are compared as well.
func TestRankZeroWarnsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		c := NewComparison(CheckWarn, "", slog.New(slog.NewTextHandler(&b, nil)))
		ranks := put(c, "Ring", "")
		var serve sync.WaitGroup
		c.Agreed(t.Context(), &serve, ranks, 0, &testNode{})
		time.Sleep(5 * time.Second)
		put(c, "", "Tree")
		serve.Wait()
		require.Equal(t, 1, strings.Count(b.String(), `msg="facts differ between ranks"`))
	})
}

func TestFactsAreToldBesideTheLaunch(t *testing.T) {
	const fact = `facts [["GPUs","8"]]`
	for _, tt := range []struct {
		name, mode string
		alone      bool
		agreed     time.Duration // 0 = never
		told       string
		after      time.Duration
	}{
		{"after the launch", CheckWarn, false, 300 * time.Millisecond, fact, 400 * time.Millisecond},
		{"during a long wait", CheckWarn, false, 0, fact, 1100 * time.Millisecond},
		{"at once", CheckRequire, false, 0, fact, 0},
		{"never", CheckOff, false, 0, "", 0},
		{"alone", CheckRequire, true, 0, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := NewComparison(tt.mode, "", nil)
				n := &testNode{}
				var serve sync.WaitGroup
				if tt.agreed > 0 {
					time.AfterFunc(tt.agreed, func() { c.Agreed(t.Context(), &serve, nil, 1, n) })
				}
				begin := time.Now()
				c.Begin(t.Context(), t.Context(), &serve, Setup{
					ID: "worker-0", Alone: tt.alone, Node: n, Source: Source{Files: fstest.MapFS{}, GPUs: 8},
				})
				serve.Wait()
				require.Equal(t, tt.after, time.Since(begin))
				require.Equal(t, tt.told, strings.Join(n.told, ", "))
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // a file system hangs
		ctx, cancel := context.WithCancel(t.Context())
		hangs, n := make(chan struct{}), &testNode{}
		var serve sync.WaitGroup
		NewComparison(CheckRequire, "", nil).Begin(ctx, ctx, &serve, Setup{
			Node: n, Source: Source{Files: fstest.MapFS{}, MTU: func() (int, bool) { <-hangs; return 0, false }},
		})
		synctest.Wait()
		cancel()
		serve.Wait()
		require.Empty(t, n.told)
		close(hangs)
	})
}

func TestPreflight(t *testing.T) {
	for _, tt := range []struct {
		name, failure string
		tail          []string
		reason        string
		log           bool
	}{
		{"passes", "", []string{"fine"}, "", false},
		{
			"fails", "exit status 3", []string{"GPU 3", "bad"},
			"the preflight failed on 1 of 2 ranks\n  worker-1: exit status 3\n    GPU 3\n    bad", true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b strings.Builder
				c := NewComparison(CheckOff, "nvidia-smi", slog.New(slog.NewTextHandler(&b, nil)))
				var serve sync.WaitGroup
				ready := make(chan []byte, 1)
				held := c.Hold(t.Context(), &serve, ready)
				ready <- []byte("devices")
				ends := make(chan struct{})
				n := &testNode{}
				c.Begin(t.Context(), t.Context(), &serve, Setup{
					ID: "worker-1", Node: n, Timeout: 10 * time.Minute,
					Preflight: func(_ context.Context, limit time.Duration) (string, []string) {
						require.Equal(t, 9*time.Minute, limit)
						<-ends
						return tt.failure, tt.tail
					},
				})
				ranks := workers("worker", 0, 2, 0)
				synctest.Wait()
				require.Equal(t, []string{`preflight {"running":true}`}, n.told)
				require.Empty(t, held, "the launch waits")
				reason, _ := c.Refuse(ranks)
				require.Empty(t, reason)
				close(ends)
				require.Equal(t, "devices", string(<-held))
				serve.Wait()
				require.Len(t, n.told, 2, "the result comes before the devices")
				reason, retry := c.Refuse(ranks)
				require.Equal(t, tt.reason, reason)
				require.False(t, retry)
				require.Equal(t, tt.log, strings.Contains(b.String(), "the preflight has failed"))
			})
		})
	}
	t.Run("many", func(t *testing.T) {
		var b Board
		for i := range 20 {
			b.Put(fmt.Sprintf("worker-%d", i), preflightNote, checked{Failure: "exit status 1"}.encode(), 0)
		}
		b.Put("worker-0", preflightNote, []byte("not JSON"), 0)
		require.True(t, strings.HasSuffix(b.failedPreflights(workers("worker", 0, 20, 0)), "\n  and 11 more"))
		big := checked{Failure: "x"}
		for range 5 {
			big.Tail = append(big.Tail, strings.Repeat("<", 200)) // takes 6 bytes in JSON
		}
		require.Less(t, len(big.encode()), maxEncoded)
	})
	t.Run("ends with the job", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			c := NewComparison(CheckOff, "sleep", nil)
			var serve sync.WaitGroup
			n := &testNode{}
			held := c.Hold(ctx, &serve, make(chan []byte))
			ends := func(ctx context.Context, _ time.Duration) (string, []string) {
				<-ctx.Done()
				return "was ended by SIGTERM", nil
			}
			c.Begin(ctx, ctx, &serve, Setup{Node: n, Preflight: ends})
			synctest.Wait()
			cancel()
			serve.Wait()
			require.Len(t, n.told, 1, "no result")
			require.Empty(t, held)
		})
	})
	t.Run("none", func(t *testing.T) {
		ready := make(chan []byte)
		require.Equal(t, (<-chan []byte)(ready), NewComparison(CheckOff, "", nil).Hold(t.Context(), nil, ready))
	})
}

// Every rank collects its facts beside the start of the job.
func BenchmarkFacts(b *testing.B) {
	for b.Loop() {
		Facts(Here([]string{"PATH=/usr/bin"}, "lo"))
	}
}
