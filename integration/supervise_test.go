package integration

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// MPICH's hydra hangs for ever when one of its proxies is killed. paiinit does not wait with it.
func TestKilledProxy(t *testing.T) {
	containers := startAll(t, peersHosts(t, newLab(t), 4), "mpiexec.hydra", "python3", allreduce, "--sleep", "1000")
	waitLine(t, containers[0], "sum = 36")
	processes, err := containers[2].Processes()
	require.NoError(t, err)
	killed := 0
	for _, p := range processes {
		if len(p.Args) > 0 && filepath.Base(p.Args[0]) == "hydra_pmi_proxy" {
			killed++
			require.NoError(t, syscall.Kill(p.PID, syscall.SIGKILL))
		}
	}
	require.Equal(t, 1, killed)
	require.Equal(t, same(4, 75), statuses(t, containers))
	waitLine(t, containers[3], "proxy on worker-2 ended with status 137")
}
