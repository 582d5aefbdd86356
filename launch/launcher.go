package launch

import (
	"path"
	"slices"
	"time"
)

// Launcher describes one launcher: data, and functions that read or write its dialect. Each launcher has a file of its
// own, and outside that file only [launchers] names it. If a field is not set, paiinit leaves out what depends on it.
type Launcher struct {
	// Name is the launcher's name in the documentation.
	Name string
	// Programs are the names of its programs. Several launchers share some of them, such as mpirun.
	Programs []string
	// Modules are the Python modules that do the same as the first of its programs.
	Modules []string
	// HostModules are Python modules that start the processes of one host.
	HostModules []string
	// Starts says what its programs start.
	Starts starts

	// Variables returns the variables that tell it about the hosts of the job.
	Variables func(Setup) []Var
	// Manual says what users have to do if variables are not enough.
	Manual string
	// RankVariables are the variables that mark its ranks: one of them holds the number of the rank.
	RankVariables []string

	// Foreign are the variables that make it believe that it runs inside another scheduler's allocation.
	Foreign []Var

	// Compared are the programs whose versions must agree between hosts. VersionOption prints the version, "" means
	// --version; Versions finds the version in that output.
	Compared      []string
	VersionOption string
	Versions      []versionText

	// Choices are the variables that paiinit leaves out if the user has chosen already, and Files are the files that
	// may hold such a choice.
	Choices []choice
	Files   choiceFiles

	// FabricVariables returns the variables about the network between the ranks that are the same on every rank.
	FabricVariables func(Fabric) []Var
	// FabricOwn returns the variables that hold names of a rank's own devices.
	FabricOwn func(Fabric) []Var
	// OwnVariables returns the variables about the interface over which a rank is reached. Every host with several
	// interfaces sets them for its own ranks.
	OwnVariables func(network string) []Var
	// Overrides are its programs whose environment overrides that of the ranks on other hosts.
	Overrides []string

	// Asked reads the arguments of its command line. Launchers that share a program have Options instead.
	Asked   func(args []string) (r Request, ok bool)
	Options mpiOptions

	// Hostfile is the file in which it looks for its hosts by default; without the file it runs on this host only.
	Hostfile string
	// Fill is set if it takes its hosts from its command line only.
	Fill *Fill

	// Daemons are the programs that it starts on other hosts.
	Daemons []daemon
	// FailureTimeout is how long it may take to end by itself after a daemon has failed.
	FailureTimeout time.Duration
	// DaemonsStay says that its daemons run until the job ends. Other daemons end with the ranks of their host.
	DaemonsStay bool
	// MissesFailures says that it sometimes does not notice that a daemon or remote shell failed.
	MissesFailures bool
	// Announcements match what it prints on stderr about the rank that ended the job.
	Announcements []announcement
	// Probes are the Python modules with which it only checks a host before it starts anything there.
	Probes []string
}

// choice is one of our variables or options, and the names that a user sets to make the same choice.
type choice struct{ variable, names string }

// choiceFiles are the files from which a launcher or library reads settings. Blanks separate their names.
type choiceFiles struct {
	// home are files below the user's home directory, conf in a configuration directory, dir in the working directory.
	home, conf, dir string
	// variables hold paths of such files.
	variables string
	// prefixOf is the program whose installation prefix has a configuration directory.
	prefixOf string
	// prefixVariable is the variable that may name such a prefix.
	prefixVariable string
	// system are more configuration directories, which count if that program has no prefix of its own.
	system string
}

// versionText is a regular expression that finds a version in the output of a launcher, and the name of the product.
// Expressions are compiled when they are used, because compiling them at start would slow down every command.
type versionText struct{ text, name string }

// announcement is a regular expression that finds the number of an exit status or of a signal.
type announcement struct {
	text   string
	signal bool
}

// daemon is a program that a launcher starts on other hosts.
type daemon struct {
	program string
	// starts says that it starts daemons on further hosts, and that its command does not tell how many.
	starts bool
	// detached is the option that makes it leave the session that started it, "" if there is none.
	detached string
	// hosts reads from its command on how many hosts the launcher has daemons; nil if the command does not tell.
	hosts func(command string) int
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

	ranks    = hostProcesses | otherHosts | jobRanks
	mpiRanks = ranks | untilEnd
)

// launchers lists all launchers, in the order in which their variables are set. A new launcher is a file and an entry
// here.
var launchers = []*Launcher{
	&openMPI4, &openMPI5, &mpich, &intelMPI, &mvapich, &horovod, &deepSpeed, &sockets,
	&torchrun, &accelerate, &schedulerRun, &remoteShells,
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

// rankVariables returns the variables that hold the number of a rank, for all launchers.
func rankVariables() (names []string) {
	for _, l := range launchers {
		names = append(names, l.RankVariables...)
	}
	return names
}

// InsideRank reports whether this process is a rank, or runs below a rank, of a launcher that reaches other hosts.
func InsideRank(environ []string) bool {
	for _, l := range launchers {
		for _, name := range l.RankVariables {
			if value, _ := lookupEnv(environ, name); value != "" && l.has(otherHosts) {
				return true
			}
		}
	}
	return false
}

// has reports whether the launcher starts everything in what.
func (l *Launcher) has(what starts) bool { return l.Starts&what == what }

// programStarts reports whether a launcher with a program of this name or path starts everything in what.
func programStarts(name string, what starts) bool {
	for _, l := range launcherPrograms(path.Base(name)) {
		if l.has(what) {
			return true
		}
	}
	return false
}

// lineStarts reports whether a command line starts everything in what: a launcher by the name of its program, or as
// `python -m MODULE`. It does not look into shell scripts.
func lineStarts(line []string, what starts) bool {
	name := program(line)
	for _, l := range launchers {
		if l.has(what) && (slices.Contains(l.Programs, name) || slices.Contains(l.Modules, name) ||
			what == hostProcesses && slices.Contains(l.HostModules, name)) {
			return true
		}
	}
	return false
}
