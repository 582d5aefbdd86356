package inspect

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
		{"one against one", append(workers("master", 0, 1, 8, "NCCL_ALGO=Ring"), workers("worker", 1, 1, 8, "NCCL_ALGO=Tree")...)},
		{"a variable that one rank lacks", with(workers("worker", 0, 3, 0, "NCCL_DEBUG=INFO", "libmpi=4"), func(r []Rank) {
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
		{"a launcher of the workers' role", with(workers("worker", 0, 3, 8, "GPUs=8", "libnccl=2"), func(r []Rank) {
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
				require.LessOrEqual(t, len(v.Names), len(d.Values[0].Names), "value %d is more frequent than the first", i)
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
		board.Put(r.ID, Encode(r.Facts), 0)
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
	require.Equal(t, facts("a?=b?"), decode([]byte(`[["a\n","b\u001b"]]`)), "another container must not forge our lines")
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
		require.Empty(t, b.Compare(ranks))
		require.Empty(t, b.Suspects())
		b.Skew("worker-0", time.Hour, 0) // without facts

		ids := []string{"worker-0", "worker-1", "worker-2"}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		time.AfterFunc(100*time.Millisecond, func() { b.Put("worker-0", Encode(facts("libnccl=2.18")), 0) })
		time.AfterFunc(200*time.Millisecond, func() { b.Put("worker-1", Encode(facts("libnccl=2.16")), 90*time.Second) })
		require.Equal(t, []string{"worker-2"}, b.Await(soon, ids))
		require.Equal(t, time.Second, time.Since(begin))
		require.Equal(t, []string{"libnccl  2.18 on worker-0; 2.16 on worker-1"}, Lines(b.Compare(ranks)))

		time.AfterFunc(100*time.Millisecond, func() { b.Put("worker-2", Encode(facts("libnccl=2.18")), -2*time.Second) })
		require.Empty(t, b.Await(t.Context(), ids))
		require.Equal(t, 1100*time.Millisecond, time.Since(begin))

		require.Equal(t, []string{"worker-1", "worker-2"}, b.Suspects())
		b.Skew("worker-1", -90*time.Second, time.Millisecond)
		b.Skew("worker-2", 1500*time.Millisecond, time.Second) // may be less than a second
		require.Equal(t, []string{
			"libnccl  2.18 on worker-0, worker-2; 2.16 on worker-1",
			"clock    as on rank 0 on worker-0, worker-2; 1m30s behind rank 0 on worker-1",
		}, Lines(b.Compare(ranks)))
		require.Len(t, b.Last(), 2)
	})
}
