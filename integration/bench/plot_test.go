package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlots: the images show what the tables of the page say. "go run ./integration/bench plots" draws them again.
func TestPlots(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks.md")
	require.NoError(t, err)
	images, err := plots(string(page))
	require.NoError(t, err)
	require.Len(t, images, 3)
	for name, image := range images {
		drawn, err := os.ReadFile("../../docs/plots/" + name + ".svg")
		require.NoError(t, err)
		require.Equal(t, string(drawn), image, name)
		require.Contains(t, string(page), "(plots/"+name+".svg)")
		require.NoError(t, xml.Unmarshal([]byte(image), new(struct{})), name)
	}
}

func TestPlotsOfNoTable(t *testing.T) {
	_, err := plots("# Benchmarks\n")
	require.ErrorContains(t, err, "not found")
	page := report{name: "rsh", columns: []string{"a"}, rows: [][]string{{"two commands, ms", "-"}}}.markdown()
	table, err := tableOf(page, "rsh")
	require.NoError(t, err)
	_, err = shellPlot(table)
	require.EqualError(t, err, `no row "one command, ms" with 1 columns`)
	_, err = table.median("two commands, ms", 0)
	require.ErrorContains(t, err, `row "two commands, ms"`)
}

func TestExponent(t *testing.T) {
	x := []float64{1, 2, 4, 8}
	for k, y := range map[float64][]float64{0: {3, 3, 3, 3}, 1: {5, 10, 20, 40}, 2: {1, 4, 16, 64}} {
		require.InDelta(t, k, exponent(x, y), 1e-9)
	}
}

// TestReadmeFigures: the README tells what the tables of the page say.
func TestReadmeFigures(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks.md")
	require.NoError(t, err)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	text := strings.Join(strings.Fields(string(readme)), " ")
	for _, figure := range []struct {
		format, section, row string
		column               int
	}{
		{"64 hosts launch %.0f ms after", "rendezvous", "last host to launch, ms", 0},
		{"runs again after %.0f ms", "restarts", "a process is killed", 1},
		{"on another host takes %.1f ms", "rsh", "one command, ms", 0},
		{"with OpenSSH %.0f ms", "rsh", "one command, ms", 1},
	} {
		table, err := tableOf(string(page), figure.section)
		require.NoError(t, err)
		median, err := table.median(figure.row, figure.column)
		require.NoError(t, err)
		require.Contains(t, text, fmt.Sprintf(figure.format, median))
	}
}
