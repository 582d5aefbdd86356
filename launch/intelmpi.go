package launch

// intelMPI is Intel MPI's hydra. Names from Intel's reference for mpiexec.hydra; not measured, the product cannot be
// had without a licence.
var intelMPI = Launcher{
	Name:      "Intel MPI",
	Programs:  []string{"mpirun", "mpiexec", "mpiexec.hydra"},
	Starts:    mpiRanks,
	Variables: intelMPIVariables,
}

func intelMPIVariables(l Setup) []Var {
	var t table
	if l.AgentPath != "" {
		t.set("I_MPI_HYDRA_BOOTSTRAP", "ssh", "Intel MPI starts its proxies by a remote shell, whatever scheduler it believes to be in")
	}
	t.set("I_MPI_HYDRA_BOOTSTRAP_EXEC", l.AgentPath, "Intel MPI starts its proxies on the other hosts through paiinit")
	t.set("I_MPI_HYDRA_HOST_FILE", l.CountedHostfile, "Intel MPI starts on the hosts of this job")
	t.set("I_MPI_HYDRA_IFACE", l.Interface, "Intel MPI's proxies call back over the network that the hosts share")
	return t
}
