package launch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNext(t *testing.T) {
	const hash = "0123456789ab"
	kubernetes := []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"}
	ooms := []OOM{{Place: "worker-2", Kills: 1}}
	for _, tt := range []struct {
		container Container
		ooms      []OOM
		retry     bool
		lost      string
		want      string
	}{
		{Container{Environ: kubernetes, Host: "pod-a"}, nil, false, "", "kubectl logs pod-a"},
		{Container{Environ: append(kubernetes, "PAIINIT_POD_NAME=pod-b"), Host: "a"}, nil, false, "",
			"kubectl logs pod-b"},
		{Container{Host: hash, Docker: true, Own: "x"}, nil, false, "", "docker logs " + hash},
		{Container{Host: hash, Docker: true, Own: "x-1", Compose: true}, nil, false, "", "docker logs x-1"},
		{Container{Host: hash, Docker: true, Compose: true}, nil, false, "", "docker logs " + hash},
		{Container{Host: hash, Display: "worker-1"}, nil, false, "", "see the log of worker-1"},
		{Container{Host: "named", Docker: true, Display: "worker-1"}, ooms, true, "worker-3",
			"see the log of worker-1; raise the memory limit of worker-2"},
		{Container{Host: "named", Display: "worker-1"}, nil, true, "",
			"see the log of worker-1; look at the state and the log of the lost container; a retry may help"},
		{Container{Host: "named", Display: "worker-1"}, nil, true, "worker-3",
			"look at the state and the log of worker-3; a retry may help"},
		{Container{Alone: true}, []OOM{{Kills: 2}}, false, "", "raise the memory limit of this container"},
		{Container{Alone: true}, nil, true, "", ""},
	} {
		require.Equal(t, tt.want, tt.container.Next(tt.ooms, tt.retry, tt.lost))
	}
}

func TestWriteTermination(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "message")
	require.NoError(t, Outcome{Status: 0}.WriteTermination(name))
	require.NoFileExists(t, name)
	require.NoError(t, Outcome{Status: 3, Reason: "because"}.WriteTermination(name))
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "paiinit: JOB FAILED, status 3\n  because\n", string(b))
	require.Error(t, Outcome{Status: 3}.WriteTermination(dir))
}
