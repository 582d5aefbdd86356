package docker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stockConf are the lines with which Horovod's own images configure Open MPI (its Dockerfile).
const stockConf = "hwloc_base_binding_policy = none\nrmaps_base_mapping_policy = slot\nbtl_tcp_if_exclude = lo,docker0\n"

// Horovod in Docker on several machines: the host's network, a shared directory with the keys in ~/.ssh, the hosts by
// name, and the port told to Open MPI.
func TestHorovodInDocker(t *testing.T) {
	documented(t, "sum = 10, expected 10 (host1, host2)", func(t *testing.T, args string) (*job, []func()) {
		s := newSite(t, horovodSuites[false], "host1", "host2")
		keys, conf := t.TempDir(), filepath.Join(t.TempDir(), "conf")
		require.NoError(t, os.WriteFile(filepath.Join(keys, "id_rsa"), []byte("-----BEGIN KEY-----\na shared key of a test\n"), 0o600))
		require.NoError(t, os.WriteFile(conf, []byte(stockConf), 0o600))
		examples, err := filepath.Abs(filepath.Join(root, "examples"))
		require.NoError(t, err)
		command := "mpirun -np 4 -H host1:2,host2:2 -mca plm_rsh_args \"-p 12345\" python /examples/allreduce.py" + args
		var start []func()
		for i := range s.hosts {
			start = append(start, func() {
				s.run(t, i, "--volume", keys+":/root/.ssh:ro", "--volume", conf+":/etc/openmpi/openmpi-mca-params.conf:ro",
					"--volume", examples+":/examples:ro",
					"--env", "PAIINIT_PEERS="+strings.Join(s.names, ","), "--env", "PAIINIT_SECRET_FILE=/root/.ssh/id_rsa",
					"--entrypoint", "paiinit", "IMAGE", "--", "sh", "-c", command)
			})
		}
		return s.job, start
	})
}
