package screens

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	t.Setenv("PAIINIT_UPDATE", "")
	page := filepath.Join(t.TempDir(), "page.md")
	const text = "# A page\n\n<!-- screen: one -->\n```text\n08:00:00 a: hello\n" +
		"08:00:01 a: error: FAILED, after 1m02s\n  dialled 3 to 4 times in 5 s\n```\n\n" +
		"<!-- screen: empty -->\n```text\n08:00:00 a: hello\n```\n"
	require.NoError(t, os.WriteFile(page, []byte(text), 0o600))
	for name, tt := range map[string]struct{ screen, log, want string }{
		"other numbers":  {"one", "a: error: FAILED, after 3.5 s\n  dialled 12 times in 10 s\n\n", ""},
		"once":           {"one", "a: error: FAILED, after 3.5 s\n  dialled 1 time in 10 s\n", ""},
		"other words":    {"one", "a: error: FAILED, after 3.5 s\n  called 12 times in 10 s\n", "printed was:"},
		"no end":         {"one", "a: hello\n", "printed was:"},
		"none on a page": {"empty", "a: hello\n", "printed was:"},
		"no such screen": {"two", "a: error: x\n", "has no screen two"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(page, tt.screen, tt.log)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
	require.NoError(t, CheckAll(page, "empty", "09:00:00 a: hello"))
	require.ErrorContains(t, CheckAll(page, "empty", "09:00:00 a: hello you"), "printed was:")
	t.Setenv("PAIINIT_UPDATE", "1")
	require.NoError(t, Check(page, "empty", "a: error: new"))
	after, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(after), "<!-- screen: empty -->\n```text\na: error: new\n```\n")
	names, err := Names(string(after))
	require.NoError(t, err)
	require.Equal(t, []string{"one", "empty"}, names)
	_, err = Names("<!-- screen: three -->\n")
	require.Error(t, err)
}
