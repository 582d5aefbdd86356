package launch

// sglang is SGLang's server (python/sglang/cli/main.py at commit 16c8ff4 of 2026). It starts one process per GPU of its
// host, and tells each of them its rank; its pipelines of diffusion models take LOCAL_RANK for the number of their GPU.
var sglang = Launcher{
	Name:          "SGLang",
	Programs:      []string{"sglang"},
	HostModules:   []string{"sglang.launch_server", "sglang.cli.main"},
	Starts:        clusterProcesses,
	TaskVariables: sglangTask,
}

// sglangTask returns the address of this rank for SGLang's processes. Without it they take that of the default route
// (get_local_ip_auto in python/sglang/srt/utils), which the other hosts may not reach.
func sglangTask(t Tasks) []Var {
	if len(t.Ranks) < 2 {
		return nil
	}
	return []Var{{"SGLANG_HOST_IP", t.Ranks[t.Self].Addr, "SGLang's processes of other ranks reach this one there"}}
}
