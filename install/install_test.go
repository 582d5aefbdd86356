package install_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/install"
)

// program writes a file of some hundred kB and returns its name and content.
func program(t *testing.T, seed byte) (string, []byte) {
	t.Helper()
	content := make([]byte, 300_001)
	_, err := rand.NewChaCha8([32]byte{seed}).Read(content)
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(name, content, 0o700))
	return name, content
}

// requireOnly checks that dir has only the copy, that every user may run it, and its content.
func requireOnly(t *testing.T, dir string, content []byte) os.FileInfo {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	info, err := os.Lstat(filepath.Join(dir, install.Name))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode())
	got, err := os.ReadFile(filepath.Join(dir, install.Name))
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, got))
	return info
}

func TestCopy(t *testing.T) {
	older, oldContent := program(t, 1)
	newer, content := program(t, 2)
	longer := filepath.Join(t.TempDir(), "longer")
	require.NoError(t, os.WriteFile(longer, append(content[:len(content):len(content)], 'x'), 0o700))
	for name, prepare := range map[string]func(t *testing.T, dir string){
		"no directory":    func(*testing.T, string) {},
		"empty directory": func(t *testing.T, dir string) { require.NoError(t, os.Mkdir(dir, 0o755)) },
		"older copy":      func(t *testing.T, dir string) { require.NoError(t, install.Copy(older, dir)) },
		"longer copy":     func(t *testing.T, dir string) { require.NoError(t, install.Copy(longer, dir)) },
		"not executable": func(t *testing.T, dir string) {
			require.NoError(t, install.Copy(newer, dir))
			require.NoError(t, os.Chmod(filepath.Join(dir, install.Name), 0o700))
		},
		"link": func(t *testing.T, dir string) {
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.NoError(t, os.Symlink(newer, filepath.Join(dir, install.Name)))
		},
		"dangling link": func(t *testing.T, dir string) {
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, install.Name)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "dir")
			prepare(t, dir)
			require.NoError(t, install.Copy(newer, dir))
			requireOnly(t, dir, content)
		})
	}
	for file, want := range map[string][]byte{older: oldContent, newer: content} { // a link was not followed
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
	}
}

func TestASecondCopyWritesNothing(t *testing.T) {
	file, content := program(t, 1)
	dir := t.TempDir()
	require.NoError(t, install.Copy(file, dir))
	before := requireOnly(t, dir, content)
	require.NoError(t, install.Copy(file, dir))
	after := requireOnly(t, dir, content)
	require.True(t, os.SameFile(before, after))
	require.Equal(t, before.ModTime(), after.ModTime())
	require.NoError(t, install.Copy(filepath.Join(dir, install.Name), dir)) // onto itself
	require.True(t, os.SameFile(before, requireOnly(t, dir, content)))
}

// Containers with different versions copy at the same time: at each moment, the copy is all of one of them.
func TestSeveralAtOnce(t *testing.T) {
	var files []string
	contents := map[string]bool{}
	for seed := range byte(4) {
		file, content := program(t, seed)
		files, contents[string(content)] = append(files, file), true
	}
	dir := filepath.Join(t.TempDir(), "dir")
	require.NoError(t, install.Copy(files[0], dir))
	var all sync.WaitGroup
	failed := make(chan error, 100)
	for i := range cap(failed) {
		all.Go(func() {
			err := install.Copy(files[i%len(files)], dir)
			got, readErr := os.ReadFile(filepath.Join(dir, install.Name))
			if err == nil && (readErr != nil || !contents[string(got)]) {
				err = fmt.Errorf("the copy has %d bytes of no program: %w", len(got), readErr)
			}
			failed <- err
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestCopyFails(t *testing.T) {
	file, _ := program(t, 1)
	at := t.TempDir()
	taken := filepath.Join(at, "taken")
	require.NoError(t, os.MkdirAll(filepath.Join(taken, install.Name), 0o755))
	for _, tt := range []struct{ program, dir, want string }{
		{file, filepath.Join(at, "a", "b"), "creating the directory " + at + "/a/b: no such file or directory"},
		{file, file, "writing " + file + "/paiinit: not a directory"},
		{file, taken, "writing " + taken + "/paiinit: file exists"},
		{filepath.Join(at, "none"), taken, "reading this program: open " + at + "/none: no such file or directory"},
	} {
		require.EqualError(t, install.Copy(tt.program, tt.dir), tt.want)
	}
	entries, err := os.ReadDir(taken)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	// The program cannot be read: the new directory does not stay.
	require.Error(t, install.Copy(at, filepath.Join(at, "new")))
	require.NoDirExists(t, filepath.Join(at, "new"))
}
