package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

func TestTerminationMessage(t *testing.T) {
	name := filepath.Join(t.TempDir(), "message")
	env := []string{"PAIINIT_TERMINATION_LOG=" + name}
	log := slog.New(slog.DiscardHandler)
	new(settings).writeTermination(env, log, rendezvous.Outcome{Status: 0, Reason: "fine"})
	require.NoFileExists(t, name)
	new(settings).writeTermination(env, log, rendezvous.Outcome{Status: 3, Reason: "because", Next: "try"})
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "paiinit: JOB FAILED, status 3\n  because\n  next: try\n", string(b))
	long := rendezvous.Outcome{Status: 3, Reason: "because", Stderr: strings.Repeat("z\n", 10000) + "end", Next: "try"}
	new(settings).writeTermination(env, log, long)
	b, err = os.ReadFile(name)
	require.NoError(t, err)
	require.InDelta(t, 4096, len(b), 10)
	require.LessOrEqual(t, len(b), 4096)
	require.True(t, strings.HasSuffix(string(b), "\n    end\n  next: try\n"))
	require.True(t, strings.HasPrefix(string(b), "paiinit: JOB FAILED, status 3\n  because\n"))
}
