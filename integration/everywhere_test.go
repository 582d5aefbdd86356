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

// meet does what frameworks without a launcher do: rank 0 listens on MASTER_ADDR, and the others connect and send their
// ranks.
const meet = `
import json, os, socket
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
tf = json.loads(os.environ["TF_CONFIG"])
port = int(tf["cluster"][tf["task"]["type"]][tf["task"]["index"]].split(":")[1])
own = socket.create_server(("", port)) # every rank can listen on its own
if rank == 0:
    ranks = []
    server = own if port == place[1] else socket.create_server(place)
    for _ in range(size - 1):
        ranks.append(int(server.accept()[0].makefile().readline()))
    print("met", sorted(ranks), flush=True)
else:
    import time
    while True:
        try:
            s = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    s.sendall(f"{rank}\n".encode())
`

// stubborn ends only on SIGTERM, after it has saved its work.
const stubborn = `trap 'echo saved; exit 0' TERM; echo re''ady; while :; do sleep 0.1; done`

func everywhere(hosts []host) []host {
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--exec", "all")
	}
	return hosts
}

func TestEverywhere(t *testing.T) {
	t.Parallel()
	for name, hosts := range environments {
		t.Run(name, func(t *testing.T) {
			containers := startAll(t, everywhere(hosts(t, newLab(t))), "python3", "-c", meet)
			require.Equal(t, same(4, 0), statuses(t, containers))
			var out strings.Builder
			for _, c := range containers {
				out.WriteString(stdout(c))
			}
			require.Equal(t, "met [1, 2, 3]\n", out.String())
		})
	}
}

func TestEverywhereFailingRank(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		does   string
		status int
		says   string
	}{
		"status": {"exit 3", 3, "rank 2's command sh ended with status 3 on "},
		"killed": {"kill -9 $$", 137, "rank 2's command sh was killed by SIGKILL on "},
	} {
		t.Run(name, func(t *testing.T) {
			// Rank 2 fails when all others are ready.
			const barrier = "/run/bin/paiinit barrier ready"
			ready := strings.Replace(stubborn, "echo re''ady", "echo re''ady; "+barrier, 1)
			containers := startAll(t, everywhere(peersHosts(t, newLab(t), 4)), "sh", "-c",
				`[ $RANK = 2 ] || { `+ready+`; }; `+barrier+`; echo woe >&2; `+tt.does)
			require.Equal(t, same(4, tt.status), statuses(t, containers))
			for i, c := range containers {
				require.Contains(t, stderr(c), tt.says)
				require.Contains(t, stderr(c), " stderr=woe ")
				if i != 2 {
					require.Equal(t, "ready\nsaved\n", stdout(c))
				}
			}
		})
	}
}

func TestEverywhereStopped(t *testing.T) {
	t.Parallel()
	for rank := range 2 {
		t.Run(fmt.Sprint(rank), func(t *testing.T) {
			containers := startAll(t, everywhere(peersHosts(t, newLab(t), 3)), "sh", "-c", stubborn)
			for _, c := range containers {
				waitLine(t, c, "ready")
			}
			require.NoError(t, containers[rank].Signal(syscall.SIGTERM))
			require.Equal(t, same(3, 0), statuses(t, containers), "the status of the commands")
			for _, c := range containers {
				require.Equal(t, "ready\nsaved\n", stdout(c))
				require.Contains(t, stderr(c), fmt.Sprintf("worker-%d was stopped by SIGTERM", rank))
			}
		})
	}
}

// TestEverywhereStoppedAtOnce: Kubernetes signals all pods of a deleted Job, in any order. The job must take that as
// one request to stop.
func TestEverywhereStoppedAtOnce(t *testing.T) {
	containers := startAll(t, everywhere(peersHosts(t, newLab(t), 3)), "sh", "-c", saves)
	for _, c := range containers {
		waitLine(t, c, "ready")
	}
	for _, rank := range []int{1, 0, 2} {
		require.NoError(t, containers[rank].Signal(syscall.SIGTERM))
	}
	require.Equal(t, same(3, 0), statuses(t, containers), "the status of the commands")
	for _, c := range containers {
		require.Equal(t, "ready\nsaved\n", stdout(c))
	}
}

func TestEverywhereStuckRankIsKilled(t *testing.T) {
	hosts := everywhere(peersHosts(t, newLab(t), 3))
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--grace", "1s")
	}
	containers := startAll(t, hosts, "sh", "-c", `trap '' TERM; echo re''ady; [ $RANK = 1 ] && exit 9; sleep 1000`)
	waitLine(t, containers[0], "ready")
	began := time.Now()
	require.Equal(t, same(3, 9), statuses(t, containers))
	require.Less(t, tookUntil(t, began, containers), 20*time.Second)
}

func TestEverywhereLostContainer(t *testing.T) {
	containers := startAll(t, everywhere(peersHosts(t, newLab(t), 3)), "sh", "-c", stubborn)
	for _, c := range containers {
		waitLine(t, c, "ready")
	}
	containers[2].Kill()
	got := statuses(t, containers)
	require.Equal(t, same(2, 75), got[:2])
	require.Contains(t, stderr(containers[1]), "rank 2 (worker-2) was lost")
	require.Contains(t, stderr(containers[1]), "look at the state and the log of worker-2; a retry may help")
	require.Equal(t, "ready\nsaved\n", stdout(containers[1]))
}

func TestEverywhereLostRankZero(t *testing.T) {
	containers := startAll(t, everywhere(peersHosts(t, newLab(t), 3)), "sh", "-c", stubborn)
	for _, c := range containers {
		waitLine(t, c, "ready")
	}
	containers[0].Kill()
	got := statuses(t, containers)
	require.Equal(t, same(2, 75), got[1:])
	require.Equal(t, "ready\nsaved\n", stdout(containers[1]))
}

func TestEverywhereUnknownCommandOnOneRank(t *testing.T) {
	hosts := everywhere(peersHosts(t, newLab(t), 3))
	containers := startAll(t, hosts[:2], "sh", "-c", "exit 0")
	containers = append(containers, hosts[2].start(t, "shh"))
	require.Equal(t, same(3, 127), statuses(t, containers))
	require.Contains(t, stderr(containers[0]), "worker-2: running \\\"shh\\\": not found")
}

// TestEverywhereUnknownCommandOnAnyContainer: the ranks are not agreed yet, so each container must report the missing
// command, including the future rank 0.
func TestEverywhereUnknownCommandOnAnyContainer(t *testing.T) {
	t.Parallel()
	for culprit := range 3 {
		t.Run(fmt.Sprint(culprit), func(t *testing.T) {
			l := newLab(t)
			hosts := everywhere(composeHosts(t, l, 3))
			for _, h := range hosts {
				l.Reverse(h.machine.Addr, "somewhere.") // a name without an index
			}
			commands := [3]string{"true", "true", "true"}
			commands[culprit] = "shh"
			var containers []*lab.Container
			for i, h := range hosts {
				containers = append(containers, h.start(t, commands[i]))
			}
			require.Equal(t, same(3, 127), statuses(t, containers))
			for _, c := range containers {
				require.Contains(t, stderr(c), `running \"shh\": not found`)
				require.NotContains(t, stderr(c), "launching")
			}
		})
	}
}

func TestEverywhereMustBeAgreed(t *testing.T) {
	hosts := peersHosts(t, newLab(t), 3)
	hosts[1].flags = append(hosts[1].flags, "--exec", "all")
	containers := startAll(t, hosts, "true")
	require.Equal(t, same(3, 78), statuses(t, containers))
	require.Contains(t, stderr(containers[2]), "worker-0 has --exec rank0, worker-1 has --exec all")
}

// TestEverywhereLiterals: an Azure ML job specification names these variables in the command line, with a "$" that no
// shell expands, or without.
func TestEverywhereLiterals(t *testing.T) {
	containers := startAll(t, everywhere(peersHosts(t, newLab(t), 2)),
		"sh", "-c", `test -s $1 && echo $2 $3 $4 $5`, "sh",
		"$AZUREML_MPI_HOSTFILE", "NODE_RANK", "${MASTER_ADDR}", "MASTER_PORT", "WORLD_SIZE")
	require.Equal(t, same(2, 0), statuses(t, containers))
	for i, c := range containers {
		require.Regexp(t, fmt.Sprintf(`^%d 10\.\d+\.\d+\.\d+ 2\d{4} 2\n$`, i), stdout(c))
	}
}
