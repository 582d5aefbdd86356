package launch

// mpich is MPICH's hydra (mpiexec, mpiexec.hydra, and mpirun where it is a link to them).
var mpich = Launcher{
	Name:      "MPICH",
	Programs:  []string{"mpirun", "mpiexec", "mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"},
	Starts:    mpiRanks,
	Variables: mpichVariables,
}

func mpichVariables(l Setup) []Var {
	var t table
	if l.AgentPath != "" {
		t.set("HYDRA_LAUNCHER", "ssh", "MPICH starts its proxies by a remote shell, whatever scheduler it believes to be in")
	}
	t.set("HYDRA_LAUNCHER_EXEC", l.AgentPath, "MPICH starts its proxies on the other hosts through paiinit")
	t.set("HYDRA_HOST_FILE", l.CountedHostfile, "MPICH starts on the hosts of this job")
	t.set("HYDRA_IFACE", l.Interface, "MPICH's proxies call back over the network that the hosts share")
	return t
}
