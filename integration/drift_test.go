package integration

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// driftingHosts returns three hosts of which the last one has another variable and another MTU.
func driftingHosts(t *testing.T, flags ...string) []host {
	hosts := peersHosts(t, newLab(t), 3)
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, flags...)
		hosts[i].env["NCCL_ALGO"] = "Ring"
	}
	hosts[2].env["NCCL_ALGO"] = "Tree"
	require.NoError(t, hosts[2].machine.SetMTU(1400))
	return hosts
}

// TestDrift: rank 0 warns once about what differs, beside the command, and prints it again when asked.
func TestDrift(t *testing.T) {
	containers := startAll(t, driftingHosts(t), "sh", "-c", `
		for i in $(seq 200); do
			/run/bin/paiinit status --drift --json >/run/drift || exit 1
			grep -q MTU /run/drift && grep -q '"absent": \[\]' /run/drift && break
			sleep 0.05
		done
		cat /run/drift; echo ---; /run/bin/paiinit status --drift; echo ---
		/run/bin/paiinit rsh node-1 /run/bin/paiinit status --drift 2>&1; echo "status $?"
		sleep 1.2`)
	require.Equal(t, same(3, 0), statuses(t, containers))
	parts := strings.Split(stdout(containers[0]), "---\n")
	require.Len(t, parts, 3)
	var answer struct {
		Check  string
		Size   int
		Absent []string
		Rows   [][]string
	}
	require.NoError(t, json.Unmarshal([]byte(parts[0]), &answer), parts[0])
	require.Equal(t, "warn", answer.Check)
	require.Equal(t, 3, answer.Size)
	require.Empty(t, answer.Absent)
	require.Equal(t, [][]string{
		{"NCCL_ALGO", "Ring", "worker-0, worker-1"}, {"NCCL_ALGO", "Tree", "worker-2"},
		{"MTU to rank 0", "1500", "worker-0, worker-1"}, {"MTU to rank 0", "1400", "worker-2"},
	}, answer.Rows)
	require.Equal(t, "FACT           VALUE  RANKS\n"+
		"NCCL_ALGO      Ring   worker-0, worker-1\n"+
		"               Tree   worker-2\n"+
		"MTU to rank 0  1500   worker-0, worker-1\n"+
		"               1400   worker-2\n", parts[1])
	require.Contains(t, parts[2], "rank 0 compares the ranks; ask there: paiinit rsh worker-0 paiinit status --drift")
	require.Contains(t, parts[2], "status 64")
	require.Equal(t, 1, strings.Count(stderr(containers[0]), "facts differ between ranks"), stderr(containers[0]))
	require.Contains(t, stderr(containers[0]), `NCCL_ALGO      Ring on worker-0, worker-1; Tree on worker-2`)
	for _, c := range containers[1:] {
		require.NotContains(t, stderr(c), "facts differ")
	}
}

// TestDriftRefused: with --check require the ranks end before the launch, all alike, not only rank 0.
func TestDriftRefused(t *testing.T) {
	containers := startAll(t, driftingHosts(t, "--check", "require"), "echo", "launched")
	require.Equal(t, same(3, 69), statuses(t, containers))
	for _, c := range containers {
		require.NotContains(t, stdout(c), "launched")
		require.Contains(t, stderr(c), "NCCL_ALGO      Ring on worker-0, worker-1; Tree on worker-2")
		require.Contains(t, stderr(c), "MTU to rank 0  1500 on worker-0, worker-1; 1400 on worker-2")
	}
}

func TestNoDriftRefused(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 3)
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--check", "require")
	}
	containers := startAll(t, hosts, "echo", "launched")
	require.Equal(t, same(3, 0), statuses(t, containers))
	require.Equal(t, "launched\n", stdout(containers[0]))
}

// TestNoDrift: equal ranks say nothing, and with --check off nothing is compared.
func TestNoDrift(t *testing.T) {
	t.Parallel()
	for name, hosts := range map[string]func(*testing.T) []host{
		"equal": func(t *testing.T) []host { return peersHosts(t, newLab(t), 3) },
		"off":   func(t *testing.T) []host { return driftingHosts(t, "--check", "off") },
	} {
		t.Run(name, func(t *testing.T) {
			containers := startAll(t, hosts(t), "sh", "-c", "until /run/bin/paiinit status --drift >/run/drift; "+
				"! grep -q 'nothing is known' /run/drift; do sleep 0.1; done; cat /run/drift")
			require.Equal(t, same(3, 0), statuses(t, containers))
			require.NotContains(t, stderr(containers[0]), "facts differ")
			require.Equal(t, map[string]string{
				"equal": "no differences between 3 of 3 ranks\n", "off": "the ranks are not compared (--check off)\n",
			}[name], stdout(containers[0]))
		})
	}
}

// TestPreflight: the job is launched once the preflights of all ranks have passed, and not if one has failed.
func TestPreflight(t *testing.T) {
	t.Parallel()
	with := func(t *testing.T, preflight string, flags ...string) []host {
		hosts := peersHosts(t, newLab(t), 3)
		for i := range hosts {
			hosts[i].flags = append(hosts[i].flags, "--preflight", preflight)
			hosts[i].flags = append(hosts[i].flags, flags...)
		}
		return hosts
	}
	start := func(t *testing.T, preflight string, flags ...string) []*lab.Container {
		return startAll(t, with(t, preflight, flags...), "echo", "launched")
	}
	t.Run("passes", func(t *testing.T) {
		containers := start(t,
			`echo "on $PAIINIT_ROLE $PAIINIT_INDEX"; test -z "$PAIINIT_SECRET"; sleep 0.$PAIINIT_INDEX`)
		require.Equal(t, same(3, 0), statuses(t, containers))
		require.Equal(t, "launched\n", stdout(containers[0]))
		for i, c := range containers {
			require.Contains(t, stderr(c), "on worker "+string(rune('0'+i))+"\n")
		}
	})
	t.Run("fails", func(t *testing.T) {
		containers := start(t, `[ $PAIINIT_INDEX = 0 ] || { echo "GPU $PAIINIT_INDEX: ECC"; exit 3; }`, "--exec", "all")
		require.Equal(t, same(3, 69), statuses(t, containers))
		for _, c := range containers {
			require.Empty(t, stdout(c))
			require.Contains(t, stderr(c), "the preflight failed on 2 of 3 ranks")
			require.Contains(t, stderr(c), "worker-1: exit status 3")
			require.Contains(t, stderr(c), "GPU 2: ECC")
		}
	})
	t.Run("hangs", func(t *testing.T) {
		hosts := with(t, `[ $PAIINIT_INDEX = 0 ] || { echo begun; exec sleep 1000; }`, "--timeout", "15s")
		containers := startAll(t, hosts[1:], "echo", "launched")
		for _, c := range containers { // their preflights end before rank 0's deadline
			waitLine(t, c, "begun")
		}
		containers = append(containers, hosts[0].start(t, "echo", "launched"))
		require.Equal(t, same(3, 69), statuses(t, containers))
		require.Contains(t, stderr(containers[2]), "worker-1: did not end in 13.5s")
	})
	t.Run("SIGTERM", func(t *testing.T) {
		containers := start(t, `trap "" TERM; echo begun; while :; do sleep 1; done`)
		for _, c := range containers {
			waitLine(t, c, "begun")
		}
		begin := time.Now()
		require.NoError(t, containers[1].Signal(syscall.SIGTERM))
		require.Equal(t, same(3, 143), statuses(t, containers))
		require.Less(t, tookUntil(t, begin, containers), 8*time.Second)
	})
}
