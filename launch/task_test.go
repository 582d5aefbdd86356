package launch

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func tasks(roles ...string) Tasks {
	t := Tasks{Job: "application_1_0042"}
	for i, r := range roles {
		t.Ranks = append(t.Ranks, Task{Role: r, Addr: fmt.Sprintf("10.0.0.%d", i), Port: 20000 + i, Slots: 2})
	}
	return t
}

func golden(t *testing.T, name string, vars []Var) {
	t.Helper()
	var got strings.Builder
	for _, v := range vars {
		fmt.Fprintf(&got, "%s=%s\n    %s\n", v.Name, v.Value, v.Reason)
	}
	file := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestTaskGoldens(t *testing.T) {
	for name, tt := range map[string]struct {
		framework func(Tasks) []Var
		tasks     Tasks
		self      int
		spawns    bool
	}{
		"torch":                   {torch, tasks("worker", "worker", "worker"), 1, false},
		"torchrun":                {torch, tasks("worker", "worker", "worker"), 2, true},
		"vllm-task":               {vllmTask, tasks("worker", "worker"), 1, false},
		"sglang-task":             {sglangTask, tasks("worker", "worker"), 1, false},
		"tensorflow-multi-worker": {tensorFlow, tasks("worker", "worker", "worker"), 2, false},
		"tensorflow-chief":        {tensorFlow, tasks("master", "worker", "worker"), 1, false},
		"tensorflow-ps": {
			tensorFlow, tasks("chief", "worker", "worker", "ps_server", "ps_server", "evaluator"), 4, false,
		},
		"tensorflow-evaluator": {tensorFlow, tasks("chief", "worker", "ps", "evaluator", "evaluator"), 4, false},
		"jax":                  {jax, tasks("worker", "worker"), 1, false},
		"mxnet":                {psLite, tasks("scheduler", "server", "server", "worker"), 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			tt.tasks.Self, tt.tasks.Spawns = tt.self, tt.spawns
			vars := tt.framework(tt.tasks)
			golden(t, name, vars)
			all := TaskEnvironment(tt.tasks)
			require.Subset(t, all, vars)
			names := map[string]bool{}
			for _, v := range all {
				require.False(t, names[v.Name], "%s is set by two frameworks", v.Name)
				names[v.Name] = true
			}
			require.Empty(t, tt.framework(Tasks{}))
		})
	}
	require.Empty(t, psLite(tasks("master", "worker")), "only where the roles ask for it")
}

// The processes of a server or of a cluster are no ranks of the job: they get the addresses, and nothing that counts
// ranks, but for torchrun's own options.
func TestClusterEnvironment(t *testing.T) {
	job := tasks("scheduler", "server", "worker")
	job.Self, job.Cluster = 2, true
	golden(t, "cluster", TaskEnvironment(job))
	job.Cluster = false
	require.Subset(t, names(TaskEnvironment(job)),
		[]string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TF_CONFIG", "JAX_PROCESS_ID", "DMLC_ROLE"})
	alone := tasks("worker")
	require.NotContains(t, names(TaskEnvironment(alone)), "VLLM_HOST_IP", "its address is no other rank's business")
}

func names(vars []Var) (list []string) {
	for _, v := range vars {
		list = append(list, v.Name)
	}
	return list
}

func TestTaskIPv6(t *testing.T) {
	job := tasks("worker", "worker")
	job.Ranks[0].Addr = "fd00::1"
	got := map[string]string{}
	for _, v := range TaskEnvironment(job) {
		got[v.Name] = v.Value
	}
	require.Equal(t, "[fd00::1]", got["PET_MASTER_ADDR"], "torchrun builds a URL of it")
	require.Equal(t, "[fd00::1]:20000", got["JAX_COORDINATOR_ADDRESS"])
	require.Contains(t, got["TF_CONFIG"], `"worker":["[fd00::1]:20000","10.0.0.1:20001"]`)
}

// All tasks of a job get the same cluster, and each has a place of its own in it.
func TestTasksAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		role := rapid.SampledFrom([]string{
			"master", "chief", "worker", "ps", "server", "evaluator", "scheduler", "trainer",
		})
		roles := rapid.SliceOfN(role, 2, 12).Draw(t, "roles")
		job := tasks(roles...)
		var cluster string
		seen := map[string]bool{}
		for i := range job.Ranks {
			job.Self = i
			var c tfConfig
			require.NoError(t, json.Unmarshal([]byte(tensorFlow(job)[0].Value), &c))
			b, err := json.Marshal(c.Cluster)
			require.NoError(t, err)
			if i == 0 {
				cluster = string(b)
			}
			require.Equal(t, cluster, string(b))
			place := fmt.Sprint(c.Task)
			require.False(t, seen[place], place)
			seen[place] = true
			lists := map[string][]string{"chief": c.Cluster.Chief, "ps": c.Cluster.PS, "worker": c.Cluster.Worker}
			list, ok := lists[c.Task.Type]
			if ok {
				require.Equal(t, job.Ranks[i].address(), list[c.Task.Index])
			} else {
				require.Equal(t, "evaluator", c.Task.Type)
			}
			require.LessOrEqual(t, len(c.Cluster.Chief), 1)
		}
	})
}

func TestSpawns(t *testing.T) {
	for line, want := range map[string]bool{
		"":                                 false,
		"torchrun train.py":                true,
		"/opt/conda/bin/torchrun train.py": true,
		"python -m torch.distributed.launch --nnodes 3 train.py": true,
		"python3 -u -m torch.distributed.run train.py":           true,
		"python3 -mtorch.distributed.run train.py":               true,
		"python3 /usr/bin/torchrun train.py":                     true,
		"python3 -m train torchrun":                              false,
		"python3 train.py torchrun":                              false,
		"python3 -c torchrun":                                    false,
		"python3 -m":                                             false,
		"accelerate launch train.py":                             true,
		"deepspeed train.py":                                     true,
		"mpirun -np 2 a.out":                                     true,
		"sh -c torchrun":                                         false,
		"./a.out":                                                false,
	} {
		require.Equal(t, want, Spawns(strings.Fields(line)), line)
	}
}

// TestStartsCluster has the command lines of the servers' and clusters' own documentation in November 2026 (vLLM 0.33,
// SGLang 0.5.23, Ray 2.60, Dask 2026.8), and other forms of them that people write.
func TestStartsCluster(t *testing.T) {
	for _, line := range []string{
		// vLLM: docs/serving/parallelism_scaling.md and data_parallel_deployment.md, at commit 096bd6a.
		"vllm serve /model --tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2 --node-rank 0 " +
			"--master-addr 10.0.0.1",
		"vllm serve /model --tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2 --node-rank 1 " +
			"--master-addr 10.0.0.1 --headless",
		"vllm serve /model --tensor-parallel-size 8 --pipeline-parallel-size 2 --distributed-executor-backend ray",
		"vllm serve /model --headless --data-parallel-size 4 --data-parallel-size-local 2 " +
			"--data-parallel-start-rank 2 --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 13345",
		"/opt/venv/bin/vllm serve /model",
		"/opt/venv/bin/python3 /opt/venv/bin/vllm serve /model",
		"python3 -m vllm.entrypoints.openai.api_server --model /model",
		"python3 -m vllm.entrypoints.cli.main serve /model",
		// SGLang: docs/references/multi_node_deployment/multi_node.md at commit 9bfd52e, python/sglang/cli/main.py
		"python3 -m sglang.launch_server --model-path /model --tp 16 --dist-init-addr 10.0.0.1:20000 --nnodes 2 " +
			"--node-rank 0",
		"sglang serve --model-path /model --tp 16 --dist-init-addr 10.0.0.1:20000 --nnodes 2 --node-rank 1",
		// Ray: doc/source/cluster/vms/user-guides/launching-clusters/on-premises.md at commit 0114562, and
		// docs.ray.io/en/latest/cluster/cli.html
		"ray start --head --port=6379",
		"ray start --address=10.0.0.1:6379",
		"ray start --address=10.0.0.1:6379 --node-ip-address=10.0.0.2 --num-gpus=8 --block",
		"ray symmetric-run --address 10.0.0.1:6379 --min-nodes 4 -- python3 driver.py",
		"ray job submit --working-dir . -- python3 driver.py",
		// Dask: docs.dask.org/en/latest/deploying-cli.html; the names before 2022.10, and RAPIDS' worker
		"dask scheduler",
		"dask worker tcp://192.0.0.100:8786",
		"dask spec --spec {} tcp://192.0.0.100:8786",
		"dask cuda worker tcp://192.0.0.100:8786",
		"dask-scheduler --port 8786",
		"dask-worker tcp://192.0.0.100:8786 --nworkers 2",
		"dask-cuda-worker tcp://192.0.0.100:8786",
		"python3 -m distributed.cli.dask_worker tcp://192.0.0.100:8786",
		"python3 -u -m dask worker tcp://192.0.0.100:8786",
		// Spark: spark.apache.org/docs/latest/spark-standalone.html
		"/opt/spark/sbin/start-master.sh",
		"/opt/spark/sbin/start-worker.sh spark://10.0.0.1:7077",
		"/opt/spark/bin/spark-class org.apache.spark.deploy.master.Master --host 10.0.0.1 --port 7077",
		"/opt/spark/bin/spark-class org.apache.spark.deploy.worker.Worker spark://10.0.0.1:7077",
		"spark-submit --master spark://10.0.0.1:7077 --class Main app.jar",
	} {
		words := strings.Fields(line)
		require.True(t, StartsCluster(words), line)
		require.False(t, Spawns(words), line)
		require.False(t, ReachesHosts(words), line)
		require.False(t, IsLauncher(words[0]), line)
		require.True(t, LineStartsCluster("cd /work && exec "+line), line)
	}
	for _, line := range []string{
		"", "python3 driver.py ray", "python3 -c vllm", "sh -c vllm", "torchrun train.py", "mpirun vllm",
		"./ray.sh", "rayon", "python3 -m vllm_plugin", "sh start.sh",
	} {
		require.False(t, StartsCluster(strings.Fields(line)), line)
	}
	for line, want := range map[string]bool{
		"":                                false,
		"nvidia-smi dmon":                 false,
		"ray start --head":                true,
		"ulimit -n 65536; dask scheduler": true,
		"ray 'start":                      false, // the shell refuses it
	} {
		require.Equal(t, want, LineStartsCluster(line), line)
	}
}

// What paiinit starts to learn versions, and what it takes for a launcher's ranks, has nothing of servers and clusters.
func TestClustersAreNotAsked(t *testing.T) {
	for _, l := range launchers {
		if l.has(clusterProcesses) {
			require.Equal(t, clusterProcesses, l.Starts, l.Name)
			require.Empty(t, l.Compared, l.Name)
			require.Empty(t, l.RankVariables, l.Name)
			require.Subset(t, Unversioned(), l.Programs)
			for _, program := range l.Programs {
				require.NotContains(t, candidates(), program)
			}
		}
	}
}
