package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// TestQuiet: while the job runs, paiinit must be idle, because noise slows HPC jobs. The test limits the wake-ups of
// all its threads in a container, which do not depend on the load of the machine; it only logs the CPU time.
func TestQuiet(t *testing.T) {
	const hosts, watched = 64, 10 * time.Second // rank 0 has a connection to every other
	all := peersHosts(t, newLab(t), hosts)
	for _, h := range all {
		h.env["PAIINIT_LOG_LEVEL"] = "info"
	}
	containers := startAll(t, all, "sh", "-c", "echo running; exec sleep 1000")
	waitLine(t, containers[0], "running")
	// Skip the wake-ups of the launch, of the runtime that releases memory after it, and of the last keepalive of each
	// connection after 15 s.
	<-time.After(20 * time.Second)
	type noise struct {
		switches int
		cpu      time.Duration
	}
	measure := func() (all []noise) {
		for _, c := range containers {
			s, cpu := noiseOf(t, c)
			all = append(all, noise{s, cpu})
		}
		return all
	}
	before := measure()
	<-time.After(watched)
	for i, after := range measure() {
		switches := float64(after.switches-before[i].switches) / watched.Seconds()
		t.Logf("rank %d: %.1f voluntary context switches per second, %.3f %% of a CPU",
			i, switches, 100*(after.cpu-before[i].cpu).Seconds()/watched.Seconds())
		require.LessOrEqual(t, switches, 10.0, "rank %d", i)
	}
	for _, c := range containers {
		c.Kill()
	}
}

// noiseOf adds up the voluntary context switches and the CPU time of paiinit's processes in a container.
func noiseOf(t *testing.T, c *lab.Container) (switches int, cpu time.Duration) {
	t.Helper()
	processes, err := c.Processes()
	require.NoError(t, err)
	agents := 0
	for _, p := range processes {
		if len(p.Args) == 0 || p.Args[0] == "sleep" {
			continue
		}
		agents++
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.PID))
		require.NoError(t, err)
		for _, task := range tasks {
			status, err := os.ReadFile(filepath.Join(task, "status"))
			require.NoError(t, err)
			for line := range strings.Lines(string(status)) {
				if v, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
					n, err := strconv.Atoi(strings.TrimSpace(v))
					require.NoError(t, err)
					switches += n
				}
			}
			sched, err := os.ReadFile(filepath.Join(task, "schedstat"))
			require.NoError(t, err)
			ns, err := strconv.Atoi(strings.Fields(string(sched))[0])
			require.NoError(t, err)
			cpu += time.Duration(ns)
		}
	}
	require.Equal(t, 2, agents, "PID 1 and the agent")
	return switches, cpu
}

// TestDeadContainerIsNoticed: the other ranks must notice the death of a container within 10 s without a launcher that
// fails, even if its address no longer answers, and even if it is rank 0. They end at once, with the same status.
func TestDeadContainerIsNoticed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dies int
		gone bool // its machine is cut off as well
	}{
		"a rank":                 {2, false},
		"a rank and its machine": {2, true},
		"rank 0":                 {0, false},
		"rank 0 and its machine": {0, true},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), 4)
			containers := startAll(t, hosts, "sh", "-c", "echo running; exec sleep 1000")
			for _, one := range containers {
				waitLine(t, one, "all ranks are present")
			}
			waitLine(t, containers[0], "running")
			begin := time.Now()
			containers[c.dies].Kill()
			if c.gone {
				<-containers[c.dies].Ended()
				require.NoError(t, hosts[c.dies].machine.CutOff())
			}
			want := same(4, 75)
			want[c.dies] = 128 + 9
			require.Equal(t, want, statuses(t, containers))
			took := tookUntil(t, begin, containers)
			t.Logf("all ended after %v", took)
			require.Less(t, took, 10*time.Second)
		})
	}
}

// TestSilentMachineIsNoticed: when a machine is cut off, no connection closes: the kernels probe for 6 s, and the ranks
// then ask each other. An idle machine needs 10 s for this, also if rank 0 is cut off. The machine that was cut off
// ends with the same status.
func TestSilentMachineIsNoticed(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]int{"a rank": 2, "rank 0": 0} {
		t.Run(name, func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), 12)
			containers := startAll(t, hosts, "sh", "-c", "echo running; exec sleep 1000")
			for _, one := range containers {
				waitLine(t, one, "all ranks are present")
			}
			waitLine(t, containers[0], "running")
			begin := time.Now()
			require.NoError(t, hosts[cut].machine.CutOff())
			others := slices.Delete(slices.Clone(containers), cut, cut+1)
			require.Equal(t, same(11, 75), statuses(t, others))
			took := tookUntil(t, begin, others)
			t.Logf("all others ended after %v", took)
			require.Less(t, took, 20*time.Second)
			require.Equal(t, same(1, 75), statuses(t, containers[cut:cut+1]))
			took = tookUntil(t, begin, containers[cut:cut+1])
			t.Logf("it ended itself after %v", took)
			require.Less(t, took, 40*time.Second)
		})
	}
}

// TestPausedContainerIsForgiven: a container may be paused for 15 s without ending the job, even if it is rank 0.
func TestPausedContainerIsForgiven(t *testing.T) {
	t.Parallel()
	for name, paused := range map[string]int{"a rank": 2, "rank 0": 0} {
		t.Run(name, func(t *testing.T) {
			containers := startAll(t, peersHosts(t, newLab(t), 4), "sh", "-c", "echo running; exec sleep 1000")
			for _, c := range containers {
				waitLine(t, c, "all ranks are present")
			}
			waitLine(t, containers[0], "running")
			require.NoError(t, containers[paused].Pause())
			<-time.After(15 * time.Second)
			for i, c := range containers {
				select {
				case <-c.Ended():
					t.Errorf("rank %d ended", i)
				default:
				}
			}
			require.NoError(t, containers[paused].Resume())
			<-time.After(2 * time.Second)
			require.NoError(t, containers[1].Signal(syscall.SIGTERM))
			require.Equal(t, same(4, 128+15), statuses(t, containers))
		})
	}
}
