package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
)

// paiinit runs the image's launchers with --version, also after the launch. These processes have no ranks.
func TestVersionsAreNoLaunchers(t *testing.T) {
	script := filepath.Join(t.TempDir(), "mpirun")
	text := []byte("#!/bin/sh\necho ready\nread x\n")
	require.NoError(t, os.WriteFile(script, text, 0o755)) //nolint:gosec // a program
	for words, want := range map[string]bool{"--version": false, "": true, "-np 2 train --version": true} {
		cmd := exec.CommandContext(t.Context(), script, strings.Fields(words)...)
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = stdout.Read(make([]byte, 10))
		require.NoError(t, err)
		found := launch.RankLaunchers(new(container).jobMembers())
		require.Equal(t, want, slices.Contains(found, cmd.Process.Pid), words)
		require.NoError(t, stdin.Close())
		_ = cmd.Wait() // fails, because the shell's read reached the end of its input
	}
}
