package launch

import "strings"

// openMPI4 is Open MPI 4.0 and 4.1 (ORTE). What the MPI library itself reads (btl, pml) and the two variables for root
// are the same in Open MPI 5.
var openMPI4 = Launcher{
	Name:      "Open MPI 4",
	Programs:  []string{"mpirun", "mpiexec", "orterun", "mpirun.openmpi", "mpiexec.openmpi"},
	Starts:    mpiRanks,
	Variables: openMPI4Variables,
}

func openMPI4Variables(l Setup) []Var {
	var t table
	t.set("OMPI_MCA_plm_rsh_agent", strings.Join(l.Agent, " "), "Open MPI 4 starts its daemons on the other hosts through paiinit")
	t.set("OMPI_MCA_orte_default_hostfile", l.Hostfile, "Open MPI 4 starts on the hosts of this job")
	t.set("OMPI_MCA_orte_tmpdir_base", l.TempDir, "Open MPI 4 keeps its session directory where this container can write")
	if l.Root {
		t.set("OMPI_ALLOW_RUN_AS_ROOT", "1", "Open MPI refuses to run as root without it")
		t.set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", "Open MPI refuses to run as root without it")
	}
	t.set("OMPI_MCA_oob_tcp_if_include", l.Network, "Open MPI 4 daemons talk over the network that the hosts share")
	t.set("OMPI_MCA_btl_tcp_if_include", l.Network, "Open MPI ranks talk over the network that the hosts share")
	return t
}
