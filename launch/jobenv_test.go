package launch_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/launch"
)

func TestPosition(t *testing.T) {
	for name, tt := range map[string]struct {
		position launch.Position
		want     string
	}{
		"nothing is known": {
			launch.Position{Role: "worker", Index: -1, Rank: -1, Size: -1}, "PAIINIT_JOB= PAIINIT_ROLE=worker",
		},
		"no paiinit runs": {
			launch.Position{Job: "j", Role: "ps", Index: 0, Rank: 2, Size: 3, Master: "10.0.0.1"},
			"PAIINIT_JOB=j PAIINIT_ROLE=ps PAIINIT_INDEX=0 PAIINIT_SIZE=3 PAIINIT_RANK=2 NODE_RANK=2 " +
				"PAIINIT_MASTER=10.0.0.1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500",
		},
		"a running job": {
			launch.Position{
				Job: "j", Role: "w", Index: -1, Rank: 0, Size: 1, Master: "fd00::1", MasterPort: 2000,
				Agent: "/s/a", Hostfile: "/s/h",
			},
			"PAIINIT_ACTIVE=1 PAIINIT_AGENT=/s/a PAIINIT_HOSTFILE=/s/h AZUREML_MPI_HOSTFILE=/s/h " +
				"AZ_BATCHAI_MPI_HOST_FILE=/s/h PAIINIT_JOB=j PAIINIT_ROLE=w PAIINIT_SIZE=1 PAIINIT_RANK=0 " +
				"NODE_RANK=0 PAIINIT_MASTER=fd00::1 MASTER_ADDR=fd00::1 MASTER_PORT=2000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, v := range tt.position.Variables() {
				got = append(got, v.Name+"="+v.Value)
				require.NotContains(t, v.Reason, "\n")
			}
			require.Equal(t, tt.want, strings.Join(got, " "))
		})
	}
}

func TestCommandEnvironment(t *testing.T) {
	const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	vars := []launch.Var{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}}
	for name, tt := range map[string]struct {
		own, bin  string
		want      string // the whole environment
		additions string
		says      []string
	}{
		"nothing set":          {"", "", "A=1 B=2", "A=1 B=2", nil},
		"the user's own value": {"B=x C=3", "", "B=x C=3 A=1", "A=1", []string{"kept the job's own", "B value=x"}},
		"an empty value":       {"A=", "", "A= B=2", "B=2", []string{"variable=A"}},
		"our own value":        {"A=1", "", "A=1 B=2", "B=2", nil},
		"first in PATH": {
			"PATH=/bin X=1", "/s/bin", "X=1 A=1 B=2 PATH=/s/bin:/bin", "A=1 B=2 PATH=/s/bin:/bin", nil,
		},
		"already first": {"PATH=/s/bin:/bin", "/s/bin", "PATH=/s/bin:/bin A=1 B=2", "A=1 B=2", nil},
		"no PATH":       {"", "/s/bin", "A=1 B=2 PATH=/s/bin:" + path, "A=1 B=2 PATH=/s/bin:" + path, nil},
		"an empty PATH": {"PATH=", "/s/bin", "A=1 B=2 PATH=/s/bin:" + path, "A=1 B=2 PATH=/s/bin:" + path, nil},
		"another scheduler": {
			"MASTER_PORT=tcp://10.0.0.1:80 C=3", "", "C=3 A=1 B=2", "A=1 B=2",
			[]string{"removed a variable of another scheduler", "variable=MASTER_PORT"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			own := strings.Fields(tt.own)
			environ, err := launch.CommandEnvironment(own, vars, tt.bin,
				slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			require.NoError(t, err)
			require.Equal(t, tt.want, strings.Join(environ, " "))
			for _, text := range tt.says {
				require.Contains(t, log.String(), text)
			}
			require.Equal(t, len(tt.says) == 0, log.Len() == 0, log.String())
			require.Equal(t, tt.additions, strings.Join(launch.Additions(own, vars, tt.bin), " "))
			require.Equal(t, strings.Fields(tt.own), own, "not modified")
		})
	}
	long := []launch.Var{{Name: "LONG", Value: strings.Repeat("x", 1<<17)}}
	_, err := launch.CommandEnvironment(nil, long, "", slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "LONG would be")
}

func TestTempDir(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, launch.TempDir([]string{"TMPDIR=" + dir}, "/s/tmp"))
	require.Empty(t, launch.TempDir([]string{"TMPDIR="}, "/s/tmp"), "/tmp can be written")
	require.Equal(t, "/s/tmp", launch.TempDir([]string{"TMPDIR=" + dir + "/none"}, "/s/tmp"))
}
