package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/launch"
)

// started is one container of an example.
type started struct {
	argv     []string // of the container, without the ENTRYPOINT if that is the image's
	environ  []string
	files    fstest.MapFS
	addr     string
	resolver envspec.Resolver
}

// entrypoint is the ENTRYPOINT of Dockerfile.example.
var entrypoint = []string{"paiinit", "--"}

// TestExamples reads the job files of examples/ strictly, and gives the program every container that they describe,
// with the environment that its scheduler would set: the command line parses, all containers agree on all ranks, the
// first one has a command, and there is a secret.
func TestExamples(t *testing.T) {
	for file, c := range map[string]struct {
		system     string
		containers func(t *testing.T, file string) []started
		size       int // 0: four containers
	}{
		"openpai/horovod-rdma.json":      {"openpai", openPAIClassicExample, 0},
		"openpai/tensorflow.json":        {"openpai", openPAIClassicExample, 0},
		"openpai/tensorflow-0.10.json":   {"openpai", openPAI08Example, 0},
		"openpai/horovod.yaml":           {"openpai", openPAIExample, 0},
		"openpai/tensorflow.yaml":        {"openpai", openPAIExample, 0},
		"azureml/mpi.yml":                {"azure", azureMLExample, 0},
		"azureml/pytorch.yml":            {"azure", azureMLExample, 0},
		"azureml/tensorflow.yml":         {"azure", azureMLExample, 0},
		"azureml/horovodrun.yml":         {"azure", azureMLExample, 0},
		"azureml/tensorflow-ps.yml":      {"azure", azureMLExample, 6},
		"azure-batch/task.json":          {"azure", azureBatchExample, 0},
		"kubernetes/indexed-job.yaml":    {"kubernetes-indexed-job", kubernetesExample, 0},
		"kubernetes/restarts.yaml":       {"kubernetes-indexed-job", kubernetesExample, 0},
		"kubernetes/probes.yaml":         {"kubernetes-indexed-job", kubernetesExample, 0},
		"kubernetes/init-container.yaml": {"kubernetes-indexed-job", kubernetesExample, 0},
		"kubernetes/ray.yaml":            {"kubernetes-indexed-job", kubernetesExample, 0},
		"kubernetes/dask.yaml":           {"kubernetes-indexed-job", kubernetesExample, 0},
		"kubernetes/torchrun.yaml":       {"kubernetes-indexed-job", kubernetesExample, 0},
		"kubernetes/accelerate.yaml":     {"kubernetes-indexed-job", kubernetesExample, 0},
		"kubernetes/deepspeed.yaml":      {"kubernetes-indexed-job", kubernetesExample, 0},
		"kubernetes/image-volume.yaml":   {"kubernetes-indexed-job", kubernetesExample, 0},
		"kubernetes/jobset.yaml":         {"jobset", kubernetesExample, 0},
		"kubernetes/statefulset.yaml":    {"kubernetes-statefulset", kubernetesExample, 0},
		"kubeflow/mpijob.yaml":           {"mpijob", kubernetesExample, 0},
		"kubeflow/pytorchjob.yaml":       {"pytorchjob", kubernetesExample, 0},
		"kubeflow/tfjob.yaml":            {"tf-config", kubernetesExample, 0},
		"kubeflow/mpijob-gpu.yaml":       {"mpijob", kubernetesExample, 5},
		"kubeflow/pytorchjob-gpu.yaml":   {"pytorchjob", kubernetesExample, 0},
		"kubeflow/tfjob-gpu.yaml":        {"tf-config", kubernetesExample, 6},
		"kubeflow/openmpi.sh":            {"mpijob", kubeflowOpenMPIExample, 5},
		"kubeflow/trainjob.yaml":         {"trainjob", kubernetesExample, 0},
		"leaderworkerset/lws.yaml":       {"leaderworkerset", kubernetesExample, 0},
		"leaderworkerset/vllm.yaml":      {"leaderworkerset", kubernetesExample, 2},
		"leaderworkerset/vllm-ray.yaml":  {"leaderworkerset", kubernetesExample, 2},
		"leaderworkerset/sglang.yaml":    {"leaderworkerset", kubernetesExample, 2},
		"volcano/job.yaml":               {"volcano", kubernetesExample, 0},
		"slurm/job.sh":                   {"slurm", slurmExample, 0},
		"slurm/torchrun.sh":              {"slurm", slurmExample, 0},
		"sagemaker/training-job.json":    {"sagemaker", sageMakerExample, 0},
		"aws-batch/job-definition.json":  {"aws-batch", awsBatchExample, 0},
		"vertex/job.yaml":                {"vertex", vertexExample, 0},
		"dstack/task.dstack.yml":         {"dstack", dstackExample, 0},
		"skypilot/task.yaml":             {"skypilot", skyPilotExample, 0},
		"runpod/start.sh":                {"runpod", runPodExample, 0},
		"compose/compose.yaml":           {"compose", composeExample, 0},
		"compose/vllm.yaml":              {"compose", composeExample, 2},
		"compose/vllm-ray.yaml":          {"compose", composeExample, 2},
		"compose/sglang.yaml":            {"compose", composeExample, 2},
		"compose/ray.yaml":               {"compose", composeExample, 0},
		"compose/dask.yaml":              {"compose", composeExample, 0},
		"compose/torchrun.yaml":          {"compose", composeExample, 0},
		"compose/accelerate.yaml":        {"compose", composeExample, 0},
		"compose/deepspeed.yaml":         {"compose", composeExample, 0},
		"swarm/stack.yaml":               {"compose", composeExample, 0},
		"hosts/run.sh":                   {"explicit", hostsExample, 0},
		"hosts/shared.sh":                {"explicit", hostsExample, 0},
		"hosts/shell.sh":                 {"explicit", hostsExample, 0},
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel() // compose takes seconds to look at a file
			containers := c.containers(t, file)
			size := cmp.Or(c.size, 4)
			require.Len(t, containers, size)
			ranks := make(map[int]bool)
			first := 0
			for _, s := range containers {
				job := s.run(t)
				require.Equal(t, c.system, job.System)
				require.Contains(t, []int{size, -1}, job.Size)
				if job.First {
					first++
				}
				if job.Rank >= 0 {
					require.False(t, ranks[job.Rank], "rank %d twice", job.Rank)
					ranks[job.Rank] = true
				}
				require.Empty(t, job.Warnings)
			}
			require.Equal(t, 1, first)
		})
	}
}

// run gives the container's command line and environment to the program, as far as it gets without the others.
func (s started) run(t *testing.T) envspec.Job {
	t.Helper()
	require.Equal(t, "paiinit", filepath.Base(s.argv[0]))
	require.Equal(t, "run", early.CommandOf(s.argv))
	require.Empty(t, envspec.Nested(s.environ))
	known := []string{secretVariable, "PAIINIT_POD_NAME", "PAIINIT_JOB_INDEX", "PAIINIT_JOB_REPLICAS"}
	for _, f := range runFlags() {
		known = append(known, cmdline.Twin(f.Names()[0]))
	}
	for _, kv := range s.environ {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "PAIINIT_") {
			require.Contains(t, known, name)
		}
	}
	var got settings
	app := newApp(s.environ, func(_ context.Context, s settings) error { got = s; return nil })
	require.NoError(t, app.Run(cmdline.RunArgs(s.argv)))
	in := envspec.Input{Environ: s.environ, Flags: got.job, Files: s.files, Resolver: s.resolver,
		Hostname: launch.Value(s.environ, "HOSTNAME"), CPUs: 2}
	if s.addr != "" {
		in.Addrs = []netip.Addr{netip.MustParseAddr(s.addr)}
	}
	job, err := envspec.Read(t.Context(), in)
	require.NoError(t, err)
	if job.First {
		require.NotEmpty(t, got.command)
	}
	if secret := launch.Value(s.environ, secretVariable); secret != "" {
		_, err := jobkey.Derive([]byte(secret), job.ID, job.Attempt)
		require.NoError(t, err)
	} else {
		require.True(t, got.secretFile != "" || len(job.Secrets) > 0, "there is no secret")
	}
	return job
}

func readExample(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile("../../examples/" + file)
	require.NoError(t, err)
	return b
}

// readSubmitted reads an example whose platform has no secret store. It replaces the reference by a secret, as
// envsubst(1) and az ml job create --set do. The file itself has no secret.
func readSubmitted(t *testing.T, file string) []byte {
	t.Helper()
	text, reference := readExample(t, file), []byte("${"+secretVariable+"}")
	_, err := jobkey.Derive(reference, "", "")
	require.Error(t, err)
	require.Equal(t, 1, bytes.Count(text, reference))
	return bytes.Replace(text, reference, []byte(rand.Text()), 1)
}

// strictYAML reads all documents of a file. It fails on a field that v does not have, and on duplicates.
func strictYAML[T any](t *testing.T, text []byte) []T {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	var list []T
	for {
		var v T
		err := d.Decode(&v)
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		list = append(list, v)
	}
}

func strictJSON[T any](t *testing.T, text []byte) (v T) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&v))
	return v
}

// vars makes an environment of alternating names and values.
func vars(pairs ...any) []string {
	var list []string
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, fmt.Sprintf("%v=%v", pairs[i], pairs[i+1]))
	}
	return list
}

// words splits a command line without quotes, whose variables the container's shell would replace.
func words(line string, environ []string) []string {
	return strings.Fields(os.Expand(line, func(name string) string { return launch.Value(environ, name) }))
}

// lineWith returns the command line in a script that starts paiinit, from the word paiinit on.
func lineWith(t *testing.T, script []byte, environ []string) []string {
	t.Helper()
	joined := strings.ReplaceAll(string(script), "\\\n", " ")
	for line := range strings.Lines(joined) {
		w := words(line, environ)
		if i := slices.Index(w, "paiinit"); i >= 0 && w[0] != "#" {
			return w[i:]
		}
	}
	t.Fatal("no line starts paiinit")
	return nil
}

type paiRole struct {
	name    string
	count   int
	gpus    int
	command string
}

// openPAITasks returns the tasks of a job on OpenPAI 0.14, or 1.x on Kubernetes.
func openPAITasks(roles []paiRole, more []string, kubernetes bool, files fstest.MapFS) []started {
	var common, names []string
	total, port := 0, 20000
	for _, r := range roles {
		names = append(names, r.name)
		runtime := r.name
		if kubernetes {
			runtime = strings.ReplaceAll(r.name, "_", "")
			common = append(common, vars("PAI_RESOURCE_"+r.name, fmt.Sprintf("%d,4,1024,0", r.gpus))...)
		}
		var list []string
		for i := range r.count {
			common = append(common, vars(
				fmt.Sprintf("PAI_HOST_IP_%s_%d", runtime, i), "10.151.41.9", fmt.Sprintf("PAI_PORT_LIST_%s_%d_ssh",
					runtime, i), port+1,
				fmt.Sprintf("PAI_PORT_LIST_%s_%d_http", runtime, i), port)...)
			list = append(list, fmt.Sprintf("10.151.41.9:%d", port))
			port += 2
		}
		total += r.count
		common = append(common, vars("PAI_TASK_ROLE_"+runtime+"_HOST_LIST", strings.Join(list, ","),
			"PAI_TASK_ROLE_TASK_COUNT_"+r.name, r.count)...)
	}
	common = append(common, vars("PAI_JOB_NAME", "alice~job", "PAI_TASK_ROLE_LIST", strings.Join(names, ","),
		"PAI_TASKS_NUM", total)...)
	if kubernetes {
		common = append(common, vars("FC_FRAMEWORK_ATTEMPT_INSTANCE_UID", "0_uid", "FC_TASKROLE_NAME", "x")...)
	}
	var list []started
	for _, r := range roles {
		for i := range r.count {
			environ := slices.Concat(common, more, vars("PAI_CURRENT_TASK_ROLE_NAME", r.name,
				"PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", i, "PAI_TASK_INDEX", i))
			if !kubernetes {
				environ = append(environ, vars("APP_ID", "application_1", "PAI_CURRENT_TASK_ROLE_GPU_COUNT", r.gpus)...)
			}
			argv := words(r.command, environ)
			argv = argv[slices.Index(argv, "&&")+1:] // what is run before paiinit
			list = append(list, started{argv: argv, environ: environ, files: files})
		}
	}
	return list
}

func openPAIClassicExample(t *testing.T, file string) []started {
	job := strictJSON[struct {
		JobName, Image, VirtualCluster string
		DataDir, OutputDir, CodeDir    string
		RetryCount                     int
		JobEnvs                        map[string]any
		TaskRoles                      []struct {
			Name                                              string
			TaskNumber, CPUNumber, MemoryMB, ShmMB, GPUNumber int
			PortList                                          []struct {
				Label               string
				BeginAt, PortNumber int
			}
			MinFailedTaskCount, MinSucceededTaskCount int
			Command                                   string
		}
	}](t, readSubmitted(t, file))
	var roles []paiRole
	for _, r := range job.TaskRoles {
		roles = append(roles, paiRole{r.Name, r.TaskNumber, r.GPUNumber, r.Command})
	}
	var envs []string
	for name, value := range job.JobEnvs {
		envs = append(envs, vars(name, value)...)
	}
	return openPAITasks(roles, envs, false, nil)
}

// openPAI08Example has the tasks on OpenPAI before 0.11, which tells a task only the http ports of the others.
func openPAI08Example(t *testing.T, file string) []started {
	list := openPAIClassicExample(t, file)
	for i := range list {
		list[i].environ = slices.DeleteFunc(list[i].environ, func(kv string) bool {
			later := []string{"PAI_HOST_IP_", "PAI_PORT_LIST_", "PAI_TASK_ROLE_TASK_COUNT_"}
			return slices.ContainsFunc(later, func(prefix string) bool {
				return strings.HasPrefix(kv, prefix)
			})
		})
	}
	return list
}

func openPAIExample(t *testing.T, file string) []started {
	type role struct {
		Instances           int
		DockerImage         string         `yaml:"dockerImage"`
		ResourcePerInstance map[string]int `yaml:"resourcePerInstance"`
		Commands            []string
	}
	jobs := strictYAML[struct {
		ProtocolVersion int `yaml:"protocolVersion"`
		Name, Type      string
		Prerequisites   []struct {
			ProtocolVersion int `yaml:"protocolVersion"`
			Name, Type, URI string
		}
		TaskRoles yaml.Node `yaml:"taskRoles"`
		Extras    map[string][]struct {
			Plugin     string
			Parameters map[string]bool
		}
	}](t, readExample(t, file))
	require.Len(t, jobs, 1)
	require.Equal(t, "ssh", jobs[0].Extras["com.microsoft.pai.runtimeplugin"][0].Plugin)
	var roles []paiRole
	declared := jobs[0].TaskRoles.Content // in their order
	for i := 0; i < len(declared); i += 2 {
		var r role
		require.NoError(t, declared[i+1].Decode(&r))
		require.Equal(t, "image", r.DockerImage)
		require.Len(t, r.Commands, 1)
		roles = append(roles, paiRole{declared[i].Value, r.Instances, r.ResourcePerInstance["gpu"], r.Commands[0]})
	}
	key := fstest.MapFS{"usr/local/pai/ssh-secret/ssh-privatekey": {Data: []byte("key")}}
	return openPAITasks(roles, nil, true, key)
}

func azureNode(i, n int) (environ []string, addr string) {
	var list []string
	for k := range n {
		list = append(list, fmt.Sprintf("10.0.0.%d", 4+k))
	}
	return vars("AZ_BATCH_JOB_ID", "job", "AZ_BATCH_HOST_LIST", strings.Join(list, ","), "AZ_BATCH_MASTER_NODE",
		list[0]+":6000"), list[i]
}

func azureMLExample(t *testing.T, file string) []started {
	job := strictYAML[struct {
		Schema         string `yaml:"$schema"`
		DisplayName    string `yaml:"display_name"`
		Type           string
		ExperimentName string `yaml:"experiment_name"`
		Code, Command  string
		Environment    string
		Variables      map[string]string `yaml:"environment_variables"`
		Compute        string
		Resources      struct {
			InstanceCount int `yaml:"instance_count"`
		}
		Distribution struct {
			Type      string
			Processes int `yaml:"process_count_per_instance"`
			Servers   int `yaml:"parameter_server_count"`
			Workers   int `yaml:"worker_count"`
		}
	}](t, readSubmitted(t, file))[0]
	require.Equal(t, "command", job.Type)
	n := job.Resources.InstanceCount
	var list []started
	add := func(node int, more ...any) {
		environ, addr := azureNode(node, n)
		environ = append(environ, vars("AZUREML_RUN_ID", "run", "AZUREML_NODE_COUNT", n)...)
		environ = append(environ, vars(secretVariable, job.Variables[secretVariable])...)
		environ = append(environ, vars(more...)...)
		list = append(list, started{argv: words(job.Command, environ), environ: environ, addr: addr})
	}
	if job.Distribution.Type == "tensorflow" {
		servers, workers := job.Distribution.Servers, job.Distribution.Workers
		for i, config := range azureTasks(t, n, servers, workers) {
			add(i%workers%n, "TF_CONFIG", config)
		}
		return list
	}
	require.Equal(t, []any{"pytorch", 1}, []any{job.Distribution.Type, job.Distribution.Processes})
	for i := range n {
		add(i, "NODE_RANK", i, "RANK", i, "LOCAL_RANK", 0, "WORLD_SIZE", n,
			"MASTER_ADDR", "10.0.0.4", "MASTER_PORT", 6105)
	}
	return list
}

// azureTasks returns the TF_CONFIG of a job's workers, and then of its parameter servers, both from the first node on.
func azureTasks(t *testing.T, nodes, servers, workers int) (configs []string) {
	t.Helper()
	cluster := make(map[string][]string)
	for i := range workers {
		cluster["worker"] = append(cluster["worker"], fmt.Sprintf("10.0.0.%d:2222", 4+i%nodes))
	}
	for i := range servers {
		cluster["ps"] = append(cluster["ps"], fmt.Sprintf("10.0.0.%d:2223", 4+i%nodes))
	}
	for _, kind := range []string{"worker", "ps"} {
		for i := range cluster[kind] {
			task := map[string]any{"type": kind, "index": i}
			text, err := json.Marshal(map[string]any{"cluster": cluster, "task": task})
			require.NoError(t, err)
			configs = append(configs, string(text))
		}
	}
	return configs
}

func azureBatchExample(t *testing.T, file string) []started {
	task := strictJSON[struct {
		ID, CommandLine     string
		ContainerSettings   struct{ ImageName, ContainerRunOptions string }
		EnvironmentSettings []struct{ Name, Value string }
		MultiInstance       struct {
			NumberOfInstances       int
			CoordinationCommandLine string
		} `json:"multiInstanceSettings"`
	}](t, readSubmitted(t, file))
	require.Contains(t, task.ContainerSettings.ContainerRunOptions, "--network host")
	var list []started
	n := task.MultiInstance.NumberOfInstances
	for i := range n {
		environ, addr := azureNode(i, n)
		for _, v := range task.EnvironmentSettings {
			environ = append(environ, vars(v.Name, v.Value)...)
		}
		list = append(list, started{argv: words(task.MultiInstance.CoordinationCommandLine, environ), environ: environ,
			addr: addr})
	}
	return list
}

func slurmExample(t *testing.T, file string) []started {
	script := readExample(t, file)
	require.Contains(t, string(script), "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n")
	require.Contains(t, string(script), "\nsrun --ntasks-per-node=1 paiinit ")
	var list []started
	for i := range 4 {
		environ := vars("HOME", "/home/me", "SLURM_JOB_ID", 7, "SLURM_STEP_ID", 0, "SLURM_STEP_NODELIST", "n[0-3]",
			"SLURM_NODEID", i, "SLURM_PROCID", i,
			"SLURM_LOCALID", 0, "SLURM_STEP_TASKS_PER_NODE", "1(x4)")
		list = append(list, started{argv: lineWith(t, script, environ), environ: environ})
	}
	return list
}

func sageMakerExample(t *testing.T, file string) []started {
	job := strictJSON[struct {
		TrainingJobName        string
		AlgorithmSpecification struct {
			TrainingImage, TrainingInputMode        string
			ContainerEntrypoint, ContainerArguments []string
		}
		Environment      map[string]string
		RoleArn          string
		OutputDataConfig struct{ S3OutputPath string }
		ResourceConfig   struct {
			InstanceType                  string
			InstanceCount, VolumeSizeInGB int
		}
		StoppingCondition      struct{ MaxRuntimeInSeconds int }
		EnableNetworkIsolation bool
	}](t, readSubmitted(t, file))
	var hosts []string
	for i := range job.ResourceConfig.InstanceCount {
		hosts = append(hosts, fmt.Sprintf("algo-%d", i+1))
	}
	var list []started
	for _, host := range hosts {
		text, err := json.Marshal(map[string]any{"current_host": host, "hosts": hosts})
		require.NoError(t, err)
		list = append(list, started{
			argv: slices.Concat(job.AlgorithmSpecification.ContainerEntrypoint,
				job.AlgorithmSpecification.ContainerArguments),
			environ: vars("TRAINING_JOB_NAME", job.TrainingJobName, secretVariable, job.Environment[secretVariable]),
			files:   fstest.MapFS{"opt/ml/input/config/resourceconfig.json": {Data: text}},
		})
	}
	return list
}

func awsBatchExample(t *testing.T, file string) []started {
	type pair struct{ Name, Type, Value, ValueFrom string }
	job := strictJSON[struct {
		JobDefinitionName, Type string
		NodeProperties          struct {
			MainNode, NumNodes  int
			NodeRangeProperties []struct {
				TargetNodes string
				Container   struct {
					Image                string
					Command              []string
					ResourceRequirements []pair
					ExecutionRoleArn     string
					Secrets              []pair
				}
			}
		}
	}](t, readExample(t, file))
	nodes := job.NodeProperties
	require.Equal(t, "0:", nodes.NodeRangeProperties[0].TargetNodes)
	container := nodes.NodeRangeProperties[0].Container
	require.Equal(t, secretVariable, container.Secrets[0].Name)
	var list []started
	for i := range nodes.NumNodes {
		environ := vars("AWS_BATCH_JOB_ID", fmt.Sprintf("id#%d", i), "AWS_BATCH_JOB_NODE_INDEX", i,
			"AWS_BATCH_JOB_NUM_NODES", nodes.NumNodes,
			"AWS_BATCH_JOB_MAIN_NODE_INDEX", nodes.MainNode, secretVariable, "of the vault, long enough")
		if i != nodes.MainNode {
			environ = append(environ, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.10")
		}
		list = append(list, started{argv: slices.Concat(entrypoint, container.Command), environ: environ})
	}
	return list
}

type nameValue struct{ Name, Value string }

func vertexExample(t *testing.T, file string) []started {
	job := strictYAML[struct {
		Pools []struct {
			Machine struct {
				MachineType string `yaml:"machineType"`
			} `yaml:"machineSpec"`
			Replicas  int `yaml:"replicaCount"`
			Container struct {
				Image         string `yaml:"imageUri"`
				Command, Args []string
				Env           []nameValue
			} `yaml:"containerSpec"`
		} `yaml:"workerPoolSpecs"`
	}](t, readSubmitted(t, file))[0]
	cluster := make(map[string][]string)
	for i, p := range job.Pools {
		pool := fmt.Sprintf("workerpool%d", i)
		for k := range p.Replicas {
			cluster[pool] = append(cluster[pool], fmt.Sprintf("cmle-training-%s-b644f12a34-%d:2222", pool, k))
		}
	}
	var list []started
	for i, p := range job.Pools {
		for k := range p.Replicas {
			spec, err := json.Marshal(map[string]any{"cluster": cluster,
				"task": map[string]any{"type": fmt.Sprintf("workerpool%d", i), "index": k}})
			require.NoError(t, err)
			list = append(list, started{
				argv:    slices.Concat(p.Container.Command, p.Container.Args),
				environ: vars("CLUSTER_SPEC", string(spec), p.Container.Env[0].Name, p.Container.Env[0].Value),
			})
		}
	}
	return list
}

func dstackExample(t *testing.T, file string) []started {
	task := strictYAML[struct {
		Type, Name    string
		Nodes         int
		Image         string
		Env, Commands []string
		Resources     map[string]int
	}](t, readExample(t, file))[0]
	require.Equal(t, "task", task.Type)
	require.Equal(t, []string{secretVariable + "=${{ secrets.paiinit }}"}, task.Env)
	var list []started
	for i := range task.Nodes {
		environ := append(vars(secretVariable, "of dstack's, long enough"), vars("DSTACK_NODES_IPS",
			"10.2.0.1\n10.2.0.2\n10.2.0.3\n10.2.0.4", "DSTACK_MASTER_NODE_IP", "10.2.0.1",
			"DSTACK_NODE_RANK", i, "DSTACK_NODES_NUM", task.Nodes, "DSTACK_GPUS_PER_NODE", 8,
			"DSTACK_RUN_ID", "run")...)
		list = append(list, started{argv: words(task.Commands[0], environ), environ: environ})
	}
	return list
}

func skyPilotExample(t *testing.T, file string) []started {
	task := strictYAML[struct {
		Name      string
		Nodes     int `yaml:"num_nodes"`
		Resources map[string]string
		Secrets   map[string]*string
		Run       string
	}](t, readExample(t, file))[0]
	require.Contains(t, task.Secrets, secretVariable)
	var list []started
	for i := range task.Nodes {
		environ := vars("SKYPILOT_NODE_IPS", "10.3.0.4\n10.3.0.5\n10.3.0.6\n10.3.0.7", "SKYPILOT_NODE_RANK", i,
			"SKYPILOT_NUM_NODES", task.Nodes,
			"SKYPILOT_NUM_GPUS_PER_NODE", 8, secretVariable, "of the command line, long enough")
		list = append(list, started{argv: words(task.Run, environ), environ: environ})
	}
	return list
}

func runPodExample(t *testing.T, file string) []started {
	var list []started
	for i := range 4 {
		environ := vars("PRIMARY_ADDR", "10.65.0.2", "MASTER_ADDR", "10.65.0.2", "MASTER_PORT", 29400, "NODE_ADDR",
			fmt.Sprintf("10.65.0.%d", 2+i),
			"NODE_RANK", i, "NUM_NODES", 4, "NUM_TRAINERS", 8, "WORLD_SIZE", 32,
			secretVariable, "of RunPod's, long enough")
		list = append(list, started{argv: lineWith(t, readExample(t, file), environ), environ: environ})
	}
	return list
}

// nameServer is the DNS server of a container engine.
type nameServer map[netip.Addr]string

func (n nameServer) LookupHost(_ context.Context, name string) ([]netip.Addr, error) {
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func (n nameServer) LookupPTR(_ context.Context, addr netip.Addr) ([]string, error) {
	return []string{n[addr]}, nil
}

func composeExample(t *testing.T, file string) []started {
	compose(t, "-f", "../../examples/"+file, "config", "--quiet")
	stack := strictYAML[struct {
		Version  string
		X        map[string]any `yaml:",inline"`
		Services map[string]struct {
			Image          string
			Build          any
			Init           bool
			Runtime        string
			Memory         string `yaml:"shm_size"`
			Secrets, Ports []string
			Volumes        []string
			Environment    map[string]string
			Command        []string
			Scale          int
			Deploy         struct {
				Replicas int
				Restart  any `yaml:"restart_policy"`
			}
		}
		Secrets map[string]any
	}](t, readExample(t, file))[0]
	names := nameServer{}
	var list []started
	peers := stack.Services["worker"].Environment["PAIINIT_PEERS"]
	for _, name := range strings.Split(strings.NewReplacer("dns:", "", "tasks.", "").Replace(peers), ",") {
		require.Contains(t, stack.Services, name)
		service, form := stack.Services[name], "app-%s-%d.app_default."
		n := max(1, service.Scale)
		if strings.HasPrefix(file, "swarm/") {
			n, form = service.Deploy.Replicas, "app_%s.%d.x7k2p.app_default."
		}
		for i := range n {
			addr := fmt.Sprintf("172.19.0.%d", 2+len(list))
			names[netip.MustParseAddr(addr)] = fmt.Sprintf(form, name, i+1)
			s := started{argv: slices.Concat(entrypoint, service.Command), addr: addr, resolver: names}
			for key, value := range service.Environment {
				s.environ = append(s.environ, vars(key, value)...)
			}
			list = append(list, s)
		}
	}
	return list
}

// compose runs the compose tool, version 1 or 2.
func compose(t *testing.T, args ...string) {
	t.Helper()
	command := []string{"docker", "compose"}
	if exec.Command("docker", "compose", "version").Run() != nil {
		command = []string{"docker-compose"}
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	cmd := exec.Command(command[0], append(command[1:], args...)...)
	cmd.Env = append(os.Environ(), "PAIINIT_SECRET_FILE=/etc/hostname", "PAIINIT_IMAGE=my/image")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// hostsExample runs a script with a docker that prints its arguments. It knows every option of docker run in the
// script.
func hostsExample(t *testing.T, file string) []started {
	t.Helper()
	dir := t.TempDir()
	shim := "#!/bin/sh\nprintf '%s\\0' \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(shim), 0o755)) //nolint:gosec // a program
	addrs := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}
	cmd := exec.CommandContext(t.Context(), "../../examples/"+file, strings.Join(addrs, ","))
	cmd.Env = []string{"HOME=/root", "PATH=" + dir + ":" + os.Getenv("PATH")}
	out, err := cmd.Output()
	require.NoError(t, err)
	words := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	require.Equal(t, "run", words[0])
	var environ, volumes []string
	network := ""
	for words = words[1:]; words[0] != "my/horovod"; words = words[1:] {
		option, value, joined := strings.Cut(words[0], "=")
		if option == "--rm" || option == "-it" {
			continue
		}
		if !joined {
			words = words[1:]
			value = words[0]
		}
		switch option {
		case "--env", "-e":
			environ = append(environ, value)
		case "--volume", "-v":
			_, target, _ := strings.Cut(value, ":")
			volumes = append(volumes, strings.TrimSuffix(target, ":ro"))
		case "--network":
			network = value
		case "--gpus":
			require.Equal(t, "all", value)
		default:
			require.Fail(t, "an option that this test does not know", option)
		}
	}
	command := words[1:]
	if len(command) == 0 {
		command = []string{"bash"} // the CMD of Dockerfile.example
	}
	if launch.Value(environ, "PAIINIT_PEERS") == "" {
		return []started{{argv: slices.Concat(entrypoint, command), environ: environ}}
	}
	require.Equal(t, "host", network)
	secret := launch.Value(environ, "PAIINIT_SECRET_FILE")
	require.True(t, slices.Contains(volumes, secret) || slices.Contains(volumes, filepath.Dir(secret)), "%q", volumes)
	var list []started
	for i, addr := range addrs {
		s := started{addr: addr, environ: append(slices.Clone(environ), fmt.Sprintf("HOSTNAME=host%d", i+1))}
		s.argv = slices.Concat(entrypoint, command)
		list = append(list, s)
	}
	return list
}

// kubeflowOpenMPIExample runs the script with a ks and a kubectl that print their words, and reads the command line of
// paiinit in the init.sh that the pods of kubeflow/openmpi run then (workloads.libsonnet, assets.libsonnet).
func kubeflowOpenMPIExample(t *testing.T, file string) []started {
	t.Helper()
	script, err := filepath.Abs("../../examples/" + file)
	require.NoError(t, err)
	bin, dir := t.TempDir(), t.TempDir()
	for name, does := range map[string]string{
		"kubectl":    "",
		"ssh-keygen": "",
		"ks": `[ "$1" != init ] || mkdir -p "$2/vendor/kubeflow/openmpi/assets"
			[ "$1" != pkg ] || echo replaced >vendor/kubeflow/openmpi/assets/init.sh`,
	} {
		text := "#!/bin/sh\nprintf '%s\\037' " + name + " \"$@\"\necho\n" + does + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755)) //nolint:gosec // a program
	}
	cmd := exec.CommandContext(t.Context(), script)
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	out, err := cmd.Output()
	require.NoError(t, err)
	known := []string{"--image", "--secret", "--workers", "--gpu", "--exec", "--initTimeout",
		"--cpu", "--memory", "--nodeSelector"}
	var component string
	options := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		words := strings.Split(strings.TrimSuffix(line, "\037\n"), "\037")
		if len(words) > 3 && words[0] == "ks" && words[1] == "generate" {
			require.Equal(t, "openmpi", words[2])
			component = words[3]
			for i := 4; i < len(words); i += 2 {
				require.Contains(t, known, words[i])
				options[words[i]] = words[i+1]
			}
		}
	}
	require.Len(t, options, len(known))
	workers, err := strconv.Atoi(options["--workers"])
	require.NoError(t, err)
	require.Contains(t, options["--exec"],
		fmt.Sprintf("mpiexec -n %d --hostfile /kubeflow/openmpi/assets/hostfile ", workers))
	var hosts strings.Builder
	for i := range workers {
		fmt.Fprintf(&hosts, "%s-worker-%d.%s.kubeflow slots=1\n", component, i, component)
	}
	files := fstest.MapFS{
		"kubeflow/openmpi/assets/hostfile": {Data: []byte(hosts.String())},
		"kubeflow/openmpi/secrets/id_rsa":  {Data: []byte("key")},
	}
	init, err := filepath.Glob(filepath.Join(dir, "*/vendor/kubeflow/openmpi/assets/init.sh"))
	require.NoError(t, err)
	require.Len(t, init, 1)
	text, err := os.ReadFile(init[0])
	require.NoError(t, err)
	master, worker, found := strings.Cut(string(text), "exec paiinit --timeout \"${timeout}s\" -- sh -c \"$exec\"\n")
	require.True(t, found)
	require.NotContains(t, master, "\npaiinit")
	require.Contains(t, worker, "\npaiinit --timeout \"${timeout}s\" &\n")
	limit := "--timeout=" + options["--initTimeout"] + "s"
	list := []started{{argv: []string{"paiinit", limit, "--", "sh", "-c", options["--exec"]}}}
	for range workers {
		list = append(list, started{argv: []string{"paiinit", limit}})
	}
	for i := range list {
		pod := component + "-master"
		if i > 0 {
			pod = fmt.Sprintf("%s-worker-%d", component, i-1)
		}
		list[i].files, list[i].environ = files, []string{"HOSTNAME=" + pod, "KUBERNETES_SERVICE_HOST=10.96.0.1"}
	}
	return list
}

// A container that is a job by itself needs no secret.
func TestExampleOfOneContainer(t *testing.T) {
	list := hostsExample(t, "hosts/one.sh")
	require.Len(t, list, 1)
	var got settings
	app := newApp(list[0].environ, func(_ context.Context, s settings) error { got = s; return nil })
	require.NoError(t, app.RunContext(t.Context(), cmdline.RunArgs(list[0].argv)))
	job, err := envspec.Read(t.Context(), envspec.Input{Environ: list[0].environ, Flags: got.job,
		Hostname: "c278c88dd552"})
	require.NoError(t, err)
	require.Equal(t, "single", job.System)
	require.Equal(t, 1, job.Size)
	require.Equal(t, []string{"mpirun", "-np", "4", "-H", "localhost:4", "python", "train.py"}, got.command)
}

var link = regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)

// TestSchedulerPages asserts that every scheduler has a page, that every job file is on a page, and that the links of
// the pages are valid.
func TestSchedulerPages(t *testing.T) {
	const dir = "../../docs/schedulers"
	pages, err := filepath.Glob(dir + "/*.md")
	require.NoError(t, err)
	index, err := os.ReadFile(dir + "/README.md")
	require.NoError(t, err)
	for _, system := range envspec.Systems() {
		require.Contains(t, string(index), "`"+system+"`")
	}
	seen := make(map[string]bool)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := filepath.Join(filepath.Dir(page), m[1])
			_, err := os.Stat(target)
			require.NoError(t, err, "%s refers to %s", page, m[1])
			seen[target] = true
		}
		if filepath.Base(page) != "README.md" {
			require.Contains(t, string(index), "("+filepath.Base(page)+")")
		}
	}
	files, err := filepath.Glob("../../examples/*/*")
	require.NoError(t, err)
	for _, file := range files {
		require.True(t, seen[file] || seen[filepath.Dir(file)], "no page refers to %s", file)
	}
}

// TestRecipePages asserts that every recipe is in their list, with the files that its page has.
func TestRecipePages(t *testing.T) {
	const dir = "../../docs/recipes"
	pages, err := filepath.Glob(dir + "/*.md")
	require.NoError(t, err)
	index, err := os.ReadFile(dir + "/README.md")
	require.NoError(t, err)
	for _, page := range pages {
		if filepath.Base(page) == "README.md" {
			continue
		}
		require.Contains(t, string(index), "("+filepath.Base(page))
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		files := 0
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.HasSuffix(m[1], ".yaml") {
				files++
				require.Contains(t, string(index), "("+m[1]+")", page)
			}
		}
		require.GreaterOrEqual(t, files, 2, page)
	}
}

// TestJobPages asserts that the pages about jobs of other documents are listed, and that each diff in them, whose
// header names a file of examples/, ends with the text of that file.
func TestJobPages(t *testing.T) {
	const dir = "../../docs/jobs"
	pages, err := filepath.Glob(dir + "/*.md")
	require.NoError(t, err)
	index, err := os.ReadFile(dir + "/README.md")
	require.NoError(t, err)
	seen := make(map[string]bool)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], "://") {
				_, err := os.Stat(filepath.Join(dir, m[1]))
				require.NoError(t, err, "%s refers to %s", page, m[1])
			}
		}
		if filepath.Base(page) != "README.md" {
			require.Contains(t, string(index), "("+filepath.Base(page)+")")
		}
		for _, block := range strings.Split(string(text), "```diff\n")[1:] {
			diff, _, found := strings.Cut(block, "```\n")
			require.True(t, found)
			header, lines, _ := strings.Cut(diff, "\n")
			require.Contains(t, header, "--- ")
			header, lines, _ = strings.Cut(lines, "\n")
			file, found := strings.CutPrefix(header, "+++ examples/")
			require.True(t, found, "%s: %s", page, header)
			var after strings.Builder
			for line := range strings.Lines(lines) {
				if line == "\n" {
					after.WriteString(line)
				} else if line[0] != '-' {
					after.WriteString(line[1:])
				}
			}
			require.Equal(t, string(readExample(t, file)), after.String(), "%s: %s", page, file)
			seen[file] = true
		}
	}
	require.NotEmpty(t, seen)
}
