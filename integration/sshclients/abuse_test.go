package sshclients

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/integration/attack"
)

// During each attack people log in from other addresses, and the container's memory stays below 200 MB. Attacks with
// many connections run again with a small RLIMIT_NOFILE.
func TestAbuse(t *testing.T) {
	const few = 1024
	for _, a := range attack.All() {
		t.Run(a.Name, func(t *testing.T) { abuse(t, a, 0) })
		if a.Connections >= few {
			t.Run(a.Name+", few files", func(t *testing.T) { abuse(t, a, few) })
		}
	}
}

// abuse attacks a container whose RLIMIT_NOFILE is files; 0 = that of this process.
func abuse(t *testing.T, a attack.Attack, files int) {
	var own syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own))
	if uint64(a.Connections)+500 > own.Cur {
		need(t, fmt.Sprintf("%d connections need a higher limit of open files than %d", a.Connections, own.Cur))
	}
	dir := t.TempDir()
	s := startWith(t, filesIn(dir), "", func(s *server, cmd *exec.Cmd) {
		if a.Gossip {
			waiting(s, cmd)
		}
		if files > 0 {
			limited(cmd, files)
		}
	})
	at, err := a.Start(t.Context(), s.addr())
	require.NoError(t, err)
	stopped := false
	defer func() {
		if !stopped {
			_ = at.Stop()
		}
	}()
	var worst time.Duration
	memory := 0
	for i := range 5 {
		begin := time.Now()
		client, err := ssh.Dial("tcp", s.addr(), s.config(t, "root", s.person.signer))
		require.NoError(t, err)
		require.NoError(t, short(client, int64(i)))
		require.NoError(t, client.Close())
		worst = max(worst, time.Since(begin))
		memory = max(memory, s.pss(t))
		time.Sleep(50 * time.Millisecond) // the attack goes on
	}
	t.Logf("%d connections; the slowest of 5 logins took %v; %d MB",
		at.Opened(), worst.Round(time.Millisecond), memory>>20)
	// docs/benchmarks.md has the usual time. A login that queues behind the attack takes half a minute and more.
	require.Less(t, worst, 20*time.Second)
	require.Less(t, memory, 200<<20)
	stopped = true
	require.NoError(t, at.Stop())
}

// limited lowers RLIMIT_NOFILE for a command.
func limited(cmd *exec.Cmd, files int) {
	shell := []string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$@"`, files), "sh"}
	cmd.Path, cmd.Args = "/bin/sh", append(shell, append([]string{cmd.Path}, cmd.Args[1:]...)...)
}
