package identify

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

func TestKeys(t *testing.T) {
	const canary = "Xk29vPq71LmZr83TdWyBc54NsHgJf60a"
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(canary+"more\n"), 0o600))
	shared := &envspec.Job{ID: "a", Secrets: []envspec.Secret{{Kind: "file", Name: file}}}

	keys, from, err := Keys("", nil, &envspec.Job{ID: "a"})
	require.NoError(t, err)
	require.Nil(t, keys)
	require.Zero(t, from)

	keys, from, err = Keys(file, []byte(canary), &envspec.Job{ID: "a"})
	require.NoError(t, err)
	require.Equal(t, Source{file, 36}, from)
	again, from, err := Keys("", nil, shared)
	require.NoError(t, err)
	require.Equal(t, Source{file, 36}, from)
	require.Equal(t, keys.Fingerprint(), again.Fingerprint())

	_, from, err = Keys("", []byte(canary+"\n"), shared)
	require.NoError(t, err)
	require.Equal(t, Source{"PAIINIT_SECRET", 32}, from)

	_, _, err = Keys("", []byte("short"), shared)
	require.ErrorContains(t, err, "secret of PAIINIT_SECRET: ")
	require.NotContains(t, err.Error(), "short\"")
	_, _, err = Keys("/nowhere", nil, shared)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestJob(t *testing.T) {
	job, host, err := Job(t.Context(), []string{"PAIINIT_ROLE=ps"}, map[string]string{"PAIINIT_SIZE": "1"})
	require.NoError(t, err)
	require.Equal(t, "ps", job.Role)
	require.Equal(t, 1, job.Size)
	require.Positive(t, job.CPUs)
	name, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, name, host)
}

// The check of this machine ends with the status that the caller gives to the error of a launch.
func TestCheck(t *testing.T) {
	path := "PATH=" + os.Getenv("PATH")
	l := Launch{
		Environ: []string{path, "PAIINIT_SIZE=2", "PAIINIT_RANK=0", "PAIINIT_PEERS=127.0.0.1,127.0.0.2"},
		Command: []string{"nowhere"}, RDMA: "auto", StateDir: t.TempDir(), Insecure: true,
		Status: func(err error) int { return len("a status") },
	}
	r := Check(t.Context(), l)
	require.Equal(t, len("a status"), r.Status, "%+v", r)
	l.Command = nil
	require.Zero(t, Check(t.Context(), l).Status)
	l.Environ = []string{path, "PAIINIT_SIZE=2", "PAIINIT_RANK=0", "PAIINIT_PEERS=localhost,127.0.0.2"}
	for range 20 { // a busy machine may not know the job in time, which is only a warning
		if r = Check(t.Context(), l); r.Status != 0 {
			break
		}
	}
	require.Equal(t, 77, r.Status, "--insecure needs addresses")
}
