package launch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// isLauncherFile reports whether a file of package launch may name launchers: it holds a launcher's value, or the list.
func isLauncherFile(tree *ast.File) bool {
	for _, d := range tree.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, spec := range g.Specs {
			for _, value := range spec.(*ast.ValueSpec).Values {
				c, ok := value.(*ast.CompositeLit)
				if !ok {
					continue
				}
				list, _ := c.Type.(*ast.ArrayType)
				kind := c.Type
				if list != nil {
					kind = list.Elt
				}
				if star, ok := kind.(*ast.StarExpr); ok {
					kind = star.X
				}
				if id, ok := kind.(*ast.Ident); ok && id.Name == "Launcher" {
					return true
				}
			}
		}
	}
	return false
}

// namesAllowed are the other places that may name a launcher, and the reasons.
var namesAllowed = []struct{ file, text, reason string }{
	{"envspec/", "", "the variables and files of schedulers have the names that their authors gave them"},
	{"hostfile/", "", "a dialect of a host list has the name of a launcher: openmpi, hydra, horovod, deepspeed"},
	{"inspect/", "", "findings name programs for people, and facts are the variables of a launcher"},
	{"rdma/", "", "findings tell people what a launcher does without the device"},
	{"early/launches.go", "_RANK", "it imports nothing, so it repeats envspec's list"},
	{"statedir/", "hostfile.hydra", "the file's name is a promise of docs/commands.md"},
	{"cmd/paiinit/", "refuse ranks with", "help for people"},
	{"cmd/paiinit/", "of the live ranks, for", "help for people"},
	{"cmd/paiinit/", "paiinit hostfile --format", "help for people"},
	{"cmdline/", "COMMAND on rank 0, such as", "help for people"},
	{"cmdline/", "# rank 0 runs it", "help for people"},
	{"cmdline/", "# every rank runs it", "help for people"},
	{"cmd/paiinit/", "ranks connect to random ports", "a hint for people"},
	{"localapi/", `json:"horovodrun`, "the format of status.sock"},
	{"launch/launch.go", "can be passed through", "an error for people that says why a path is refused"},
}

// TestOnlyFilesOfLaunchersNameThem walks the syntax trees of all production files: outside a launcher's file no
// identifier and no string may name a launcher.
func TestOnlyFilesOfLaunchersNameThem(t *testing.T) {
	name := regexp.MustCompile(`(?i)open ?mpi|ompi_|\bprte|prrte|\borted\b|\bprted\b|orterun|hydra|mpich|pmi_proxy|` +
		`intel ?mpi|\bi_mpi_|` +
		`horovod|deepspeed|mpirun|mpiexec|mvapich|mpispawn|torchrun|\baccelerate\b|\bsrun\b|\bprun\b|jsrun|\bclush\b|` +
		`vllm|sglang|\bray\b|\bdask\b|\bspark\b`)
	used := make(map[int]bool)
	check := func(file, text string, pos token.Position) {
		if !name.MatchString(text) {
			return
		}
		for i, a := range namesAllowed {
			if strings.HasPrefix(file, a.file) && strings.Contains(text, a.text) {
				used[i] = true
				return
			}
		}
		t.Errorf("%v: %q names a launcher: it belongs in that launcher's file in package launch", pos, text)
	}
	root, own := "..", 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		file, _ := filepath.Rel(root, path)
		if d.IsDir() {
			skipped := strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "integration"
			if file != "." && skipped {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		if filepath.Dir(file) == "launch" && isLauncherFile(tree) {
			own++
			return nil
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				return !ok || x.Name != "hostfile" // its dialects
			case *ast.Ident:
				check(file, n.Name, set.Position(n.Pos()))
			case *ast.BasicLit:
				text := n.Value
				if s, err := strconv.Unquote(text); err == nil {
					text = s
				}
				check(file, text, set.Position(n.Pos()))
			}
			return true
		})
		return nil
	}))
	for i, a := range namesAllowed {
		if !used[i] {
			t.Errorf("nothing needs the exception for %q in %s: %s", a.text, a.file, a.reason)
		}
	}
	require.Greater(t, own, 8)
}
