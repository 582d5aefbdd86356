package integration

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// saves needs more time than any launcher gives its ranks by itself.
const saves = `trap 'sleep 3; echo saved; exit 0' TERM; echo re''ady; while :; do sleep 0.1; done`

// Every rank has the time of --grace to save its work, on whichever host the job is stopped.
func TestRanksSaveTheirWork(t *testing.T) {
	for name, command := range launchers {
		// Kubernetes tells all pods of a Job that is deleted, in any order.
		for where, told := range map[string][]int{"rank 0": {0}, "worker": {1}, "everywhere": {1, 0, 2}} {
			t.Run(name+"/"+where, func(t *testing.T) {
				containers := startAll(t, peersHosts(t, newLab(t), 3), append(command, "sh", "-c", saves)...)
				require.Eventually(t, func() bool { return strings.Count(stdout(containers[0]), "ready") == 6 }, patience, 10*time.Millisecond)
				began := time.Now()
				for _, rank := range told {
					require.NoError(t, containers[rank].Signal(syscall.SIGTERM))
				}
				require.Equal(t, same(3, 143), statuses(t, containers))
				require.Equal(t, 6, strings.Count(stdout(containers[0]), "saved"))
				require.Less(t, time.Since(began), 12*time.Second)
			})
		}
	}
}

// Ranks that do not listen are ended with their launcher when the grace is over.
func TestRanksDoNotListen(t *testing.T) {
	for name, command := range launchers {
		t.Run(name, func(t *testing.T) {
			containers := startAll(t, peersHosts(t, newLab(t), 2), append(command, "sh", "-c", `trap '' TERM; echo re''ady; while :; do sleep 0.1; done`)...)
			require.Eventually(t, func() bool { return strings.Count(stdout(containers[0]), "ready") == 4 }, patience, 10*time.Millisecond)
			began := time.Now()
			require.NoError(t, containers[0].Signal(syscall.SIGTERM))
			require.Equal(t, same(2, 143), statuses(t, containers))
			require.Less(t, time.Since(began), 15*time.Second)
		})
	}
}

// Where a launcher was started by another one, or by a script, its ranks have the same time.
func TestRanksBelowOtherLaunchersSaveTheirWork(t *testing.T) {
	horovodrun := []string{
		"python3", "integration/docker/testdata/horovod/horovodrun", "--network-interfaces", "eth0",
		"-np", "3", "--hostfile", "/run/paiinit/hostfile",
	}
	commands := map[string][]string{
		"horovodrun":        append(slices.Clone(horovodrun), "sh", "-c", saves),
		"horovodrun --gloo": append(slices.Clone(horovodrun), "--gloo", "sh", "-c", saves),
	}
	for name, command := range launchers {
		script := strings.Join(command, " ") + ` sh -c "$SAVES"; sleep 1000`
		commands["a script with "+name] = []string{"sh", "-c", script}
	}
	for name, command := range commands {
		t.Run(name, func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), 3)
			for i := range hosts {
				hosts[i].env["PAIINIT_SLOTS"], hosts[i].env["SAVES"] = "1", saves
				hosts[i].env["PYTHONPATH"] = root + "/integration/docker/testdata"
			}
			containers := startAll(t, hosts, command...)
			all := func() string { return stdout(containers[0]) }
			ready := func() bool { return strings.Count(all(), "ready") == 3 }
			require.Eventually(t, ready, patience, 10*time.Millisecond)
			require.NoError(t, containers[1].Signal(syscall.SIGTERM))
			require.Equal(t, same(3, 143), statuses(t, containers))
			require.Equal(t, 3, strings.Count(all(), "saved"))
		})
	}
}
