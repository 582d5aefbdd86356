package launch

import (
	"slices"
	"strconv"
	"strings"
)

// Task describes one rank of a job in which every rank runs the command.
type Task struct {
	Role  string
	Addr  string // its IP address
	Port  int    // a port there that no other process uses
	Slots int    // the number of processes to start there, 0 if the rank does not compute
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
	Job    string // its id
	Ranks  []Task // in rank order
	Self   int    // the rank whose environment is made
	Spawns bool   // the command starts the processes of its host itself, see [Spawns]
	// Cluster: the command is a server or a node of a cluster, see [StartsCluster]. Its processes are no ranks of the
	// job, and would take their host's rank for their own.
	Cluster bool
}

// TaskEnvironment returns the variables by which frameworks that need no launcher find each other.
func TaskEnvironment(t Tasks) []Var {
	vars := append(torch(t), ofAll(func(l *Launcher) func(Tasks) []Var { return l.TaskVariables }, t)...)
	if t.Cluster {
		return vars
	}
	return slices.Concat(vars, tensorFlow(t), jax(t), psLite(t))
}

// Spawns reports whether a command line, but not a shell script, starts the processes of its host itself.
func Spawns(args []string) bool { return lineStarts(args, hostProcesses) }

// StartsCluster reports whether a command line, but not a shell script, starts a server or a node of a cluster.
func StartsCluster(args []string) bool { return lineStarts(args, clusterProcesses) }

// LineStartsCluster reports whether a line for a shell has the words of such a command line, in any place.
func LineStartsCluster(line string) bool {
	words, err := SplitWords(line)
	if err != nil {
		return false // the shell refuses the line
	}
	for i := range words {
		if StartsCluster(words[i:]) {
			return true
		}
	}
	return false
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
