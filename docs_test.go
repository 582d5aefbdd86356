package paiinit_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pages returns README.md, CONTRIBUTING.md and the pages of docs.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	add := func(name string) error {
		text, err := os.ReadFile(name)
		found[name] = string(text)
		return err
	}
	err := filepath.WalkDir("docs", func(name string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".md" {
			err = add(name)
		}
		return err
	})
	for _, name := range []string{"README.md", "CONTRIBUTING.md"} {
		if err == nil {
			err = add(name)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestDocLinks asserts that every relative link of a page leads to a file, and every anchor to a heading.
func TestDocLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	all := pages(t)
	for name, text := range all {
		for _, m := range link.FindAllStringSubmatch(outsideOfBlocks(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
				continue
			}
			if anchor != "" && !anchors(all[target])[anchor] {
				t.Errorf("%s links to %s, and %s has no such heading", name, m[1], target)
			}
		}
	}
}

// outsideOfBlocks returns a page without the contents of its fenced blocks.
func outsideOfBlocks(text string) string {
	return regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "")
}

// anchors returns the anchors that GitHub gives to the headings of a page.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	heading := regexp.MustCompile(`(?m)^#+ +(.*)$`)
	for _, m := range heading.FindAllStringSubmatch(outsideOfBlocks(text), -1) {
		words := strings.ToLower(strings.TrimSpace(m[1]))
		words = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(words, "$1")
		words = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(words, "")
		anchor := strings.ReplaceAll(words, " ", "-")
		for n, base := 1, anchor; found[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", base, n)
		}
		found[anchor] = true
	}
	return found
}

// TestDocTests asserts that every test that a page names exists: `TestName` or `package.TestName` in backquotes.
func TestDocTests(t *testing.T) {
	tests := map[string]bool{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				tests[f.Name.Name] = true
				tests[filepath.ToSlash(filepath.Dir(name))+"."+f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:[a-z0-9/]+\\.)?Test[A-Z][A-Za-z0-9]*)`")
	for name, text := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, which does not exist", name, m[1])
			}
		}
	}
}

// TestDocSecurity asserts that every row of a table in docs/security.md names its test, or says that it is a property
// of the design.
func TestDocSecurity(t *testing.T) {
	const page = "docs/security.md"
	named := regexp.MustCompile("`(?:[a-z0-9/]+\\.)?Test[A-Z][A-Za-z0-9]*`")
	claims := 0
	for i, line := range strings.Split(pages(t)[page], "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasSuffix(line, "| test |") {
			continue
		}
		claims++
		if !named.MatchString(line) && !strings.Contains(line, "*design*") {
			t.Errorf("%s:%d: a claim without a test", page, i+1)
		}
	}
	if claims == 0 {
		t.Errorf("%s has no claims", page)
	}
}

// A block is a fenced block of a page, with the comment on the line above.
type block struct {
	page, language, text string
	line                 int
	marker               string // "run" or "example: reason"
}

// shellBlocks returns the fenced blocks of a page that are commands for a shell.
func shellBlocks(page, text string) []block {
	var found []block
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		language, fence := strings.CutPrefix(lines[i], "```")
		if !fence {
			continue
		}
		b := block{page: page, language: language, line: i + 1}
		if i > 0 && strings.HasPrefix(lines[i-1], "<!-- ") {
			b.marker = strings.TrimSuffix(strings.TrimPrefix(lines[i-1], "<!-- "), " -->")
		}
		for i++; i < len(lines) && lines[i] != "```"; i++ {
			b.text += lines[i] + "\n"
		}
		switch language {
		case "sh", "bash", "shell", "console":
			found = append(found, b)
		}
	}
	return found
}

// TestDocCommands runs the shell blocks of the pages. The comment above a block says how:
//
//	<!-- run -->               with sh -e, in an empty directory; it must end with 0
//	<!-- example: REASON -->   it is not run
//
// A block without a comment is an error: say why it cannot be run.
func TestDocCommands(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	build := exec.Command("go", "build", "-ldflags", "-X main.version=1.0", "-o", filepath.Join(bin, "paiinit"),
		"./cmd/paiinit")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runs := 0
	for page, text := range pages(t) {
		for _, b := range shellBlocks(page, text) {
			name := fmt.Sprintf("%s:%d", page, b.line)
			_, why, _ := strings.Cut(b.marker, ": ")
			switch {
			case b.marker == "run":
				runs++
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					b.run(t, bin)
				})
			case !strings.HasPrefix(b.marker, "example: ") || len(why) < 8:
				t.Errorf("%s: a shell block without <!-- run --> or <!-- example: REASON --> on the line above", name)
			}
		}
	}
	if runs == 0 {
		t.Error("no block is run")
	}
}

func (b block) run(t *testing.T, bin string) {
	work := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", b.text)
	cmd.Dir = work
	cmd.Env = []string{
		"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + work,
		"TMPDIR=" + work, "LANG=C.UTF-8",
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestDocBlame: the failures under launchers are reports that the tests of package launch compare with real output.
func TestDocBlame(t *testing.T) {
	text, err := os.ReadFile("docs/troubleshooting.md")
	require.NoError(t, err)
	block := regexp.MustCompile("<!-- blame: (\\S+) -->\n```text\n((?s:.*?))```\n")
	blocks := block.FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, strings.Count(string(text), "<!-- blame: "))
	require.NotEmpty(t, blocks)
	for _, b := range blocks {
		fixture, err := os.ReadFile("launch/testdata/blame/" + b[1] + ".txtar")
		require.NoError(t, err)
		_, want, _ := strings.Cut(string(fixture), "-- want --\n")
		require.Equal(t, strings.TrimRight(want, "\n"), strings.TrimRight(b[2], "\n"))
	}
}
