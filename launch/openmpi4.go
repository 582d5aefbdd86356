package launch

import (
	"strconv"
	"strings"
	"time"
)

// openMPI4 is Open MPI 4.0 and 4.1 (ORTE). Open MPI 5 reads the same variables of the MPI library (btl, pml) and the
// same two variables for root.
var openMPI4 = Launcher{
	Name:      "Open MPI 4",
	Programs:  []string{"mpirun", "mpiexec", "orterun", "mpirun.openmpi", "mpiexec.openmpi"},
	Starts:    mpiRanks,
	Variables: openMPI4Variables,

	RankVariables: []string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK"},
	Foreign: []Var{
		// With SLURM_JOBID alone 4.1.4 fails or starts by srun, and inside Grid Engine it takes its hosts from
		// PE_HOSTFILE. Builds with PBS and LSF support react to the other two (orte/mca/ras/{tm,lsf}, src/mca/ras of
		// PRRTE).
		{Name: "SLURM_JOBID", Reason: "Open MPI would take its hosts from Slurm and start them by srun"},
		{Name: "PBS_JOBID", Reason: "Open MPI would take its hosts from PBS"},
		{Name: "LSB_JOBID", Reason: "Open MPI would take its hosts from LSF"},
		{Name: "PE_HOSTFILE", Reason: "Open MPI would take its hosts from Grid Engine"},
	},
	Choices: []choice{
		{"OMPI_MCA_btl_tcp_if_include", "btl_tcp_if_include btl_tcp_if_exclude"},
		{"OMPI_MCA_oob_tcp_if_include", "oob_tcp_if_include oob_tcp_if_exclude"},
	},
	Files: choiceFiles{
		home:           ".openmpi/mca-params.conf",
		conf:           "openmpi-mca-params.conf openmpi-mca-params-override.conf",
		variables:      "OMPI_MCA_mca_base_param_files OMPI_MCA_mca_param_files OMPI_MCA_mca_base_envar_file_prefix",
		prefixOf:       "mpirun",
		prefixVariable: "OPAL_PREFIX",
		// Debian and Fedora keep the configuration outside the prefix.
		system: "/etc/openmpi /etc/openmpi-x86_64 /etc/openmpi-aarch64",
	},
	FabricVariables: openMPI4Fabric,
	Compared:        []string{"mpirun", "mpiexec"},
	Versions: []versionText{
		{`\(IBM Spectrum MPI\) (\S+)`, "Spectrum MPI"},
		{`\((?:Open MPI|OpenRTE)\) (\S+)`, "Open MPI"},
	},
	Options: mpiOptions{ // orterun(1)
		ranks:    "n np c",
		hosts:    "H host",
		hostfile: "hostfile machinefile default-hostfile",
		one: "x wdir wd map-by rank-by bind-to path prefix output-filename stdin timeout report-state-on-timeout am " +
			"tune max-restarts report-uri report-pid server ompi-server personality rf rankfile cpu-set cpu-list",
		two:    "mca gmca omca",
		unread: "N npernode pernode npersocket app hnp loadbalance",
	},
	Daemons: []daemon{{program: "orted", detached: "--daemonize", hosts: openMPIHosts}},
	// After the loss of a daemon it ends within 4 s and its own time between SIGTERM and SIGKILL.
	FailureTimeout: 10 * time.Second,
	DaemonsStay:    true,
}

func openMPI4Variables(s Setup) []Var {
	t := openMPIVariables(s, "Open MPI 4", "OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte")
	if s.Root {
		t.set("OMPI_ALLOW_RUN_AS_ROOT", "1", "Open MPI refuses to run as root without it")
		t.set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", "Open MPI refuses to run as root without it")
	}
	t.set("OMPI_MCA_oob_tcp_if_include", s.Network, "Open MPI 4 daemons talk over the network that the hosts share")
	t.set("OMPI_MCA_btl_tcp_if_include", s.Network, "Open MPI ranks talk over the network that the hosts share")
	return t
}

// openMPIVariables returns the variables that versions 4 and 5 have under different names.
func openMPIVariables(s Setup, version, agent, prefix string) (t table) {
	t.set(agent, strings.Join(s.Agent, " "), version+" starts its daemons on the other hosts through paiinit")
	t.set(prefix+"_default_hostfile", s.Hostfile, version+" starts on the hosts of this job")
	t.set(prefix+"_tmpdir_base", s.TempDir, version+" keeps its session directory where this container can write")
	return t
}

func openMPI4Fabric(f Fabric) []Var {
	var t table
	switch f.Kind {
	case FabricVerbs:
		t.set("OMPI_MCA_btl", "^openib", "Open MPI 4 uses verbs devices through UCX; its openib only prints warnings")
		if f.Required {
			t.set("OMPI_MCA_pml", "ucx", "RDMA is required: Open MPI fails instead of falling back to TCP")
		}
	case FabricEFA:
		t.set("OMPI_MCA_btl", "^openib", "Open MPI 4 uses EFA through libfabric; its openib only prints warnings")
		if f.Required {
			const why = "RDMA is required: Open MPI uses libfabric, and fails instead of falling back to TCP"
			t.set("OMPI_MCA_pml", "cm", why)
			t.set("OMPI_MCA_mtl", "ofi", why)
		}
	case FabricTCP:
		// The lists exclude components: a list such as "tcp,self,vader" would also exclude CUDA's shared memory, and
		// the name of the shared memory component differs between 4 and 5.
		t.set("OMPI_MCA_pml", "ob1", f.Why+": MPI stays off UCX and libfabric")
		t.set("OMPI_MCA_btl", "^openib,uct,ofi,usnic", f.Why+": MPI stays on TCP and shared memory")
	}
	if f.NoPeerMemory {
		const why = "processes may not read each other's memory here: Open MPI 4 would print errors " +
			"(Read -1, expected ...)"
		t.set("OMPI_MCA_btl_vader_single_copy_mechanism", "none", why)
	}
	return t
}

// openMPIHosts reads the number in `-mca ess_base_num_procs "4"` (orte/mca/plm/base/plm_base_launch_support.c; PRRTE
// prints the same).
func openMPIHosts(command string) int {
	_, after, ok := strings.Cut(command, " ess_base_num_procs ")
	if !ok {
		return 0
	}
	word := strings.TrimLeft(after, space+`"`)
	digits := len(word) - len(strings.TrimLeft(word, "0123456789"))
	n, err := strconv.ParseUint(word[:digits], 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}
