package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/paiinit/paiinit/integration/lab"
)

// recipe is a job file of examples/ for a server or a cluster, as this test starts its containers.
type recipe struct {
	file  string
	args  [][]string          // of each container
	env   []map[string]string // of each container, without what the scheduler adds
	roles []string            // of the services of docker compose
}

// readRecipe reads a file whose fields TestExamples has checked.
func readRecipe(t *testing.T, file string) recipe {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../examples", file))
	require.NoError(t, err)
	r := recipe{file: file}
	add := func(args []string, env map[string]string) {
		r.args, r.env = append(r.args, args), append(r.env, env)
	}
	if strings.HasPrefix(file, "compose/") {
		var stack struct {
			Services map[string]struct {
				Environment map[string]string
				Command     []string
				Scale       int
			}
		}
		require.NoError(t, yaml.Unmarshal(text, &stack))
		peers := stack.Services["worker"].Environment["PAIINIT_PEERS"]
		for role := range strings.SplitSeq(strings.ReplaceAll(peers, "dns:", ""), ",") {
			s := stack.Services[role]
			for range max(1, s.Scale) {
				add(s.Command, s.Environment)
				r.roles = append(r.roles, role)
			}
		}
		return r
	}
	type pod struct {
		Spec struct {
			Containers []struct {
				Args []string
				Env  []struct {
					Name, Value string
				}
			}
		}
	}
	var object struct {
		Spec struct {
			Completions int
			Template    pod
			Group       struct {
				Size   int
				Leader *pod `yaml:"leaderTemplate"`
				Worker pod  `yaml:"workerTemplate"`
			} `yaml:"leaderWorkerTemplate"`
		}
	}
	documents := strings.Split(string(text), "\n---\n")
	require.NoError(t, yaml.Unmarshal([]byte(documents[len(documents)-1]), &object))
	for i := range object.Spec.Completions + object.Spec.Group.Size { // one of them is 0
		p := object.Spec.Template
		if object.Spec.Group.Size > 0 {
			if p = object.Spec.Group.Worker; i == 0 && object.Spec.Group.Leader != nil {
				p = *object.Spec.Group.Leader
			}
		}
		env := make(map[string]string)
		for _, v := range p.Spec.Containers[0].Env {
			env[v.Name] = v.Value
		}
		add(p.Spec.Containers[0].Args, env)
	}
	return r
}

// hosts returns the containers that the file's scheduler would start.
func (r recipe) hosts(t *testing.T, l *lab.Lab) []host {
	t.Helper()
	n := len(r.args)
	var hosts []host
	switch dir, _, _ := strings.Cut(r.file, "/"); dir {
	case "compose":
		count := make(map[string]int)
		for i, m := range newMachines(t, l, n) {
			role := r.roles[i]
			count[role]++
			l.Name(role, m.Addr)
			l.Reverse(m.Addr, fmt.Sprintf("app-%s-%d.app_default.", role, count[role]))
			hosts = append(hosts, host{machine: m, env: map[string]string{}})
		}
	case "leaderworkerset":
		names := numbered("serve-0-%d", n)
		hosts = podsOf(t, l, names, func(name string) string {
			if name == names[0] {
				return "serve-0.serve.default"
			}
			return name
		}, func(i int) map[string]string {
			return map[string]string{
				"LWS_LEADER_ADDRESS": "serve-0.serve.default", "LWS_GROUP_SIZE": fmt.Sprint(n),
				"LWS_WORKER_INDEX": fmt.Sprint(i), "KUBERNETES_SERVICE_HOST": "10.96.0.1",
			}
		})
	default:
		hosts = indexedJobHosts(t, l, n)
	}
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret), 0o400))
	for i := range hosts {
		h := &hosts[i]
		maps.Copy(h.env, r.env[i])
		if h.env["PAIINIT_SECRET_FILE"] == "" {
			h.env["PAIINIT_SECRET"] = secret
			continue
		}
		delete(h.env, "PAIINIT_SECRET")
		h.bind(h.env["PAIINIT_SECRET_FILE"], file)
	}
	return hosts
}

func (h *host) bind(target, source string) {
	if h.binds == nil {
		h.binds = make(map[string]string)
	}
	h.binds[target] = source
}

// requireDask skips the test on a machine without Dask.
func requireDask(t *testing.T) {
	t.Helper()
	need := lab.Need{Try: []string{"/usr/bin/python3", "-c", "import distributed"}, Package: "python3-distributed"}
	if missing := lab.Missing(need); len(missing) > 0 {
		skip(t, missing[0])
	}
}

// start starts the containers of a recipe with more variables. Stand-ins are first in PATH; Dask is the real one.
func (r recipe) start(t *testing.T, l *lab.Lab, more map[string]string) []*lab.Container {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(root, "integration/testdata/clusters.py")
	programs := map[string]string{
		"deepspeed": standInDeepSpeed,
		"driver.py": "import os\nos.execvp('python3', ['python3', '" + script + "', 'driver'])\n",
		"sglang/launch_server.py": "import os, sys\n" +
			"os.execvp('python3', ['python3', '" + script + "', 'sglang', *sys.argv[1:]])\n",
	}
	for _, name := range []string{"vllm", "ray", "torchrun", "accelerate"} {
		programs[name] = "#!/bin/sh\nexec python3 " + script + " " + name + ` "$@"` + "\n"
	}
	for name, text := range programs {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o755)) //nolint:gosec // a program
	}
	places := strings.NewReplacer("/app/", "/run/image/", "/examples/", root+"/examples/")
	var containers []*lab.Container
	for i, h := range r.hosts(t, l) {
		maps.Copy(h.env, more)
		for name, value := range h.env {
			h.env[name] = places.Replace(value)
		}
		h.env["PATH"] = "/run/image:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
		h.env["PYTHONPATH"] = "/run/image"
		h.bind("/run/image", dir)
		var command []string
		for _, arg := range r.args[i] {
			command = append(command, places.Replace(arg))
		}
		containers = append(containers, h.start(t, command...))
	}
	return containers
}

// standInDeepSpeed reaches the hosts of DeepSpeed's default list by ssh, as its pdsh does.
const standInDeepSpeed = `#!/bin/sh
echo argv deepspeed "$@"
for h in $(cut -d" " -f1 /job/hostfile); do
	ssh $h "echo $(grep -c . /job/hostfile) hosts, $(grep -m1 -o slots=. /job/hostfile)" || exit
done
`

// linesOf returns the lines of a container's standard output that begin with a word.
func linesOf(c *lab.Container, word string) (found []string) {
	for line := range strings.Lines(stdout(c)) {
		if first, rest, _ := strings.Cut(strings.TrimSpace(line), " "); first == word {
			found = append(found, rest)
		}
	}
	return found
}

// serving describes a recipe of a server: its program and port, and the command lines of rank 0 and of another rank.
// HEAD and HOST stand for the addresses of rank 0 and of the container, PORT for the reserved port.
type serving struct {
	program        string
	port           int
	leader, worker []string
}

// served has the command lines of the servers' own documentation; TestStartsCluster of package launch names the pages.
var served = map[string]serving{
	"compose/vllm.yaml":             vllmServes("1"),
	"leaderworkerset/vllm.yaml":     vllmServes("8"),
	"compose/vllm-ray.yaml":         vllmServesOnRay("1"),
	"leaderworkerset/vllm-ray.yaml": vllmServesOnRay("8"),
	"compose/sglang.yaml":           sglangServes("2"),
	"leaderworkerset/sglang.yaml":   sglangServes("16"),
}

func vllmServes(gpus string) serving {
	line := "vllm serve my/model --port=8000 --tensor-parallel-size=" + gpus + " --pipeline-parallel-size=2 " +
		"--nnodes=2 --node-rank=%d --master-addr=HEAD --master-port=PORT"
	return serving{"vllm", 8000, []string{fmt.Sprintf(line, 0)}, []string{fmt.Sprintf(line, 1) + " --headless"}}
}

func vllmServesOnRay(gpus string) serving {
	return serving{"vllm", 8000, []string{
		"ray start --head --node-ip-address=HEAD --port=PORT",
		"vllm serve my/model --port=8000 --tensor-parallel-size=" + gpus + " --pipeline-parallel-size=2 " +
			"--distributed-executor-backend=ray",
	}, []string{"ray start --address=HEAD:PORT --node-ip-address=HOST --block"}}
}

func sglangServes(gpus string) serving {
	line := "sglang --model-path=my/model --host=0.0.0.0 --port=30000 --tp=" + gpus + " --nnodes=2 --node-rank=%d " +
		"--dist-init-addr=HEAD:PORT"
	return serving{"sglang", 30000, []string{fmt.Sprintf(line, 0)}, []string{fmt.Sprintf(line, 1)}}
}

// requireLines fails unless the stand-ins of a container had these arguments, and no rank of a framework.
func requireLines(t *testing.T, c *lab.Container, head, port string, want []string) {
	t.Helper()
	values := strings.NewReplacer("HEAD", head, "HOST", linesOf(c, "host")[0], "PORT", port)
	var lines []string
	for _, line := range want {
		lines = append(lines, values.Replace(line))
	}
	require.Equal(t, lines, linesOf(c, "argv"))
	require.Equal(t, make([]string, len(want)), linesOf(c, "ranks"))
}

// command returns the processes of a container that run a Python program with this word on its command line.
func command(t *testing.T, c *lab.Container, word string) (found []lab.Process) {
	t.Helper()
	processes, err := c.Processes()
	require.NoError(t, err)
	for _, p := range processes {
		if strings.Contains(p.Args[0], "python3") && strings.Contains(strings.Join(p.Args, " "), word) {
			found = append(found, p)
		}
	}
	require.NotEmpty(t, found)
	return found
}

// variable returns the value of a variable of a process.
func variable(p lab.Process, name string) string {
	for _, kv := range p.Environ {
		if value, found := strings.CutPrefix(kv, name+"="); found {
			return value
		}
	}
	return ""
}

// TestServerRecipes: the files of servers start every rank with the arguments that it needs. The end of rank 0's server
// is the end of all containers, although the others never end by themselves.
func TestServerRecipes(t *testing.T) {
	for file, want := range served {
		t.Run(file, func(t *testing.T) {
			containers := readRecipe(t, file).start(t, newLab(t), nil)
			require.Len(t, containers, 2)
			waitLine(t, containers[0], fmt.Sprintf("serving at %d", want.port))
			waitLine(t, containers[1], "host ") // the last line before it connects
			server := command(t, containers[0], want.program)[0]
			head, port := variable(server, "MASTER_ADDR"), variable(server, "MASTER_PORT")
			requireLines(t, containers[0], head, port, want.leader)
			requireLines(t, containers[1], head, port, want.worker)
			begin := time.Now()
			require.NoError(t, syscall.Kill(server.PID, syscall.SIGUSR1)) // it ends with 0
			require.Equal(t, same(2, 0), statuses(t, containers))
			t.Log("all containers ended", time.Since(begin), "after rank 0's server")
		})
	}
}

// TestServerRecipesWithoutAWorker: a server without one of its workers ends, and does not hang.
func TestServerRecipesWithoutAWorker(t *testing.T) {
	for file := range served {
		t.Run(file, func(t *testing.T) {
			containers := readRecipe(t, file).start(t, newLab(t), nil)
			waitLine(t, containers[0], "serving at")
			worker := command(t, containers[1], "clusters.py")[0]
			begin := time.Now()
			require.NoError(t, syscall.Kill(worker.PID, syscall.SIGKILL))
			require.Equal(t, same(2, 137), statuses(t, containers))
			t.Log("all containers ended", time.Since(begin), "after a worker was killed")
			require.Contains(t, stderr(containers[0]), "rank 1's command")
			require.Contains(t, stderr(containers[0]), "was killed by SIGKILL")
		})
	}
}

// TestClusterRecipes: a driver runs on the cluster that its file starts, and both end with it. Dask is the real one.
func TestClusterRecipes(t *testing.T) {
	for _, file := range []string{
		"compose/ray.yaml", "kubernetes/ray.yaml", "compose/dask.yaml", "kubernetes/dask.yaml",
	} {
		t.Run(file, func(t *testing.T) {
			want, real := "all nodes are there", strings.HasSuffix(file, "/dask.yaml")
			if real {
				requireDask(t)
				want = "sum of 1000 squares = 332833500, expected 332833500, on 3 hosts"
			}
			containers := readRecipe(t, file).start(t, newLab(t), nil)
			waitLine(t, containers[0], want)
			begin := time.Now()
			require.Equal(t, same(4, 0), statuses(t, containers))
			t.Log("all containers ended", time.Since(begin), "after the driver's last line")
			require.Contains(t, stdout(containers[0]), want)
			if real {
				return
			}
			head, port := linesOf(containers[0], "host")[0], ""
			for i, c := range containers {
				want := []string{"ray start --address=" + head + ":PORT --node-ip-address=HOST --block"}
				if i == 0 {
					want = []string{"ray start --head --node-ip-address=HOST --port=PORT", "driver"}
					_, port, _ = strings.Cut(linesOf(c, "argv")[0], "--port=")
				}
				requireLines(t, c, head, port, want)
			}
		})
	}
}

// TestClusterRecipesWait: while the head does not listen, the others wait, and the log says for what.
func TestClusterRecipesWait(t *testing.T) {
	containers := readRecipe(t, "compose/ray.yaml").start(t, newLab(t), map[string]string{"LATE": "10"})
	waitLine(t, containers[0], "the command is not ready yet")
	for _, c := range containers[1:] {
		waitLine(t, c, "waiting until rank 0's command is ready")
		require.Empty(t, stdout(c))
	}
	require.Equal(t, same(4, 0), statuses(t, containers))
	require.Regexp(t, `the command is not ready yet.*: connection refused`, stderr(containers[0]))
}

// TestDaskRecipeWithoutAWorker: the real scheduler and driver end with a worker that was killed.
func TestDaskRecipeWithoutAWorker(t *testing.T) {
	requireDask(t)
	r := readRecipe(t, "compose/dask.yaml")
	r.args[0] = append(r.args[0], "--sleep", "1000")
	containers := r.start(t, newLab(t), nil)
	waitLine(t, containers[0], "sum of 1000 squares")
	begin := time.Now()
	require.NoError(t, syscall.Kill(command(t, containers[2], "dask")[0].PID, syscall.SIGKILL))
	require.Equal(t, same(4, 137), statuses(t, containers))
	t.Log("all containers ended", time.Since(begin), "after the end of a worker")
}

// TestTrainingRecipes: every host has as many processes as its file says.
func TestTrainingRecipes(t *testing.T) {
	for file, want := range map[string]string{
		"compose/torchrun.yaml": "2 processes", "kubernetes/torchrun.yaml": "2 processes",
		"compose/accelerate.yaml": "2 processes", "kubernetes/accelerate.yaml": "2 processes",
		"compose/deepspeed.yaml": "4 hosts, slots=2", "kubernetes/deepspeed.yaml": "4 hosts, slots=2",
	} {
		t.Run(file, func(t *testing.T) {
			containers := readRecipe(t, file).start(t, newLab(t), nil)
			require.Equal(t, same(4, 0), statuses(t, containers))
			var out strings.Builder
			for _, c := range containers {
				out.WriteString(stdout(c))
				for _, ranks := range linesOf(c, "ranks") {
					require.NotContains(t, ranks, "RANK")
				}
			}
			require.Equal(t, 4, strings.Count(out.String(), want+"\n"), out.String())
			for rank, c := range containers {
				if strings.HasSuffix(file, "/accelerate.yaml") {
					require.Regexp(t, fmt.Sprintf(`^accelerate launch --multi_gpu --num_processes=8 --num_machines=4 `+
						`--machine_rank=%d --main_process_ip=\S+ --main_process_port=2\d{4} \S+/train.py$`, rank),
						linesOf(c, "argv")[0])
				}
			}
		})
	}
}
