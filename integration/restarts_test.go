package integration

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// leftovers is what a generation of the job leaves in each container. Without restarts they would end with it.
const leftovers = `setsid sleep 1001 & (setsid env -i sleep 1002 &) ; (trap '' TERM; sleep 1003) & `

// oldProcesses prints what an earlier generation has left, as seen from the next one.
const oldProcesses = `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline 2>/dev/null; echo; done | grep -c '^sleep 100'`

// TestRestart: a job that fails starts again in place, on every rank, when nothing of it is left on any.
func TestRestart(t *testing.T) {
	const says = `echo rank=$OMPI_COMM_WORLD_RANK$PMI_RANK generation=$PAIINIT_GENERATION ` +
		`restarts=$PAIINIT_RESTARTS reason=$PAIINIT_RESTART_REASON status=$PAIINIT_PREVIOUS_STATUS ` +
		`old=$(` + oldProcesses + `)`
	const begin = `[ "$PAIINIT_GENERATION" = 3 ] && { ` + says + `; exit 0; }; `
	const job = begin + leftovers +
		`[ "$OMPI_COMM_WORLD_RANK$PAIINIT_TEST_RANK" = 1 ] || { wait; }; sleep 0.5; kill -9 $$`
	for name, command := range map[string][]string{
		"openmpi": {"mpirun", "-npernode", "1", "sh", "-c", job},
		// MPICH does not end a job if a rank fails before MPI_Init, and waits for processes that the ranks leave.
		"mpich": {"mpiexec.hydra", "-ppn", "1", "sh", "-c", begin + "sleep 0.5; exit 5"},
		"all":   {"sh", "-c", strings.ReplaceAll("PAIINIT_TEST_RANK=$RANK; "+job, "rank=", "rank=$RANK")},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := withInput(peersHosts(t, newLab(t), 3))
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--restarts", "3", "--restart-grace", "1s")
			}
			if name == "all" {
				hosts = everywhere(hosts)
			}
			containers := startAll(t, hosts, command...)
			paiinits := make([]int, len(containers))
			for i, c := range containers {
				waitLine(t, c, `msg="all ranks are present"`)
				paiinits[i] = agentPID(t, c)
			}
			for i, c := range containers {
				waitLine(t, c, "generation=3")
				require.Equal(t, paiinits[i], agentPID(t, c), "the agent is still the same")
			}
			require.Equal(t, same(3, 0), statuses(t, containers))
			var out strings.Builder
			for _, c := range containers {
				out.WriteString(stdout(c))
				require.Contains(t, stderr(c), `msg="restarting the job"`)
				require.Contains(t, stderr(c), `after 2 of 3 restarts`)
			}
			for rank := range 3 {
				require.Contains(t, out.String(),
					fmt.Sprintf("rank=%d generation=3 restarts=2 reason=failed status=", rank))
			}
			require.Equal(t, 3, strings.Count(out.String(), "old=0\n"), out.String())
		})
	}
}

// agentPID returns the process id of the agent of a container.
func agentPID(t *testing.T, c *lab.Container) int {
	t.Helper()
	for _, p := range processesOf(t, c, "paiinit") {
		if p.Parent == c.PID() {
			return p.PID
		}
	}
	return 0
}

// TestNoRestart: what a restart cannot mend, or a person has asked for, ends the job as without --restarts.
func TestNoRestart(t *testing.T) {
	for name, tt := range map[string]struct {
		flags   []string
		command string
		stop    bool
		status  int
		says    string
	}{
		"success":         {nil, "exit 0", false, 0, ""},
		"used up":         {[]string{"--restarts", "1"}, "exit 3", false, 3, "after 1 of 1 restarts: "},
		"listed status":   {[]string{"--no-restart-on", "4,3"}, "exit 3", false, 3, "--no-restart-on lists status 3"},
		"only after loss": {[]string{"--restart-on", "lost"}, "exit 3", false, 3, "only after the loss of a rank"},
		"crash loop":      {[]string{"--restarts", "unlimited"}, "exit 3", false, 3, "crash loop: 3 generations"},
		"stopped":         {nil, "echo up; sleep 1000", true, 143, "was stopped by SIGTERM"},
		"stopped while it waits for the next restart": {
			[]string{"--restarts", "9", "--log-format", "text"},
			"[ $PAIINIT_GENERATION = 1 ] || echo up; exit 3", true, 143, "was stopped by SIGTERM",
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := everywhere(peersHosts(t, newLab(t), 2))
			for i := range hosts {
				hosts[i].flags = append(append(hosts[i].flags, "--restarts", "3"), tt.flags...)
			}
			containers := startAll(t, hosts, "sh", "-c", tt.command)
			if tt.stop {
				waitLine(t, containers[1], "up")
				if strings.Contains(name, "while it waits") {
					waitLine(t, containers[1], "restarting the job in 1 s")
				}
				require.NoError(t, containers[1].Signal(syscall.SIGTERM))
			}
			require.Equal(t, same(2, tt.status), statuses(t, containers))
			for _, c := range containers {
				require.Contains(t, stderr(c), tt.says)
			}
		})
	}
}

// TestReplacedContainer: a lost container that is started again takes its place. The others do not end.
func TestReplacedContainer(t *testing.T) {
	const job = `echo rank=$OMPI_COMM_WORLD_RANK$RANK generation=$PAIINIT_GENERATION reason=$PAIINIT_RESTART_REASON; ` +
		`[ "$PAIINIT_GENERATION" = 2 ] || { echo up; sleep 1000; }`
	for name, tt := range map[string]struct {
		hosts   func(t *testing.T, l *lab.Lab, n int) []host
		all     bool
		command []string
	}{
		"all":         {peersHosts, true, []string{"sh", "-c", job}},
		"openmpi":     {peersHosts, false, []string{"mpirun", "-npernode", "1", "sh", "-c", job}},
		"agreed rank": {composeHosts, true, []string{"sh", "-c", job}},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := withInput(tt.hosts(t, newLab(t), 3))
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--restarts", "1")
			}
			if tt.all {
				hosts = everywhere(hosts)
			}
			containers := startAll(t, hosts, tt.command...)
			zero, lost := containers[0], 2
			for _, c := range containers {
				waitLine(t, c, `msg="all ranks are present"`)
			}
			for i, c := range containers {
				if strings.Contains(stderr(c), "rank=0") {
					zero = c
				} else {
					lost = i
				}
			}
			waitLine(t, zero, "up")
			containers[lost].Kill()
			<-containers[lost].Ended()
			waitLine(t, zero, `msg="restarting the job"`)
			hosts[lost].name = "again"
			containers[lost] = hosts[lost].start(t, tt.command...)
			began := time.Now()
			require.Equal(t, same(3, 0), statuses(t, containers))
			t.Logf("from its start to the end of the job: %v", time.Since(began))
			var out strings.Builder
			for _, c := range containers {
				out.WriteString(stdout(c))
			}
			for rank := range 3 {
				require.Contains(t, out.String(), fmt.Sprintf("rank=%d generation=2 reason=lost\n", rank))
			}
		})
	}
}

// TestLostContainerDoesNotComeBack: after --rejoin the job ends on all ranks.
func TestLostContainerDoesNotComeBack(t *testing.T) {
	hosts := everywhere(peersHosts(t, newLab(t), 3))
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "1", "--rejoin", "2s")
	}
	containers := startAll(t, hosts, "sh", "-c", "echo up; sleep 1000")
	for _, c := range containers {
		waitLine(t, c, "up")
	}
	containers[1].Kill()
	got := statuses(t, []*lab.Container{containers[0], containers[2]})
	require.Equal(t, same(2, 75), got)
	for _, i := range []int{0, 2} {
		require.Contains(t, stderr(containers[i]), "missing: worker-1")
	}
}

// TestLostRankZeroEndsTheJob, whatever --restarts allows: nothing proves that its command has not gone on elsewhere.
func TestLostRankZeroEndsTheJob(t *testing.T) {
	hosts := everywhere(peersHosts(t, newLab(t), 3))
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "1")
	}
	containers := startAll(t, hosts, "sh", "-c", "echo up; sleep 1000")
	for _, c := range containers {
		waitLine(t, c, "up")
	}
	containers[0].Kill()
	require.Equal(t, same(2, 75), statuses(t, containers[1:]))
}

// TestRestartSparesPeople: what people run in a container by its engine goes on through a restart.
func TestRestartSparesPeople(t *testing.T) {
	hosts := everywhere(peersHosts(t, newLab(t), 2))
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "1")
	}
	const await = `until [ -e $1 ]; do sleep 0.01; done; `
	containers := startAll(t, hosts, "sh", "-c", `await() { `+await+`}
		if [ "$PAIINIT_GENERATION" = 1 ]; then echo up; [ $RANK = 1 ] || sleep 1000; await /run/go; exit 3; fi
		[ $RANK = 1 ] || exit 0; echo >/run/second; await /run/alive`)
	waitLine(t, containers[1], "up")
	_, err := containers[1].Exec(t.Context(), "sh", "-c",
		`await() { `+await+`}; echo >/run/go; await /run/second; echo >/run/alive`)
	require.NoError(t, err)
	require.Equal(t, same(2, 0), statuses(t, containers))
}
