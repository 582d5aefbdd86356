//go:build skew

package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSkew: one rank has an earlier version of paiinit, the file in PAIINIT_TEST_OLD. All ranks end with 69, before the
// launch, and name both versions.
func TestSkew(t *testing.T) {
	t.Parallel()
	old, err := filepath.Abs(os.Getenv("PAIINIT_TEST_OLD"))
	require.NoError(t, err)
	require.FileExists(t, old, "PAIINIT_TEST_OLD")
	for name, earlier := range map[string]int{"rank 0 is earlier": 0, "a worker is earlier": 1} {
		t.Run(name, func(t *testing.T) {
			hosts := withInput(peersHosts(t, newLab(t), 3))
			hosts[earlier].binds = map[string]string{"/run/bin/paiinit": old}
			for i := range hosts {
				hosts[i].flags = []string{"--timeout", "20s"}
				hosts[i].env["PAIINIT_LOG_FORMAT"] = "json" // of all builds
			}
			containers := startAll(t, hosts, "mpirun", "python3", allreduce)
			require.Equal(t, same(3, 69), statuses(t, containers))
			for _, c := range containers {
				require.Regexp(t, `different versions of paiinit: worker-0 has .+, worker-1 has |`+
					`another version of paiinit.*its protocol is \d+, ours \d+`, stderr(c))
			}
		})
	}
}
