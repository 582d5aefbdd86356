package envspec_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

// A container that is alone only because nothing told it of others names the variable that speaks of them.
func TestSignOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		environ []string
		flags   map[string]string
		want    string
	}{
		"nothing":            {environ: []string{"PATH=/bin", "HOSTNAME=a1b2c3"}},
		"only paiinit's own": {environ: []string{"PAIINIT_JOB=j", "PAIINIT_SLOTS=2", "PAIINIT_SECRET=s"}},
		"a pod":              {environ: []string{"KUBERNETES_SERVICE_HOST=h"}, want: "KUBERNETES_SERVICE_HOST"},
		"a pod of one":       {environ: []string{"KUBERNETES_SERVICE_HOST=10.96.0.1", "PAIINIT_SIZE=1"}},
		"a pod of one by flag": {
			environ: []string{"KUBERNETES_SERVICE_HOST=h"}, flags: map[string]string{"PAIINIT_SIZE": "1"},
		},
		"a pod that says so":     {environ: []string{"KUBERNETES_SERVICE_HOST=h", "PAIINIT_SYSTEM=single"}},
		"half of torch":          {environ: []string{"MASTER_ADDR=worker-0", "WORLD_SIZE=4"}, want: "MASTER_ADDR"},
		"torch of one":           {environ: []string{"MASTER_ADDR=localhost", "WORLD_SIZE=1"}},
		"Slurm's batch script":   {environ: []string{"SLURM_JOB_ID=7", "SLURM_NNODES=4"}, want: "SLURM_NNODES"},
		"Slurm's batch of one":   {environ: []string{"SLURM_JOB_ID=7", "SLURM_NNODES=1"}},
		"PBS":                    {environ: []string{"PBS_JOBID=7.host"}, want: "PBS_JOBID"},
		"rank 0 without a size":  {environ: []string{"PAIINIT_RANK=0"}, want: "PAIINIT_RANK"},
		"index 0 without a size": {flags: map[string]string{"PAIINIT_INDEX": "0"}, want: "PAIINIT_INDEX"},
		"an empty variable":      {environ: []string{"PBS_JOBID="}},
	} {
		job, err := envspec.Read(t.Context(),
			envspec.Input{Environ: test.environ, Flags: test.flags, Hostname: "h", CPUs: 1})
		require.NoError(t, err, name)
		require.Equal(t, 1, job.Size, name)
		require.Equal(t, test.want, job.Sign, name)
	}
}
