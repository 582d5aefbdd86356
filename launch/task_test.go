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
