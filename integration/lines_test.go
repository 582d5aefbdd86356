package integration

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
	"github.com/paiinit/paiinit/integration/screens"
)

// asByDefault makes a host log like a container without settings.
func asByDefault(h host) host {
	h.env["PAIINIT_LOG_FORMAT"], h.env["PAIINIT_LOG_LEVEL"] = "text", "info"
	return h
}

// linesOfLog returns the lines on standard error. Two kinds of lines appear only on a busy machine, and are left out:
// progress while a rank waits for containers that start seconds apart, and Open MPI's warning that its remote shell
// program was faster than its own setpgid, which is harmless (orte/mca/plm/rsh/plm_rsh_module.c, 4.1).
func linesOfLog(c *lab.Container) []string {
	busy := regexp.MustCompile(`: waiting for ranks|^\[[^]]*\] plm:rsh: Warning: setpgid\(`)
	var lines []string
	for line := range strings.Lines(stderr(c)) {
		if !busy.MatchString(line) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

// TestHealthyLog reads the log of healthy jobs in the default format: rank 0 says who it is, that all ranks are
// present, what it launches and how it ended, and the other ranks all of this but the launch.
func TestHealthyLog(t *testing.T) {
	t.Parallel()
	for size, command := range map[int][]string{
		4:  {"mpirun", "python3", allreduce},
		64: {"sh", "-c", "/run/bin/paiinit each true; echo sum"},
	} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			hosts := peersHosts(t, newLab(t), size)
			for i := range hosts {
				hosts[i] = asByDefault(hosts[i])
				hosts[i].env["PAIINIT_JOB"] = "demo"
			}
			containers := startAll(t, hosts, command...)
			require.Equal(t, same(size, 0), statuses(t, containers))
			if size == 4 {
				log := strings.Join(linesOfLog(containers[0]), "\n")
				log = regexp.MustCompile(`; last: [^;]*`).ReplaceAllString(log, "") // a rank came late
				log = strings.Replace(log, allreduce, "examples/allreduce.py", 1)
				require.NoError(t, screens.CheckAll("../docs/log.md", "healthy", log))
			}
			require.Contains(t, stdout(containers[0]), "sum")
			for rank, c := range containers {
				head := fmt.Sprintf(`^\d\d:\d\d:\d\d worker-%d: `, rank)
				want := []string{"paiinit devel, job ", fmt.Sprintf("all %d present after ", size),
					"launching " + regexp.QuoteMeta(strings.Join(command, " ")) + "$",
					"the job has ended, status 0, after "}
				if rank != 0 {
					want = append(want[:2], want[3])
				}
				lines := linesOfLog(c)
				require.Len(t, lines, len(want), "%s", strings.Join(lines, "\n"))
				for i, line := range lines {
					require.Regexp(t, head+want[i], line)
				}
			}
		})
	}
}

// TestAloneLog: a job of one rank says nothing while nothing is wrong, and warns once if it may be one of many that do
// not know of each other.
func TestAloneLog(t *testing.T) {
	l := newLab(t)
	m := newMachines(t, l, 1)[0]
	for name, tt := range map[string]struct {
		env    map[string]string
		script string
		status int
		want   []string
	}{
		"nothing": {script: "exit 0"},
		"declared": {
			env: map[string]string{"PAIINIT_SIZE": "1", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}, script: "exit 0",
		},
		"with a secret": {env: map[string]string{"PAIINIT_SECRET": secret}, script: "paiinit status >/dev/null"},
		"a pod": {
			env: map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, script: "exit 0",
			want: []string{
				`^\d\d:\d\d:\d\d (node-0 \(worker-0\)|worker-0): warning: ` +
					`this container runs its command alone, although a variable speaks ` +
					`of a job of several \(variable KUBERNETES_SERVICE_HOST\)$`,
				`^  hint: if that is right, set PAIINIT_SIZE=1`,
			},
		},
		"a failure": {
			script: "exit 3", status: 3, want: []string{`^\d\d:\d\d:\d\d worker-0: error: .* status 3\b`},
		},
	} {
		if tt.env == nil {
			tt.env = map[string]string{}
		}
		h := asByDefault(host{machine: m, name: strings.ReplaceAll(name, " ", "-"), env: tt.env})
		h.env["PATH"] = strings.TrimPrefix(path, "PATH=") + ":/run/bin"
		c := h.start(t, "sh", "-c", tt.script)
		require.Equal(t, []int{tt.status}, statuses(t, []*lab.Container{c}), name)
		require.Empty(t, stdout(c), name)
		lines := linesOfLog(c)
		if tt.status == 0 {
			require.Len(t, lines, len(tt.want), "%s: %s", name, strings.Join(lines, "\n"))
		}
		for i, want := range tt.want {
			require.Regexp(t, want, lines[i], name)
		}
	}
}
