package launch

import "time"

// mpich is MPICH's hydra (mpiexec, mpiexec.hydra, and mpirun if it is a link to them).
var mpich = Launcher{
	Name:     "MPICH",
	Programs: []string{"mpirun", "mpiexec", "mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"},
	Starts:   mpiRanks,
	Variables: func(s Setup) []Var {
		return hydraVariables(s, "MPICH", "HYDRA_LAUNCHER", "HYDRA_HOST_FILE", "HYDRA_IFACE")
	},

	RankVariables: []string{"PMI_RANK"},
	// hydra prefers HYDRA_HOST_FILE to these variables, but a script or a wrapper of mpiexec may not.
	Foreign: []Var{
		{Name: "PBS_NODEFILE", Reason: "mpiexec would take its hosts from PBS"},
		{Name: "LSB_HOSTS", Reason: "mpiexec would take its hosts from LSF"},
		{Name: "LSB_MCPU_HOSTS", Reason: "mpiexec would take its hosts from LSF"},
	},
	Choices: []choice{{"HYDRA_IFACE", "HYDRA_IFACE -iface"}},
	Files: choiceFiles{
		home: ".mpiexec.hydra.conf", conf: "mpiexec.hydra.conf", variables: "HYDRA_CONFIG_FILE",
	},
	// In 4.0.2 the environment of mpiexec overrides that of its proxies, which comes from their own host's session.
	Overrides: []string{"mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich"},
	Compared:  []string{"mpirun", "mpiexec", "mpiexec.hydra"},
	Versions:  []versionText{{`(?s)HYDRA build details:.*?Version:\s+(\S+)`, "MPICH"}},
	Options:   hydraOptions,
	Daemons:   []daemon{{program: "hydra_pmi_proxy"}},
	// After a failure hydra ends at once or never.
	FailureTimeout: 5 * time.Second,
	MissesFailures: true,
}

// hydraOptions are the options of hydra's mpiexec (its --help), for MPICH and Intel MPI.
var hydraOptions = mpiOptions{
	ranks:    "n np",
	hosts:    "hosts host",
	hostfile: "f hostfile machinefile",
	one: "wdir map-by bind-to iface launcher bootstrap launcher-exec bootstrap-exec rmk demux envlist genvlist " +
		"ckpoint-interval usize outfile-pattern errfile-pattern topolib gpus-per-proc",
	two:    "env genv",
	unread: "ppn perhost configfile",
}

// hydraVariables returns the variables of a product with hydra's mpiexec, given their names.
func hydraVariables(s Setup, product, launcher, hostfile, iface string) []Var {
	var t table
	if s.AgentPath != "" {
		t.set(launcher, "ssh",
			product+" starts its proxies by a remote shell, even inside an allocation of another scheduler")
	}
	t.set(launcher+"_EXEC", s.AgentPath, product+" starts its proxies on the other hosts through paiinit")
	t.set(hostfile, s.CountedHostfile, product+" starts on the hosts of this job")
	t.set(iface, s.Interface, product+"'s proxies call back over the network that the hosts share")
	return t
}
