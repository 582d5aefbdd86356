package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// launchers are the MPI launchers of Debian 12 (Open MPI 4.1.4, MPICH 4.0.2) and 13 (5.0.7, 4.2.1).
var launchers = []launcher{
	{"openmpi4", "bookworm", "4.1.4", []string{"mpirun"}},
	{"mpich40", "bookworm", "4.0.2", []string{"mpiexec.hydra"}},
	{"openmpi5", "trixie", "5.0.7", []string{"mpirun"}},
	{"mpich42", "trixie", "4.2.1", []string{"mpiexec.hydra"}},
}

type launcher struct {
	name, suite, version string
	command              []string
}

func (l launcher) hydra() bool { return l.command[0] == "mpiexec.hydra" }

// hello returns a command line whose ranks print their host names. Open MPI 5.0.7 may not end after a short program
// that does not use MPI (docs/launchers.md).
func (l launcher) hello(options ...string) []string {
	command := append(slices.Clone(l.command), options...)
	if l.name == "openmpi5" {
		return append(command, "python3", "-c", "from mpi4py import MPI; print(MPI.Get_processor_name())")
	}
	return append(command, "hostname")
}

const (
	ranks      = 3
	endTimeout = 90 * time.Second // timeout of a job that ends by itself: containers start slowly beside other tests
)

// ended is part of the last log line of every container.
const ended = "the job has ended"

// logged returns the time of the log line with the text. Tests use it because the engine may report the end of a
// container late.
func logged(t *testing.T, log, text string) time.Time {
	t.Helper()
	for line := range strings.Lines(log) {
		if stamp, ok := strings.CutPrefix(line, "time="); ok && strings.Contains(line, text) {
			stamp, _, _ = strings.Cut(stamp, " ")
			at, err := time.Parse(time.RFC3339, stamp)
			require.NoError(t, err)
			return at
		}
	}
	require.Fail(t, "not logged", "%s in\n%s", text, log)
	return time.Time{}
}

func same(status int) []int { return slices.Repeat([]int{status}, ranks) }

func TestLaunchers(t *testing.T) {
	t.Parallel()
	for _, l := range launchers {
		program := func(args ...string) []string {
			return append(append(slices.Clone(l.command), "python3", "/examples/allreduce.py"), args...)
		}
		running := func(t *testing.T) *job {
			j := newJob(t, l.suite)
			j.start(t, ranks, ranks, nil, program("--sleep", "1000")...)
			j.follow(t, 0, "sum = 21", 1)
			return j
		}
		t.Run(l.name+"/version", func(t *testing.T) {
			j := newJob(t, l.suite)
			j.start(t, 1, 1, nil, append(l.command, "--version")...)
			require.Equal(t, []int{0}, j.wait(t, endTimeout))
			out, _ := j.output(t, 0)
			require.Contains(t, out, l.version)
		})
		t.Run(l.name+"/hello", func(t *testing.T) {
			j := newJob(t, l.suite).withInput()
			j.start(t, ranks, ranks, nil, l.hello()...)
			require.Equal(t, same(0), j.wait(t, endTimeout))
			out, _ := j.output(t, 0)
			hosts := strings.Fields(out)
			slices.Sort(hosts)
			require.Equal(t, []string{"host-0", "host-0", "host-1", "host-1", "host-2", "host-2"}, hosts)
		})
		t.Run(l.name+"/allreduce", func(t *testing.T) {
			j := newJob(t, l.suite)
			j.start(t, ranks, ranks, nil, program()...)
			require.Equal(t, same(0), j.wait(t, endTimeout))
			out, _ := j.output(t, 0)
			require.Contains(t, out,
				"allreduce over 6 ranks on 3 hosts: sum = 21, expected 21 (host-0, host-1, host-2)")
		})
		t.Run(l.name+"/failing rank", func(t *testing.T) {
			j := newJob(t, l.suite).withInput()
			command := program("--fail", "4")
			if l.hydra() {
				// After a rank exits without MPI_Finalize, MPICH 4.0 lets the others wait for ever, and 4.2 adds to the
				// status the signal with which it killed them.
				command = append(slices.Clone(l.command), "sh", "-c", "exit 3")
			}
			j.start(t, ranks, ranks, nil, command...)
			require.Equal(t, same(3), j.wait(t, endTimeout))
		})
		t.Run(l.name+"/killed rank", func(t *testing.T) {
			j := newJob(t, l.suite)
			if l.hydra() {
				// MPICH 4.2 may lose the status of a killed rank if its host has several ranks (docs/launchers.md).
				command := append(slices.Clone(l.command), "-ppn", "1")
				j.start(t, ranks, ranks, nil, append(command, program("--kill", "2")[1:]...)...)
				requireEqualNotZero(t, j.wait(t, endTimeout))
				return
			}
			j.start(t, ranks, ranks, nil, program("--kill", "4")...)
			require.Equal(t, same(137), j.wait(t, endTimeout))
		})
		t.Run(l.name+"/killed container", func(t *testing.T) {
			j := running(t)
			_, err := docker(t.Context(), "kill", j.containers[2])
			require.NoError(t, err)
			require.Equal(t, []int{75, 75, 137}, j.wait(t, endTimeout))
			_, says := j.output(t, 1)
			require.Contains(t, says, "worker-2")
		})
		for rank := range 2 {
			t.Run(l.name+"/stopped "+[]string{"rank 0", "worker"}[rank], func(t *testing.T) {
				j := running(t)
				_, err := docker(t.Context(), "stop", "--time", "30", j.containers[rank])
				require.NoError(t, err)
				require.Equal(t, same(143), j.wait(t, endTimeout))
				_, says := j.output(t, 0)
				assert.Less(t, logged(t, says, ended).Sub(logged(t, says, "the ranks are told to end")), 15*time.Second)
				assert.NotContains(t, says, "leaving before")
			})
		}
		t.Run(l.name+"/unreachable host", func(t *testing.T) {
			j := newJob(t, l.suite)
			j.start(t, ranks-1, ranks, []string{"--timeout", "8s"}, program()...)
			require.Equal(t, []int{75, 75}, j.wait(t, endTimeout))
			_, says := j.output(t, 1)
			require.Contains(t, says, "worker-2")
		})
		t.Run(l.name+"/host cut off", func(t *testing.T) {
			j := running(t)
			_, err := docker(t.Context(), "network", "disconnect", j.name, j.containers[2])
			require.NoError(t, err)
			began := time.Now()
			require.Equal(t, same(75), j.wait(t, 2*time.Minute)) // the host that is cut off waits longer
			for rank := range 2 {
				_, says := j.output(t, rank)
				require.Contains(t, says, "worker-2")
				assert.Less(t, logged(t, says, ended).Sub(began), 20*time.Second)
				assert.NotContains(t, says, "leaving before")
			}
		})
	}
}

// TestWrongRankCount: Open MPI refuses to start more ranks than slots. MPICH starts several ranks on a slot.
func TestWrongRankCount(t *testing.T) {
	t.Parallel()
	for _, l := range launchers {
		t.Run(l.name, func(t *testing.T) {
			j := newJob(t, l.suite).withInput()
			j.start(t, ranks, ranks, nil, l.hello("-np", "7")...)
			got := j.wait(t, endTimeout)
			out, says := j.output(t, 0)
			if l.hydra() {
				require.Equal(t, same(0), got)
				require.Len(t, strings.Fields(out), 7)
				return
			}
			requireEqualNotZero(t, got)
			require.Contains(t, says, "not enough slots")
		})
	}
}

// TestNamesOfTheNetwork: a host list from before paiinit may have names that only the network knows, here the names of
// the containers.
func TestNamesOfTheNetwork(t *testing.T) {
	t.Parallel()
	for _, l := range launchers {
		t.Run(l.name, func(t *testing.T) {
			j := newJob(t, l.suite).withInput()
			var hosts []string
			for rank := range ranks {
				hosts = append(hosts, fmt.Sprintf("%s-%d:2", j.name, rank))
			}
			option := "-H"
			if l.hydra() {
				option = "-hosts"
			}
			j.start(t, ranks, ranks, nil, l.hello("-np", "6", option, strings.Join(hosts, ","))...)
			require.Equal(t, same(0), j.wait(t, endTimeout))
			out, _ := j.output(t, 0)
			used := strings.Fields(out)
			slices.Sort(used)
			require.Equal(t, []string{"host-0", "host-0", "host-1", "host-1", "host-2", "host-2"}, used)
		})
	}
}

func requireEqualNotZero(t *testing.T, statuses []int) {
	t.Helper()
	require.NotZero(t, statuses[0])
	require.Equal(t, slices.Repeat(statuses[:1], len(statuses)), statuses)
}

// TestSilentSingleHost: Kubeflow's mpi-operator sets only Open MPI 4's variables. Open MPI 5 ignores them, runs all
// ranks on one host, and ends with 0. The job removes the variables that paiinit adds, so that this happens here as
// well.
func TestSilentSingleHost(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"refused": nil, "accepted": {"--allow-partial"}} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, "trixie")
			j.env = []string{
				"OMPI_MCA_plm_rsh_agent=/etc/mpi/kubexec.sh", "OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile",
				"OMPI_MCA_orte_keep_fqdn_hostnames=true",
				"PRTE_MCA_plm_ssh_agent=", "PRTE_MCA_prte_default_hostfile=",
			}
			j.start(t, ranks, ranks, append(flags, "--slots", "1"), "mpirun", "--oversubscribe", "-np", "3", "hostname")
			got := j.wait(t, endTimeout)
			out, _ := j.output(t, 0)
			require.Equal(t, []string{"host-0", "host-0", "host-0"}, strings.Fields(out))
			if flags != nil {
				require.Equal(t, same(0), got)
				return
			}
			require.Equal(t, same(69), got)
			_, says := j.output(t, 1)
			require.Contains(t, says, "it asked for at least 3 and started on at most 1 (worker-0)")
			require.Contains(t, says, "PRTE_MCA_prte_default_hostfile=")
			require.Contains(t, says, "--allow-partial")
		})
	}
}

// TestNetworkThatTheImageExcludes: the image's configuration of Open MPI excludes an interface, as Horovod's does with
// docker0, and the hosts have a second network.
func TestNetworkThatTheImageExcludes(t *testing.T) {
	t.Parallel()
	const excluded = "btl_tcp_if_exclude is in /etc/openmpi/openmpi-mca-params.conf"
	conf := filepath.Join(t.TempDir(), "conf")
	require.NoError(t, os.WriteFile(conf, []byte("btl_tcp_if_exclude = lo,eth1\n"), 0o644))
	for name, suite := range map[string]string{"openmpi4": "bookworm", "openmpi5": "trixie"} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, suite)
			second := j.name + "-second"
			_, err := docker(t.Context(), "network", "create", "--label", "paiinit-test=yes", second)
			require.NoError(t, err)
			t.Cleanup(func() {
				_, err := docker(context.WithoutCancel(t.Context()),
					"network", "disconnect", "--force", second, j.containers[0])
				assert.NoError(t, err)
				_, err = docker(context.WithoutCancel(t.Context()), "network", "rm", second)
				assert.NoError(t, err)
			})
			j.volumes = []string{conf + ":/etc/openmpi/openmpi-mca-params.conf:ro"}
			script := []string{"sh", "-c", "mpirun -np 4 python3 /examples/allreduce.py"}
			j.start(t, 1, 2, nil, script...)
			_, err = docker(t.Context(), "network", "connect", second, j.containers[0])
			require.NoError(t, err)
			j.start(t, 1, 2, nil, script...)
			require.Equal(t, []int{0, 0}, j.wait(t, endTimeout))
			out, says := j.output(t, 0)
			require.Contains(t, out, "allreduce over 4 ranks on 2 hosts: sum = 10, expected 10")
			require.Contains(t, says, `variable=OMPI_MCA_btl_tcp_if_include reason="`+excluded)
			require.NotContains(t, says, "mutually-exclusive")
		})
	}
}
