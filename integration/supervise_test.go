package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// TestKilledProxy: MPICH's hydra hangs for ever after one of its proxies is killed. paiinit must end the job.
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
	began := time.Now()
	require.Equal(t, same(4, 75), statuses(t, containers))
	require.Less(t, tookUntil(t, began, containers), 15*time.Second)
	waitLine(t, containers[3], "proxy on worker-2 ended with status 137")
}

// TestHydraDoesNotHang: hydra also hangs after its remote shell fails, paiinit's or another one.
func TestHydraDoesNotHang(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		command []string
		env     string
		status  int
		says    string
	}{
		"an unknown host": {
			[]string{"mpiexec.hydra", "-hosts", "node-0,elsewhere", "hostname"}, "",
			69, "the launcher was told to use elsewhere, which is not a container of this job",
		},
		"a remote shell that fails": {
			[]string{"mpiexec.hydra", "hostname"}, "HYDRA_LAUNCHER_EXEC=/bin/false",
			75, "the launcher's remote shell ended with status 1",
		},
		"a remote shell that is missing": {
			[]string{"mpiexec.hydra", "hostname"}, "HYDRA_LAUNCHER_EXEC=/nowhere/ssh",
			75, "the launcher's remote shell ended with status 255",
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := withInput(peersHosts(t, newLab(t), 3))
			if name, value, ok := strings.Cut(tt.env, "="); ok {
				hosts[0].env[name] = value
			}
			began := time.Now()
			containers := startAll(t, hosts, tt.command...)
			got := statuses(t, containers)
			require.Less(t, tookUntil(t, began, containers), 18*time.Second)
			if strings.Contains(stderr(containers[0]), "mpiexec.hydra was killed by SIGPIPE") {
				// On a busy machine hydra may write to a shell that has already ended, and then does not hang.
				require.Equal(t, same(3, 128+int(syscall.SIGPIPE)), got)
				return
			}
			require.Equal(t, same(3, tt.status), got)
			require.Contains(t, stderr(containers[1]), tt.says)
		})
	}
}

func TestKilledRemoteShell(t *testing.T) {
	t.Parallel()
	for name, command := range launchers {
		t.Run(name, func(t *testing.T) {
			containers := startAll(t, peersHosts(t, newLab(t), 3), append(command, "sleep", "1000")...)
			started := func() bool { return len(processesOf(t, containers[2], "sleep")) == 2 }
			require.Eventually(t, started, waitTimeout, 10*time.Millisecond)
			shells := append(processesOf(t, containers[0], "ssh"), processesOf(t, containers[0], "paiinit")...)
			killed := 0
			for _, p := range shells {
				if slices.Contains(p.Args, "node-2") {
					killed++
					require.NoError(t, syscall.Kill(p.PID, syscall.SIGKILL))
				}
			}
			require.Equal(t, 1, killed)
			began := time.Now()
			got := statuses(t, containers)
			require.NotZero(t, got[0])
			require.Equal(t, same(3, got[0]), got)
			require.Less(t, tookUntil(t, began, containers), 18*time.Second)
		})
	}
}

func processesOf(t *testing.T, c *lab.Container, name string) (found []lab.Process) {
	t.Helper()
	processes, err := c.Processes()
	require.NoError(t, err)
	for _, p := range processes {
		if len(p.Args) > 0 && filepath.Base(p.Args[0]) == name {
			found = append(found, p)
		}
	}
	return found
}

// TestLastRankTakesItsTime: hydra's proxies end as soon as their ranks have ended. If only rank 0 still runs, the
// launcher does not hang.
func TestLastRankTakesItsTime(t *testing.T) {
	t.Parallel()
	for name, command := range launchers {
		t.Run(name, func(t *testing.T) {
			const last = `[ "$PMI_RANK$OMPI_COMM_WORLD_RANK" != 0 ] || { sleep 13; echo last; }`
			containers := startAll(t, peersHosts(t, newLab(t), 2), append(command, "sh", "-c", last)...)
			require.Equal(t, same(2, 0), statuses(t, containers))
			require.Equal(t, "last\n", stdout(containers[0]))
			// Only hydra needs this warning: Open MPI itself reports a failed rank.
			require.Equal(t, name == "mpich", strings.Contains(stderr(containers[0]), "all ranks on a host have ended"))
		})
	}
}

// TestFewerHostsThanAsked: an Open MPI that reads no host list runs everything on rank 0 and succeeds, so paiinit must
// report it.
func TestFewerHostsThanAsked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		flags   []string
		command []string
		status  int
	}{
		"refused":  {nil, []string{"mpirun", "--oversubscribe", "-np", "3", "hostname"}, 69},
		"accepted": {[]string{"--allow-partial"}, []string{"mpirun", "--oversubscribe", "-np", "3", "hostname"}, 0},
		"one rank": {nil, []string{"mpirun", "-np", "1", "hostname"}, 0},
		"a script": {nil, []string{"sh", "-c", "true"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), 2)
			hosts[0].env["OMPI_MCA_orte_default_hostfile"] = ""
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, tt.flags...)
			}
			containers := startAll(t, hosts, tt.command...)
			require.Equal(t, same(2, tt.status), statuses(t, containers))
			switch name {
			case "refused":
				require.Contains(t, stderr(containers[1]),
					"it asked for at least 2 and started on at most 1 (worker-0)")
				require.Contains(t, stderr(containers[1]), "OMPI_MCA_orte_default_hostfile=")
			case "a script":
				require.Contains(t, stderr(containers[0]), "the command has used no other host of this job")
			}
		})
	}
}

func TestDifferentLaunchers(t *testing.T) {
	t.Parallel()
	const differ = "mpirun is not the same on all ranks: Open MPI 4.1.4 on worker-0; Open MPI 5.0.7 on worker-1"
	other := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(other, "mpirun"),
		[]byte("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.7'\n"), 0o755))
	slow := t.TempDir() // its mpirun prints its version only after the launch
	require.NoError(t, os.WriteFile(filepath.Join(slow, "mpirun"), []byte("#!/bin/sh\n"+
		"[ \"$1\" != --version ] || until [ -e /run/slow/launched ]; do sleep 0.01; done\n"+
		"exec /usr/bin/mpirun \"$@\"\n"), 0o755))
	for name, tt := range map[string]struct {
		flags  []string
		slow   bool
		status int
	}{
		"refused": {[]string{"--require-same-launcher"}, false, 69},
		"warned":  {nil, false, 0}, // even if the last rank's launcher prints its version after the launch
		"rank 0's launcher answers after the launch": {nil, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), 2)
			hosts[1].binds = map[string]string{"/run/other": other}
			hosts[1].env["PATH"] = "/run/other:" + strings.TrimPrefix(path, "PATH=")
			seen := t.TempDir()
			hosts[0].binds = map[string]string{"/run/seen": seen}
			if tt.slow {
				hosts[0].binds["/run/slow"] = slow
				hosts[0].env["PATH"] = "/run/slow:" + strings.TrimPrefix(path, "PATH=")
			}
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, tt.flags...)
			}
			containers := startAll(t, hosts, "sh", "-c", "[ ! -d /run/slow ] || touch /run/slow/launched; "+
				"until [ -e /run/seen/it ]; do sleep 0.01; done; mpirun true")
			if tt.status == 0 {
				waitLine(t, containers[0], differ)
				require.NoError(t, os.WriteFile(filepath.Join(seen, "it"), nil, 0o644))
			}
			require.Equal(t, same(2, tt.status), statuses(t, containers))
			require.Contains(t, stderr(containers[0]), differ)
		})
	}
}
