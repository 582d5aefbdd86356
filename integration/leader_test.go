package integration

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// leads stands for a server or a cluster whose workers find its head by its address. The head listens late. A worker
// that gets no answer fails at once, as it does when it loses the head; it never ends by itself. The head ends with 0
// when all workers have come, if its first argument is "end", and waits for SIGTERM otherwise. Its words are split,
// because the log has its text, too.
const leads = `
import os, signal, socket, sys, time
rank, size = int(os.environ["PAIINIT_RANK"]), int(os.environ["PAIINIT_SIZE"])
place = os.environ["PAIINIT_MASTER"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(place) as server:
        workers = [server.accept()[0] for _ in range(size - 1)]
    print("ser" "ving", flush=True)
    if sys.argv[1] == "end":
        print("by" "e", flush=True)
        os._exit(0) # the kernel closes the connections
    signal.pause()
while True:
    try:
        head = socket.create_connection(place)
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
print("wor" "king", flush=True)
head.recv(1)
sys.exit("lost the head")
`

func leaderHosts(t *testing.T, n int) []host {
	t.Helper()
	hosts := peersHosts(t, newLab(t), n)
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--exec", "leader")
	}
	return hosts
}

// took returns the time from the first line of a container with this text until the last container has ended.
func took(t *testing.T, containers []*lab.Container, c *lab.Container, text string, status int) time.Duration {
	t.Helper()
	waitLine(t, c, text)
	begin := time.Now()
	require.Equal(t, same(len(containers), status), statuses(t, containers))
	return time.Since(begin)
}

// TestLeader: when the head ends with 0 all containers do, although its workers fail for want of it.
func TestLeader(t *testing.T) {
	containers := startAll(t, leaderHosts(t, 4), "python3", "-c", leads, "end")
	t.Log("all containers ended", took(t, containers, containers[0], "bye", 0), "after the head")
	for _, c := range containers {
		require.Contains(t, stderr(c), "the command of rank 0 (worker-0) ended with status 0; the others were stopped")
	}
}

// TestLeaderWithoutAWorker: the job does not go on without a worker that was killed.
func TestLeaderWithoutAWorker(t *testing.T) {
	t.Parallel()
	for _, restarts := range []string{"0", "1"} {
		t.Run(restarts, func(t *testing.T) {
			hosts := leaderHosts(t, 3)
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--restarts", restarts)
			}
			containers := startAll(t, hosts, "sh", "-c",
				`[ "$PAIINIT_GENERATION" = 2 ] && how=end; exec python3 -c "$0" ${how:-serve}`, leads)
			waitLine(t, containers[0], "serving")
			waitLine(t, containers[2], "working")
			worker := processesOf(t, containers[2], "python3")
			require.Len(t, worker, 1)
			require.NoError(t, syscall.Kill(worker[0].PID, syscall.SIGKILL))
			begin := time.Now()
			const why = "rank 2's command sh was killed by SIGKILL"
			if restarts == "1" {
				waitLine(t, containers[0], "bye")
				t.Log("the head served again and ended after", time.Since(begin))
				require.Equal(t, same(3, 0), statuses(t, containers))
			} else {
				require.Equal(t, same(3, 137), statuses(t, containers))
				t.Log("all containers ended after", time.Since(begin))
			}
			for _, c := range containers {
				require.Contains(t, stderr(c), why)
			}
		})
	}
}

// late stands for a server that needs a while before its head answers: its workers fail at once if they come earlier.
const late = `
import http.server, os, sys, threading, time, urllib.request
rank, size = int(os.environ["PAIINIT_RANK"]), int(os.environ["PAIINIT_SIZE"])
if rank > 0:
    print(urllib.request.urlopen(sys.argv[1] + "work").read().decode(), flush=True)
    time.sleep(1000)
time.sleep(1) # it loads
begin, came = time.time(), []
class Head(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        up = self.path != "/health" or time.time() > begin + 0.5
        self.send_response(200 if up else 503)
        self.end_headers()
        if self.path == "/work":
            self.wfile.write(b"wor" + b"king")
            came.append(1)
            if len(came) == size - 1:
                threading.Thread(target=server.shutdown).start()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("", int(os.environ["MASTER_PORT"])), Head)
server.serve_forever()
server.server_close() # waits until all have their answer
`

// TestLeaderReady: the other ranks start when the head says that it is ready.
func TestLeaderReady(t *testing.T) {
	hosts := leaderHosts(t, 3)
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--template", "--ready", "http:{port}/health")
	}
	containers := startAll(t, hosts, "python3", "-c", late, "http://{master}:{port}/")
	require.Equal(t, same(3, 0), statuses(t, containers))
	for _, c := range containers[1:] {
		require.Equal(t, "working\n", stdout(c))
	}
}
