package launch

import (
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
	Blames:      deepSpeedBlames,
}

func deepSpeedVariables(l Setup) []Var {
	if l.AgentPath == "" {
		return nil
	}
	const why = "DeepSpeed's pdsh reaches the other hosts by ssh, which is paiinit for the hosts of the job"
	return []Var{{"PDSH_RCMD_TYPE", "ssh", why}}
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
	found, command := deepSpeedOptions.read(args)
	r, ok = Request{Hostfile: deepSpeedHostfile, HostfileOptional: true}, len(command) > 0
	for _, o := range found {
		switch o.name {
		case "h", "help", "no_ssh", "elastic_training", "autotuning":
			ok = false // it runs on this node only, or the number of hosts is unknown
		case "launcher":
			ok = ok && !strings.EqualFold(o.value, "slurm")
		case "H", "hostfile":
			r.Hostfile, r.HostfileOptional = o.value, false
		case "num_nodes":
			n, err := strconv.Atoi(o.value)
			r.Nodes, ok = max(n, 0), ok && err == nil
		case "i", "include":
			r.Hosts, _ = deepSpeedNodes(o.value)
		case "e", "exclude":
			if _, whole := deepSpeedNodes(o.value); len(whole) > 0 {
				r.Without = whole
			}
		}
		ok = ok && o.known
	}
	return r, ok
}

// deepSpeedNodes returns the names in a list such as "a@b:0,2", and the names of nodes without a list of slots.
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

// deepSpeedBlames reads what DeepSpeed's process of each host logs about its first failed child
// (deepspeed/launcher/launch.py, sigkill_handler), with pdsh's mark of the host before it, and pdsh's own report. It
// kills the other children then. From DeepSpeed's sources and published logs; not run.
func deepSpeedBlames(p *printed, b *Blame) {
	const handler = "sigkill_handler"
	const log = `^(?:(\S+): )?\[[^]]+\] \[(?:INFO|ERROR)\] \[launch\.py:\d+:sigkill_handler\] `
	for i, m := range p.find(handler, log+`(.*) exits with return code = (-?\d+)$`) {
		local := ""
		if _, after, ok := strings.Cut(m[2], "--local_rank="); ok {
			local = after[:len(after)-len(strings.TrimLeft(after, "0123456789"))]
		}
		blame := negated("a process of DeepSpeed", "", m[1], number(m[3]))
		if local != "" {
			blame.Process = "local rank " + local
		}
		b.set(blame)
		p.claim(i, i+1)
	}
	p.claimAll(handler, log+`Killing subprocess \d+$`)
	for i, m := range p.find("pdsh@", `^pdsh@\S+: (\S+): ssh exited with exit code (\d+)$`) {
		b.set(Blame{Process: "the command of DeepSpeed", Host: m[1], Status: number(m[2])})
		p.claim(i, i+1)
	}
}
