package integration

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// saves takes longer to end than any launcher waits for its ranks by default.
const saves = `trap 'sleep 3; echo saved; exit 0' TERM; echo re''ady; while :; do sleep 0.1; done`

// TestRanksSaveTheirWork: every rank has the time of --grace to save its work, no matter which host gets the signal.
func TestRanksSaveTheirWork(t *testing.T) {
	t.Parallel()
	for name, command := range launchers {
		// Kubernetes signals all pods of a deleted Job, in any order.
		for where, told := range map[string][]int{"rank 0": {0}, "worker": {1}, "everywhere": {1, 0, 2}} {
			t.Run(name+"/"+where, func(t *testing.T) {
				l := newLab(t)
				containers := startAll(t, peersHosts(t, l, 3), append(command, "sh", "-c", saves)...)
				ready := func() bool { return strings.Count(stdout(containers[0]), "ready") == 6 }
				require.Eventually(t, ready, waitTimeout, 10*time.Millisecond)
				began := time.Now()
				showProcesses(t, l, 7*time.Second) // after "saved", and before --grace ends the job
				for _, rank := range told {
					require.NoError(t, containers[rank].Signal(syscall.SIGTERM))
				}
				require.Equal(t, same(3, 143), statuses(t, containers))
				require.Equal(t, 6, strings.Count(stdout(containers[0]), "saved"))
				require.Less(t, tookUntil(t, began, containers), 12*time.Second)
			})
		}
	}
}

// showProcesses lets a test that fails show which processes its lab had some time later, if it still ran then.
func showProcesses(t *testing.T, l *lab.Lab, later time.Duration) {
	seen := make(chan string, 1)
	timer := time.AfterFunc(later, func() { seen <- l.Processes() })
	t.Cleanup(func() {
		if timer.Stop() {
			return
		}
		if processes := <-seen; t.Failed() {
			t.Logf("%v after the signal:\n%s", later, processes)
		}
	})
}

// TestRanksDoNotListen: after --grace, paiinit kills ranks that ignore SIGTERM, together with their launcher.
func TestRanksDoNotListen(t *testing.T) {
	t.Parallel()
	for name, command := range launchers {
		t.Run(name, func(t *testing.T) {
			const ignores = `trap '' TERM; echo re''ady; while :; do sleep 0.1; done`
			containers := startAll(t, peersHosts(t, newLab(t), 2), append(command, "sh", "-c", ignores)...)
			ready := func() bool { return strings.Count(stdout(containers[0]), "ready") == 4 }
			require.Eventually(t, ready, waitTimeout, 10*time.Millisecond)
			began := time.Now()
			require.NoError(t, containers[0].Signal(syscall.SIGTERM))
			require.Equal(t, same(2, 143), statuses(t, containers))
			require.Less(t, tookUntil(t, began, containers), 15*time.Second)
		})
	}
}

// TestRanksBelowOtherLaunchersSaveTheirWork: ranks have the same time if another launcher or a script started their
// launcher.
func TestRanksBelowOtherLaunchersSaveTheirWork(t *testing.T) {
	t.Parallel()
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
			require.Eventually(t, ready, waitTimeout, 10*time.Millisecond)
			require.NoError(t, containers[1].Signal(syscall.SIGTERM))
			require.Equal(t, same(3, 143), statuses(t, containers))
			require.Equal(t, 3, strings.Count(all(), "saved"))
		})
	}
}
