package launch

// accelerate is Hugging Face Accelerate, which starts one process per slot of its host.
var accelerate = Launcher{
	Name:        "accelerate",
	Programs:    []string{"accelerate"},
	HostModules: []string{"accelerate.commands.launch", "accelerate.commands.accelerate_cli"},
	Starts:      hostProcesses,
}
