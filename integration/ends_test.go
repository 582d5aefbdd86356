package integration

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// TestSecondClaimant: the job rejects a container with the role and index of another one, before and after the launch,
// and continues.
func TestSecondClaimant(t *testing.T) {
	t.Parallel()
	for _, launched := range []bool{false, true} {
		t.Run(fmt.Sprintf("launched %v", launched), func(t *testing.T) {
			l := newLab(t)
			hosts := peersHosts(t, l, 3)
			m, err := l.Machine("second")
			require.NoError(t, err)
			second := hosts[1]
			second.machine = m
			command := []string{"sh", "-c", "echo launched; exec sleep 600"}
			first := startAll(t, hosts[:2], command...)
			waitLine(t, first[0], "present=2")
			if launched {
				first = append(first, hosts[2].start(t, command...))
				waitLine(t, first[0], "launched")
			}
			late := second.start(t, command...)
			require.Equal(t, []int{78}, statuses(t, append(first[:0:0], late)))
			require.Contains(t, stderr(late), "worker-1 is taken")
			if !launched {
				first = append(first, hosts[2].start(t, command...))
				waitLine(t, first[0], "launched")
			}
			require.NoError(t, first[0].Signal(syscall.SIGTERM))
			require.Equal(t, same(3, 143), statuses(t, first))
		})
	}
}

// TestTwoClaimRankZero: two containers claim rank 0, so one rank is missing for ever and all containers end at once.
func TestTwoClaimRankZero(t *testing.T) {
	l := newLab(t)
	hosts := peersHosts(t, l, 3)
	hosts[1].env["PAIINIT_INDEX"] = "0"
	begin := time.Now()
	containers := startAll(t, hosts, "true")
	require.Equal(t, same(3, 78), statuses(t, containers))
	require.Less(t, tookUntil(t, begin, containers), 20*time.Second)
	for _, c := range containers {
		require.Contains(t, stderr(c), "both say that they are rank 0")
		for _, h := range hosts[:2] { // both give the address that the list has for the rank
			require.Contains(t, stderr(c), "worker-0 at 10.77.0.10:12345 on host "+h.machine.Name)
		}
	}
}

// serviceHosts returns containers of docker compose services, one role each. All know the size and the rank order.
func serviceHosts(t *testing.T, l *lab.Lab, size int, order string, roles ...string) (hosts []host) {
	t.Helper()
	for i, m := range newMachines(t, l, len(roles)) {
		l.Name(roles[i], m.Addr)
		env := map[string]string{
			"PAIINIT_SECRET": secret, "PAIINIT_ROLE": roles[i], "PAIINIT_SIZE": fmt.Sprint(size),
		}
		hosts = append(hosts, host{machine: m, flags: []string{"--peers", order, "--slots", "2"}, env: env})
	}
	return hosts
}

// TestSizeForgetsTheLauncher: the size counts only the two workers, so the container of the launcher is one too many.
func TestSizeForgetsTheLauncher(t *testing.T) {
	l := newLab(t)
	hosts := serviceHosts(t, l, 2, "dns:launcher,dns:worker", "worker", "worker", "launcher")
	containers := startAll(t, hosts[:2], "true")
	for _, c := range containers { // rank 0 logs it and tells the other
		waitLine(t, c, "missing=\"launcher (")
	}
	containers = append(containers, hosts[2].start(t, "true"))
	require.Equal(t, same(3, 78), statuses(t, containers))
	for _, c := range containers {
		require.Contains(t, stderr(c), "the job has 2 ranks, but 3 containers are here; too many: worker at ")
	}
}

// TestScaledServiceOfSizeOne: a job of size 1 opens no port, so its containers notice the others only by the addresses
// of their service, and end.
func TestScaledServiceOfSizeOne(t *testing.T) {
	l := newLab(t)
	hosts := serviceHosts(t, l, 1, "dns:worker", "worker", "worker", "worker")
	containers := startAll(t, hosts, "echo", "launched")
	require.Equal(t, same(3, 78), statuses(t, containers))
	for _, c := range containers {
		require.Empty(t, stdout(c))
		require.Contains(t, stderr(c), `PAIINIT_SIZE=1 but other containers of \"worker\" run at `)
	}
}

// TestSurplusSetComesLate: two surplus containers of a service could form a job of their own. The running job rejects
// them and continues.
func TestSurplusSetComesLate(t *testing.T) {
	l := newLab(t)
	hosts := serviceHosts(t, l, 2, "dns:worker", "worker", "worker", "worker", "worker")
	first := startAll(t, hosts[:2], "sh", "-c", "exec sleep 600")
	for _, c := range first {
		waitLine(t, c, "all ranks are present")
	}
	late := startAll(t, hosts[2:], "true")
	require.Equal(t, same(2, 78), statuses(t, late))
	for _, c := range late {
		require.Contains(t, stderr(c), "the job has 2 ranks and all of them are here: this container is one too many")
	}
	require.NoError(t, first[0].Signal(syscall.SIGTERM))
	require.Equal(t, same(2, 143), statuses(t, first))
}

// endings lists how a job may end before its launch. All containers end with the same status, soon after the last one
// has started.
var endings = []struct {
	name    string
	prepare func(hosts []host)
	late    int    // this rank starts a few seconds after the others; 0 = none, -1 = rank 0
	says    string // rank 1 says this before the late one starts
	bare    bool   // rank 1 has no COMMAND
	stop    int    // this rank gets SIGTERM once it listens and before the late one starts; 0 = none, -1 = rank 0
	status  int
}{
	{
		name: "rank 0 has another secret", prepare: func(h []host) { h[0].env["PAIINIT_SECRET"] = otherSecret },
		status: 77,
	},
	{
		name: "a worker has another secret", prepare: func(h []host) { h[1].env["PAIINIT_SECRET"] = otherSecret },
		status: 77,
	},
	{
		name: "rank 0 belongs to another job", prepare: func(h []host) { h[0].env["PAIINIT_JOB"] = "another" },
		status: 78,
	},
	{
		name: "a worker's size contradicts its peers", prepare: func(h []host) { h[1].env["PAIINIT_SIZE"] = "4" },
		status: 78,
	},
	{
		name: "a worker's size contradicts its peers, and rank 0 starts later", late: -1, status: 78,
		prepare: func(h []host) { h[1].env["PAIINIT_SIZE"] = "4" },
	},
	{
		name: "rank 0's size contradicts its peers", prepare: func(h []host) { h[0].env["PAIINIT_SIZE"] = "4" },
		status: 78,
	},
	{
		name: "all sizes contradict the peers", status: 78,
		prepare: func(h []host) {
			for i := range h {
				h[i].env["PAIINIT_SIZE"] = "4"
			}
		},
	},
	{name: "a worker stops before rank 0 has started", late: -1, stop: 1, status: 143},
	{name: "rank 0 stops before a worker has started", late: 2, stop: -1, status: 143},
	{
		name: "a worker that cannot run its command waits for rank 0", late: -1, status: 127,
		says: "this rank cannot run its command and waits for rank 0, to end the job",
		prepare: func(h []host) {
			everywhere(h)
			h[1].env["PATH"] = "/nowhere"
		},
	},
	{
		name: "a worker without a command waits for rank 0", late: -1, status: 64, bare: true,
		says:    "this rank cannot run its command and waits for rank 0, to end the job",
		prepare: func(h []host) { everywhere(h) },
	},
}

const otherSecret = "another secret, as long as it has to be"

func TestEndsBeforeTheLaunch(t *testing.T) {
	t.Parallel()
	for _, tt := range endings {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			hosts := sizedHosts(t, l, 3)
			if tt.prepare != nil {
				tt.prepare(hosts)
			}
			index := func(n int) int { return max(n, 0) }
			var containers []*lab.Container
			var stopped *lab.Container
			for i, h := range hosts {
				if tt.late != 0 && i == index(tt.late) {
					continue
				}
				command := []string{"true"}
				if i == 1 && tt.bare {
					command = nil
				}
				c := h.start(t, command...)
				containers = append(containers, c)
				if tt.stop != 0 && i == index(tt.stop) {
					stopped = c
				}
			}
			if stopped != nil {
				for _, c := range containers {
					waitLine(t, c, "listening")
				}
				require.NoError(t, stopped.Signal(syscall.SIGTERM))
			}
			switch {
			case tt.says != "":
				waitLine(t, containers[0], tt.says)
			case tt.late > 0:
				time.Sleep(2 * time.Second)
			case tt.late < 0: // longer than the 5 s for which an ending container still answers late ones
				time.Sleep(7 * time.Second)
			}
			if tt.late != 0 {
				containers = append(containers, hosts[index(tt.late)].start(t, "true"))
			}
			begin := time.Now()
			require.Equal(t, same(3, tt.status), statuses(t, containers))
			require.Less(t, time.Since(begin), sizedTimeout*3/4) // a busy container takes more time for its proof
		})
	}
}

const sizedTimeout = 2 * time.Minute

// sizedHosts returns peersHosts with a timeout.
func sizedHosts(t *testing.T, l *lab.Lab, n int) []host {
	hosts := peersHosts(t, l, n)
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--timeout", sizedTimeout.String())
	}
	return hosts
}
