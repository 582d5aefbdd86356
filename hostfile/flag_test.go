package hostfile

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSet(t *testing.T) {
	d := OpenMPI
	for _, want := range []Dialect{Hydra, Horovod, DeepSpeed, OpenMPI} {
		require.NoError(t, d.Set(string(want)))
		require.Equal(t, want, d)
		require.Equal(t, string(want), d.String())
	}
	require.EqualError(t, d.Set("mpich"), "want openmpi, hydra, horovod or deepspeed")
	require.Error(t, d.Set(""))
	require.Equal(t, OpenMPI, d)
}
