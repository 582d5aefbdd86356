package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/paiinit/paiinit/integration/lab"
)

// The jobs of examples/kubeflow that docs/jobs/aks.md describes. Pods have the args, the environment and the limits of
// their example, and the names, variables and files that Kubeflow's operators add. GPUs are device files.

type (
	kubeflowJob struct {
		Kind     string
		Metadata struct{ Name string }
		Spec     struct {
			Slots   int           `yaml:"slotsPerWorker"`
			MPI     kubeflowRoles `yaml:"mpiReplicaSpecs"`
			PyTorch kubeflowRoles `yaml:"pytorchReplicaSpecs"`
			TF      kubeflowRoles `yaml:"tfReplicaSpecs"`
		}
	}
	kubeflowRoles map[string]struct {
		Replicas int
		Template struct {
			Spec struct{ Containers []kubeflowContainer }
		}
	}
	kubeflowContainer struct {
		Args      []string
		Env       []struct{ Name, Value string }
		Resources struct{ Limits map[string]string }
	}
	kubeflowPod struct {
		host
		kubeflowContainer
		role  string
		index int
	}
)

// kubeflowPods returns the pods of an example, in the order of roles.
func kubeflowPods(t *testing.T, file string, roles ...string) (job kubeflowJob, pods []*kubeflowPod) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "examples/kubeflow", file))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &job))
	l := newLab(t)
	for _, role := range roles {
		for _, all := range []kubeflowRoles{job.Spec.MPI, job.Spec.PyTorch, job.Spec.TF} {
			for i := range all[role].Replicas {
				name := fmt.Sprintf("%s-%s-%d", job.Metadata.Name, strings.ToLower(role), i)
				if role == "Launcher" {
					name = job.Metadata.Name + "-launcher"
				}
				p := &kubeflowPod{kubeflowContainer: all[role].Template.Spec.Containers[0], role: role, index: i}
				p.name, p.hostname, p.binds = name, name, map[string]string{}
				p.env = map[string]string{"HOSTNAME": name, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
				pods = append(pods, p)
			}
		}
	}
	for i, m := range newMachines(t, l, len(pods)) {
		p := pods[i]
		p.machine = m
		for _, v := range p.Env {
			p.env[v.Name] = v.Value
			if v.Name == "PAIINIT_SECRET" { // its value is in a Secret
				p.env[v.Name] = secret
			}
		}
		for _, name := range []string{p.name, p.name + "." + job.Metadata.Name, p.name + ".default.svc",
			p.name + "." + job.Metadata.Name + ".default.svc"} {
			l.Name(name, m.Addr)
		}
		p.limit(t)
	}
	return job, pods
}

// limit gives a pod the GPUs and CPUs of its limits.
func (p *kubeflowPod) limit(t *testing.T) {
	t.Helper()
	if cpus := p.Resources.Limits["cpu"]; cpus != "" {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cpu.max"), []byte(cpus+"00000 100000\n"), 0o600))
		p.binds["/sys/fs/cgroup"] = dir
	}
	var gpus int
	_, _ = fmt.Sscan(p.Resources.Limits["nvidia.com/gpu"], &gpus)
	if gpus == 0 {
		return
	}
	p.tmpfs = append(p.tmpfs, "/dev")
	for _, name := range []string{"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"} {
		p.binds[name] = name
	}
	p.binds["/dev/shm"] = t.TempDir()
	for i := range gpus {
		p.file(t, fmt.Sprintf("/dev/nvidia%d", i), "")
	}
}

func (p *kubeflowPod) run(t *testing.T, code, args string) *lab.Container {
	t.Helper()
	p.hasCode(code)
	command := slices.Clone(p.Args)
	if slices.Contains(command, "train.py") {
		command = append(command, strings.Fields(args)...)
	}
	program := p.program(command...)
	program.Dir, program.Binds[code] = code, code
	c, err := p.machine.Start(program)
	require.NoError(t, err)
	return c
}

// inAllWays runs a job that succeeds, one with a failing rank, one with a late pod and one that is stopped. The first
// pod prints done when the work is complete; the late or stopped pod is the last one. Slots are by role.
func inAllWays(t *testing.T, source, done string, slots map[string]int, lay func(t *testing.T) []*kubeflowPod) {
	start := func(pods []*kubeflowPod, code, args string) (containers []*lab.Container) {
		for _, p := range pods {
			containers = append(containers, p.run(t, code, args))
		}
		return containers
	}
	t.Run("well", func(t *testing.T) {
		pods := lay(t)
		containers := start(pods, codeOf(t, source, "train.py"), "")
		require.Equal(t, same(len(pods), 0), statuses(t, containers))
		require.Contains(t, stdout(containers[0]), done)
		for i, p := range pods {
			require.Contains(t, stderr(containers[i]), fmt.Sprintf(" slots=%d ", slots[p.role]), p.name)
		}
	})
	t.Run("failing rank", func(t *testing.T) {
		containers := start(lay(t), codeOf(t, source, "train.py"), "--fail 1")
		require.Equal(t, same(len(containers), 3), statuses(t, containers))
	})
	t.Run("late pod", func(t *testing.T) {
		pods, code := lay(t), codeOf(t, source, "train.py")
		last := len(pods) - 1
		containers := start(pods[:last], code, "")
		waitLine(t, containers[0], "waiting for")
		containers = append(containers, start(pods[last:], code, "")...)
		require.Equal(t, same(len(pods), 0), statuses(t, containers))
		require.Contains(t, stdout(containers[0]), done)
	})
	t.Run("stopped pod", func(t *testing.T) {
		containers := start(lay(t), codeOf(t, source, "train.py"), "--sleep 1000")
		waitLine(t, containers[0], done)
		require.NoError(t, containers[len(containers)-1].Signal(syscall.SIGTERM))
		require.Equal(t, same(len(containers), 143), statuses(t, containers))
	})
}

// mpiJobPods returns pods with Open MPI's variables. Workers know only their names.
func mpiJobPods(t *testing.T, file string) []*kubeflowPod {
	t.Helper()
	job, pods := kubeflowPods(t, file, "Launcher", "Worker")
	hostfile := ""
	for _, p := range pods {
		p.tmpfs, p.overlay = append(p.tmpfs, "/root"), []string{"/etc"}
		p.file(t, "/root/.ssh/id_rsa",
			"-----BEGIN EC PRIVATE KEY-----\nnot one, but as long\n-----END EC PRIVATE KEY-----\n")
		p.env["K_MPI_JOB_ROLE"] = strings.ToLower(p.role)
		if p.role == "Worker" {
			hostfile += fmt.Sprintf("%s.%s.default.svc slots=%d\n", p.name, job.Metadata.Name, job.Spec.Slots)
		}
	}
	launcher := pods[0]
	launcher.env["NVIDIA_VISIBLE_DEVICES"], launcher.env["NVIDIA_DRIVER_CAPABILITIES"] = "", ""
	launcher.env["OMPI_MCA_orte_keep_fqdn_hostnames"] = "true"
	launcher.env["OMPI_MCA_orte_default_hostfile"] = "/etc/mpi/hostfile"
	launcher.env["OMPI_MCA_plm_rsh_args"] = "-o ConnectionAttempts=10"
	launcher.env["OMPI_MCA_orte_set_default_slots"] = fmt.Sprint(job.Spec.Slots)
	launcher.file(t, "/etc/mpi/hostfile", hostfile)
	return pods
}

// pyTorchJobPods returns pods that run one process each, as without nprocPerNode.
func pyTorchJobPods(t *testing.T, file string) []*kubeflowPod {
	t.Helper()
	_, pods := kubeflowPods(t, file, "Master", "Worker")
	for i, p := range pods {
		for name, value := range map[string]any{
			"PYTHONUNBUFFERED": 1, "WORLD_SIZE": len(pods), "PET_NNODES": len(pods), "RANK": i, "PET_NODE_RANK": i,
			"MASTER_ADDR": pods[0].name, "MASTER_PORT": 23456,
			"PET_MASTER_ADDR": pods[0].name, "PET_MASTER_PORT": 23456,
		} {
			p.env[name] = fmt.Sprint(value)
		}
	}
	return pods
}

func tfJobPods(t *testing.T, file string) []*kubeflowPod {
	t.Helper()
	_, pods := kubeflowPods(t, file, "Worker", "PS")
	cluster := make(map[string][]string)
	for _, p := range pods {
		kind := strings.ToLower(p.role)
		cluster[kind] = append(cluster[kind], p.name+".default.svc:2222")
	}
	for _, p := range pods {
		task := map[string]any{"type": strings.ToLower(p.role), "index": p.index}
		config, err := json.Marshal(map[string]any{"cluster": cluster, "task": task, "environment": "cloud"})
		require.NoError(t, err)
		p.env["TF_CONFIG"] = string(config)
	}
	return pods
}

func TestMPIJobWithGPUs(t *testing.T) {
	inAllWays(t, allreduce, "allreduce over 16 ranks on 4 hosts: sum = 136, expected 136",
		map[string]int{"Launcher": 0, "Worker": 4},
		func(t *testing.T) []*kubeflowPod { return mpiJobPods(t, "mpijob-gpu.yaml") })
}

// TestPyTorchJobWithGPUs: testdata/envinit.py stands in for PyTorch.
func TestPyTorchJobWithGPUs(t *testing.T) {
	inAllWays(t, "integration/testdata/envinit.py", "rank 0 of 4: sum = 10",
		map[string]int{"Master": 4, "Worker": 4},
		func(t *testing.T) []*kubeflowPod { return pyTorchJobPods(t, "pytorchjob-gpu.yaml") })
}

// TestTFJobWithGPUs: testdata/train.py stands in for TensorFlow.
func TestTFJobWithGPUs(t *testing.T) {
	inAllWays(t, "integration/testdata/train.py", "worker 0 of 4 with 2 parameter servers",
		map[string]int{"Worker": 4, "PS": 0},
		func(t *testing.T) []*kubeflowPod { return tfJobPods(t, "tfjob-gpu.yaml") })
}

// TestTFJob runs examples/kubeflow/tfjob.yaml. By the operator's rule the job succeeds when worker 0 ends with 0.
func TestTFJob(t *testing.T) {
	code := codeOf(t, "integration/testdata/train.py", "train.py")
	var containers []*lab.Container
	count := make(map[string]int)
	for _, p := range tfJobPods(t, "tfjob.yaml") {
		count[p.role]++
		containers = append(containers, p.run(t, code, ""))
	}
	ends(t, containers, count["Worker"], count["PS"])
}
