package launch

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// TestDocs holds the generated tables of docs/launchers.md against the data.
func TestDocs(t *testing.T) {
	const file = "../docs/launchers.md"
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	want := string(b)
	var columns []column
	for _, l := range launchers {
		if l.Variables != nil {
			columns = append(columns, column{name: l.Name, vars: l.Variables(everything)})
		} else if l.Manual != "" {
			columns = append(columns, column{name: l.Name, note: l.Manual})
		}
	}
	got := section(t, want, "launchers", columns)
	job := tasks("chief", "worker", "ps")
	job.Self = 1
	mx := tasks("scheduler", "server", "worker")
	got = section(t, got, "tasks", []column{
		{name: "PyTorch", vars: torch(job)}, {name: "TensorFlow", vars: tensorFlow(job)}, {name: "JAX", vars: jax(job)},
		{name: "MXNet", vars: psLite(mx)}, {name: "vLLM", vars: vllmTask(job)}, {name: "SGLang", vars: sglangTask(job)},
	})
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("-update writes it; -data +docs:\n%s", diff)
	}
}

type column struct {
	name string
	vars []Var
	note string // instead of variables
}

// section replaces the text between two marks by a table.
func section(t *testing.T, text, name string, columns []column) string {
	t.Helper()
	begin, end := "<!-- begin: "+name+" -->\n", "<!-- end: "+name+" -->"
	before, rest, ok := strings.Cut(text, begin)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	var table strings.Builder
	table.WriteString("| for | variable, as an example | why |\n|---|---|---|\n")
	for _, c := range columns {
		if c.note != "" {
			fmt.Fprintf(&table, "| %s | | %s |\n", c.name, c.note)
		}
		for _, v := range c.vars {
			fmt.Fprintf(&table, "| %s | `%s=%s` | %s |\n", c.name, v.Name, v.Value, v.Reason)
		}
	}
	return before + begin + table.String() + end + after
}
