package launch

import "time"

// intelMPI is Intel MPI's hydra. The names are from Intel's reference for mpiexec.hydra and were never tried: the
// product needs a licence.
var intelMPI = Launcher{
	Name:     "Intel MPI",
	Programs: []string{"mpirun", "mpiexec", "mpiexec.hydra"},
	Starts:   mpiRanks,
	Variables: func(s Setup) []Var {
		return hydraVariables(s, "Intel MPI", "I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_HOST_FILE", "I_MPI_HYDRA_IFACE")
	},

	RankVariables: []string{"PMI_RANK"},
	Choices:       []choice{{"I_MPI_HYDRA_IFACE", "I_MPI_HYDRA_IFACE -iface"}},

	FabricVariables: intelMPIFabric,
	Compared:        []string{"mpirun", "mpiexec", "mpiexec.hydra"},
	Versions:        []versionText{{`Intel\(R\) MPI Library.*,? Version (.*?)(?: Build|$)`, "Intel MPI"}},
	Options:         hydraOptions,
	// Versions before 2019 call the proxy pmi_proxy. Proxies start further proxies.
	Daemons:        []daemon{{program: "hydra_bstrap_proxy", starts: true}, {program: "pmi_proxy", starts: true}},
	FailureTimeout: 5 * time.Second,
	MissesFailures: true,
	Blames:         hydraBlames,
}

func intelMPIFabric(f Fabric) []Var {
	var t table
	if f.Kind == FabricVerbs && f.Required {
		t.set("I_MPI_FABRICS", "shm:ofi", "RDMA is required: Intel MPI uses libfabric")
		t.set("I_MPI_OFI_PROVIDER", "mlx", "RDMA is required: Intel MPI fails instead of falling back to TCP")
	}
	if f.NetworkDirect {
		const why = "every rank has Azure's Network Direct: Intel MPI uses DAPL"
		t.set("I_MPI_FABRICS", "shm:dapl", why)
		t.set("I_MPI_DAPL_PROVIDER", "ofa-v2-ib0", why)
		t.set("I_MPI_DYNAMIC_CONNECTION", "0", why)
		if f.Required {
			t.set("I_MPI_FALLBACK", "0", "RDMA is required: Intel MPI fails instead of falling back to TCP")
		}
	}
	return t
}
