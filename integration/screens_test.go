package integration

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
	"github.com/paiinit/paiinit/integration/screens"
)

// TestScreens: the failures of docs/troubleshooting.md that need several hosts, as their logs show them.
func TestScreens(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		size    int
		change  func(t *testing.T, l *lab.Lab, hosts []host) []host // returns the hosts that start
		status  int
		shown   map[string]int // name of the screen, and the host that prints it
		command []string       // default: true
	}{
		"firewall": {
			3, func(t *testing.T, _ *lab.Lab, hosts []host) []host {
				closeHost(t, hosts[2])
				return hosts
			},
			75, map[string]int{"firewall-rank-0": 0, "firewall-rank-2": 2}, nil,
		},
		"two ranks 0": {
			3, func(_ *testing.T, _ *lab.Lab, hosts []host) []host {
				hosts[1].env["PAIINIT_INDEX"] = "0"
				return hosts
			},
			78, map[string]int{"two-rank-0": 2}, nil,
		},
		"a name": {
			3, func(_ *testing.T, l *lab.Lab, hosts []host) []host {
				for i, name := range []string{"worker-0.training", "worker-1.training"} {
					l.Name(name, hosts[i].machine.Addr)
				}
				for i := range hosts {
					hosts[i].env["PAIINIT_PEERS"] = "worker-0.training,worker-1.training,worker-2.training"
				}
				return hosts[:2]
			},
			75, map[string]int{"name": 0}, nil,
		},
		"many": {
			64, func(_ *testing.T, _ *lab.Lab, hosts []host) []host {
				others := append(hosts[1:17:17], hosts[19:]...)
				for i := range others { // their start takes a while
					others[i].flags = []string{"--timeout", "5m"}
				}
				return append(others, hosts[0])
			},
			75, map[string]int{"many": 61}, nil,
		},
		"a traceback on an MPI rank": {
			2, func(t *testing.T, _ *lab.Lab, hosts []host) []host {
				script, err := filepath.Abs("testdata/traceback.py")
				require.NoError(t, err)
				for i := range hosts {
					hosts[i].binds = map[string]string{"/run/train.py": script}
				}
				return hosts
			},
			1, map[string]int{"mpi-traceback": 1}, []string{"mpirun", "-stdin", "2", "python3", "/run/train.py"},
		},
		"no launcher on a host": {
			2, func(_ *testing.T, _ *lab.Lab, hosts []host) []host {
				hosts[1].env["PATH"] = "/run/bin"
				return hosts
			},
			127, map[string]int{"no-launcher": 1}, []string{"mpirun", "python3", allreduce},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "firewall" {
				requireFirewall(t)
			}
			l := newLab(t)
			hosts := peersHosts(t, l, tt.size)
			for i := range hosts {
				hosts[i] = asByDefault(hosts[i])
				hosts[i].env["PAIINIT_JOB"] = "training"
				hosts[i].flags = []string{"--timeout", "25s"}
			}
			hosts = tt.change(t, l, hosts)
			if tt.command == nil {
				tt.command = []string{"true"}
			}
			containers := startAll(t, hosts, tt.command...)
			require.Equal(t, same(len(hosts), tt.status), statuses(t, containers))
			for screen, host := range tt.shown {
				require.NoError(t, screens.Check("../docs/troubleshooting.md", screen, stderr(containers[host])))
			}
		})
	}
}
