package proc

import (
	"io/fs"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSystem(t *testing.T) {
	for _, name := range []string{"version", "filesystems", "self/environ", "self/cmdline", "self/limits"} {
		want, err := os.ReadFile(root + name)
		require.NoError(t, err)
		got, err := System{}.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), name)
	}
	self := os.Getpid()
	entries, err := System{}.ReadDir(".")
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Subset(t, names, []string{"self", "version", "sys", strconv.Itoa(self)})
	require.Equal(t, os.Getppid(), ReadAll(System{}, self)[self].Parent)

	for _, name := range []string{"no", "0/stat"} {
		_, err = System{}.ReadFile(name)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, "/proc/"+name)
		_, err = System{}.ReadDir(name)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	_, err = System{}.ReadFile("self")
	require.ErrorContains(t, err, "is a directory")
	f, err := System{}.Open("self/stat")
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func BenchmarkReadAll(b *testing.B) {
	for name, fsys := range map[string]fs.FS{"system": System{}, "os": os.DirFS(root)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				ReadAll(fsys, os.Getpid())
			}
		})
	}
}
