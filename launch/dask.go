package launch

// dask starts the scheduler or a worker of a Dask cluster (pyproject.toml of distributed at commit 40fcd99 of July
// 2026; the names with a dash are those before 2022.10, and RAPIDS'). A worker's tasks inherit its environment, as
// those of Ray do.
var dask = Launcher{
	Name:     "Dask",
	Programs: []string{"dask", "dask-scheduler", "dask-worker", "dask-cuda-worker"},
	HostModules: []string{
		"dask", "distributed.cli.dask_scheduler", "distributed.cli.dask_worker", "distributed.cli.dask_spec",
	},
	Starts: clusterProcesses,
}
