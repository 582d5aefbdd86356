package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDemo runs the demo as root and as another user, where namespaces are refused, and with a host that is lost.
func TestDemo(t *testing.T) {
	if _, err := exec.LookPath("mpirun"); err != nil || os.Geteuid() != 0 {
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal("the demo's test needs root and mpirun")
		}
		t.Skip("needs root, to become another user, and mpirun")
	}
	dir, err := os.MkdirTemp("", "demo") // other users may search it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755)) // #nosec G302 -- as above
	demo, paiinit := filepath.Join(dir, "demo"), filepath.Join(dir, "paiinit")
	for program, source := range map[string]string{demo: ".", paiinit: "../../cmd/paiinit"} {
		build := exec.Command("go", "build", "-o", program, source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	require.NoError(t, os.CopyFS(filepath.Join(dir, "examples"), os.DirFS("../../examples")))
	run := func(t *testing.T, uid uint32, script string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c", script)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + path, "HOME=/tmp", "DEMO=" + demo + " -n 3 -bin " + paiinit}
		if uid != 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	const refused = "unshare --user --map-root-user sh -c 'echo 0 >/proc/sys/user/max_net_namespaces; exec $DEMO "
	lost := func(t *testing.T, out string) {
		assert.Contains(t, out, "missing: worker-2 (")
		assert.Equal(t, 2, strings.Count(out, "error: JOB FAILED, status 75, after "), out)
		const living = "\nworker-0 exited with 75\nworker-1 exited with 75\nworker-2 exited with "
		assert.Regexp(t, living+"(137|70)\n$", out) // 70: the agent alone was killed
	}
	const well = "worker-0 exited with 0\nworker-1 exited with 0\nworker-2 exited with 0\n"
	for name, uid := range map[string]uint32{"root": 0, "another user": 1000} {
		t.Run(name, func(t *testing.T) {
			out := run(t, uid, "exec $DEMO")
			assert.Contains(t, out, "\nthe sum over 6 ranks on 3 hosts is 21\n")
			assert.NotContains(t, out, "never")
			assert.True(t, strings.HasSuffix(out, well), out)
		})
		t.Run(name+" loses a host", func(t *testing.T) { lost(t, run(t, uid, "exec $DEMO -fail")) })
	}
	t.Run("no namespaces", func(t *testing.T) {
		out := run(t, 0, refused+"'")
		assert.Contains(t, out, "cannot run on this machine:\n  namespaces do not work here")
		assert.Contains(t, out, " | rank 2 of 3, rank 0 is at 127.0.0.1\n")
		assert.True(t, strings.HasSuffix(out, well), out)
	})
	t.Run("another user without a program", func(t *testing.T) { // in a network namespace of the demo's own
		out := run(t, 1000, "PATH=/nowhere; exec $DEMO")
		assert.Contains(t, out, "cannot run on this machine:\n")
		assert.Contains(t, out, "nsenter: not found")
		assert.True(t, strings.HasSuffix(out, well), out)
	})
	t.Run("no namespaces, too late", func(t *testing.T) {
		out := run(t, 0, strings.TrimSuffix(refused, "exec $DEMO ")+"! $DEMO -fail -timeout 2s'")
		assert.Contains(t, out, "demo: context deadline exceeded\n")
		programs, err := filepath.Glob("/proc/[0-9]*/exe")
		require.NoError(t, err)
		for _, name := range programs {
			target, _ := os.Readlink(name) // it may have ended
			assert.NotEqual(t, paiinit, target, "%s still runs", name)
		}
	})
	t.Run("not -fail and a command", func(t *testing.T) {
		assert.Contains(t, run(t, 0, "! $DEMO -fail -- true 2>&1"), "demo: -fail shows a command of the demo's own")
	})
	t.Run("no namespaces, loses a host", func(t *testing.T) { lost(t, run(t, 0, refused+"-fail'")) })
}
