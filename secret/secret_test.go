package secret_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/secret"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	named, shared := write("named", "of a file \r\n\n"), write("shared", "\tof the scheduler")
	empty, long := write("empty", ""), write("long", strings.Repeat("x", 1<<17))
	for name, tt := range map[string]struct {
		named, variable, shared string
		want, file              string
	}{
		"none":                 {},
		"all":                  {named, "of a variable", shared, "of a file ", named},
		"a variable first":     {"", "of a variable\n", shared, "of a variable", ""},
		"an empty variable":    {"", "", shared, "\tof the scheduler", shared},
		"a long file":          {long, "", "", strings.Repeat("x", 1<<16), long},
		"only line ends":       {"", "\r\n", shared, "", ""},
		"a file that is empty": {empty, "of a variable", "", "", empty},
	} {
		t.Run(name, func(t *testing.T) {
			variable := []byte(tt.variable)
			got, file, err := secret.Find(tt.named, variable, tt.shared)
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
			require.Equal(t, tt.file, file)
			require.Equal(t, name == "none", got == nil, "an empty secret is a secret: it gets refused")
			if file == "" {
				clear(got)
				require.NotContains(t, string(variable), "variable", "it is no copy")
			}
		})
	}
	for _, file := range []string{dir, dir + "/none"} {
		_, _, err := secret.Find(file, []byte("of a variable"), shared)
		require.ErrorContains(t, err, "reading the secret: ")
		require.ErrorContains(t, err, file)
	}
}
