package paiinit_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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
