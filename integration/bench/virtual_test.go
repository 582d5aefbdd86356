package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReadVirtual(t *testing.T) {
	const out = "=== RUN   TestScale\n" +
		"    scale_test.go:25: ranks   GO at all    in RTT   messages/rank   bytes/rank     table   heap/rank\n" +
		"    scale_test.go:82:    64       700µs       3.5             6.0         2254      2041       24952\n" +
		"    scale_test.go:82:  4000       1.2ms       6.0             6.0          299    127022       24717\n" +
		"--- PASS: TestScale (6.35s)\nPASS\n"
	jobs, err := readVirtual(out, []int{64, 4000})
	require.NoError(t, err)
	require.Equal(t, []virtual{
		{64, 700 * time.Microsecond, "3.5", "6.0", "2254", "2041", 24952},
		{4000, 1200 * time.Microsecond, "6.0", "6.0", "299", "127022", 24717},
	}, jobs)
	require.Equal(t, [][]string{
		{"start to agreement, ms", "0.7", "1.2"}, {"the same in round trips", "3.5", "6.0"},
		{"messages at rank 0, per rank", "6.0", "6.0"}, {"bytes at rank 0, per rank", "2254", "299"},
		{"size of the table, bytes", "2041", "127022"}, {"heap after the agreement, per rank, kB", "25", "25"},
	}, virtualReport(jobs).rows)

	_, err = readVirtual(out, []int{64, 4000, 16000})
	require.ErrorContains(t, err, "TestScale logs no figures of 16000 ranks")
	_, err = readVirtual("    scale_test.go:82:    64  soon  3.5  6.0  2254  2041  24952\n", []int{64})
	require.ErrorContains(t, err, `64  soon`)
	_, err = numbers(virtualSizes)
	require.NoError(t, err)
}
