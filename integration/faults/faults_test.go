package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/paiinit/paiinit/integration/lab"
)

var (
	faultSeed = flag.Uint64("fault-seed", 0, "seed that picks a tenth of the cells; 0 = from the clock")
	faultOnly = flag.String("cells", "", "regular expression for the names of the cells to run; \"\" = a tenth")
)

func TestMain(m *testing.M) {
	lab.Main()
	goleak.VerifyTestMain(m)
}

// TestTenth runs a random tenth of the matrix, and logs the seed to run it again.
func TestTenth(t *testing.T) {
	missing := lab.Missing(
		lab.Need{Try: []string{"/usr/bin/mpirun.openmpi", "--version"}, Package: "openmpi-bin"},
		lab.Need{Try: []string{"/usr/bin/python3", "--version"}, Package: "python3"},
	)
	if err := lab.Cgroups(); err != nil {
		missing = append(missing, err.Error())
	}
	if why := strings.Join(missing, "; "); why != "" {
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	list, _ := cells()
	seed := *faultSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	picked := tenth(list, seed)
	if *faultOnly != "" {
		var err error
		picked, err = matching(list, *faultOnly)
		require.NoError(t, err)
	}
	dir := t.TempDir()
	current := filepath.Join(dir, "paiinit")
	require.NoError(t, build(current, "devel"))
	begin := time.Now()
	var results []result
	// Other tests may run at the same time.
	runAll(t.Context(), picked, newBinaries(current, dir), 8, 3, func(r result) {
		results = append(results, r)
		t.Log(r.text())
		if r.err != nil {
			t.Errorf("again: -run TestTenth -cells '^%s$'\n%s", r.id(), r.log)
		}
	})
	t.Logf("%s; again: -fault-seed %d", summary(results, time.Since(begin)), seed)
}

// TestPage: docs/reliability.md has exactly the rows of the table, with what the oracle says and something seen.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/reliability.md")
	require.NoError(t, err)
	rows, before, after, err := readRows(string(text))
	require.NoError(t, err)
	list, _ := cells()
	for _, c := range list {
		require.Contains(t, rows, c.rule(), "make faults CELLS='^%s$'", c.id())
		require.Contains(t, rows[c.rule()], " s | `", c.id())
	}
	_, machine, _ := strings.Cut(string(text), " cells. ")
	machine, _, _ = strings.Cut(machine, "\n")
	require.Equal(t, before+section(rows, machine)+after, string(text), "make faults")
}

// TestCells: names are unique, and a cell has a rule and a bound.
func TestCells(t *testing.T) {
	list, omitted := cells()
	seen := map[string]bool{}
	reasons := map[string]bool{}
	for _, c := range list {
		require.False(t, seen[c.id()], c.id())
		seen[c.id()] = true
		e := c.expect()
		require.NotEmpty(t, e.why, c.id())
		require.NotEmpty(t, e.says, c.id())
		require.Positive(t, e.within, c.id())
		require.LessOrEqual(t, e.within, 2*time.Minute, c.id())
	}
	all := len(list)
	for _, o := range omitted {
		require.NotEmpty(t, o.why)
		require.False(t, reasons[o.why])
		reasons[o.why] = true
		all += o.cells
	}
	require.Equal(t, len(faults)*len(roles)*(len(phases)+1), all, "*run* comes twice: with and without restarts")
}

// TestTenthOfCells: a seed always picks the same cells, and every cell is picked by some seed.
func TestTenthOfCells(t *testing.T) {
	list, _ := cells()
	first := tenth(list, 7)
	require.Len(t, first, (len(list)+9)/10)
	require.Equal(t, names(first), names(tenth(list, 7)))
	require.NotEqual(t, names(first), names(tenth(list, 8)))
	picked := map[string]bool{}
	for seed := range uint64(200) {
		for _, c := range tenth(list, seed) {
			picked[c.id()] = true
		}
	}
	require.Len(t, picked, len(list))
}

func names(list []cell) (out []string) {
	for _, c := range list {
		out = append(out, c.id())
	}
	return out
}

// TestUpdate: a run of some cells replaces their rows and keeps the others.
func TestUpdate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(file, []byte("before\n"+pageBegin+pageEnd+"after\n"), 0o600))
	list, _ := cells()
	var results []result
	for _, c := range list {
		results = append(results, result{cell: c, took: time.Second, line: "08:20:44 first | `line`"})
	}
	require.NoError(t, update(file, results, "Seen."))
	require.NoError(t, update(file, []result{
		{cell: list[0], took: 2 * time.Second, line: "  second"},
		{cell: list[1], took: 2 * time.Second, line: "third", err: fmt.Errorf("it failed")},
	}, "Seen."))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), list[0].rule()+" 2.0 s | `second` |\n")
	require.Contains(t, string(text), list[1].rule()+" 1.0 s | `first \\| 'line'` |\n")
	require.Regexp(t, "(?s)^before\n.*after\n$", string(text))
	require.ErrorContains(t, update(filepath.Join(t.TempDir(), "nowhere"), nil, ""), "no such file")
}

// TestReportsOneAtATime: results come one at a time, of every cell.
func TestReportsOneAtATime(t *testing.T) {
	list, _ := cells()
	var mu sync.Mutex
	n := 0
	no := fault{name: "none", needs: func() error { return fmt.Errorf("not here") }}
	for i := range list {
		list[i].fault = &no
	}
	runAll(t.Context(), list, binaries{}, 8, 1, func(r result) {
		require.True(t, mu.TryLock())
		defer mu.Unlock()
		n++
		require.EqualError(t, r.skipped, "not here")
	})
	require.Equal(t, len(list), n)
}
