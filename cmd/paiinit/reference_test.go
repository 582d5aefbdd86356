package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
	for _, completion := range []string{reference.Bash(app), reference.Zsh(app)} {
		functions := regexp.MustCompile(`(?m)^_paiinit\w*\(\)`).FindAllString(completion, -1)
		require.NotEmpty(t, functions)
		slices.Sort(functions)
		require.Equal(t, slices.Compact(slices.Clone(functions)), functions, "the last one of a name counts")
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

// TestDocFlagsExist: every flag that a page gives to paiinit is one of paiinit's, and on the pages that are about
// paiinit alone every flag that stands by itself.
func TestDocFlagsExist(t *testing.T) {
	known := []string{"--help", "--version"}
	for _, c := range newApp(nil, nil).Commands {
		for _, r := range cmdline.Rows(c.Flags) {
			known = append(known, "--"+r.Name)
		}
	}
	mixed := []string{"compare.md", "launchers.md", "rdma.md"} // and the pages of jobs and schedulers
	others := []string{
		"--timout", "--generate-bash-completion", // a typo that a page shows, and what completions call
		"--tag-output", "--tee", "--sysctl", "--ip-permissions", "--entrypoint", "--seed", // other programs'
	}
	inline, flag := regexp.MustCompile("`([^`\\n]+)`"), regexp.MustCompile(`^--[a-z][A-Za-z0-9_-]*`)
	var files []string
	for _, pattern := range []string{"../../README.md", "../../docs/*.md", "../../docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, found...)
	}
	require.Greater(t, len(files), 20)
	checked := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		page, blocks := string(text), regexp.MustCompile("(?ms)^ *```.*?^ *```|^    .*?$")
		var codes []string
		for _, block := range blocks.FindAllString(page, -1) {
			codes = append(codes, strings.Split(strings.ReplaceAll(block, "\\\n", " "), "\n")...)
		}
		for _, m := range inline.FindAllStringSubmatch(blocks.ReplaceAllString(page, ""), -1) {
			codes = append(codes, m[1])
		}
		alone := filepath.Base(filepath.Dir(file)) == "docs" && !slices.Contains(mixed, filepath.Base(file))
		for _, code := range codes {
			own := alone && strings.HasPrefix(code, "--")
			for _, word := range strings.Fields(code) {
				switch name := flag.FindString(word); {
				case word == "paiinit" || strings.HasSuffix(word, "/paiinit"):
					own = true
				case word == "--" || strings.ContainsAny(word, "|;&") || strings.HasPrefix(word, "mpi"):
					own = false
				case name != "" && own:
					checked++
					if !slices.Contains(known, name) && !slices.Contains(others, name) {
						t.Errorf("%s: paiinit has no flag %s: %s", file, name, code)
					}
				}
			}
		}
	}
	require.Greater(t, checked, 100)
}
