package paiinit_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestModuleCanBeInstalled: `go install MODULE@VERSION` refuses a module with replace directives, and a module proxy
// refuses one with a file whose name some file systems do not allow (golang.org/x/mod/module, CheckFilePath).
func TestModuleCanBeInstalled(t *testing.T) {
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`(?m)^(replace|exclude)\b`).Match(text) {
		t.Error("go.mod has a replace or exclude directive")
	}
	allowed := regexp.MustCompile(`^[\pL0-9!#$%&()+,\-.=@\[\]^_{}~ ]+$`)
	folded := make(map[string]string)
	err = filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == ".git" || name == ".cache" || name == "bin" || name == "dist"):
			return fs.SkipDir
		case !allowed.MatchString(d.Name()), strings.HasSuffix(d.Name(), ".") && name != ".":
			t.Errorf("%q cannot be a file of a module", name)
		}
		if other := folded[strings.ToLower(name)]; other != "" {
			t.Errorf("%q and %q differ in case alone", name, other)
		}
		folded[strings.ToLower(name)] = name
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDependencies: docs/architecture.md names each module of the binary, and no other.
func TestDependencies(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}",
		"./cmd/paiinit")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var linked []string
	for m := range strings.FieldsSeq(string(out)) {
		if m != module {
			linked = append(linked, m)
		}
	}
	slices.Sort(linked)
	page, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n## Dependencies\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	var named []string
	for row := range strings.Lines(section) {
		cells := strings.Split(row, "|")
		if len(cells) < 3 || !strings.Contains(cells[1], "/") {
			continue
		}
		org := ""
		for name := range strings.SplitSeq(strings.TrimSpace(cells[1]), ", ") {
			if !strings.Contains(name, ".") { // of the same organisation as the one before
				name = org + name
			}
			org = path.Dir(strings.TrimSuffix(name, "/v2")) + "/"
			named = append(named, name)
		}
	}
	slices.Sort(named)
	if !slices.Equal(named, slices.Compact(linked)) {
		t.Errorf("docs/architecture.md has the modules\n%q\nand the binary\n%q", named, slices.Compact(linked))
	}
}
