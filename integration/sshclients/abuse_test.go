package sshclients

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/integration/attack"
)

// During each attack people log in from elsewhere, and the memory of the container stays small.
func TestAbuse(t *testing.T) {
	var files syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	for _, a := range attack.All() {
		t.Run(a.Name, func(t *testing.T) {
			if uint64(a.Connections)+500 > files.Cur {
				need(t, fmt.Sprintf("%d connections need a higher limit of open files than %d", a.Connections, files.Cur))
			}
			s := start(t, "")
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
			t.Logf("%d connections; the slowest of 5 logins took %v; %d MB", at.Opened(), worst.Round(time.Millisecond), memory>>20)
			// The benchmarks say how long it takes. In the queue of those who take their time it would be half a minute and more.
			require.Less(t, worst, 20*time.Second)
			require.Less(t, memory, 200<<20)
			stopped = true
			require.NoError(t, at.Stop())
		})
	}
}
