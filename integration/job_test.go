package integration

import (
	"crypto/rand"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// launchers are started as on one machine: their command lines name no hosts.
var launchers = map[string][]string{
	"openmpi": {"mpirun"},
	"mpich":   {"mpiexec.hydra"},
}

// environments makes four hosts with two slots each, under each scheduler. Where the scheduler names no slots, a host
// has as many as CPUs: two at most (twoCPUs), one on a machine with one.
var environments = map[string]func(t *testing.T, l *lab.Lab) []host{
	"peers":   func(t *testing.T, l *lab.Lab) []host { return peersHosts(t, l, 4) },
	"compose": func(t *testing.T, l *lab.Lab) []host { return composeHosts(t, l, 4) },
	"openpai-0.8": func(t *testing.T, l *lab.Lab) []host {
		return openPAIHosts(t, l, 4, 4, openPAI08)
	},
	"openpai-0.14": func(t *testing.T, l *lab.Lab) []host {
		return openPAIHosts(t, l, 4, 4, openPAIClassic)
	},
	"openpai-1": func(t *testing.T, l *lab.Lab) []host {
		return openPAIHosts(t, l, 4, 4, openPAIv1)
	},
	"azure-ml":    func(t *testing.T, l *lab.Lab) []host { return azureHosts(t, l, 4, true) },
	"azure-batch": func(t *testing.T, l *lab.Lab) []host { return azureHosts(t, l, 4, false) },
	"indexed-job": func(t *testing.T, l *lab.Lab) []host { return indexedJobHosts(t, l, 4) },
	"pytorchjob":  func(t *testing.T, l *lab.Lab) []host { return pyTorchJobHosts(t, l, 4) },
	"volcano":     func(t *testing.T, l *lab.Lab) []host { return volcanoHosts(t, l, 4) },
	"slurm":       func(t *testing.T, l *lab.Lab) []host { return slurmHosts(t, l, 4) },
	"sagemaker":   func(t *testing.T, l *lab.Lab) []host { return sageMakerHosts(t, l, 4) },
	"openpai-two-on-one-machine": func(t *testing.T, l *lab.Lab) []host {
		return openPAIHosts(t, l, 4, 2, openPAIClassic)
	},
}

// identifiedSlots matches the first line of paiinit's log.
var identifiedSlots = regexp.MustCompile(`msg="this container is identified" .* slots=(\d+)`)

func TestSum(t *testing.T) {
	t.Parallel()
	for environment, hosts := range environments {
		for launcher, command := range launchers {
			t.Run(environment+"/"+launcher, func(t *testing.T) {
				containers := startAll(t, hosts(t, newLab(t)), append(command, "python3", allreduce)...)
				require.Equal(t, same(4, 0), statuses(t, containers))
				var out strings.Builder
				ranks := 0
				for _, c := range containers {
					slots := identifiedSlots.FindStringSubmatch(stderr(c))
					require.NotNil(t, slots)
					n, err := strconv.Atoi(slots[1])
					require.NoError(t, err)
					ranks += n
					out.WriteString(stdout(c)) // paiinit itself writes nothing to stdout
				}
				if runtime.NumCPU() > 1 || ranks != 4 {
					require.Equal(t, 8, ranks)
				}
				// [24] because containers that share a machine share its host name.
				sum := ranks * (ranks + 1) / 2
				want := fmt.Sprintf(`^allreduce over %d ranks on [24] hosts: sum = %d, expected %d \(\S+, .*\)\n$`,
					ranks, sum, sum)
				require.Regexp(t, want, out.String())
				require.NotContains(t, out.String()[:len(out.String())-1], "\n")
			})
		}
	}
}

func TestFailingRank(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"openmpi": {"mpirun", "python3", allreduce, "--fail", "5"},
		"mpich":   {"mpiexec.hydra", "sh", "-c", "exit 3"},
	} {
		t.Run(name, func(t *testing.T) {
			containers := startAll(t, withInput(peersHosts(t, newLab(t), 4)), command...)
			require.Equal(t, same(4, 3), statuses(t, containers))
		})
	}
}

func TestKilledRank(t *testing.T) {
	t.Parallel()
	for name, command := range launchers {
		t.Run(name, func(t *testing.T) {
			command = append(command, "python3", allreduce, "--sleep", "1000")
			containers := startAll(t, peersHosts(t, newLab(t), 4), command...)
			waitLine(t, containers[0], "sum = 36")
			ranks := ranksOf(t, containers[2])
			require.Len(t, ranks, 2)
			require.NoError(t, syscall.Kill(ranks[1].PID, syscall.SIGKILL))
			got := statuses(t, containers)
			require.NotZero(t, got[0])
			require.Equal(t, same(4, got[0]), got)
		})
	}
}

// ranksOf returns the processes of a container that an MPI launcher started as ranks.
func ranksOf(t *testing.T, c *lab.Container) []lab.Process {
	t.Helper()
	processes, err := c.Processes()
	require.NoError(t, err)
	var ranks []lab.Process
	for _, p := range processes {
		if len(p.Args) > 1 && p.Args[0] == "python3" {
			ranks = append(ranks, p)
		}
	}
	return ranks
}

func TestStopped(t *testing.T) {
	t.Parallel()
	for name, command := range launchers {
		t.Run(name, func(t *testing.T) {
			command = append(command, "python3", allreduce, "--sleep", "1000")
			containers := startAll(t, peersHosts(t, newLab(t), 4), command...)
			waitLine(t, containers[0], "sum = 36")
			require.NoError(t, containers[0].Signal(syscall.SIGTERM))
			got := statuses(t, containers) // must not be 0, although hydra itself ends with 0
			require.NotZero(t, got[0])
			require.Equal(t, same(4, got[0]), got)
		})
	}
}

func TestLostHost(t *testing.T) {
	t.Parallel()
	for name, command := range launchers {
		t.Run(name, func(t *testing.T) {
			command = append(command, "python3", allreduce, "--sleep", "1000")
			containers := startAll(t, peersHosts(t, newLab(t), 4), command...)
			waitLine(t, containers[0], "sum = 36")
			containers[3].Kill()
			require.Equal(t, []int{75, 75, 75, 128 + 9}, statuses(t, containers))
			waitLine(t, containers[1], "rank 3 (worker-3) was lost")
			waitLine(t, containers[1], "look at the state and the log of worker-3; a retry may help")
		})
	}
}

func TestMissingHost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*lab.Machine) error
		reason  string
	}{
		"machine is up":  {func(*lab.Machine) error { return nil }, "connection refused"},
		"machine is off": {(*lab.Machine).CutOff, "no route to host"},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), 4)
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--timeout", "15s")
			}
			require.NoError(t, c.prepare(hosts[3].machine))
			containers := startAll(t, hosts[:3], "mpirun", "python3", allreduce)
			require.Equal(t, same(3, 75), statuses(t, containers))
			for _, container := range containers {
				require.Contains(t, stderr(container), "worker-3")
				require.Contains(t, stderr(container), c.reason)
				require.Empty(t, stdout(container))
			}
		})
	}
}

func TestOtherSecret(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 4)
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--timeout", "1m")
	}
	hosts[2].env["PAIINIT_SECRET"] = "another secret, as long as it has to be"
	containers := startAll(t, hosts, "mpirun", "python3", allreduce)
	got := statuses(t, containers)
	require.Equal(t, 77, got[0])
	require.NotContains(t, got, 0)
	require.Regexp(t, `worker-2.*secret`, stderr(containers[0]))
	for _, c := range containers {
		require.Empty(t, stdout(c))
	}
}

func TestNoSecret(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 2)
	for i := range hosts {
		delete(hosts[i].env, "PAIINIT_SECRET")
	}
	containers := startAll(t, hosts, "mpirun", "python3", allreduce)
	require.Equal(t, same(2, 77), statuses(t, containers))
	for _, c := range containers {
		for _, way := range []string{"--secret-file", "PAIINIT_SECRET", "--insecure"} {
			require.Contains(t, stderr(c), way)
		}
	}
}

// TestInsecureIsClosedToLoopback: without a secret only the listed addresses may connect, so that other users of a host
// network cannot. The container's own commands work.
func TestInsecureIsClosedToLoopback(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 2)
	for i := range hosts {
		delete(hosts[i].env, "PAIINIT_SECRET")
		hosts[i].flags = append(hosts[i].flags, "--insecure")
	}
	containers := startAll(t, hosts, "sh", "-c", `PATH=/run/bin:$PATH
paiinit status >/dev/null && echo status
for r in 0 1; do paiinit rsh worker-$r 'echo rsh '$r'; /run/bin/paiinit rsh worker-'$r' echo own '$r; done
for a in 127.0.0.1 ${PAIINIT_PEERS%%,*}; do python3 -c '
import socket, sys
s = socket.create_connection((sys.argv[1], 12345))
try:
    s.send(b"SSH-2.0-x\r\n")
    print(sys.argv[2], s.recv(4))
except OSError as e:
    print(sys.argv[2], "closed")
' $a $([ $a = 127.0.0.1 ] && echo loopback || echo listed); done | sed "s/b''/closed/"`)
	require.Equal(t, same(2, 0), statuses(t, containers))
	require.Equal(t, "status\nrsh 0\nown 0\nrsh 1\nown 1\nloopback closed\nlisted b'SSH-'\n", stdout(containers[0]))
}

func TestUnknownCommand(t *testing.T) {
	containers := startAll(t, peersHosts(t, newLab(t), 3), "mpirunn", "python3", allreduce)
	require.Equal(t, same(3, 127), statuses(t, containers))
	waitLine(t, containers[2], "mpirunn")
}

// TestSecretIsNowhere looks for the secret in all places that other users of a machine, or of its logs, can read.
func TestSecretIsNowhere(t *testing.T) {
	t.Parallel()
	canary := "canary-" + rand.Text() // random, because the test may also search this file
	for name, give := range map[string]func(h *host){
		"variable": func(h *host) { h.env["PAIINIT_SECRET"] = canary },
		"file": func(h *host) {
			delete(h.env, "PAIINIT_SECRET")
			h.flags = append(h.flags, "--secret-file", "/run/secrets/job")
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			file := t.TempDir() + "/secret"
			require.NoError(t, os.WriteFile(file, []byte(canary), 0o400))
			hosts := peersHosts(t, l, 2)
			for i := range hosts {
				give(&hosts[i])
				hosts[i].binds = map[string]string{"/run/secrets/job": file}
				hosts[i].env["PAIINIT_LOG_LEVEL"] = "debug"
			}
			containers := startAll(t, hosts, "mpirun", "sh", "-c", "env; python3 "+allreduce+" --sleep 1000")
			waitLine(t, containers[0], "sum = 10")
			for _, c := range containers {
				processes, err := c.Processes()
				require.NoError(t, err)
				require.Greater(t, len(processes), 4)
				for _, p := range processes {
					require.NotContains(t, strings.Join(p.Args, " "), canary)
					require.NotContains(t, strings.Join(p.Environ, " "), canary, p.Args)
				}
				found, err := c.Exec(t.Context(), "sh", "-c",
					"grep -rl --devices=skip "+canary+" /run /tmp /dev/shm | grep -v ^/run/secrets/ | cat")
				require.NoError(t, err)
				require.Empty(t, string(found))
			}
			require.NoError(t, containers[0].Signal(syscall.SIGTERM))
			statuses(t, containers)
			for _, c := range containers {
				require.NotContains(t, c.Output(), canary)
			}
			require.Contains(t, containers[0].Output(), "PAIINIT_RANK=") // env has printed the environment
		})
	}
}
