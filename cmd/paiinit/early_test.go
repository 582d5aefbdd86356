package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The agent initialises all packages. The first process starts early because it skips them.
func TestFirstProcessInitialisesLittle(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	state := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(self, "--size=1", "--log-level=error", "--state-dir="+state, "--", "true")
	cmd.Args[0] = "paiinit"
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1", "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 2, strings.Count(string(out), "init runtime @"), "%s", out)
	require.Equal(t, 1, strings.Count(string(out), "init github.com/hashicorp/memberlist @"), "%s", out)
}
