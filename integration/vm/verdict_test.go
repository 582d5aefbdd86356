package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/sample"
	"github.com/paiinit/paiinit/integration/vm/wire"
)

// pair boots two machines that a wire connects.
func pair(t *testing.T) [2]machine {
	t.Helper()
	k := requireKit(t)
	dir, err := os.MkdirTemp(built, "w")
	require.NoError(t, err)
	var ms [2]machine
	for i := range ms { // the first one listens
		ms[i] = boot(t, k, func(c *Config) {
			c.Link, c.Listen, c.Address = filepath.Join(dir, "wire"), i == 0, byte(i+1)
		})
		ms[i].must(fmt.Sprintf(`
			ip link set lo up
			ip addr add 10.0.0.%d/24 dev eth0
			ip link set eth0 up
			guest hostname host-%d`, i+1, i))
	}
	return ms
}

// launch runs paiinit on both machines.
func launch(t *testing.T, ms [2]machine, policy string, command ...string) [2]wire.Result {
	t.Helper()
	var results [2]wire.Result
	var running sync.WaitGroup
	for i, m := range ms {
		running.Go(func() {
			results[i] = m.run(wire.Command{
				Args: append([]string{"paiinit", "--rdma", policy, "--"}, command...), Seconds: 120,
				Env: []string{"PAIINIT_LOG_FORMAT=logfmt", "PAIINIT_LOG_LEVEL=debug",
					"PAIINIT_SECRET=correct horse battery staple", "PAIINIT_PEERS=10.0.0.1,10.0.0.2",
					fmt.Sprintf("PAIINIT_RANK=%d", i), "PAIINIT_ROLE=worker", fmt.Sprintf("PAIINIT_INDEX=%d", i)},
			})
		})
	}
	running.Wait()
	return results
}

// TestVerdict runs jobs on two hosts: first only one of them has a device, then both.
func TestVerdict(t *testing.T) {
	sample.OneIn(t, 2)
	ms := pair(t)
	ms[0].must("rdma link add rxe0 type rxe netdev eth0")

	r := launch(t, ms, "auto", "guest", "env")
	require.Equal(t, [2]int{0, 0}, [2]int{r[0].Status, r[1].Status}, "%+v", r)
	require.Regexp(t, `msg=fabric self=worker-0 phase=check .*verdict="TCP: not every rank can use software RDMA".*`+
		`rank 1 worker-1 \(no verbs device\)`, r[0].Stderr)
	require.Contains(t, r[0].Stdout, "OMPI_MCA_pml=ob1\n")
	require.Contains(t, r[0].Stdout, "NCCL_IB_DISABLE=1\n")
	require.Contains(t, r[0].Stdout, "UCX_TLS=tcp,self,sm\n")

	r = launch(t, ms, "require", "guest", "env")
	require.Equal(t, [2]int{69, 69}, [2]int{r[0].Status, r[1].Status}, "%+v", r)
	for _, one := range r {
		require.Contains(t, one.Stderr,
			"RDMA is required, but not usable on every rank: rank 1 worker-1 (no verbs device)")
		require.Empty(t, one.Stdout, "nothing was launched")
	}

	// The second host's device has another name, which its own sessions must get.
	ms[1].must("rdma link add rxe7 type rxe netdev eth0")
	r = launch(t, ms, "require", "sh", "-c", "paiinit rsh host-1 'guest env'")
	require.Equal(t, [2]int{0, 0}, [2]int{r[0].Status, r[1].Status}, "%+v", r)
	require.Contains(t, r[0].Stderr, `verdict="software RDMA on all ranks"`)
	require.Contains(t, r[0].Stdout, "UCX_NET_DEVICES=rxe7:1\n")
	require.Contains(t, r[0].Stdout, "NCCL_IB_HCA==rxe7:1\n")
	require.Contains(t, r[0].Stdout, "OMPI_MCA_pml=ucx\n")

	r = launch(t, ms, "off", "guest", "env")
	require.Equal(t, [2]int{0, 0}, [2]int{r[0].Status, r[1].Status}, "%+v", r)
	for _, name := range []string{"OMPI_MCA_pml", "UCX_", "NCCL_"} {
		require.NotContains(t, r[0].Stdout, name)
	}
	require.False(t, strings.Contains(r[0].Stderr, "verbs devices"), "paiinit must not look for devices")
}
