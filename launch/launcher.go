package launch

import (
	"path"
	"slices"
	"time"
)

// Launcher describes one launcher: data, and functions that read or write its dialect. Each launcher has a file of its
// own, and outside that file only [launchers] names it. If a field is not set, paiinit leaves out what depends on it.
type Launcher struct {
	Name        string   // in the documentation
	Programs    []string // several launchers share some, such as mpirun
	Modules     []string // Python modules that do the same as the first of its programs
	HostModules []string // Python modules that start processes of one host
	Starts      starts   // what its programs start

	Variables     func(Setup) []Var // returns the variables that tell it about the hosts of the job
	Manual        string            // what users have to do if variables are not enough
	RankVariables []string          // mark its ranks: one of them holds the number of the rank
	Foreign       []Var             // make it believe that it runs inside another scheduler's allocation

	Compared      []string // the programs whose versions must agree between hosts
	VersionOption string   // the option that prints the version; "" means --version
	Versions      []versionText

	Choices []choice    // what paiinit leaves out if the user has chosen already
	Files   choiceFiles // the files that may hold such a choice

	TaskVariables   func(Tasks) []Var  // returns those of one rank, if every rank runs the command
	FabricVariables func(Fabric) []Var // returns those about the network between the ranks, the same on every rank
	Overrides       []string           // its programs whose environment overrides that of the ranks on other hosts

	// Asked reads the arguments of its command line. Launchers that share a program have Options instead.
	Asked   func(args []string) (r Request, ok bool)
	Options mpiOptions

	// SessionDir is the beginning of the name of its directory in /tmp, which all jobs of a user on a host share. It
	// stays if the launcher is killed.
	SessionDir string

	Hostfile string // where it looks for its hosts by default; without this file it runs on this host only
	Fill     *Fill  // set if it takes its hosts from its command line only

	Daemons        []daemon      // what it starts on other hosts
	FailureTimeout time.Duration // how long it may take to end by itself after a daemon has failed
	DaemonsStay    bool          // its daemons run until the job ends; others end with the ranks of their host
	LostDaemon     string        // part of a line that it prints before it may end with 0 although it has lost a daemon
	MissesFailures bool          // it sometimes does not notice that a daemon or remote shell failed
	Probes         []string      // Python modules with which it only checks a host before it starts anything there

	// Blames reads what it prints at the end of stderr or stdout about the process that failed first.
	Blames func(p *printed, b *Blame)
}

// choice is one of our variables or options, and the names that a user sets to make the same choice.
type choice struct{ variable, names string }

// choiceFiles are the files from which a launcher or library reads settings. Blanks separate their names.
type choiceFiles struct {
	home, conf, dir string // below the user's home directory, in configuration directories, in the working directory
	variables       string // variables that hold paths of such files
	prefixOf        string // the program whose installation prefix has a configuration directory
	prefixVariable  string // the variable that may name such a prefix
	system          string // configuration directories that count if that program has no prefix of its own
}

// versionText is a regular expression that finds a version in the output of a launcher, and the name of the product.
// Expressions are compiled when they are used, because compiling them at start would slow down every command.
type versionText struct{ text, name string }

// daemon is a program that a launcher starts on other hosts.
type daemon struct {
	program  string
	starts   bool                     // it starts daemons on further hosts, and its command does not tell how many
	detached string                   // the option that makes it leave the session that started it
	hosts    func(command string) int // reads from its command on how many hosts the launcher has daemons
}

// starts is a set of bits that says what a program starts.
type starts uint8

const (
	// hostProcesses: it starts the processes of its own host and tells each of them its rank.
	hostProcesses starts = 1 << iota
	// otherHosts: it reaches other hosts itself, so only one rank may run it.
	otherHosts
	// jobRanks: it starts the ranks of a job. They are stopped before it, because it gives them little time to end.
	jobRanks
	// untilEnd: it runs until all its ranks have ended, and paiinit kills it if it runs for longer.
	untilEnd
	// clusterProcesses: it is a server or a node of a cluster, and starts processes that are no ranks of this job.
	clusterProcesses

	ranks    = hostProcesses | otherHosts | jobRanks
	mpiRanks = ranks | untilEnd
)

// launchers lists all launchers, in the order in which their variables are set.
var launchers = []*Launcher{
	&openMPI4, &openMPI5, &mpich, &intelMPI, &mvapich, &horovod, &deepSpeed, &sockets,
	&torchrun, &accelerate, &vllm, &sglang, &ray, &dask, &spark, &schedulerRun, &remoteShells,
}

// launcherPrograms returns the launchers that have a program of this name.
func launcherPrograms(name string) (found []*Launcher) {
	for _, l := range launchers {
		if slices.Contains(l.Programs, name) {
			found = append(found, l)
		}
	}
	return found
}

// InsideRank reports whether this process is a rank, or runs below a rank, of a launcher that reaches other hosts.
func InsideRank(environ []string) bool {
	return slices.ContainsFunc(launchers, func(l *Launcher) bool {
		return l.has(otherHosts) && slices.ContainsFunc(l.RankVariables, setIn(environ))
	})
}

// setIn returns a function that reports whether a variable has a value in an environment.
func setIn(environ []string) func(name string) bool {
	return func(name string) bool { return Value(environ, name) != "" }
}

// has reports whether the launcher starts everything in what.
func (l *Launcher) has(what starts) bool { return l.Starts&what == what }

// programStarts reports whether a launcher with a program of this name or path starts everything in what.
func programStarts(name string, what starts) bool {
	return slices.ContainsFunc(launcherPrograms(path.Base(name)), func(l *Launcher) bool { return l.has(what) })
}

// lineStarts reports whether a command line calls a launcher that starts everything in what.
func lineStarts(line []string, what starts) bool {
	name, _, _ := split(line, false)
	for _, l := range launchers {
		if l.has(what) && (slices.Contains(l.Programs, name) || slices.Contains(l.Modules, name) ||
			what&^(hostProcesses|clusterProcesses) == 0 && slices.Contains(l.HostModules, name)) {
			return true
		}
	}
	return false
}
