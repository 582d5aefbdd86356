package launch

import (
	"slices"
	"strconv"
	"strings"
)

// deepSpeedHostfile is where the deepspeed command looks for its hosts without --hostfile; without the file it runs on
// this host only (deepspeed/launcher/runner.py, DLTS_HOSTFILE).
const deepSpeedHostfile = "/job/hostfile"

// deepSpeed is the deepspeed command. It starts its processes by pdsh, which calls ssh by its name.
var deepSpeed = Launcher{
	Name:        "DeepSpeed",
	Programs:    []string{"deepspeed"},
	Modules:     []string{"deepspeed.launcher.runner"},
	HostModules: []string{"deepspeed.launcher.launch"},
	Starts:      ranks,
	Variables:   deepSpeedVariables,
	Asked:       deepSpeedAsked,
	Hostfile:    deepSpeedHostfile,
}

func deepSpeedVariables(l Setup) []Var {
	var t table
	if l.AgentPath != "" {
		t.set("PDSH_RCMD_TYPE", "ssh",
			"DeepSpeed's pdsh reaches the other hosts by ssh, which is paiinit for the hosts of the job")
	}
	return t
}

// deepSpeedOptions are the options of DeepSpeed 0.16's launcher (deepspeed/launcher/runner.py).
var deepSpeedOptions = options{
	none: "h help module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training " +
		"bind_cores_to_rank",
	one: "H hostfile i include e exclude num_nodes num_gpus num_accelerators min_elastic_nodes " +
		"max_elastic_nodes master_port master_addr node_rank launcher launcher_args enable_each_rank_log " +
		"autotuning bind_core_list ssh_port venv_script",
}

// deepSpeedAsked reads the arguments of the deepspeed command, which uses every host of its list by default.
func deepSpeedAsked(args []string) (r Request, ok bool) {
	r.Hostfile, r.HostfileOptional = deepSpeedHostfile, true
	for {
		name, values, rest, known, ok := deepSpeedOptions.next(args)
		if !ok {
			break
		}
		args = rest
		value := strings.Join(values, " ")
		switch {
		case !known, slices.Contains([]string{"h", "help", "no_ssh", "elastic_training", "autotuning"}, name):
			return Request{}, false // it runs on this node only, or the number of hosts is unknown
		case name == "launcher" && strings.EqualFold(value, "slurm"):
			return Request{}, false
		case name == "H" || name == "hostfile":
			r.Hostfile, r.HostfileOptional = value, false
		case name == "num_nodes":
			n, err := strconv.Atoi(value)
			if err != nil {
				return Request{}, false
			}
			r.Nodes = max(n, 0)
		case name == "i" || name == "include":
			r.Hosts, _ = deepSpeedNodes(value)
		case name == "e" || name == "exclude":
			var whole []string
			if _, whole = deepSpeedNodes(value); len(whole) > 0 {
				r.Without = whole
			}
		}
	}
	return r, len(args) > 0
}

// deepSpeedNodes reads a list such as "a@b:0,2". It returns the names of all nodes, and of those without a list of
// slots.
func deepSpeedNodes(list string) (all, whole []string) {
	for node := range strings.SplitSeq(list, "@") {
		name, _, part := strings.Cut(node, ":")
		all = append(all, name)
		if !part {
			whole = append(whole, name)
		}
	}
	return all, whole
}
