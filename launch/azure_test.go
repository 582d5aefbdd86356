package launch

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExpandAzureWords(t *testing.T) {
	environ := []string{"NODE_RANK=0", "AZUREML_MPI_HOSTFILE=/run/h", "MASTER_PORT=29500"}
	for name, tt := range map[string]struct{ in, want []string }{
		"without a dollar": {
			[]string{"mpirun", "--hostfile", "AZUREML_MPI_HOSTFILE", "-bind-to", "none", "WORLD_SIZE"},
			[]string{"mpirun", "--hostfile", "/run/h", "-bind-to", "none", "4"},
		},
		"with a dollar, in exec form": {
			[]string{"mpirun", "--hostfile", "$AZUREML_MPI_HOSTFILE", "-bind-to", "none"},
			[]string{"mpirun", "--hostfile", "/run/h", "-bind-to", "none"},
		},
		"with braces": {
			[]string{"python", "-m", "torch.distributed.launch",
				"--node_rank", "${NODE_RANK}", "--nnodes", "${WORLD_SIZE}"},
			[]string{"python", "-m", "torch.distributed.launch", "--node_rank", "0", "--nnodes", "4"},
		},
		"behind an option": {
			[]string{"torchrun", "--node-rank=NODE_RANK", "--master-port=$MASTER_PORT", "--nnodes=${WORLD_SIZE}",
				"-hostfile=AZUREML_MPI_HOSTFILE"},
			[]string{"torchrun", "--node-rank=0", "--master-port=29500", "--nnodes=4", "-hostfile=/run/h"},
		},
		"the command itself": {[]string{"NODE_RANK"}, []string{"NODE_RANK"}},
		"no value": {
			[]string{"x", "$MASTER_ADDR", "--a=MASTER_ADDR"},
			[]string{"x", "$MASTER_ADDR", "--a=MASTER_ADDR"},
		},
		"parts of an argument": {
			[]string{"sh", "-c", "echo $NODE_RANK", "${NODE_RANK", "NODE_RANK}", "$$NODE_RANK", "$NODE_RANK ",
				"rank=NODE_RANK", "--a=b=NODE_RANK"},
			[]string{"sh", "-c", "echo $NODE_RANK", "${NODE_RANK", "NODE_RANK}", "$$NODE_RANK", "$NODE_RANK ",
				"rank=NODE_RANK", "--a=b=NODE_RANK"},
		},
		"names of variables that a launcher passes on": {
			[]string{"mpirun", "-x", "MASTER_PORT", "-genv", "NODE_RANK", "NODE_RANK", "-x", "$MASTER_PORT"},
			[]string{"mpirun", "-x", "MASTER_PORT", "-genv", "NODE_RANK", "0", "-x", "29500"},
		},
		"the same option of another program": {[]string{"./train", "-x", "NODE_RANK"}, []string{"./train", "-x", "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := slices.Clone(tt.in)
			got, replaced := ExpandAzureWords(in, environ, 4)
			require.Equal(t, tt.want, got)
			require.Equal(t, slices.Equal(tt.want, tt.in), len(replaced) == 0)
			require.Equal(t, tt.in, in, "the caller's words stay")
		})
	}
}
