package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/screens"
)

// screen NAME FILE compares how the job ended, as a file has it, with the screen of that name in
// docs/troubleshooting.md.
func screen(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(screens.Check(filepath.Join(ts.Getenv("DOCS"), "troubleshooting.md"), args[0], ts.ReadFile(args[1])))
}

// TestScreensAreCompared: each screen on the page is printed by a script, or by a test with containers.
func TestScreensAreCompared(t *testing.T) {
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	require.NoError(t, err)
	script, err := os.ReadFile("testdata/troubleshooting.txtar")
	require.NoError(t, err)
	var tests string
	for _, file := range []string{"screens_test.go", "initspec/spec_test.go"} {
		text, err := os.ReadFile(filepath.Join("../../integration", file))
		require.NoError(t, err)
		tests += string(text)
	}
	names, err := screens.Names(string(page))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		if !strings.Contains(string(script), "\nscreen "+name+" ") {
			require.Regexp(t, `"`+name+`"(: \d|, c\.stderr)`, tests)
		}
	}
}
