package integration

import (
	"context"
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

// askHTTP prints the status and the body of an answer, by address, path, Host and a text for which it waits.
const askHTTP = `
import http.client, sys, time
host, path, name, until = sys.argv[1:]
while True:
    try:
        c = http.client.HTTPConnection(host, 12345, timeout=5)
        c.request("GET", path, headers={"Host": name})
        r = c.getresponse()
        said = str(r.status) + " " + r.read().decode()
    except (OSError, http.client.HTTPException) as e:
        said = str(e)
    if until in said and "rank 0 does not answer" not in said:
        break
    time.sleep(0.01)
print(said, end="")
`

// watchHTTP prints each new answer to /readyz of its machine, and how often it had this status.
const watchHTTP = `
import http.client, time
last, counts = None, {}
while True:
    try:
        c = http.client.HTTPConnection("127.0.0.1", 12345, timeout=5)
        c.request("GET", "/readyz")
        r = c.getresponse()
        said = r.status, r.read().decode().strip()
    except (OSError, http.client.HTTPException):
        said = 0, "no answer"
    if "rank 0 does not answer" in said[1]: # it may be busy
        time.sleep(0.01)
        continue
    if last is None or said[0] != last[0]:
        counts[said[0]] = counts.get(said[0], 0) + 1
    if said != last:
        print("%d (%d): %s" % (said[0], counts[said[0]], said[1]), flush=True)
    last = said
    time.sleep(0.01)
`

// serves is a server whose rank 0 listens when the gate of its generation is open.
const serves = `[ $RANK = 0 ] || exec sleep 1000
until [ -e /run/gate/$PAIINIT_GENERATION ]; do sleep 0.01; done
exec python3 -c 'import os, signal, socket
server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
signal.pause()'`

func probedHosts(t *testing.T, n int, flags ...string) []host {
	t.Helper()
	hosts := leaderHosts(t, n)
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--http", "--template", "--ready", "tcp:{port}")
		hosts[i].flags = append(hosts[i].flags, flags...)
	}
	return hosts
}

// ask asks a container from inside, until the answer contains a text and comes from rank 0, which may be busy.
func ask(t *testing.T, c *lab.Container, addr, path, name, until string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	out, err := c.Exec(ctx, "python3", "-c", askHTTP, addr, path, name, until)
	require.NoError(t, err)
	return string(out)
}

// watchReady follows /readyz on the machine of a host.
func watchReady(t *testing.T, h host) *lab.Container {
	t.Helper()
	c, err := h.machine.Start(lab.Program{
		Name: h.machine.Name + "-probe", Args: []string{"python3", "-c", watchHTTP}, Env: []string{path},
	})
	require.NoError(t, err)
	return c
}

// probeExec runs paiinit status as an exec probe, until the answer comes from rank 0, which may be busy.
func probeExec(t *testing.T, c *lab.Container, flag string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	for {
		out, err := c.Exec(ctx, "sh", "-c", "/run/bin/paiinit status "+flag+"; echo status $?")
		require.NoError(t, err)
		if !strings.Contains(string(out), "rank 0 does not answer") {
			return string(out)
		}
	}
}

// TestProbes follows a server from the first container to its end: who is missing, what it waits for, a worker that is
// killed, and the restart.
func TestProbes(t *testing.T) {
	hosts := probedHosts(t, 3, "--restarts", "1")
	dir := t.TempDir()
	for i := range hosts {
		hosts[i].binds = map[string]string{"/run/gate": dir}
	}
	open := func(generation string) { require.NoError(t, os.WriteFile(filepath.Join(dir, generation), nil, 0o600)) }
	var containers []*lab.Container
	for _, h := range hosts[:2] {
		containers = append(containers, h.start(t, "sh", "-c", serves))
	}
	for _, c := range containers {
		const why = "503 gathering: waiting for ranks: 2 of 3 present; missing: worker-2 ("
		require.Contains(t, ask(t, c, "127.0.0.1", "/readyz", "x", why), why)
		require.Equal(t, "200 ok\n", ask(t, c, "127.0.0.1", "/livez", "x", ""))
		require.Regexp(t, `^gathering: .*missing: worker-2.*\nstatus 1\n$`, probeExec(t, c, "--ready"))
		require.Equal(t, "live\nstatus 0\n", probeExec(t, c, "--live"))
	}
	containers = append(containers, hosts[2].start(t, "sh", "-c", serves))
	for _, c := range containers {
		const why = "503 running: rank 0 is not ready: tcp:{port}: "
		require.Contains(t, ask(t, c, "127.0.0.1", "/readyz", "x", why), "connection refused")
		require.Regexp(t, `^running: rank 0 is not ready: .*\nstatus 1\n$`, probeExec(t, c, "--ready"))
		require.Contains(t, probeExec(t, c, ""), "\nnot ready: rank 0 is not ready: tcp:{port}: ")
	}
	var watchers []*lab.Container
	for _, h := range hosts {
		w := watchReady(t, h)
		waitLine(t, w, "503 (1)")
		watchers = append(watchers, w)
	}
	open("1")
	for i, c := range containers {
		waitLine(t, watchers[i], "200 (1): ok")
		require.Equal(t, "ready\nstatus 0\n", probeExec(t, c, "--ready"))
		require.NotContains(t, probeExec(t, c, ""), "not ready")
		const ready = "\npaiinit_ready 1\n"
		require.Contains(t, ask(t, c, "127.0.0.1", "/metrics", "x", ready), ready)
	}
	metrics := ask(t, containers[0], "127.0.0.1", "/metrics", "x", "")
	require.Contains(t, metrics, "\npaiinit_phase{phase=\"running\"} 1\n")
	require.Contains(t, metrics, "\npaiinit_ranks{state=\"present\"} 3\n")
	require.NotContains(t, ask(t, containers[1], "127.0.0.1", "/metrics", "x", ""), "paiinit_ranks")

	// The page is for this machine, under its own name.
	zero := hosts[0].machine.Addr.String()
	require.Contains(t, ask(t, containers[0], "127.0.0.1", "/", "localhost:8080", ""), "<!DOCTYPE html>")
	require.Equal(t, "403 the page is shown at http://localhost only\n",
		ask(t, containers[0], "127.0.0.1", "/", "rebound.example", ""))
	require.Equal(t, "404 not found\n", ask(t, containers[0], zero, "/", "localhost", ""))
	require.Equal(t, "404 not found\n", ask(t, containers[1], zero, "/", "localhost", ""))
	require.Equal(t, "200 ok\n", ask(t, containers[1], zero, "/readyz", zero, ""))

	worker := processesOf(t, containers[2], "sleep")
	require.Len(t, worker, 1)
	killed := time.Now()
	require.NoError(t, syscall.Kill(worker[0].PID, syscall.SIGKILL))
	for i, w := range watchers {
		t.Logf("rank %d: not ready %v after a worker was killed", i, lineAfter(t, w, "503 (2)", killed))
		waitLine(t, w, "503 (2): running: rank 0 is not ready: tcp:{port}: ")
	}
	open("2")
	opened := time.Now()
	for i, w := range watchers {
		t.Logf("rank %d: ready again %v after the server listens", i, lineAfter(t, w, "200 (2): ok", opened))
	}
	require.Contains(t, ask(t, containers[0], "127.0.0.1", "/metrics", "x", ""), "\npaiinit_restarts_total 1\n")

	// A container that is lost, after the only restart.
	killed = time.Now()
	containers[2].Kill()
	t.Logf("rank 0: not ready %v after the loss of a container",
		lineAfter(t, watchers[0], "ranks are lost: worker-2", killed))
	require.Equal(t, []int{75, 75, 128 + 9}, statuses(t, containers))
}

// lineAfter waits for a line, and returns the time from begin to its arrival.
func lineAfter(t *testing.T, c *lab.Container, text string, begin time.Time) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	line, err := c.WaitLine(ctx, text)
	require.NoError(t, err)
	return line.Time.Sub(begin)
}

// TestProbesOfOneCommand: a job of one container opens its port for probes, without a secret; and where rank 0 alone
// runs the command, the others are ready with it.
func TestProbesOfOneCommand(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), n)
			open := gate(t, hosts)
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, "--http")
				if n == 1 {
					delete(hosts[i].env, "PAIINIT_SECRET")
				}
			}
			containers := startAll(t, hosts, "sh", "-c", awaitGate+"; exit 3")
			for _, c := range containers {
				require.Equal(t, "200 ok\n", ask(t, c, "127.0.0.1", "/readyz", "x", "200"))
				require.Equal(t, "ready\nstatus 0\n", probeExec(t, c, "--ready"))
				require.Contains(t, ask(t, c, "127.0.0.1", "/", "127.0.0.1:1", ""), "<!DOCTYPE html>")
			}
			open()
			require.Equal(t, same(n, 3), statuses(t, containers))
		})
	}
}
