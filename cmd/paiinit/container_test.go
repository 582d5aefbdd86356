package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStateOfAnEarlierStartIsGone(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		s, err := openState(t.Context(), dir, identity{Size: 1}, nil)
		require.NoError(t, err)
		for _, name := range []string{"status.json", "hostfile", "hostfile.hydra", "ssh_config", "known_hosts"} {
			require.NoFileExists(t, filepath.Join(dir, name))
			require.NoError(t, s.writeFile(name, []byte("left")))
		}
		s.close()
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 8, "those, bin, tmp and lock: %v", entries)
}

func TestGarbageOfSmallJobs(t *testing.T) {
	for size, want := range map[int]int{-1: 400, 1: 400, 64: 400, 128: 200, 256: 100, 4000: 100} {
		require.Equal(t, want, gcPercent(size), "%d ranks", size)
	}
}
