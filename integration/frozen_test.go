package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// TestFrozenRank: a rank whose processes are all stopped, as by docker pause, does not delay the end of the other
// containers. It ends with the same status once it runs again.
func TestFrozenRank(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]bool{"the end": false, "SIGTERM during the end": true} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			containers := startAll(t, peersHosts(t, l, 3), "sh", "-c", "echo launched; exec sleep 600")
			waitLine(t, containers[0], "launched")
			require.NoError(t, containers[2].Pause())
			begin := time.Now()
			require.NoError(t, containers[0].Signal(syscall.SIGTERM))
			limit := 12 * time.Second
			if stop {
				waitLine(t, containers[0], "the command has ended")
				begin = time.Now()
				require.NoError(t, containers[0].Signal(syscall.SIGTERM))
				limit = 5 * time.Second
			}
			status := 128 + int(syscall.SIGTERM)
			require.Equal(t, same(2, status), statuses(t, containers[:2]))
			require.Less(t, tookUntil(t, begin, containers[:2]), limit)
			require.NoError(t, containers[2].Resume())
			require.Equal(t, same(1, status), statuses(t, containers[2:]))
		})
	}
}

// TestThawedRank: after a freeze the command stays stopped until the job is known to go on, on rank 0 as well.
func TestThawedRank(t *testing.T) {
	for frozen := range 2 {
		t.Run(fmt.Sprint("rank ", frozen), func(t *testing.T) {
			hosts := everywhere(peersHosts(t, newLab(t), 3))
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--restarts", "1")
			}
			open := gate(t, hosts)
			containers := startAll(t, hosts, "sh", "-c", "echo generation=$PAIINIT_GENERATION; "+awaitGate)
			for _, c := range containers {
				waitLine(t, c, "generation=1")
			}
			c := containers[frozen]
			require.NoError(t, c.Pause())
			time.Sleep(5 * time.Second) // a freeze
			require.NoError(t, c.Resume())
			waitLine(t, c, `msg="this container was frozen: its command is stopped until the job is known to go on"`)
			waitLine(t, c, `msg="the command goes on after a freeze"`)
			open()
			require.Equal(t, same(3, 0), statuses(t, containers))
			for _, c := range containers {
				require.NotContains(t, stderr(c), `msg="restarting the job"`)
			}
		})
	}
}

// TestThawedLauncher: a freeze while mpirun starts its daemons does not end it. Open MPI 4's, stopped and continued
// there, ends with 0 and has run nothing.
func TestThawedLauncher(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 3)
	if err := lab.Cgroups(); err != nil {
		skip(t, err.Error())
	}
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "1")
	}
	open := gate(t, hosts)
	daemon := filepath.Join(hosts[0].binds["/run/gate"], "daemon")
	script := "#!/bin/sh\necho daemon waits >&2; " + awaitGate + "; exec orted \"$@\"\n"
	require.NoError(t, os.WriteFile(daemon, []byte(script), 0o755)) //nolint:gosec // a program
	containers := startAll(t, hosts, "mpirun", "--mca", "orte_launch_agent", "/run/gate/daemon", "-npernode", "1",
		"echo", "has run")
	c := containers[0]
	waitLine(t, c, "daemon waits")
	require.NoError(t, c.Freeze())
	time.Sleep(5 * time.Second) // a freeze
	require.NoError(t, c.Thaw())
	waitLine(t, c, `msg="the command goes on after a freeze"`)
	open()
	require.Equal(t, same(3, 0), statuses(t, containers))
	require.Equal(t, strings.Repeat("has run\n", 3), stdout(c))
}

// TestThawedRankOfAnEarlierGeneration: a machine is frozen for so long that the job goes on elsewhere. When it thaws,
// the old command does nothing more.
func TestThawedRankOfAnEarlierGeneration(t *testing.T) {
	for frozen := range 2 {
		t.Run(fmt.Sprint("rank ", frozen), func(t *testing.T) {
			l := newLab(t)
			hosts := peersHosts(t, l, 4)
			spare := hosts[3].machine
			hosts = everywhere(hosts[:3])
			dir := t.TempDir()
			for i, h := range hosts {
				l.Name(fmt.Sprintf("worker-%d.train", i), h.machine.Addr)
				h.env["PAIINIT_PEERS"] = "worker-0.train,worker-1.train,worker-2.train"
				hosts[i].flags = append(h.flags, "--restarts", "1")
				hosts[i].binds = map[string]string{"/run/gate": dir}
			}
			// The checkpoint of the first generation grows as long as its command runs.
			command := []string{"sh", "-c", `echo generation=$PAIINIT_GENERATION; while [ ! -e /run/gate/open ]; do ` +
				`echo >>/run/gate/$RANK.$PAIINIT_GENERATION; sleep 0.01; done`}
			containers := startAll(t, hosts, command...)
			for _, c := range containers {
				waitLine(t, c, "generation=1")
			}
			c := containers[frozen]
			require.NoError(t, hosts[frozen].machine.CutOff())
			require.NoError(t, c.Pause())
			for i, o := range containers {
				if i != frozen {
					waitLine(t, o, `msg="restarting the job"`)
				}
			}
			old, machine := c, hosts[frozen].machine
			hosts[frozen].name, hosts[frozen].machine = "again", spare
			l.Name(fmt.Sprintf("worker-%d.train", frozen), spare.Addr)
			containers[frozen] = hosts[frozen].start(t, command...)
			for _, c := range containers {
				waitLine(t, c, "generation=2")
			}
			checkpoint := filepath.Join(dir, fmt.Sprint(frozen, ".1"))
			before, err := os.Stat(checkpoint)
			require.NoError(t, err)
			require.NoError(t, machine.Reconnect())
			require.NoError(t, old.Resume())
			waitLine(t, old, `msg="ending the command after a freeze"`)
			waitLine(t, old, `msg="no process of the last generation is left"`)
			after, err := os.Stat(checkpoint)
			require.NoError(t, err)
			t.Logf("the old command wrote %d times after the thaw", after.Size()-before.Size())
			require.Less(t, after.Size()-before.Size(), int64(100), "it ran for a second")
			require.NoError(t, os.WriteFile(filepath.Join(dir, "open"), nil, 0o600))
			require.Equal(t, same(3, 0), statuses(t, containers))
			require.NotContains(t, strings.Split(stdout(old), "\n"), "generation=2")
			old.Kill()
		})
	}
}
