package launch

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// Task describes one rank of a job in which every rank runs the command.
type Task struct {
	// Role and Index name it; Index is -1 if it is unknown.
	Role  string
	Index int
	// Addr is its IP address, Port a port there that no other process uses.
	Addr string
	Port int
	// Slots is the number of processes to start there, 0 if the rank does not compute.
	Slots int
}

// address returns "addr:port", the form that frameworks read.
func (t Task) address() string { return bracketed(t.Addr) + ":" + strconv.Itoa(t.Port) }

// bracketed returns an address in the form that precedes a port (RFC 3986, section 3.2.2).
func bracketed(addr string) string {
	if strings.Contains(addr, ":") {
		return "[" + addr + "]"
	}
	return addr
}

// Tasks describes all ranks, from the view of one of them.
type Tasks struct {
	// Job is the id of the job.
	Job string
	// Ranks are all tasks, in rank order.
	Ranks []Task
	// Self is the rank whose environment is made.
	Self int
	// Spawns says that the command starts the processes of its host itself, see [Spawns].
	Spawns bool
}

// TaskEnvironment returns the variables by which frameworks that need no launcher find each other.
func TaskEnvironment(t Tasks) []Var {
	var vars []Var
	for _, framework := range []func(Tasks) []Var{torch, tensorFlow, jax, psLite} {
		vars = append(vars, framework(t)...)
	}
	return vars
}

// Spawns reports whether a command line starts the processes of its host itself, like torchrun, by name or as `python
// -m MODULE`. It does not look into shell scripts.
func Spawns(args []string) bool {
	return lineStarts(args, hostProcesses)
}

// startsRanks reports whether a command line calls a launcher that starts the ranks of a job on its hosts: an MPI
// launcher, horovodrun or deepspeed, by name or as `python -m MODULE`.
func startsRanks(args []string) bool {
	return lineStarts(args, ranks)
}

// program returns the name of the program or Python module that a command line starts.
func program(args []string) string {
	if len(args) == 0 {
		return ""
	}
	name := path.Base(args[0])
	if !strings.HasPrefix(name, "python") {
		return name
	}
	for i, a := range args[1:] {
		switch {
		case a == "-m" && i+2 < len(args):
			return args[i+2]
		case strings.HasPrefix(a, "-m"):
			return a[2:]
		case a == "-c", a == "-":
			return name
		case !strings.HasPrefix(a, "-"):
			return path.Base(a) // python /usr/bin/torchrun
		}
	}
	return name
}

// serverWords are the words in the names of server roles. They match whole words: an observer is no server.
var serverWords = []string{"ps", "psserver", "pserver", "server", "servers", "paramserver", "parameterserver"}

// Serves reports whether a role never ends by itself: a parameter server, another server, or an evaluator.
func Serves(role string) bool {
	k := kind(role)
	return k == "ps" || k == "evaluator"
}

// kind returns the part that a role plays in frameworks with several parts.
func kind(role string) string {
	role = strings.ToLower(role)
	words := strings.FieldsFunc(role, func(r rune) bool { return r < 'a' || r > 'z' })
	is := func(word string) bool { return slices.Contains(serverWords, word) }
	switch {
	case slices.Contains([]string{"chief", "master", "main", "launcher", "head", "leader"}, role):
		return "chief"
	case slices.ContainsFunc(words, is):
		return "ps"
	case slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(word, "eval") }):
		return "evaluator"
	case role == "scheduler":
		return "scheduler"
	}
	return "worker"
}
