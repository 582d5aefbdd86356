package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const torchTime = 10 * time.Minute // several processes import PyTorch, beside other tests

func TestTorch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, suite string
		size        int
		flags       []string
		command     string
	}{
		{"torchrun", "trixie", 6, everywhere, "torchrun --nproc-per-node 2 /examples/ddp.py"},
		{"torchrun c10d", "trixie", 6, everywhere, "torchrun --rdzv-backend c10d /examples/ddp.py"},
		{"env", "trixie", 3, everywhere, "python3 /examples/ddp.py"},
		{"mpi", "trixie", 6, nil, "mpirun python3 /examples/ddp.py --backend mpi"},
		// As in a job specification of Azure ML, paiinit replaces the words by the values. --redirects and --tee are
		// set because PyTorch 1.13 rejects its own default under Python 3.11, in which zero is not a member of a Flag.
		{"torch.distributed.launch", "bookworm", 6, everywhere,
			"python3 -m torch.distributed.launch --redirects 2 --tee 1 --nnodes 3 --nproc_per_node 2 " +
				"--node_rank NODE_RANK --master_addr MASTER_ADDR --master_port MASTER_PORT /examples/ddp.py"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := newJob(t, tt.suite)
			j.withoutLibuv(t, strings.HasPrefix(tt.command, "torchrun"))
			j.start(t, ranks, ranks, tt.flags, strings.Fields(tt.command)...)
			require.Equal(t, same(0), j.wait(t, torchTime))
			requireTrained(t, j, tt.size)
		})
	}
}

// withoutLibuv is a sitecustomize.py that makes PyTorch not use libuv: Debian's PyTorch 2.6 uses it by default, but is
// built without it.
const withoutLibuv = `
import torch.distributed as dist
init = dist.TCPStore.__init__
def without_libuv(self, *args, **kwargs):
    init(self, *args, **{**kwargs, "use_libuv": False})
dist.TCPStore.__init__ = without_libuv
`

func (j *job) withoutLibuv(t *testing.T, torchrun bool) {
	t.Helper()
	j.env = append(j.env, "USE_LIBUV=0")
	if !torchrun {
		return
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte(withoutLibuv), 0o644))
	j.env = append(j.env, "PYTHONPATH=/site")
	j.volumes = append(j.volumes, dir+":/site:ro")
}

var everywhere = []string{"--exec", "all"}

// requireTrained fails unless every process reports its training, all with the same loss.
func requireTrained(t *testing.T, j *job, size int) {
	t.Helper()
	seen := map[int]bool{}
	var losses string
	for i := range j.containers {
		out, _ := j.output(t, i)
		for line := range strings.Lines(out) {
			if i := strings.Index(line, "]:"); i >= 0 {
				line = line[i+2:] // skip the process that --tee names
			}
			var rank, of int
			if n, _ := fmt.Sscanf(line, "rank %d of %d:", &rank, &of); n != 2 {
				continue
			}
			require.Equal(t, size, of)
			require.False(t, seen[rank], "rank %d twice", rank)
			seen[rank] = true
			_, loss, _ := strings.Cut(line, ": ")
			if losses == "" {
				losses = loss
			}
			require.Equal(t, losses, loss)
		}
	}
	require.Len(t, seen, size)
}

func TestTorchFailingRank(t *testing.T) {
	j := newJob(t, "trixie")
	j.withoutLibuv(t, false)
	j.start(t, ranks, ranks, everywhere, "python3", "/examples/ddp.py", "--fail", "1")
	require.Equal(t, same(3), j.wait(t, torchTime))
	_, says := j.output(t, 2)
	require.Contains(t, says, "rank 1's command python3 ended with status 3")
}
