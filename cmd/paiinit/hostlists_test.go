package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/hostfile"
)

func TestDeepSpeedHostfile(t *testing.T) {
	c := &container{log: slog.New(slog.DiscardHandler)}
	name := filepath.Join(t.TempDir(), "job", "hostfile")
	c.writeDeepSpeed(name, []hostfile.Host{{Name: "a", Slots: 2}, {Name: "b", Slots: 1}})
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "a slots=2\nb slots=1\n", string(b))
	c.writeDeepSpeed(name, []hostfile.Host{{Name: "c", Slots: 1}})
	again, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, b, again, "the user's own list stays")
}
