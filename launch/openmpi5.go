package launch

import "time"

// openMPI5 is Open MPI 5 (PRRTE). 5.0.7 ignores OMPI_MCA_plm_rsh_agent and OMPI_MCA_orte_default_hostfile; without the
// variables below it runs all ranks on one host and exits with 0. Open MPI 4's variables allow root.
var openMPI5 = Launcher{
	Name:      "Open MPI 5",
	Programs:  []string{"mpirun", "mpiexec", "prterun", "prte", "mpirun.openmpi", "mpiexec.openmpi"},
	Starts:    mpiRanks,
	Variables: openMPI5Variables,

	RankVariables: []string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK"},
	Foreign: []Var{
		{Name: "SLURM_JOB_ID", Reason: "Open MPI 5 would take its hosts from Slurm and start them by srun"},
	},
	Choices: []choice{
		{"PRTE_MCA_prte_if_include", "prte_if_include prte_if_exclude oob_tcp_if_include oob_tcp_if_exclude"},
	},
	Files: choiceFiles{
		home: ".prte/mca-params.conf", conf: "prte-mca-params.conf", variables: "PRTE_MCA_mca_base_param_files",
	},
	FabricVariables: openMPI5Fabric,
	Compared:        []string{"mpirun", "mpiexec"},
	Versions:        []versionText{{`\(PRRTE\) (\S+)`, "PRRTE"}},
	Options: mpiOptions{ // prterun(1), and the options of version 4 that are still accepted
		ranks:    "n np c",
		hosts:    "H host",
		hostfile: "hostfile machinefile default-hostfile",
		one: "x wdir wd map-by rank-by bind-to output display runtime-options prtemca-file personality path " +
			"prefix",
		two:    "mca gmca prtemca pmixmca omca",
		unread: "N npernode ppn dvm app hnp",
	},
	Daemons:        []daemon{{program: "prted", detached: "--daemonize", hosts: openMPIHosts}},
	FailureTimeout: 10 * time.Second,
	DaemonsStay:    true,
	LostDaemon:     "PRTE has lost communication with a remote daemon",
	Blames:         openMPIBlames,
}

func openMPI5Variables(s Setup) []Var {
	t := openMPIVariables(s, "Open MPI 5", "PRTE_MCA_plm_ssh_agent", "PRTE_MCA_prte")
	t.set("PRTE_MCA_prte_if_include", s.Network, "Open MPI 5 daemons talk over the network that the hosts share")
	return t
}

// openMPI5Fabric returns the variables that only version 5 reads; version 4's hold for both.
func openMPI5Fabric(f Fabric) []Var {
	if !f.NoPeerMemory {
		return nil
	}
	const why = "processes may not read each other's memory here: Open MPI 5 copies another way"
	return []Var{{"OMPI_MCA_smsc", "^cma", why}}
}
