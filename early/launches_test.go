package early

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/pid1"
)

func TestLaunches(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(self, filepath.Join(bin, "other-name")))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "train"), nil, 0o755))
	t.Setenv("PATH", "/nowhere:"+bin)
	for line, want := range map[string]bool{
		"paiinit|true":                         true,
		"/usr/bin/paiinit|--|train|--lr|1":     true,
		"paiinit|run|train":                    true,
		"paiinit|--timeout|1m|--|train":        true,
		"paiinit|--timeout|1m|--insecure|sh":   true,
		"paiinit|sh|-c|paiinit":                true,
		"paiinit|sh|-c|x|--|-y":                true,
		"paiinit":                              true, // a worker needs no command
		"paiinit|--role|worker":                true,
		"paiinit|--":                           true,
		"paiinit|--state-dir|/x|train|version": true,

		"paiinit|version":                        false,
		"paiinit|status|--json":                  false,
		"paiinit|--help":                         false,
		"paiinit|-|--generate-bash-completion":   false,
		"paiinit|rsh|host|true":                  false,
		"paiinit|--|paiinit|status":              false,
		"paiinit|--size|1|/x/paiinit|status":     false,
		"paiinit|--insecure|paiinit|status":      false,
		"paiinit|--|other-name|status":           false,
		"paiinit|--size|1|other-name|status":     false,
		"paiinit|" + bin + "/other-name|version": false,
		"paiinit|--|--timeout|1m|train":          false,
		"horovodrun|-np|2|train":                 false,
		"ssh|host|true":                          false,
		"entrypoint|true":                        false,
		"":                                       false,
	} {
		require.Equal(t, want, launches(strings.Split(line, "|"), []string{"HOME=/"}), "%q", line)
	}
	require.False(t, launches(nil, nil))
}

// A process that learns only later which process it is would end the container with the wrong status.
func TestLaunchesOfOtherProcesses(t *testing.T) {
	require.Equal(t, envspec.NestedVariables(), nested())
	args := []string{"paiinit", "true"}
	require.True(t, launches(args, []string{"PMI_RANKS=1", "PMI_RANK"}))
	for _, name := range append(envspec.NestedVariables(), pid1.Variable) {
		require.False(t, launches(args, []string{"HOME=/", name + "=1"}), name)
	}
}
