package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
	"github.com/paiinit/paiinit/integration/training"
)

// leftovers is what a generation of the job leaves in each container. Without restarts they would end with it.
const leftovers = `setsid sleep 1001 & (setsid env -i sleep 1002 &) ; (trap '' TERM; sleep 1003) & `

// oldProcesses prints what an earlier generation has left, as seen from the next one.
const oldProcesses = `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline 2>/dev/null; echo; done | grep -c '^sleep 100'`

// awaitGate ends once the gate of its host is open.
const awaitGate = `until [ -e /run/gate/open ]; do sleep 0.01; done`

// gate gives the hosts a gate, and returns what opens it.
func gate(t *testing.T, hosts []host) (open func()) {
	t.Helper()
	dir := t.TempDir()
	for i := range hosts {
		hosts[i].binds = map[string]string{"/run/gate": dir}
	}
	return func() { require.NoError(t, os.WriteFile(filepath.Join(dir, "open"), nil, 0o600)) }
}

// TestRestart: a job that fails starts again in place, on every rank, when nothing of it is left on any.
func TestRestart(t *testing.T) {
	t.Parallel()
	const says = `echo rank=$OMPI_COMM_WORLD_RANK$PMI_RANK generation=$PAIINIT_GENERATION ` +
		`restarts=$PAIINIT_RESTARTS reason=$PAIINIT_RESTART_REASON status=$PAIINIT_PREVIOUS_STATUS ` +
		`old=$(` + oldProcesses + `)`
	const begin = `[ "$PAIINIT_GENERATION" = 3 ] && { ` + says + `; ` + awaitGate + `; exit 0; }; `
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
			open := gate(t, hosts)
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
			open()
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

// TestHang: the command of one rank hangs, and the job starts again on all ranks, or ends on all of them.
func TestHang(t *testing.T) {
	t.Parallel()
	const begin = `[ "$PAIINIT_RESTART_REASON" = hung ] && { echo again $PAIINIT_PREVIOUS_STATUS; exit 0; }; `
	const job = begin + `[ $RANK = 1 ] && { echo last words; exec sleep 1000; }; while :; do echo on; sleep 0.1; done`
	const why = "rank 1's command sh has made no progress for 10 s on worker-1 (10.77.0.11): no output"
	for _, restarts := range []string{"0", "1"} {
		t.Run(restarts, func(t *testing.T) {
			hosts := everywhere(peersHosts(t, newLab(t), 3))
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--restarts", restarts, "--hang", "10s")
			}
			containers := startAll(t, hosts, "sh", "-c", job)
			if restarts == "0" {
				require.Equal(t, same(3, 75), statuses(t, containers))
				for _, c := range containers {
					require.Contains(t, stderr(c), why)
					require.Contains(t, stderr(c), "last words")
					require.Contains(t, stderr(c), "look at its stacks on worker-1 while it hangs")
				}
				return
			}
			require.Equal(t, same(3, 0), statuses(t, containers))
			for _, c := range containers {
				require.Contains(t, stdout(c), "again 75\n")
				require.Contains(t, stderr(c), "restarting the job")
				require.Contains(t, stderr(c), why)
			}
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
	require.FailNow(t, "the container has no agent")
	return 0
}

// TestNoRestart: what a restart cannot mend, or a person has asked for, ends the job as without --restarts.
func TestNoRestart(t *testing.T) {
	t.Parallel()
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
			"[ $PAIINIT_GENERATION = 1 ] || echo up; [ $PAIINIT_GENERATION -lt 3 ] || exec sleep 1000; exit 3",
			true, 143, "was stopped by SIGTERM",
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := everywhere(peersHosts(t, newLab(t), 2))
			for i := range hosts {
				hosts[i].flags = append(append(hosts[i].flags, "--restarts", "3"), tt.flags...)
			}
			containers := startAll(t, hosts, "sh", "-c", tt.command)
			if tt.stop {
				waitLine(t, containers[0], "up")
				if strings.Contains(name, "while it waits") {
					waitLine(t, containers[0], "restarting the job in 1 s")
				}
				require.NoError(t, containers[0].Signal(syscall.SIGTERM))
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
	t.Parallel()
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
				require.Regexp(t, `msg="the job runs again" .* rejoin=[\d.]*[1-9]`, stderr(c))
			}
			for rank := range 3 {
				require.Contains(t, out.String(), fmt.Sprintf("rank=%d generation=2 reason=lost\n", rank))
			}
		})
	}
}

// TestLeavingContainer: a container other than rank 0's that gets SIGTERM, as from a drained node, ends alone. The
// ranks have --grace to save their work, and the job goes on with the container's next start.
func TestLeavingContainer(t *testing.T) {
	t.Parallel()
	const job = `[ "$PAIINIT_GENERATION" = 2 ] && ` +
		`{ echo generation=2 reason=$PAIINIT_RESTART_REASON status=$PAIINIT_PREVIOUS_STATUS; ` +
		awaitGate + `; exit 0; }; ` +
		`trap 'sleep 2.5; echo saved; exit 0' TERM; r=$OMPI_COMM_WORLD_RANK; echo up ${r:-$RANK}; ` +
		`while :; do sleep 0.1; done`
	for name, command := range map[string][]string{
		"openmpi": {"mpirun", "-npernode", "1", "sh", "-c", job},
		"all":     {"sh", "-c", job},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := withInput(peersHosts(t, newLab(t), 3))
			open := gate(t, hosts)
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--restarts", "1", "--restart-grace", "1s")
			}
			state := t.TempDir()
			require.NoError(t, os.Chmod(state, 0o700))
			hosts[1].binds["/run/state"] = state
			hosts[1].flags = append(hosts[1].flags, "--state-dir", "/run/state")
			if name == "all" {
				hosts = everywhere(hosts)
			}
			containers := startAll(t, hosts, command...)
			var paiinits []int
			for rank, c := range containers {
				says := c
				if name == "openmpi" {
					says = containers[0]
				}
				waitLine(t, says, fmt.Sprint("up ", rank))
				paiinits = append(paiinits, agentPID(t, c))
			}
			require.NoError(t, containers[2].Signal(syscall.SIGTERM))
			require.Equal(t, []int{143}, statuses(t, containers[2:]))
			require.Contains(t, stderr(containers[2]), `msg="this container leaves the job" self=worker-2 phase=exit `+
				`status=143 reason="worker-2 was stopped by SIGTERM"`)
			out := stdout(containers[2])
			hosts[2].name = "again"
			containers[2] = hosts[2].start(t, command...)
			for i, c := range containers[:2] {
				waitLine(t, c, "the job runs again")
				require.Equal(t, paiinits[i], agentPID(t, c), "the agent is still the same")
			}
			open()
			require.Equal(t, same(3, 0), statuses(t, containers))
			for _, c := range containers {
				out += stdout(c)
			}
			require.Equal(t, 3, strings.Count(out, "saved\n"), out)
			require.Equal(t, 3, strings.Count(out, "generation=2 reason=lost status=143\n"), out)
			require.Contains(t, stderr(containers[0]), "waiting=worker-2")
			last, err := os.ReadFile(filepath.Join(state, "status.json"))
			require.NoError(t, err)
			require.Contains(t, string(last), `"phase": "ended"`)
			require.Contains(t, string(last), `"generation": 2`)
		})
	}
}

// TestLeavingStarts: SIGTERM ends the next starts of a lost container, each at another moment, while the ranks gather
// again. Each leaves alone, and the last one takes part.
func TestLeavingStarts(t *testing.T) {
	hosts := everywhere(withInput(peersHosts(t, newLab(t), 3)))
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "1", "--restart-grace", "0s")
	}
	command := []string{"sh", "-c", `[ "$PAIINIT_GENERATION" = 2 ] && exit 0; echo up; exec sleep 1000`}
	containers := startAll(t, hosts, command...)
	for _, c := range containers {
		waitLine(t, c, "up")
	}
	for _, c := range containers[1:] { // the ranks wait for rank 1 all the time
		require.NoError(t, c.Signal(syscall.SIGKILL))
	}
	_ = statuses(t, containers[1:])
	waitLine(t, containers[0], "restarting the job")
	for i, after := range []time.Duration{0, 10, 25, 50, 80, 130, 280, 600, 1200} {
		hosts[2].name = fmt.Sprint("leaves", i)
		leaves := hosts[2].start(t, command...)
		// Before it has handlers PID 1 ends otherwise (docs/init.md, Limits; TestSpecification).
		agent := func() bool { processes, _ := leaves.Processes(); return len(processes) > 1 }
		require.Eventually(t, agent, waitTimeout, time.Millisecond)
		time.Sleep(after * time.Millisecond)
		require.NoError(t, leaves.Signal(syscall.SIGTERM))
		require.Equal(t, []int{143}, statuses(t, []*lab.Container{leaves}), "%d ms: %s", after, stderr(leaves))
	}
	for i := 1; i < 3; i++ {
		hosts[i].name = fmt.Sprint("again", i)
		containers[i] = hosts[i].start(t, command...)
	}
	require.Equal(t, same(3, 0), statuses(t, containers), stderr(containers[0]))
}

// TestLeavingAndLostRankZero: a container that was told to end while the job runs leaves it with 143, also if rank 0 is
// lost before its command has ended.
func TestLeavingAndLostRankZero(t *testing.T) {
	t.Parallel()
	const job = `r=$OMPI_COMM_WORLD_RANK; r=${r:-$RANK}; trap 'echo ends $r; sleep 2; echo saved; exit 0' TERM; ` +
		`echo up $r; while :; do sleep 0.1; done`
	for name, command := range map[string][]string{
		"openmpi": {"mpirun", "-npernode", "1", "sh", "-c", job},
		"all":     {"sh", "-c", job},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := withInput(peersHosts(t, newLab(t), 3))
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--restarts", "1", "--restart-grace", "4s")
			}
			if name == "all" {
				hosts = everywhere(hosts)
			}
			containers := startAll(t, hosts, command...)
			for rank, c := range containers {
				says := c
				if name == "openmpi" {
					says = containers[0]
				}
				waitLine(t, says, fmt.Sprint("up ", rank))
			}
			require.NoError(t, containers[1].Signal(syscall.SIGTERM))
			waitLine(t, containers[0], "ends 0")
			containers[0].Kill()
			require.Equal(t, []int{143}, statuses(t, containers[1:2]))
			require.Contains(t, stderr(containers[1]), `msg="this container leaves the job"`)
			waitLine(t, containers[2], `msg="restarting the job"`)
		})
	}
}

// TestStoppedJob: a scheduler that ends the whole job signals every container. Restarts do not keep it.
func TestStoppedJob(t *testing.T) {
	hosts := everywhere(peersHosts(t, newLab(t), 3))
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "1")
	}
	const job = `trap 'sleep 2.5; echo saved; exit 3' TERM; echo up $RANK; while :; do sleep 0.1; done`
	containers := startAll(t, hosts, "sh", "-c", job)
	for rank, c := range containers {
		waitLine(t, c, fmt.Sprint("up ", rank))
	}
	for i := range containers {
		require.NoError(t, containers[len(containers)-1-i].Signal(syscall.SIGTERM))
	}
	require.Equal(t, same(3, 3), statuses(t, containers))
	for _, c := range containers {
		require.NotContains(t, stderr(c), "restarting the job")
		require.Contains(t, stdout(c), "saved")
	}
}

// TestInterruptedJob: a person has interrupted a rank, whose container is stopped then. The first request counts.
func TestInterruptedJob(t *testing.T) {
	hosts := everywhere(peersHosts(t, newLab(t), 2))
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "1", "--rejoin", "5s", "--grace", "2m")
	}
	open := gate(t, hosts)
	const job = `trap '` + awaitGate + `; exit 3' INT; echo up $RANK; while :; do sleep 0.1; done`
	containers := startAll(t, hosts, "sh", "-c", job)
	for rank, c := range containers {
		waitLine(t, c, fmt.Sprint("up ", rank))
	}
	require.NoError(t, containers[1].Signal(syscall.SIGINT))
	waitLine(t, containers[0], "was stopped by SIGINT")
	require.NoError(t, containers[1].Signal(syscall.SIGTERM))
	open()
	require.Equal(t, same(2, 3), statuses(t, containers))
	require.NotContains(t, stderr(containers[0]), "restarting the job")
}

// TestLostContainerDoesNotComeBack: after --rejoin the job ends on all ranks.
func TestLostContainerDoesNotComeBack(t *testing.T) {
	hosts := everywhere(peersHosts(t, newLab(t), 3))
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "1", "--rejoin", "10s")
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

// TestNextStartsWaitForEachOther: two containers are lost. The next start of one waits for that of the other as long as
// rank 0 does, although its own --timeout is over.
func TestNextStartsWaitForEachOther(t *testing.T) {
	hosts := everywhere(peersHosts(t, newLab(t), 3))
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "1", "--rejoin", "5m")
	}
	command := []string{"sh", "-c", `echo up; [ "$PAIINIT_GENERATION" = 2 ] || sleep 1000`}
	containers := startAll(t, hosts, command...)
	for _, c := range containers {
		waitLine(t, c, "up")
	}
	again := func(i int, flags ...string) {
		hosts[i].name, hosts[i].flags = fmt.Sprint("again-", i), append(hosts[i].flags, flags...)
		containers[i] = hosts[i].start(t, command...)
	}
	for _, c := range containers[1:] {
		c.Kill()
		<-c.Ended()
	}
	waitLine(t, containers[0], `msg="restarting the job"`)
	again(1, "--timeout", "10s") // rank 0 must reach it before that, also on a busy machine
	waitLine(t, containers[1], `msg="rank 0 is connected"`)
	select {
	case <-containers[1].Ended():
		require.Fail(t, "the next start has given up", stderr(containers[1]))
	case <-time.After(26 * time.Second): // more than its --timeout, twice, and 3 s for what rank 0 may have sent
	}
	again(2)
	require.Equal(t, same(3, 0), statuses(t, containers))
}

// TestReplacedRankZero: the others clear and wait, and the next start of rank 0's container goes on with the job.
func TestReplacedRankZero(t *testing.T) {
	t.Parallel()
	const job = `echo rank=$OMPI_COMM_WORLD_RANK$RANK generation=$PAIINIT_GENERATION ` +
		`reason=$PAIINIT_RESTART_REASON master=$MASTER_ADDR old=$(` + oldProcesses + `); ` +
		`[ "$PAIINIT_GENERATION" = 2 ] || { ` + leftovers + `echo up; sleep 1000; }`
	for name, tt := range map[string]struct {
		command []string
		moves   bool
	}{
		"all":                {command: []string{"sh", "-c", job}},
		"openmpi":            {command: []string{"mpirun", "-npernode", "1", "sh", "-c", job}},
		"all, elsewhere":     {command: []string{"sh", "-c", job}, moves: true},
		"openmpi, elsewhere": {command: []string{"mpirun", "-npernode", "1", "sh", "-c", job}, moves: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			hosts := withInput(peersHosts(t, l, 4))
			spare := hosts[3].machine
			hosts = hosts[:3]
			for i, h := range hosts {
				l.Name(fmt.Sprintf("worker-%d.train", i), h.machine.Addr)
				h.env["PAIINIT_PEERS"] = "worker-0.train,worker-1.train,worker-2.train"
				hosts[i].flags = append(h.flags, "--restarts", "1", "--restart-grace", "1s")
			}
			if strings.HasPrefix(name, "all") {
				hosts = everywhere(hosts)
			}
			containers := startAll(t, hosts, tt.command...)
			for _, c := range containers {
				waitLine(t, c, `msg="all ranks are present"`)
			}
			waitLine(t, containers[0], "up")
			containers[0].Kill()
			<-containers[0].Ended()
			for _, c := range containers[1:] {
				waitLine(t, c, `msg="restarting the job"`)
			}
			hosts[0].name = "again"
			if tt.moves {
				hosts[0].machine = spare
				l.Name("worker-0.train", spare.Addr)
			}
			containers[0] = hosts[0].start(t, tt.command...)
			began := time.Now()
			require.Equal(t, same(3, 0), statuses(t, containers))
			t.Logf("from its start to the end of the job: %v", time.Since(began))
			var out strings.Builder
			for i, c := range containers {
				out.WriteString(stdout(c))
				require.Contains(t, stderr(c), `msg="the job runs again"`)
				require.Contains(t, stderr(c), "after 1 of 1 restarts")
				require.Equal(t, i == 0, strings.Contains(stderr(c), `msg="rank 0's container has started again"`))
			}
			for rank := range 3 {
				require.Contains(t, out.String(),
					fmt.Sprintf("rank=%d generation=2 reason=lost master=%v old=0\n", rank, hosts[0].machine.Addr))
			}
		})
	}
}

// TestLostRankZero: without another start of its container, or another restart, the job ends on all ranks.
func TestLostRankZero(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ restarts, says string }{
		"does not come back": {"1", "rank 0 is missing"},
		"used up":            {"0", "rank 0 is gone"},
		"not after a loss":   {"1", "not restarted: --no-restart-on lists status 75"},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := everywhere(peersHosts(t, newLab(t), 3))
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--restarts", tt.restarts, "--rejoin", "2s")
				if name == "not after a loss" {
					hosts[i].flags = append(hosts[i].flags, "--no-restart-on", "75")
				}
			}
			containers := startAll(t, hosts, "sh", "-c", "echo up; sleep 1000")
			for _, c := range containers {
				waitLine(t, c, "up")
			}
			containers[0].Kill()
			require.Equal(t, same(2, 75), statuses(t, containers[1:]))
			for _, c := range containers[1:] {
				require.Contains(t, stderr(c), tt.says)
			}
		})
	}
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

// TestSpare: the spare takes the place of a lost container; when that one comes back, it is the spare.
func TestSpare(t *testing.T) {
	t.Parallel()
	const job = `r=$OMPI_COMM_WORLD_RANK; n=$OMPI_COMM_WORLD_SIZE; r=${r:-$RANK}; ` +
		`echo rank=$r of=${n:-$WORLD_SIZE} generation=$PAIINIT_GENERATION reason=$PAIINIT_RESTART_REASON; ` +
		`echo up $r; ` +
		`[ "$PAIINIT_GENERATION" = 2 ] || sleep 1000; ` + awaitGate
	for name, command := range map[string][]string{
		"openmpi": {"mpirun", "-npernode", "1", "sh", "-c", job},
		"all":     {"sh", "-c", job},
	} {
		t.Run(name, func(t *testing.T) {
			const ranks, lost, spare = 3, 1, 3
			hosts := withInput(peersHosts(t, newLab(t), ranks+1))
			open := gate(t, hosts)
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--restarts", "1", "--spares", "1")
			}
			if name == "all" {
				hosts = everywhere(hosts)
			}
			containers := startAll(t, hosts, command...)
			waitLine(t, containers[spare], `msg="this container is a spare"`)
			for rank, c := range containers[:ranks] {
				if name == "openmpi" {
					c = containers[0]
				}
				waitLine(t, c, fmt.Sprint("up ", rank))
			}
			for i, want := range map[int]string{
				spare: "spare: all 3 ranks are present\n" +
					"this is worker-3, which takes the place of a container that is lost\n",
				0: "running: all 3 ranks are present\n",
			} {
				status, err := containers[i].Exec(t.Context(), "/run/bin/paiinit", "status")
				require.NoError(t, err)
				require.Contains(t, string(status), want)
				require.Regexp(t, `spare: .* \(worker-3\)`, string(status))
			}
			killed := time.Now()
			containers[lost].Kill()
			<-containers[lost].Ended()
			waitLine(t, containers[spare], `msg="all ranks are present"`)
			t.Logf("from the death of a container to the launch with the spare: %v", time.Since(killed))
			hosts[lost].name = "again"
			containers[lost] = hosts[lost].start(t, command...)
			waitLine(t, containers[lost], `msg="this container is a spare"`)
			require.NoError(t, containers[lost].Signal(syscall.SIGTERM))
			require.Equal(t, []int{143}, statuses(t, containers[lost:lost+1]))
			require.Contains(t, stderr(containers[lost]), `msg="this container leaves the job"`)
			hosts[lost].name = "once more"
			containers[lost] = hosts[lost].start(t, command...)
			waitLine(t, containers[lost], `msg="this container is a spare"`)
			open()
			require.Equal(t, same(ranks+1, 0), statuses(t, containers))
			var out strings.Builder
			for _, c := range containers {
				out.WriteString(stdout(c))
			}
			for rank := range ranks {
				require.Contains(t, out.String(), fmt.Sprintf("rank=%d of=3 generation=2 reason=lost\n", rank))
			}
			require.NotContains(t, out.String(), "rank=3")
		})
	}
}

// TestSpareWaits: with --rejoin a lost container may come back first. It does not, and the job goes on with the spare.
func TestSpareWaits(t *testing.T) {
	const rejoin = 3 * time.Second
	hosts := everywhere(peersHosts(t, newLab(t), 3))
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "1", "--spares", "1", "--rejoin", rejoin.String())
	}
	containers := startAll(t, hosts, "sh", "-c", `g=$PAIINIT_GENERATION; echo up $g; [ $g = 2 ] || sleep 1000`)
	waitLine(t, containers[2], `msg="this container is a spare"`)
	for _, c := range containers[:2] {
		waitLine(t, c, "up 1")
	}
	killed := time.Now()
	containers[1].Kill()
	require.Equal(t, []int{0, 137, 0}, statuses(t, containers))
	up, err := containers[2].WaitLine(t.Context(), "up 2")
	require.NoError(t, err)
	require.GreaterOrEqual(t, up.Time.Sub(killed), rejoin)
}

// steps is a training loop: its ranks meet after every step, and rank 0 writes a checkpoint after every fifth.
const steps = `
cd /run/steps
say() { echo "$1 $MASTER_PORT $PAIINIT_GENERATION $RANK $2" >>log; }
s=$(cat checkpoint 2>/dev/null || echo 0)
say begin $s
while [ $s -lt 60 ]; do
	s=$((s+1))
	# A busy test kills the first two generations late.
	[ $PAIINIT_GENERATION -gt 2 ] || [ $s -lt $((25*PAIINIT_GENERATION)) ] || sleep 1000
	say step $s
	/run/bin/paiinit barrier step >/dev/null || exit 1
	if [ $RANK = 0 ] && [ $((s%5)) = 0 ]; then
		echo $s >checkpoint.$PAIINIT_GENERATION && mv checkpoint.$PAIINIT_GENERATION checkpoint
		say checkpoint $s
	fi
done
say done $s
`

// TestCheckpoints: a job that loses a container and then a process goes on from its last checkpoint. No step is lost,
// and none runs twice but those after the checkpoint.
func TestCheckpoints(t *testing.T) {
	hosts := everywhere(withInput(peersHosts(t, newLab(t), 3)))
	dir := t.TempDir()
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--restarts", "2")
		hosts[i].binds = map[string]string{"/run/steps": dir}
	}
	containers := startAll(t, hosts, "sh", "-c", steps)
	reached := func(least int) {
		for {
			text, _ := os.ReadFile(filepath.Join(dir, "checkpoint"))
			if n, _ := strconv.Atoi(strings.TrimSpace(string(text))); n >= least {
				return
			}
			select {
			case <-containers[0].Ended():
				require.FailNow(t, "the job has ended")
			case <-time.After(time.Millisecond):
			}
		}
	}
	reached(10)
	containers[2].Kill()
	<-containers[2].Ended()
	waitLine(t, containers[0], `msg="restarting the job"`)
	hosts[2].name = "again"
	containers[2] = hosts[2].start(t, "sh", "-c", steps)
	reached(30)
	killCommand(t, containers[1])
	require.Equal(t, same(3, 0), statuses(t, containers))

	text, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	log, err := training.Read(string(text))
	require.NoError(t, err)
	require.Len(t, log.Launches, 3)
	require.Equal(t, 60, log.Checkpoint)
	require.True(t, log.Complete(3))
	t.Logf("%+v", log.Launches)
}

// killCommand kills the command of a container.
func killCommand(t *testing.T, c *lab.Container) {
	t.Helper()
	processes, err := c.Processes()
	require.NoError(t, err)
	for _, p := range processes {
		if len(p.Args) > 1 && p.Args[0] == "sh" && p.Args[1] == "-c" {
			require.NoError(t, syscall.Kill(p.PID, syscall.SIGKILL))
			return
		}
	}
	require.FailNow(t, "the container runs no command")
}
