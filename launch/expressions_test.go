package launch

import (
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExpressionsContainTheirText: find skips a line without the text before it compiles the expression, so each match
// must contain the text. The test reads both from all calls in this package and proves it by the expression's tree.
func TestExpressionsContainTheirText(t *testing.T) {
	set := token.NewFileSet()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var parsed []*ast.File
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		parsed = append(parsed, file)
	}
	info := types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	// Constants need no imports: the errors about other packages do not matter.
	config := types.Config{Error: func(error) {}, Importer: importer.Default()}
	_, _ = config.Check("launch", set, parsed, &info)

	// claimAll calls find, and match is openMPIReport's function that does.
	finders := map[string]int{"find": 0, "claimAll": 0, "match": 0}
	var passed []string // calls that pass the two parameters of such a function on
	for _, file := range parsed {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 {
				return true
			}
			name := ""
			switch f := call.Fun.(type) {
			case *ast.SelectorExpr:
				name = f.Sel.Name
			case *ast.Ident:
				name = f.Name
			}
			if _, finds := finders[name]; !finds {
				return true
			}
			at := set.Position(call.Pos()).String()
			text, expression := info.Types[call.Args[0]].Value, info.Types[call.Args[1]].Value
			if text == nil || expression == nil {
				passed = append(passed, at)
				return true
			}
			finders[name]++
			re, err := syntax.Parse(constant.StringVal(expression), syntax.Perl)
			require.NoError(t, err, at)
			require.True(t, contains(re, constant.StringVal(text)),
				"%s: a match of %v need not contain %v", at, expression, text)
			return true
		})
	}
	require.Len(t, passed, 2, "only claimAll and match pass on what they are given")
	for name, calls := range finders {
		require.Positive(t, calls, name)
	}
}

// contains reports whether it is sure that each match of an expression contains a text.
func contains(re *syntax.Regexp, text string) bool {
	if text == "" {
		return true
	}
	switch re.Op {
	case syntax.OpLiteral:
		return re.Flags&syntax.FoldCase == 0 && strings.Contains(string(re.Rune), text)
	case syntax.OpCapture, syntax.OpPlus:
		return contains(re.Sub[0], text)
	case syntax.OpRepeat:
		return re.Min > 0 && contains(re.Sub[0], text)
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if contains(sub, text) {
				return true
			}
		}
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			if !contains(sub, text) {
				return false
			}
		}
		return true
	}
	return false
}

func TestContains(t *testing.T) {
	for expression, want := range map[string]bool{
		`a text`: true, `^a (?:text)$`: true, `^a (text)$`: false, `.* text \d+`: true, `(?: text)?`: false,
		`(?: text)+`:   true,
		`(?: text)*`:   false,
		`( text){1,2}`: true, `( text){0,2}`: false, `(?:a text|b text)`: true, `(?:a text|b)`: false,
		`(?i: text)`: false,
		`[ ]text`:    true, `[ -]text`: false,
	} {
		re, err := syntax.Parse(expression, syntax.Perl)
		require.NoError(t, err)
		require.Equal(t, want, contains(re, " text"), expression)
	}
}
