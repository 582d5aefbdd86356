package integration

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStartDirectoryIsFree: paiinit leaves the directory in which it was started: once a rank's processes have left it
// too, users can unmount it while the job runs, on ranks that run a command and on ranks that wait.
func TestStartDirectoryIsFree(t *testing.T) {
	t.Parallel()
	// The agent leaves the directory only when it starts the command, so try several times.
	const free = "cd /; for i in $(seq 500); do umount /tmp/start 2>/dev/null && echo free && break; sleep 0.02; done"
	for name, tt := range map[string]struct {
		flags   []string
		command string
		free    []int // how often each rank prints "free"
	}{
		"rank 0 runs the command": {nil, free + "; /run/bin/paiinit rsh worker-1 '" + free + "'", []int{2, 0}},
		"all run it":              {[]string{"--exec", "all"}, free + "; /run/bin/paiinit barrier free", []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), 2)
			for i := range hosts {
				hosts[i].dir, hosts[i].tmpfs = "/tmp/start", []string{"/tmp/start"}
				hosts[i].flags = append(hosts[i].flags, tt.flags...)
			}
			containers := startAll(t, hosts, "sh", "-c", tt.command)
			require.Equal(t, same(2, 0), statuses(t, containers))
			for i, n := range tt.free {
				want := ""
				for range n {
					want += "free\n"
				}
				require.Equal(t, want, stdout(containers[i]))
			}
		})
	}
}
