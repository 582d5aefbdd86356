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
	new(settings).writeTermination(env, log, rendezvous.Outcome{Status: 3, Reason: "because"})
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "paiinit: the job ended with status 3: because\n", string(b))
	new(settings).writeTermination(env, log, rendezvous.Outcome{Status: 3, Reason: strings.Repeat("z", 10000)})
	b, err = os.ReadFile(name)
	require.NoError(t, err)
	require.Len(t, b, maxTermination)
}
