package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMVAPICH checks against the sources (src/pm/mpirun of MVAPICH 3.0); mpirun_rsh was never run.
func TestMVAPICH(t *testing.T) {
	for line, want := range map[string]*Request{
		"mpirun_rsh -np 4 -hostfile /h ./a.out":                      {Ranks: 4, Hostfile: "/h"},
		"mpirun_rsh --np=4 --hostfile=/h MV2_DEBUG=1 ./a.out -np 9":  {Ranks: 4, Hostfile: "/h"},
		"mpirun_rsh -export-all -rsh -np 2 -hostfile /h ./a.out":     {Ranks: 2, Hostfile: "/h"},
		"/opt/mvapich/bin/mpirun_rsh -np 2 a b ./a.out -m 256":       {Ranks: 2, Hosts: []string{"a", "b"}},
		"mpirun_rsh -np 2 a a MV2_DEBUG=1 ./a.out":                   {Ranks: 2, Hosts: []string{"a", "a"}},
		"mpirun_rsh -np 4 ./a.out":                                   {Ranks: 4}, // ~/.mpirun_hosts
		"mpirun_rsh -np 2 MV2_DEBUG=1 ./a.out x":                     {Ranks: 2},
		"mpirun_rsh -launcher ssh -sg group -np 2 -hostfile h ./a.x": {Ranks: 2, Hostfile: "h"},
		"mpirun_rsh -np 2 a b MV2_DEBUG=1":                           nil,
		"mpirun_rsh -hostfile /h ./a.out":                            nil,
		"mpirun_rsh -np 0 -hostfile /h ./a.out":                      nil,
		"mpirun_rsh -np 2 -ppn 1 ./a.out":                            nil,
		"mpirun_rsh -launcher srun -np 2 -hostfile h ./a.out":        nil,
		"mpirun_rsh -config c -hostfile /h":                          nil,
		"mpirun_rsh -np 2 -unheard ./a.out":                          nil,
		"mpirun_rsh -v":                                              nil,
		"mpirun_rsh":                                                 nil,
	} {
		got, ok := Asked(strings.Fields(line))
		require.Equal(t, want != nil, ok, line)
		if ok {
			require.Equal(t, *want, got, line)
		}
	}

	// mpirun_rsh calls `ssh -q HOST COMMAND` (spawn_fast in mpirun_rsh.c).
	const daemon = "cd /work; /usr/bin/env LD_LIBRARY_PATH=/opt/lib MPISPAWN_MPIRUN_MPD=0 USE_LINEAR_SSH=1 " +
		"MPISPAWN_MPIRUN_HOST=node-0 MPISPAWN_GLOBAL_NPROCS=4 MPISPAWN_ARGC=1 MPISPAWN_ARGV_0='./a.out'  " +
		"/opt/bin/mpispawn 0"
	d, ok := DaemonOf(daemon)
	require.True(t, ok)
	require.Equal(t, Daemon{Program: "mpispawn"}, d)
	require.False(t, d.launcher().DaemonsStay)
	require.False(t, d.launcher().MissesFailures)
	require.False(t, d.tree())

	line := []string{"/opt/bin/mpirun_rsh", "-np", "2"}
	require.True(t, IsLauncher(line[0]))
	require.True(t, lineStarts(line, ranks))
	require.True(t, ReachesHosts(line))
	require.True(t, InsideRank([]string{"MVP_COMM_WORLD_RANK=1"}))
	require.Equal(t, "MVAPICH 3.0", identified("Version: mvapich-3.0\n"))
	require.Equal(t, "MVAPICH 2.3.7", identified("Version: mvapich2-2.3.7\n"))

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mpirun_rsh"),
		[]byte("#!/bin/sh\n[ \"$1\" = -v ] && echo 'Version: mvapich-3.0'\n"), 0o755))
	require.Equal(t, "mpirun_rsh=MVAPICH_3.0", Identify(t.Context(), []string{"sh"}, []string{"PATH=" + dir}, true))
}
