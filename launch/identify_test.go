package launch

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIdentified(t *testing.T) {
	for output, want := range map[string]string{
		"mpirun (Open MPI) 5.0.7\n\n" +
			"Report bugs to https://www.open-mpi.org/community/help/\n": "Open MPI 5.0.7",
		"mpirun.openmpi (OpenRTE) 4.1.4\n\n" +
			"Report bugs to http://www.open-mpi.org/community/help/\n": "Open MPI 4.1.4",
		"HYDRA build details:\n    Version:                                 4.0.2\n" +
			"    Release Date:  Thu Apr\n": "MPICH 4.0.2",
		"Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)\n" +
			"Copyright 2003-2023": "Intel MPI 2021.9",
		"Intel(R) MPI Library for Linux* OS, Version 2019 Update 6 Build 20191024 " +
			"(id: 082ae5608)": "Intel MPI 2019 Update 6",

		"mpirun (IBM Spectrum MPI) 10.3.1.02rtm0\n": "Spectrum MPI 10.3.1.02rtm0",
		"prterun (PRRTE) 3.0.9\n":                   "PRRTE 3.0.9",
		"usage: mpirun":                             "",
		"":                                          "",
	} {
		require.Equal(t, want, identified(output), output)
	}
}

func TestIdentify(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755))
	}
	script("mpirun", `[ "$1" = --version ] && [ -z "$SLURM_JOBID" ] && echo "mpirun (Open MPI) 5.0.7"`)
	script("mpiexec.hydra", `printf 'HYDRA build details:\n  Version: 4.0.2\n' >&2; exit 1`)
	environ := []string{"PATH=" + dir, "SLURM_JOBID=7"}
	require.Equal(t, "mpirun=Open_MPI_5.0.7 mpiexec.hydra=MPICH_4.0.2",
		Identify(t.Context(), []string{"sh", "-c", "mpirun"}, environ, true))
	mpirun := filepath.Join(dir, "mpirun")
	require.Equal(t, "mpirun=Open_MPI_5.0.7", Identify(t.Context(), []string{mpirun, "-np", "2"}, environ, true))
	require.Equal(t, "mpiexec.hydra=MPICH_4.0.2", Identify(t.Context(), []string{"mpiexec.hydra"}, environ, true))
	require.Empty(t, Identify(t.Context(), nil, []string{"PATH=/nowhere"}, false))

	// A launcher that does not answer in time is listed with an unknown version.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, "mpirun=? mpiexec.hydra=?", Identify(ctx, nil, environ, false))
	script("mpirun", "exit 1")
	require.Equal(t, "mpirun=? mpiexec.hydra=MPICH_4.0.2", Identify(t.Context(), nil, environ, true))

	// Without hurry it gets a low priority, of at most 19; this one answers only then.
	out, err := exec.Command("nice").Output()
	require.NoError(t, err)
	own, err := strconv.Atoi(strings.TrimSpace(string(out)))
	require.NoError(t, err)
	low := strconv.Itoa(min(own+10, 19))
	script("mpirun", `until [ "$(nice)" = `+low+` ]; do :; done; echo "mpirun (Open MPI) 5.0.7"`)
	path := []string{"PATH=" + os.Getenv("PATH")}
	require.Equal(t, "mpirun=Open_MPI_5.0.7", Identify(t.Context(), []string{mpirun}, path, false))
}

func TestDiffer(t *testing.T) {
	hosts := []string{"worker-0", "worker-1", "worker-2"}
	const four, five = "mpirun=Open_MPI_4.1.4", "mpirun=Open_MPI_5.0.7"
	require.Empty(t, Differ(hosts, []string{four, four, four}, false))
	more := []string{four, four + " mpiexec.hydra=MPICH_4.0.2", four}
	require.Empty(t, Differ(hosts, more, false), "rank 0 has no other launcher")
	require.Empty(t, Differ(hosts, []string{"", five, four}, false), "rank 0 has no launcher")
	require.Empty(t, Differ(nil, nil, true))
	const differs = "mpirun is not the same on all ranks: Open MPI 4.1.4 on worker-0"
	require.Equal(t, differs+",worker-2; Open MPI 5.0.7 on worker-1", Differ(hosts, []string{four, five, four}, false))
	require.Equal(t, differs+"; none on worker-1,worker-2", Differ(hosts, []string{four, "", ""}, false))

	const unasked = "mpirun=? mpiexec.hydra=MPICH_4.0.2"
	require.Empty(t, Differ(hosts, []string{four, unasked, four}, false), "an overloaded host has not answered")
	require.Empty(t, Differ(hosts, []string{"mpirun=?", four, unasked}, false), "rank 0 has not answered")
	require.Equal(t, differs+"; unknown version on worker-1; none on worker-2",
		Differ(hosts, []string{four, unasked, ""}, true))
	require.True(t, Known(unasked))
	require.False(t, Known("mpirun=?"))
	require.False(t, Known(""))
}

func TestUnversioned(t *testing.T) {
	names := Unversioned()
	require.Contains(t, names, "torchrun")
	require.NotContains(t, names, "mpirun")
}
