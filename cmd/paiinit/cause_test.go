package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"log/slog"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

func TestOOMKills(t *testing.T) {
	const v1, v2 = "sys/fs/cgroup/memory/memory.oom_control", "sys/fs/cgroup/memory.events"
	two := []byte("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
	one := []byte("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
	require.Equal(t, 2, oomKills(fstest.MapFS{v2: {Data: two}}))
	require.Equal(t, 1, oomKills(fstest.MapFS{v1: {Data: one}}))
	require.Equal(t, 0, oomKills(fstest.MapFS{v2: {Data: []byte("oom_kill x\n")}}))
	require.Equal(t, 0, oomKills(fstest.MapFS{}))
}

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
