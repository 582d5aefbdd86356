package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/statedir"
)

func TestDeepSpeedHostfile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "job", "hostfile")
	var log bytes.Buffer
	at := func(place string) *agreement {
		s := &statedir.Dir{Path: filepath.Join(dir, place)}
		require.NoError(t, os.MkdirAll(s.Path, 0o755))
		require.NoError(t, writeHostfiles(s, []hostfile.Host{{Name: place, Slots: 2}, {Name: "b", Slots: 1}}))
		return &agreement{identity: &identity{
			log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), state: s,
			settings: settings{command: []string{"sh", "train.sh"}},
		}}
	}
	read := func() string {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(b)
	}
	first := at("first")
	first.linkHostfile("deepspeed", name)
	require.Equal(t, "first slots=2\nb slots=1\n", read())
	first.linkHostfile("deepspeed", name) // again, as for a session after the launch
	first.unlinkHostfile()
	require.NoDirExists(t, filepath.Dir(name), "nothing is left behind")

	// A killed paiinit leaves its link and its sockets. The next paiinit reuses its state directory, or takes another
	// one if the sockets are gone.
	first.linkHostfile("deepspeed", name)
	again := at("first")
	again.linkHostfile("deepspeed", name)
	require.Equal(t, "first slots=2\nb slots=1\n", read())
	require.NoError(t, os.WriteFile(first.state.File(statedir.AgentSocket), nil, 0o600))
	second := at("second")
	second.linkHostfile("deepspeed", name)
	require.Equal(t, "first slots=2\nb slots=1\n", read(), "another job is running")
	require.Contains(t, log.String(), "kept the host list that exists already")
	require.Nil(t, second.unlinkHostfile)
	require.NoError(t, os.Remove(first.state.File(statedir.AgentSocket)))
	second.linkHostfile("deepspeed", name)
	require.Equal(t, "second slots=2\nb slots=1\n", read())

	require.NoError(t, os.Remove(name))
	require.NoError(t, os.WriteFile(name, []byte("mine slots=1\n"), 0o644))
	first.linkHostfile("deepspeed", name)
	first.unlinkHostfile()
	require.Equal(t, "mine slots=1\n", read(), "the user's own list stays")
}
