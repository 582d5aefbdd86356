package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"log/slog"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

func TestFirstCause(t *testing.T) {
	for _, tt := range []struct {
		want string
		r    launch.Result
		oom  int
	}{
		{"rank 0's command x ended with status 0", launch.Result{Tail: []string{"fine"}}, 0},
		{"rank 0's command x ended with status 3; its last lines on stderr:\na\nb", launch.Result{Code: 3, Tail: []string{"a", "b"}}, 0},
		{"rank 0's command x was ended by SIGKILL; the kernel killed a process for lack of memory on rank 0", launch.Result{Signal: syscall.SIGKILL}, 1},
		{"rank 0's command x ended with status 0 after SIGTERM was passed on to it", launch.Result{Forwarded: syscall.SIGTERM}, 0},
	} {
		require.Equal(t, tt.want, firstCause(0, "x", tt.r, tt.oom))
	}
	long := firstCause(7, "x", launch.Result{Code: 1, Tail: []string{strings.Repeat("y", 5000)}}, 0)
	require.Less(t, len(long), 2*tailWidth)
}

func TestOOMKills(t *testing.T) {
	require.Equal(t, 2, oomKills(fstest.MapFS{"sys/fs/cgroup/memory.events": {Data: []byte("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")}}))
	require.Equal(t, 1, oomKills(fstest.MapFS{"sys/fs/cgroup/memory/memory.oom_control": {Data: []byte("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")}}))
	require.Equal(t, 0, oomKills(fstest.MapFS{"sys/fs/cgroup/memory.events": {Data: []byte("oom_kill x\n")}}))
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
