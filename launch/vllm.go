package launch

// vllm is vLLM's server. It starts one process per GPU of its host, and tells each of them its rank. Where these find
// each other by env://, the container's LOCAL_RANK would choose the GPU of all (vllm/envs.py, and
// init_distributed_environment in vllm/distributed/parallel_state.py, at commit 0c175ae of November 2026).
var vllm = Launcher{
	Name:     "vLLM",
	Programs: []string{"vllm"},
	HostModules: []string{
		"vllm.entrypoints.cli.main", "vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server",
	},
	Starts:        clusterProcesses,
	TaskVariables: vllmTask,
}

// vllmTask returns the address of this rank for vLLM's processes, whatever starts them. Without it they take that of
// the default route (get_ip in vllm/utils/network_utils.py). The other hosts may not reach that one, and if it is not
// the address that Ray was told, vLLM waits for a placement group (vllm-project/vllm#7815).
func vllmTask(t Tasks) []Var {
	if len(t.Ranks) < 2 {
		return nil
	}
	return []Var{{"VLLM_HOST_IP", t.Ranks[t.Self].Addr, "vLLM's processes of other ranks reach this one there"}}
}
