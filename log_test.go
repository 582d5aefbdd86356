package paiinit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestLogMessages compares docs/log.md with the code: every message at level info and above stands in a table there,
// and every row of these tables is a message.
func TestLogMessages(t *testing.T) {
	logged, err := messages(".")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("docs/log.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (?:info|warn|error)")
	for _, row := range rows.FindAllStringSubmatch(string(page), -1) {
		if listed[row[1]] {
			t.Errorf("docs/log.md lists %q twice", row[1])
		}
		listed[row[1]] = true
	}
	for message, at := range logged {
		if !listed[message] {
			t.Errorf("docs/log.md does not list %q of %s", message, at)
		}
	}
	for message := range listed {
		if logged[message] == "" {
			t.Errorf("docs/log.md lists %q, which no code logs", message)
		}
	}
}

// messages returns the messages that production code logs at level info and above, with their places. A part of a
// message that is no constant reads "...".
func messages(root string) (map[string]string, error) {
	found := map[string]string{}
	files := token.NewFileSet()
	return found, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "integration" || name == "tools" || name != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			arg := messageOf(call)
			if arg == nil {
				return true
			}
			for _, message := range texts(file, arg) {
				if strings.Trim(message, ". ") != "" {
					found[message] = files.Position(call.Pos()).String()
				}
			}
			return true
		})
		return nil
	})
}

// messageOf returns the message of a call that logs at level info and above, else nil.
func messageOf(call *ast.CallExpr) ast.Expr {
	name := ""
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		name = f.Sel.Name
		if x, ok := f.X.(*ast.SelectorExpr); ok && x.Sel.Name == "refused" && name == "warn" && len(call.Args) > 2 {
			return call.Args[1] // after the peer
		}
	case *ast.Ident:
		name = f.Name
	}
	at := slices.Index([]string{"Info", "Warn", "Error", "routine", "say", "logged", "logRepeated", "Log"}, name)
	switch {
	case at < 0, len(call.Args) < 2 && name != "Info" && name != "Warn":
		return nil
	case name == "logRepeated":
		return call.Args[1] // after the level
	case name == "Log" && len(call.Args) >= 3:
		return call.Args[2] // after the context and the level
	case name == "Log", len(call.Args) == 0:
		return nil
	}
	return call.Args[0]
}

// texts returns the strings that an expression may be: a constant, a sum, or a variable with what its file assigns.
func texts(file *ast.File, e ast.Expr) []string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return []string{text}
		}
	case *ast.BinaryExpr:
		var all []string
		for _, left := range texts(file, e.X) {
			for _, right := range texts(file, e.Y) {
				all = append(all, left+right)
			}
		}
		return all
	case *ast.SelectorExpr:
		return texts(file, e.Sel)
	case *ast.Ident:
		if assigned := assignments(file, e.Name); len(assigned) > 0 {
			return assigned
		}
	}
	return []string{"..."}
}

// assignments returns the constant strings that a file gives to a name.
func assignments(file *ast.File, name string) (all []string) {
	give := func(to, value ast.Expr) {
		if id, ok := to.(*ast.Ident); ok && id.Name == name {
			if lit, ok := value.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, _ := strconv.Unquote(lit.Value)
				all = append(all, text)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i := range min(len(n.Lhs), len(n.Rhs)) {
				give(n.Lhs[i], n.Rhs[i])
			}
		case *ast.ValueSpec:
			for i := range min(len(n.Names), len(n.Values)) {
				give(n.Names[i], n.Values[i])
			}
		}
		return true
	})
	return all
}
