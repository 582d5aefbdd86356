package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/inspect"
)

// Every variable that the source reads or sets and that the documents name is known: otherwise a launch would warn that
// it has no effect. Those of the source stand in docs/commands.md.
func TestVariablesAreKnown(t *testing.T) {
	name := regexp.MustCompile(`PAIINIT_[A-Z0-9_]*[A-Z0-9]`)
	found := make(map[string][]string) // files by variable
	root := os.DirFS("../..")
	require.NoError(t, fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		base := filepath.Base(path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"bin", "dist", "integration", "tools"}, path) ||
			base != "." && base[0] == '.' || base == "testdata"):
			return fs.SkipDir
		case d.IsDir(), strings.HasSuffix(base, "_test.go"), base == "CHANGELOG.md":
			return nil
		}
		text, err := fs.ReadFile(root, path)
		for _, v := range name.FindAllString(string(text), -1) {
			found[v] = append(found[v], path)
		}
		return err
	}))
	require.Contains(t, found, "PAIINIT_TERMINATION_LOG")
	unknown := func(name string) []string {
		twins := func() []string { return cmdline.Twins(runFlags()) }
		return inspect.Unknown([]string{name + "=x"}, twins, cmdline.Closest)
	}
	page, err := fs.ReadFile(root, "docs/commands.md")
	require.NoError(t, err)
	documented := name.FindAllString(string(page), -1)
	misspelt := []string{"PAIINIT_SISE"} // in docs/commands.md, as an example
	for v, files := range found {
		if slices.Contains(misspelt, v) {
			require.NotEmpty(t, unknown(v))
			continue
		}
		require.Empty(t, unknown(v), "%s in %v", v, files)
		if slices.ContainsFunc(files, func(name string) bool { return filepath.Ext(name) == ".go" }) {
			require.Contains(t, documented, v, "%v", files)
		}
	}
}
