package launch

// The launchers of schedulers and parallel remote shells: paiinit only knows that they reach other hosts.
var (
	schedulerRun = Launcher{Name: "srun", Programs: []string{"srun", "prun"}, Starts: hostProcesses | otherHosts}
	remoteShells = Launcher{Name: "pdsh", Programs: []string{"jsrun", "pdsh", "clush"}, Starts: otherHosts}
)
