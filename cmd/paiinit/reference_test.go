package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/cmdline/reference"
)

// manDate is the date of the man page: of the last change of its text.
const manDate = "2026-11-24"

// TestReference compares the man page and the completions with the commands and flags. `make generate` writes them.
func TestReference(t *testing.T) {
	app := newApp(nil, nil)
	page, err := os.ReadFile("../../docs/commands.md")
	require.NoError(t, err)
	man, err := reference.Man(app, string(page), manDate)
	require.NoError(t, err)
	for name, got := range map[string]string{
		"docs/paiinit.1":           man,
		"completions/paiinit.bash": reference.Bash(app),
		"completions/paiinit.fish": reference.Fish(app),
		"completions/paiinit.zsh":  reference.Zsh(app),
	} {
		file := filepath.Join("../..", name)
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s: run make generate: -want +got:\n%s", name, diff)
		}
	}
}

// docs/commands.md and the man page name every command, flag and variable.
func TestFlagsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/commands.md")
	require.NoError(t, err)
	man, err := os.ReadFile("../../docs/paiinit.1")
	require.NoError(t, err)
	manText := strings.NewReplacer(`\-`, "-", `\fB`, "", `\fP`, "").Replace(string(man))
	for name, text := range map[string]string{"docs/commands.md": string(page), "docs/paiinit.1": manText} {
		for _, c := range newApp(nil, nil).Commands {
			if c.Hidden {
				continue
			}
			if c.Name != "run" { // the default
				require.Contains(t, text, "paiinit "+c.Name, name)
			}
			for _, r := range cmdline.Rows(c.Flags) {
				require.Regexp(t, "--"+r.Name+`([^a-z-]|$)`, text, "%s, of paiinit %s", name, c.Name)
				if c.Name == "run" {
					require.Regexp(t, cmdline.Twin(r.Name)+`([^A-Z_]|$)`, text, name)
				}
			}
		}
	}
}
