package envspec_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

// Read finds the number of CPUs even if something else decides the slots.
func TestCPUs(t *testing.T) {
	quota := func(text string) fstest.MapFS { return fstest.MapFS{"sys/fs/cgroup/cpu.max": {Data: []byte(text)}} }
	for _, test := range []struct {
		affinity int
		files    fstest.MapFS
		want     int
	}{
		{8, quota("150000 100000\n"), 2},
		{8, quota("max 100000\n"), 8},
		{1, quota("400000 100000\n"), 1},
		{8, nil, 8},
		{0, nil, 1},
	} {
		job, err := envspec.Read(t.Context(),
			envspec.Input{Environ: []string{"PAIINIT_SLOTS=5"}, CPUs: test.affinity, Files: test.files})
		require.NoError(t, err)
		require.Equal(t, test.want, job.CPUs, "%+v", test)
		require.Equal(t, 5, job.Slots)
	}
}
