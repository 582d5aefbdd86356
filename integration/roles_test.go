package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/paiinit/paiinit/integration/lab"
)

// Jobs with parameter servers and evaluators, which never end by themselves.

// roleHosts returns hosts with these roles, which know each other by paiinit's own variables.
func roleHosts(t *testing.T, l *lab.Lab, roles ...string) []host {
	t.Helper()
	hosts := peersHosts(t, l, len(roles))
	count := make(map[string]int)
	var peers []string
	for i, role := range roles {
		hosts[i].env["PAIINIT_ROLE"], hosts[i].env["PAIINIT_INDEX"] = role, fmt.Sprint(count[role])
		peers = append(peers, fmt.Sprintf("%s-%d=%s", role, count[role], hosts[i].machine.Addr))
		count[role]++
	}
	for _, h := range hosts {
		h.env["PAIINIT_PEERS"] = strings.Join(peers, ",")
	}
	return everywhere(hosts)
}

// byRole returns a command that runs server in a server and other in each other role. A server calls serve to run for
// ever; the others start once all servers have called serve or mark.
func byRole(t *testing.T, hosts []host, server, other string) []string {
	t.Helper()
	dir, servers := t.TempDir(), 0
	for i := range hosts {
		hosts[i].binds = map[string]string{dir: dir}
		if strings.Contains("ps_x PS Evaluator", hosts[i].env["PAIINIT_ROLE"]) {
			servers++
		}
	}
	return []string{"sh", "-c", fmt.Sprintf(`mark() { touch %[1]s/$PAIINIT_ROLE-$PAIINIT_INDEX; }
		serve() { mark; while :; do sleep 0.05; done; }
		case $PAIINIT_ROLE in
		ps*|PS|Evaluator) %[2]s;;
		*) until [ $(ls %[1]s | wc -l) -ge %[3]d ]; do sleep 0.02; done; %[4]s;;
		esac`, dir, server, servers, other)}
}

func TestServersEndWithTheOthers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		roles, server, other string
		flags                []string
		status               int
		says                 string
	}{
		"ps": {
			"chief worker worker ps", "serve", "exit 0",
			nil, 0, "all ranks of chief, worker ended with status 0",
		},
		"types of TFJob": {
			"Chief Worker PS Evaluator", "serve", "exit 0",
			nil, 0, "all ranks of Chief, Worker ended with status 0",
		},
		"rank 0 is a server": {
			"ps_x worker", "serve", "exit 0",
			nil, 0, "rank 1 (worker-0) ended with status 0",
		},
		"it fails when stopped": {
			"worker worker ps", "trap 'exit 9' TERM; serve", "exit 0",
			nil, 0, "ended with status 0",
		},
		"it succeeds earlier": {
			"worker worker ps ps", "[ $PAIINIT_INDEX = 0 ] && serve; mark", "exit 0",
			nil, 0, "ended with status 0",
		},
		"it ignores SIGTERM": {
			"worker ps", "trap '' TERM; serve", "exit 0",
			[]string{"--grace", "1s"}, 0, "ended with status 0",
		},
		"it fails": {
			"worker worker ps", "mark; exit 9", "sleep 1000",
			nil, 9, "command sh ended with status 9",
		},
		"a worker fails": {
			"worker worker ps", "serve", "exit $((7 * PAIINIT_INDEX))",
			nil, 7, "rank 1's command sh ended with status 7",
		},
		"until one role": {
			"chief worker ps", "serve", "[ $PAIINIT_ROLE = chief ] || sleep 1000",
			[]string{"--until", "Chief"}, 0, "rank 0 (chief-0)",
		},
		"until rank 0": {
			"worker worker", "", "[ $PAIINIT_INDEX = 0 ] || serve",
			[]string{"--until", "rank0"}, 0, "rank 0 (worker-0)",
		},
		"until an unknown role": {
			"chief worker ps", "serve", "exit 0", []string{"--until", "chef"}, 64,
			"names chef, a role that no rank has; the roles are chief, ps, worker",
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := roleHosts(t, newLab(t), strings.Fields(tt.roles)...)
			for i := range hosts {
				hosts[i].flags = append(hosts[i].flags, tt.flags...)
			}
			containers := startAll(t, hosts, byRole(t, hosts, tt.server, tt.other)...)
			require.Equal(t, same(len(hosts), tt.status), statuses(t, containers))
			for _, c := range containers {
				require.Contains(t, strings.ReplaceAll(stderr(c), `\"`, `"`), tt.says)
			}
		})
	}
}

// TestTypoOfEveryRank: the last rank starts after the others have ended. It detects the typo itself, so it does not
// wait for rank 0 until the timeout.
func TestTypoOfEveryRank(t *testing.T) {
	hosts := roleHosts(t, newLab(t), "chief", "worker", "ps")
	for i := range hosts {
		hosts[i].flags = append(hosts[i].flags, "--until", "chef", "--timeout", sizedTimeout.String())
	}
	require.Equal(t, same(2, 64), statuses(t, startAll(t, hosts[:2], "true")))
	begin := time.Now()
	last := hosts[2].start(t, "true")
	require.Equal(t, same(1, 64), statuses(t, []*lab.Container{last}))
	require.Less(t, time.Since(begin), sizedTimeout*3/4)
	require.Contains(t, stderr(last), "names chef, a role that no rank has; the roles are chief, ps, worker")
}

func TestUntilMustBeAgreed(t *testing.T) {
	hosts := roleHosts(t, newLab(t), "chief", "worker", "ps")
	hosts[1].env["PAIINIT_UNTIL"] = "chief"
	containers := startAll(t, hosts, "true")
	require.Equal(t, same(3, 78), statuses(t, containers))
	for _, c := range containers {
		require.Contains(t, stderr(c), "chief-0 has --exec all, worker-0 has --exec all --until chief")
	}
}

// TestServersAlone: SIGTERM stops a job of only parameter servers like any other.
func TestServersAlone(t *testing.T) {
	hosts := roleHosts(t, newLab(t), "ps", "ps")
	containers := startAll(t, hosts, "sh", "-c", `echo re''ady; while :; do sleep 0.1; done`)
	for _, c := range containers {
		waitLine(t, c, "ready")
	}
	require.NoError(t, containers[1].Signal(syscall.SIGTERM))
	require.Equal(t, same(2, 143), statuses(t, containers))
}

// trainer installs the stand-in for TensorFlow as the program of an example.
func (h *host) trainer(t *testing.T, program string) (dir string) {
	t.Helper()
	dir = codeOf(t, "integration/testdata/train.py", program)
	h.hasCode(dir)
	return dir
}

// codeOf creates a directory with a copy of source as the program, and with a python and a pip.
func codeOf(t *testing.T, source, program string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	text, err := os.ReadFile(filepath.Join(root, source))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, program)), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, program), text, 0o600))
	require.NoError(t, os.Symlink("/bin/true", filepath.Join(dir, "pip")))
	python, err := filepath.EvalSymlinks("/usr/bin/python3")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(python, filepath.Join(dir, "python")))
	return dir
}

// hasCode puts a directory of codeOf first in PATH.
func (h *host) hasCode(dir string) {
	h.env["PATH"] = dir + ":/run/bin:" + strings.TrimPrefix(path, "PATH=")
}

// ends checks that all containers of an example end by themselves with 0, and that each worker saw the whole cluster.
func ends(t *testing.T, containers []*lab.Container, workers, servers int) {
	t.Helper()
	require.Equal(t, same(len(containers), 0), statuses(t, containers))
	var did []string
	for _, c := range containers {
		for line := range strings.Lines(stdout(c)) {
			if strings.HasPrefix(line, "worker") {
				did = append(did, line)
			}
		}
	}
	slices.Sort(did)
	var want []string
	for i := range workers {
		want = append(want, fmt.Sprintf("worker %d of %d with %d parameter servers\n", i, workers, servers))
	}
	require.Equal(t, want, did)
}

// submitted puts the secret into a job file, like envsubst(1) in docs/schedulers.
func submitted(t *testing.T, text []byte) []byte {
	t.Helper()
	reference := []byte("${PAIINIT_SECRET}")
	require.Equal(t, 1, bytes.Count(text, reference))
	return bytes.Replace(text, reference, []byte(secret), 1)
}

// TestOpenPAITensorFlow runs examples/openpai/tensorflow-0.10.json on 0.8, tensorflow.json on 0.14, tensorflow.yaml on
// 1.x, and a program with TF_CONFIG on 0.8. On 0.8 paiinit listens on the http port of each task, so the host lists of
// the command must have other ports. All tasks must end with 0, because minSucceededTaskCount counts those.
func TestOpenPAITensorFlow(t *testing.T) {
	t.Parallel()
	type role struct {
		name, command string
		tasks         int
		env           map[string]any // the job's variables
	}
	read := func(t *testing.T, file string) (roles []role) {
		text, err := os.ReadFile(filepath.Join(root, "examples/openpai", file))
		require.NoError(t, err)
		text = submitted(t, text)
		var job struct {
			TaskRoles []struct {
				Name, Command string
				TaskNumber    int
			}
			JobEnvs map[string]any
		}
		require.NoError(t, json.Unmarshal(text, &job))
		for _, r := range job.TaskRoles {
			roles = append(roles, role{r.Name, r.Command, r.TaskNumber, job.JobEnvs})
		}
		return roles
	}
	classic := func(t *testing.T) []role { return read(t, "tensorflow.json") }
	old := func(t *testing.T) []role { return read(t, "tensorflow-0.10.json") }
	config := func(t *testing.T) []role {
		roles := old(t)
		for i := range roles {
			roles[i].command = "paiinit --exec all -- python code/tf_cnn_benchmarks.py"
		}
		return roles
	}
	v1 := func(t *testing.T) (roles []role) {
		text, err := os.ReadFile(filepath.Join(root, "examples/openpai/tensorflow.yaml"))
		require.NoError(t, err)
		var job struct {
			TaskRoles yaml.Node `yaml:"taskRoles"`
		}
		require.NoError(t, yaml.Unmarshal(text, &job))
		for i := 0; i < len(job.TaskRoles.Content); i += 2 { // in the order of the file
			var r struct {
				Instances int
				Commands  []string
			}
			require.NoError(t, job.TaskRoles.Content[i+1].Decode(&r))
			roles = append(roles, role{job.TaskRoles.Content[i].Value,
				strings.Join(r.Commands, " && "), r.Instances, nil})
		}
		return roles
	}
	for name, tt := range map[string]struct {
		roles       func(t *testing.T) []role
		environment func(tasks []task, self task) map[string]string
		program     string
	}{
		"0.8":            {old, openPAI08, "code/tf_cnn_benchmarks.py"},
		"0.8, TF_CONFIG": {config, openPAI08, "code/tf_cnn_benchmarks.py"},
		"0.14":           {classic, openPAIClassic, "code/tf_cnn_benchmarks.py"},
		"1.x":            {v1, openPAIv1, "train.py"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			var tasks []task
			var commands, names []string
			var jobEnvs map[string]any
			count := make(map[string]int)
			for _, r := range tt.roles(t) {
				names, jobEnvs = append(names, r.name), r.env
				for i := range r.tasks {
					tasks = append(tasks, task{role: r.name, index: i, port: 20001 + 10*len(tasks)})
					commands = append(commands, r.command)
					count[r.name]++
				}
			}
			machines := newMachines(t, l, len(tasks))
			for i, m := range machines {
				tasks[i].addr = m.Addr
			}
			var containers []*lab.Container
			for i, m := range machines {
				h := host{machine: m, env: tt.environment(tasks, tasks[i])}
				h.env["PAIINIT_SECRET"] = secret
				for name, value := range jobEnvs {
					h.env[name] = fmt.Sprint(value)
				}
				for _, name := range []string{"PAI_TASK_ROLE_LIST", "PAI_JOB_TASK_ROLE_LIST"} {
					h.env[name] = strings.Join(names, ",")
				}
				dir := h.trainer(t, tt.program)
				p := h.program()
				p.Args = []string{"bash", "-c", commands[i]} // OpenPAI bypasses the ENTRYPOINT
				p.Dir, p.Binds[dir] = dir, dir
				c, err := m.Start(p)
				require.NoError(t, err)
				containers = append(containers, c)
			}
			ends(t, containers, count["worker"], count["ps_server"])
		})
	}
}

// TestEverywhereFirstCause: if the other ranks complain about a lost connection, the job's status and log are those of
// the rank that failed first. If they end at once without output, their order depends on the kernel's scheduler, so the
// log names all of them.
func TestEverywhereFirstCause(t *testing.T) {
	t.Parallel()
	const script = `
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
culprit = int(sys.argv[1])
peers = os.environ["PAIINIT_PEERS"].split(",")
if rank == culprit:
    server = socket.create_server(("", 4242))
    clients = [server.accept()[0] for _ in range(size - 1)]
    for c in clients:
        c.recv(1)
    os._exit(3) # closes all connections
while True:
    try:
        s = socket.create_connection((peers[culprit], 4242))
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
s.sendall(b"x")
if not s.recv(1):
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), 9)
    if sys.argv[2] == "exit":
        os._exit(10 + rank)
    raise ConnectionError("Connection closed by peer")
`
	for _, followers := range []string{"complain", "kill", "exit"} {
		for culprit := range 4 {
			t.Run(fmt.Sprint(followers, culprit), func(t *testing.T) {
				hosts := everywhere(peersHosts(t, newLab(t), 4))
				containers := startAll(t, hosts, "python3", "-c", script, fmt.Sprint(culprit), followers)
				got := statuses(t, containers)
				require.Equal(t, same(4, got[0]), got)
				says := fmt.Sprintf("status=3 reason=\"rank %d's command python3 ended with status 3", culprit)
				if followers != "complain" && got[0] != 3 {
					says = fmt.Sprintf("rank %d (worker-%[1]d) with 3 after", culprit)
				}
				for _, c := range containers {
					require.Contains(t, stderr(c), says)
				}
			})
		}
	}
}
