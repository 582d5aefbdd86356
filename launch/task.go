package launch

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// Task is what one rank runs where every rank runs the command.
type Task struct {
	// Role and Index name it; Index is -1 where nobody knows it.
	Role  string
	Index int
	// Addr is its IP address, and Port a port there that nobody else uses.
	Addr string
	Port int
	// Slots is the number of processes that belong there, 0 if it has no part in the computation.
	Slots int
}

// address is "addr:port", as frameworks write it.
func (t Task) address() string { return bracketed(t.Addr) + ":" + strconv.Itoa(t.Port) }

// bracketed is an address as it stands before a port (RFC 3986, section 3.2.2).
func bracketed(addr string) string {
	if strings.Contains(addr, ":") {
		return "[" + addr + "]"
	}
	return addr
}

// Tasks are the commands of all ranks, seen from one of them.
type Tasks struct {
	// Job is the id of the job.
	Job string
	// Ranks are all tasks, in rank order.
	Ranks []Task
	// Self is the rank of the one whose environment is wanted.
	Self int
	// Spawns says that the command starts the processes of its host itself, see [Spawns].
	Spawns bool
}

// TaskEnvironment returns the variables by which the frameworks that need no launcher find each other.
func TaskEnvironment(t Tasks) []Var {
	var vars []Var
	for _, framework := range []func(Tasks) []Var{torch, tensorFlow, jax, psLite} {
		vars = append(vars, framework(t)...)
	}
	return vars
}

// spawners start one process for each slot and tell each of them its own rank. By name, and by Python module.
var spawners = []string{
	"torchrun", "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic",
	"accelerate", "accelerate.commands.launch", "accelerate.commands.accelerate_cli", "deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch",
	"horovodrun", "horovod.runner.launch", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun", "srun",
}

// Spawns says whether a command line starts the processes of its host itself: torchrun and its like, by their own name or as
// `python -m MODULE`. A shell cannot be seen through.
func Spawns(args []string) bool {
	if len(args) == 0 {
		return false
	}
	name := path.Base(args[0])
	if slices.Contains(spawners, name) {
		return true
	}
	if !strings.HasPrefix(name, "python") {
		return false
	}
	for i, a := range args[1:] {
		switch {
		case a == "-m" && i+2 < len(args):
			return slices.Contains(spawners, args[i+2])
		case strings.HasPrefix(a, "-m"):
			return slices.Contains(spawners, a[2:])
		case slices.Contains([]string{"-c", "-"}, a):
			return false
		case !strings.HasPrefix(a, "-"):
			return slices.Contains(spawners, path.Base(a)) // python /usr/bin/torchrun
		}
	}
	return false
}

// kind is the part that a role has in frameworks that know parts.
func kind(role string) string {
	role = strings.ToLower(role)
	switch {
	case slices.Contains([]string{"chief", "master", "main", "launcher", "head", "leader"}, role):
		return "chief"
	case strings.HasPrefix(role, "ps") || strings.Contains(role, "server"):
		return "ps"
	case strings.HasPrefix(role, "eval"):
		return "evaluator"
	case role == "scheduler":
		return "scheduler"
	}
	return "worker"
}
