package sshclients

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/integration/attack"
	"github.com/paiinit/paiinit/integration/sample"
)

// TestAbuse: during each attack, and during all at once, logins from other addresses succeed, and the container's
// memory stays below 200 MB. During those with requests, probes from other addresses are answered. Attacks with many
// connections run again with a small RLIMIT_NOFILE. Limits above 16,384 make no difference: a quarter of it exceeds the
// maximum of the SSH server, and an eighth that of the port.
func TestAbuse(t *testing.T) {
	const few = 1024
	for _, a := range attack.All() {
		t.Run(a.Name, func(t *testing.T) { abuse(t, 0, a) })
		if a.Connections >= few {
			t.Run(a.Name+", few files", func(t *testing.T) { abuse(t, few, a) })
		}
	}
	t.Run("all at once", func(t *testing.T) { abuse(t, 0, attack.All()...) })
	t.Run("all at once, few files", func(t *testing.T) { abuse(t, few, attack.All()...) })
}

// abuse attacks a container whose RLIMIT_NOFILE is files; 0 = the limit of this process.
func abuse(t *testing.T, files int, attacks ...attack.Attack) {
	sample.OneIn(t, 8)
	connections, gossip, probed := 500, false, len(attacks) == 1 && attacks[0].HTTP
	for _, a := range attacks {
		connections += a.Connections
		gossip = gossip || a.Gossip
	}
	room(t, connections)
	dir := t.TempDir()
	s := startWith(t, filesIn(dir), "", func(s *server, cmd *exec.Cmd) {
		if gossip {
			waiting(s, cmd)
		}
		if probed {
			cmd.Args = slices.Insert(cmd.Args, 1, "--http")
		}
		if files > 0 {
			limited(cmd, files)
		}
	})
	spared := start(t, "") // nobody attacks it: its logins show what the machine leaves to any
	login := func(to *server, config *ssh.ClientConfig, n int64) (time.Duration, error) {
		const limit = 30 * time.Second // of the server and of the client, which a busy machine may exceed
		begin := time.Now()
		client, err := ssh.Dial("tcp", to.addr(), config)
		for try := time.Duration(1); err != nil && time.Since(begin) >= try*limit && try < 5; try++ {
			t.Logf("login %d was late: %v", n, err)
			client, err = ssh.Dial("tcp", to.addr(), config)
		}
		if err == nil {
			err = errors.Join(short(client, n), client.Close())
		}
		return time.Since(begin), err
	}
	memory := 0
	logIn := func(n int64) (attacked, other time.Duration) {
		own, others := s.config(t, "root", s.person.signer), spared.config(t, "root", spared.person.signer)
		var errs [2]error
		var both sync.WaitGroup
		both.Go(func() { attacked, errs[0] = login(s, own, n) })
		both.Go(func() { other, errs[1] = login(spared, others, n) })
		both.Wait()
		require.NoError(t, errs[0])
		require.NoError(t, errs[1], "the container that nobody attacks")
		if probed {
			for _, path := range []string{"livez", "readyz"} {
				answer, err := http.Get("http://" + s.addr() + "/" + path)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				require.Equal(t, http.StatusOK, answer.StatusCode)
			}
		}
		memory = max(memory, s.pss(t))
		return attacked, other
	}
	alone, _ := logIn(0)
	var running []*attack.Running
	defer func() {
		for _, r := range running {
			assert.NoError(t, r.Stop())
		}
	}()
	for _, a := range attacks {
		r, err := a.Start(t.Context(), s.addr())
		require.NoError(t, err)
		running = append(running, r)
	}
	logins := 5
	if len(attacks) > 1 {
		logins = 2 // each takes as long as another test
	}
	var worst, usual time.Duration
	for i := range logins {
		attacked, other := logIn(int64(1 + i))
		worst, usual = max(worst, attacked), max(usual, other)
		time.Sleep(50 * time.Millisecond) // spread the logins over the attack
	}
	opened := 0
	for _, r := range running {
		opened += r.Opened()
	}
	t.Logf("%d connections; the slowest of %d logins took %v, beside it %v where nobody attacks; %d MB",
		opened, logins, worst.Round(time.Millisecond), usual.Round(time.Millisecond), memory>>20)
	// docs/benchmarks.md has the usual times. A login that queues behind an attack takes half a minute or more; on a
	// machine where a login to any container takes two seconds, it takes longer for that reason. All attacks together
	// leave a login too little CPU for a bound.
	if len(attacks) == 1 {
		require.Less(t, worst, max(20*time.Second, 10*max(alone, usual)))
	}
	require.Less(t, memory, 190<<20) // 10 for the pages of the program that the other container shares
}

// room raises the limit of open files of this process to files.
func room(t *testing.T, files int) {
	var own syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own))
	if own.Max >= uint64(files) {
		return
	}
	more := syscall.Rlimit{Cur: uint64(files), Max: uint64(files)}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more); err != nil {
		need(t, fmt.Sprintf("%d open files need a higher limit than %d (%v)", files, own.Max, err))
	}
}

// limited lowers RLIMIT_NOFILE for a command.
func limited(cmd *exec.Cmd, files int) {
	shell := []string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$@"`, files), "sh"}
	cmd.Path, cmd.Args = "/bin/sh", append(shell, append([]string{cmd.Path}, cmd.Args[1:]...)...)
}
