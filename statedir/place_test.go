package statedir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Place accepts and refuses the same directories as Open, and changes nothing.
func TestPlace(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.Mkdir(at("there"), 0o755))
	require.NoError(t, os.Mkdir(at("open"), 0o755))
	require.NoError(t, os.Chmod(at("open"), 0o777))
	require.NoError(t, os.WriteFile(at("file"), nil, 0o644))
	refused := map[string]string{
		"there": "", "new/and/below": "", "open": "another user can write there", "file": "not a directory",
		"file/below": "not a directory", strings.Repeat("long", 30): "at most 107 bytes",
	}
	if os.Getuid() != 0 {
		require.NoError(t, os.Mkdir(at("read-only"), 0o555))
		refused["read-only"], refused["read-only/new"] = "permission denied", "permission denied"
	}
	for name, want := range refused {
		got, err := Place(at(name), 2)
		d, errOpen := openDir(t, at(name), Identity{Job: name, Role: "worker", Size: 2})
		if want == "" {
			require.NoError(t, err, name)
			require.Equal(t, at(name), got)
			require.NoError(t, errOpen, name)
			d.Close()
			continue
		}
		require.ErrorContains(t, err, want, name)
		require.Error(t, errOpen, name)
	}
	_, err := Place(at("there"), 1<<50)
	require.ErrorContains(t, err, "no space left on device")
	entries, err := os.ReadDir(at("open"))
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestRunningHere(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, RunningHere(dir))
	d, err := openDir(t, dir, Identity{Job: "a", Alias: "worker-0", Role: "worker", Size: 2, PID: 7}.OfThisProcess())
	require.NoError(t, err)
	require.Contains(t, RunningHere(dir), "worker-0 (rank 0) of job a, process ")
	_, err = Place(dir, 2)
	require.ErrorContains(t, err, "in use by worker-0")
	d.Close()
	require.Empty(t, RunningHere(dir))
}
