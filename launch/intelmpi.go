package launch

import "strconv"

// intelMPI is Intel MPI's hydra. Names from Intel's reference for mpiexec.hydra; not measured, the product cannot be
// had without a licence.
func intelMPI(l Launcher) []Var {
	var t table
	if l.AgentPath != "" {
		t.set("I_MPI_HYDRA_BOOTSTRAP", "ssh", "Intel MPI starts its proxies by a remote shell, whatever scheduler it believes to be in")
	}
	t.set("I_MPI_HYDRA_BOOTSTRAP_EXEC", l.AgentPath, "Intel MPI starts its proxies on the other hosts through paiinit")
	t.set("I_MPI_HYDRA_HOST_FILE", l.HydraHostfile, "Intel MPI starts on the hosts of this job")
	t.set("I_MPI_HYDRA_IFACE", l.Interface, "Intel MPI's proxies call back over the network that the hosts share")
	if l.Slots > 0 {
		t.set("I_MPI_PERHOST", strconv.Itoa(l.Slots), "Intel MPI places as many ranks on a host as it has slots")
	}
	return t
}
