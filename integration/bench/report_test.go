package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUpdate(t *testing.T) {
	r := report{
		name: "x", title: "X", intro: []string{"How."},
		columns: []string{"a", "b"}, rows: [][]string{{"time, ms", "1", "2"}},
	}
	const section = "<!-- x: written by make bench -->\n## X\n\nHow.\n\n" +
		"| | a | b |\n|---|---:|---:|\n| time, ms | 1 | 2 |\n<!-- end of x -->\n"
	for name, row := range map[string]struct{ before, after string }{
		"new":      {"", "# Benchmarks\n\n" + section},
		"added":    {"# Other\ntext\n", "# Other\ntext\n\n" + section},
		"replaced": {"a\n<!-- x: written by make bench -->\nold\n<!-- end of x -->\nb\n", "a\n" + section + "b\n"},
		"again":    {"a\n" + section + "b\n", "a\n" + section + "b\n"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "b.md")
			require.NoError(t, os.WriteFile(file, []byte(row.before), 0o600))
			require.NoError(t, r.update(file))
			after, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, row.after, string(after))
		})
	}
	file := filepath.Join(t.TempDir(), "b.md")
	require.NoError(t, os.WriteFile(file, []byte("<!-- x: written by make bench -->\n"), 0o600))
	require.Error(t, r.update(file))
}

func TestSeries(t *testing.T) {
	require.Equal(t, "-", series(nil).cell("%.0f"))
	require.Equal(t, "3", series{3, 3}.cell("%.0f"))
	require.Equal(t, "2.5 (1.0 to 4.0)", series{4, 1, 3, 2}.cell("%.1f"))
}
