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
	require.Equal(t, envspec.DefaultPort, job.Port)
}

func TestReadCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := envspec.Read(ctx, envspec.Input{})
	require.ErrorIs(t, err, context.Canceled)
}

// TestReadLeavesSecrets asserts that only the places of secrets are looked at, and that no message repeats a value.
func TestReadLeavesSecrets(t *testing.T) {
	const canary = "canary-6f1d"
	job, err := envspec.Read(context.Background(), envspec.Input{
		Environ: []string{
			"PAI_JOB_NAME=u~j", "PAI_CURRENT_TASK_ROLE_NAME=w", "PAI_TASK_ROLE_LIST=w", "PAI_TASK_INDEX=0", "PAI_TASKS_NUM=1",
			"PAIINIT_SECRET=" + canary, "PAIINIT_SECRET=other-" + canary,
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
		for _, name := range []string{"system", "job", "attempt", "role", "index", "rank", "size", "slots", "port", "peers", "sources", "warnings"} {
			require.Contains(t, fields, name)
		}
		for _, p := range fields["peers"].([]any) {
			for _, name := range []string{"role", "index", "rank", "alias", "host", "port", "slots"} {
				require.Contains(t, p, name)
			}
		}
	}
}

// TestSelfViews asserts that the fixtures of the tasks of one job tell one story.
func TestSelfViews(t *testing.T) {
	for prefix, aliases := range map[string][]string{
		"openpai/classic-B": {"master-0", "worker-0", "worker-1"},
		"openpai/classic-C": {"master-0", "worker-0", "worker-1"},
		"openpai/v1-A":      {"master-0", "hvd_worker-0", "hvd_worker-1"},
		"openpai/v1-B":      {"taskrole-0", "taskrole_1-0"},
		"compose/compose-A": {"master-0", "worker-0", "worker-1", "worker-2", "worker-3"},
	} {
		var inputs []envspec.Input
		for _, alias := range aliases {
			_, in := readFixture(t, "testdata/"+prefix+"-"+alias+".txtar")
			inputs = append(inputs, in)
		}
		checkViews(t, inputs, aliases)
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
	}
	f.Fuzz(func(t *testing.T, env, flags, file string) {
		in := envspec.Input{
			Environ: strings.Split(env, "\x00"), Flags: map[string]string{}, Hostname: "node1",
			Files: fstest.MapFS{
				"peers": {Data: []byte(file)}, "sys/fs/cgroup/cpu.max": {Data: []byte(file)},
				"usr/local/pai/runtime.d/runtime_env.sh": {Data: []byte(file)},
			},
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
