package launch

// ray starts the head or a worker of a Ray cluster, or a driver in it (python/setup.py of Ray 2). Every task and actor
// inherits its environment. Ray Train sets the ranks of its own workers. In any other, Hugging Face's Accelerate would
// take LOCAL_RANK for a sign of torchrun, and wait for WORLD_SIZE processes (PartialState in accelerate/state.py).
var ray = Launcher{
	Name:        "Ray",
	Programs:    []string{"ray"},
	HostModules: []string{"ray.scripts.scripts"},
	Starts:      clusterProcesses,
}
