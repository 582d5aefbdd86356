package launch

// The launchers of schedulers, and parallel remote shells: only that they reach other hosts is known of them.
var (
	schedulerRun = Launcher{Name: "srun", Programs: []string{"srun", "prun"}, Starts: hostProcesses | otherHosts}
	remoteShells = Launcher{Name: "pdsh", Programs: []string{"jsrun", "pdsh", "clush"}, Starts: otherHosts}
)
