package envspec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

func TestNested(t *testing.T) {
	for want, environ := range map[string][]string{
		"":                     {"HOME=/root", "PMI_RANK=", "PAIINIT_ACTIVE= ", "X", "=y"},
		"OMPI_COMM_WORLD_RANK": {"PMIX_RANK=0", "OMPI_COMM_WORLD_RANK=0"},
		"PMIX_RANK":            {"PMIX_RANK=3"},
		"PMI_RANK":             {"A=b", "PMI_RANK=0"},
		"TORCHELASTIC_RUN_ID":  {"TORCHELASTIC_RUN_ID=none"},
		"PAIINIT_ACTIVE":       {"PAIINIT_ACTIVE=1", "PMI_RANK=0"},
	} {
		require.Equal(t, want, envspec.Nested(environ), "%q", environ)
	}
}

func TestReadNothing(t *testing.T) {
	job, err := envspec.Read(context.Background(), envspec.Input{})
	require.NoError(t, err)
	checkJob(t, job)
	require.Equal(t, "single", job.System)
	require.Equal(t, []int{0, 1, 1}, []int{job.Rank, job.Size, job.Slots})
	require.Equal(t, 12345, job.Port)
}

func TestReadCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := envspec.Read(ctx, envspec.Input{})
	require.ErrorIs(t, err, context.Canceled)
}

// TestReadLeavesSecrets asserts that Read reads no secrets, and that no message contains one.
func TestReadLeavesSecrets(t *testing.T) {
	const canary = "canary-6f1d"
	job, err := envspec.Read(context.Background(), envspec.Input{
		Environ: []string{
			"PAI_JOB_NAME=u~j",
			"PAI_CURRENT_TASK_ROLE_NAME=w",
			"PAI_TASK_ROLE_LIST=w",
			"PAI_TASK_INDEX=0",
			"PAI_TASKS_NUM=1",
			"PAIINIT_SECRET=" + canary,
			"PAIINIT_SECRET=other-" + canary,
		},
		Files: fstest.MapFS{
			"root/.ssh/u~j": {Data: []byte(canary), Mode: 0o600},
			"usr/local/pai/ssh-secret/ssh-privatekey":   {Data: []byte(canary), Mode: 0o600},
			"usr/local/pai/token-secrets/..data/token":  {Data: []byte(canary), Mode: 0o600},
			"usr/local/pai/token-secrets/token":         {Data: []byte(canary), Mode: 0o600},
			"usr/local/pai/token-secrets/directory/key": {Data: []byte(canary), Mode: 0o600},
		},
	})
	require.NoError(t, err)
	require.Equal(t, []envspec.Secret{
		{Kind: "file", Name: "/usr/local/pai/token-secrets/token"},
		{Kind: "file", Name: "/root/.ssh/u~j"},
		{Kind: "file", Name: "/usr/local/pai/ssh-secret/ssh-privatekey"},
	}, job.Secrets)
	b, err := json.Marshal(job)
	require.NoError(t, err)
	require.NotContains(t, string(b), canary)
}

// TestJSON asserts the stable names of `paiinit env --json` and that nothing is null.
func TestJSON(t *testing.T) {
	for _, path := range fixtures(t) {
		_, in := readFixture(t, path)
		job, err := envspec.Read(context.Background(), in)
		if err != nil {
			continue
		}
		b, err := json.Marshal(job)
		require.NoError(t, err)
		require.False(t, bytes.Contains(b, []byte("null")), path)
		var fields map[string]any
		require.NoError(t, json.Unmarshal(b, &fields))
		for _, name := range []string{
			"system", "job", "attempt", "role", "index", "rank", "size", "slots", "port", "peers", "sources",
			"warnings",
		} {
			require.Contains(t, fields, name)
		}
		for _, p := range fields["peers"].([]any) {
			for _, name := range []string{"role", "index", "rank", "alias", "host", "port", "slots"} {
				require.Contains(t, p, name)
			}
		}
	}
}

// TestSelfViews asserts that the fixtures of all tasks of a job agree.
func TestSelfViews(t *testing.T) {
	for prefix, aliases := range map[string]string{
		"openpai/classic-B":            "master-0 worker-0 worker-1",
		"openpai/classic-C":            "master-0 worker-0 worker-1",
		"openpai/v1-A":                 "master-0 hvd_worker-0 hvd_worker-1",
		"openpai/v1-B":                 "taskrole-0 taskrole_1-0",
		"compose/compose-A":            "master-0 worker-0 worker-1 worker-2 worker-3",
		"compose/swarm-A":              "launcher-0 worker-0 worker-1 worker-2",
		"azure/aml-A":                  "worker-0 worker-1",
		"azure/aml-B":                  "worker-0 worker-1",
		"azure/aml-C":                  "worker-0 worker-1",
		"azure/batchai-A":              "worker-0 worker-1 ps-0",
		"azure/aml-tf-A":               "worker-0 worker-1 worker-2 worker-3 ps-0 ps-1",
		"mpijob/mpijob-A":              "launcher-0 worker-0 worker-1",
		"mpijob/kopenmpi":              "master-0 worker-0 worker-1",
		"pytorchjob/ptj-A":             "master-0 worker-0 worker-1",
		"trainjob/trainjob-A":          "node-0 node-1",
		"tf-config/tf-A":               "worker-0 worker-1 ps-0 ps-1",
		"tf-config/tf-B":               "worker-0 worker-1 ps-0",
		"vertex/vertex-A":              "workerpool0-0 workerpool1-0 workerpool1-1",
		"kubernetes-indexed-job/idx-A": "worker-0 worker-1 worker-2",
		"jobset/jobset-A":              "worker-0 worker-1 worker-2 worker-3",
		"jobset/jobset-B":              "worker-0 worker-1 worker-2 worker-3",
		"kubernetes-statefulset/sts-A": "worker-0 worker-1",
		"leaderworkerset/lws-A":        "worker-0 worker-1 worker-2 worker-3",
		"volcano/volcano-A":            "mpimaster-0 mpiworker-0 mpiworker-1",
		"volcano/volcano-B":            "mpimaster-0 mpiworker-0 mpiworker-1",
		"slurm/slurm-A":                "worker-0 worker-1 worker-2",
		"aws-batch/mnp-A":              "worker-0 worker-1 worker-2",
		"sagemaker/sm-A":               "worker-0 worker-1 worker-2",
		"dstack/dstack-A":              "worker-0 worker-1",
		"skypilot/sky-A":               "worker-0 worker-1",
		"runpod/runpod-A":              "worker-0 worker-1",
		"torchrun/dlc-A":               "worker-0 worker-1 worker-2",
	} {
		t.Run(prefix, func(t *testing.T) {
			var inputs []envspec.Input
			for _, alias := range strings.Fields(aliases) {
				_, in := readFixture(t, "testdata/"+prefix+"-"+alias+".txtar")
				inputs = append(inputs, in)
			}
			checkViews(t, inputs, strings.Fields(aliases))
		})
	}
}

// TestErrorTexts asserts the message for each way in which an environment can be wrong.
func TestErrorTexts(t *testing.T) {
	for fixture, text := range map[string]string{
		"openpai/error-index-missing": "openpai: neither PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX nor FC_TASK_INDEX " +
			"is set; set PAIINIT_INDEX",
		"openpai/error-index-outside": `openpai: index 3 of role "worker" is outside 0..1 ` +
			`(PAI_TASK_ROLE_TASK_COUNT_worker=2)`,
		"openpai/error-role-unknown": `openpai: role "wroker" (PAI_CURRENT_TASK_ROLE_NAME) is not one of ` +
			`"master","worker" (PAI_TASK_ROLE_LIST)`,
		"openpai/gang-off": "PAI_TASK_ROLE_hvdworker_HOST_LIST has 1 of 2 hosts; gang allocation off? " +
			"waiting for gossip",
		"openpai/error-sums-differ": "openpai: PAI_TASKS_NUM=3 but roles add up to 4",
		"openpai/error-names-dropped-by-dash": `no address variable for role "ps.server"; names with "." are ` +
			`dropped by dash/busybox sh: start ` +
			`paiinit with bash or exec form`,
		"openpai/error-roles-mangle-alike": `roles "ps_1" and "ps1" share the runtime name "ps1"; rename one`,
		"openpai/error-bad-port": `openpai: PAI_CONTAINER_HOST_PORT_LIST="ssh:70000;": port 70000 of ` +
			`"ssh" is not in 1..65535`,
		"openpai/error-duplicate-address": "worker-0 and worker-1 both use 10.151.41.9:23001",
		"openpai/service-link":            `is a Kubernetes service link (Service "`,
		"openpai/also-indexed-job": "using openpai, also saw kubernetes-indexed-job (JOB_COMPLETION_INDEX); " +
			"override with PAIINIT_SYSTEM",
		"azure/error-not-my-address": "azure: none of my addresses (172.17.0.2) is in AZ_BATCH_HOST_LIST " +
			"(10.0.0.4,10.0.0.5): run the " +
			"container with host networking or set PAIINIT_INDEX",
		"tf-config/error-json":          "TF_CONFIG: invalid JSON at byte 18: ",
		"tf-config/error-task-absent":   `TF_CONFIG: task chef/0 is not in the cluster, which has "ps","worker"`,
		"tf-config/error-index-outside": "TF_CONFIG: task worker/3 but cluster.worker has 3 entries (0..2)",
		"pytorchjob/error-elastic":      "elastic PET_NNODES=1:4 is not supported; set PAIINIT_SIZE",
		"kubernetes-indexed-job/error-size": "kubernetes-indexed-job gives no pod count; set PAIINIT_SIZE " +
			"(spec.completions)",
		"slurm/error-tasks-per-node": "started 4 times on this node; use --ntasks-per-node=1",
		"slurm/error-bracket":        `slurm: SLURM_STEP_NODELIST="tux[1-3": missing "]" at 8`,
	} {
		ar, err := txtar.ParseFile("testdata/" + fixture + ".txtar")
		require.NoError(t, err)
		result := ar.Files[len(ar.Files)-1]
		if got := string(result.Data); result.Name == "error" {
			require.Contains(t, got, text)
		} else {
			var job envspec.Job
			require.NoError(t, json.Unmarshal(result.Data, &job))
			require.Contains(t, strings.Join(job.Warnings, "\n"), text)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, path := range fixtures(f) {
		ar, err := txtar.ParseFile(path)
		require.NoError(f, err)
		var env, flags, file string
		for _, s := range ar.Files {
			switch {
			case s.Name == "env":
				env = strings.Join(lines(string(s.Data)), "\x00")
			case s.Name == "flags":
				flags = strings.Join(lines(string(s.Data)), "\x00")
			case strings.HasPrefix(s.Name, "files/"):
				file = string(s.Data)
			}
		}
		f.Add(env, flags, file)
		if strings.Contains(path, "kopenmpi") {
			f.Add(env+"\x00kopenmpi=", flags, file)
		}
	}
	f.Fuzz(func(t *testing.T, env, flags, file string) {
		in := envspec.Input{
			Environ: strings.Split(env, "\x00"), Flags: map[string]string{}, Hostname: "node1",
			Files: fstest.MapFS{
				"peers":                                  {Data: []byte(file)},
				"sys/fs/cgroup/cpu.max":                  {Data: []byte(file)},
				"usr/local/pai/runtime.d/runtime_env.sh": {Data: []byte(file)},
				"etc/hosts": {
					Data: []byte(file),
				},
				"etc/mpi/hostfile":   {Data: []byte(file)},
				"etc/volcano/t.host": {Data: []byte(file)},
				"etc/dat.conf":       {Data: []byte(file)},
				"root/.ssh/config":   {Data: []byte(file)},
			},
		}
		if strings.Contains(file, "current_host") {
			in.Files.(fstest.MapFS)["opt/ml/input/config/resourceconfig.json"] = &fstest.MapFile{Data: []byte(file)}
		}
		if strings.HasSuffix(env, "\x00kopenmpi=") {
			in.Files.(fstest.MapFS)["kubeflow/openmpi/assets/hostfile"] = &fstest.MapFile{Data: []byte(file)}
		}
		for _, flag := range strings.Split(flags, "\x00") {
			name, value, _ := strings.Cut(flag, "=")
			in.Flags[name] = value
		}
		job, err := envspec.Read(context.Background(), in)
		if err != nil {
			checkError(t, err)
			return
		}
		checkJob(t, job)
	})
}
