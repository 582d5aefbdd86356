package statedir

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSeveralError(t *testing.T) {
	err := &SeveralError{[]Identity{
		{Alias: "worker-0", Rank: 0, Job: "a", PID: 7, dir: "/run/paiinit"},
		{Alias: "worker-1", Rank: -1, dir: "/dev/shm/x"},
	}}
	require.EqualError(t, err, "2 paiinits are running here, say which one with PAIINIT_STATE_DIR: "+
		"worker-0 (rank 0) of job a, process 7, state directory /run/paiinit; worker-1, state directory /dev/shm/x")
}
