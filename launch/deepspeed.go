package launch

// DeepSpeedHostfile is where the deepspeed command looks for its hosts without --hostfile; without the file it runs on this host
// alone (deepspeed/launcher/runner.py, DLTS_HOSTFILE).
const DeepSpeedHostfile = "/job/hostfile"

// deepSpeed is the deepspeed command, which starts its processes by pdsh, and pdsh them by the name ssh.
func deepSpeed(l Launcher) []Var {
	var t table
	if l.AgentPath != "" {
		t.set("PDSH_RCMD_TYPE", "ssh", "DeepSpeed's pdsh reaches the other hosts by ssh, which is paiinit where there is no other")
	}
	return t
}
