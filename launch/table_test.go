package launch

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWriteVars(t *testing.T) {
	var out strings.Builder
	require.NoError(t, WriteVars(&out, "commands get", nil))
	require.Empty(t, out.String())
	vars := []Var{{"A", "1", "why one"}, {Name: "B"}}
	require.NoError(t, WriteVars(&out, "commands get", vars))
	require.Equal(t, "\ncommands get\n    A=1\n        why one\n    B=\n        \n", out.String())
	full := errors.New("full")
	require.ErrorIs(t, WriteVars(fullFile{full}, "commands get", vars), full)
}

// fullFile fails every Write.
type fullFile struct{ err error }

func (f fullFile) Write([]byte) (int, error) { return 0, f.err }
