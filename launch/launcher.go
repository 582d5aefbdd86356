package launch

import (
	"path"
	"slices"
	"time"
)

// Launcher is everything that is known of one launcher: data, and functions that read or write its dialect. It is one
// file; beside that file only [launchers] names it. A field that is not set leaves out what depends on it.
type Launcher struct {
	// Name names it in the documentation.
	Name string
	// Programs are the names of its programs. Launchers share some: mpirun belongs to several.
	Programs []string
	// Modules are the Python modules that are the first of its programs.
	Modules []string
	// HostModules are Python modules that start the processes of one host.
	HostModules []string
	// Starts says what its programs start.
	Starts starts

	// Variables returns what it finds in its environment.
	Variables func(Setup) []Var
	// Manual says what its users have to do where variables do not suffice.
	Manual string
	// RankVariables are the variables by which its ranks are recognised: each has its number in one of them.
	RankVariables []string

	// Foreign are the variables by which it would believe itself inside another scheduler's allocation.
	Foreign []Var

	// Compared are those of its programs whose versions must agree between hosts. Versions are the answers to
	// VersionOption, "" for --version.
	Compared      []string
	VersionOption string
	Versions      []versionText

	// Choices are the variables of ours that a choice of the user's rules out, and where such a choice may stand.
	Choices []choice
	Files   choiceFiles

	// FabricVariables returns what it is told about the network between the ranks; the same on every rank.
	FabricVariables func(Fabric) []Var
	// FabricOwn returns what holds names of a rank's own devices.
	FabricOwn func(Fabric) []Var
	// OwnVariables returns what every rank is told by its own host about the interface over which it is reached, where
	// it has several.
	OwnVariables func(network string) []Var
	// Overrides are those of its programs whose environment reaches the ranks of other hosts and wins there.
	Overrides []string

	// Asked reads the arguments of its command line. Launchers that share a program have Options instead.
	Asked   func(args []string) (r Request, ok bool)
	Options mpiOptions

	// Hostfile is where it looks for its hosts by itself; without such a file it runs on this host alone.
	Hostfile string
	// Fill is set where it learns its hosts from its command line alone.
	Fill *Fill

	// Daemons are the programs that it starts on other hosts.
	Daemons []daemon
	// FailureTimeout is how long it may take to end by itself after one of them has failed.
	FailureTimeout time.Duration
	// DaemonsStay says that its daemons stay until the job has ended. Others end with the ranks of their host.
	DaemonsStay bool
	// MissesFailures says that it does not always notice the failure of a daemon or remote shell.
	MissesFailures bool
	// Announcements are what it prints on stderr about the rank that ended a job.
	Announcements []announcement
	// Probes are the Python modules by which it only looks at a host, before it starts anything there.
	Probes []string
}

// choice is a variable or option of ours, and the names under which a user makes the choice that it would make.
type choice struct{ variable, names string }

// choiceFiles are the files in which a launcher or library looks for its settings, with blanks between their names.
type choiceFiles struct {
	// home are below the home directory of the user, conf in a directory of configuration, dir in the working
	// directory.
	home, conf, dir string
	// variables hold paths of such files.
	variables string
	// prefixOf is the program in whose prefix there is a directory of configuration.
	prefixOf string
	// prefixVariable holds such a prefix.
	prefixVariable string
	// system are further directories of configuration where that program has no prefix of its own.
	system string
}

// versionText is a regular expression that finds a version in the output of a launcher, and the name that goes with it.
// Expressions are compiled where they are used: at the start of the program they would cost every command.
type versionText struct{ text, name string }

// announcement is a regular expression that finds the number of a status, or of a signal.
type announcement struct {
	text   string
	signal bool
}

// daemon is a program that a launcher starts on other hosts.
type daemon struct {
	program string
	// starts says that it starts daemons on further hosts, and that nothing tells how many.
	starts bool
	// detached is the option with which it leaves the session that started it, "" if there is none.
	detached string
	// hosts reads from its command on how many hosts the launcher has daemons; nil: the command does not tell.
	hosts func(command string) int
}

// starts says what a program starts: a set of bits.
type starts uint8

const (
	// hostProcesses: it starts the processes of its own host, and tells each of them its rank.
	hostProcesses starts = 1 << iota
	// otherHosts: it reaches other hosts itself, so it belongs on one rank.
	otherHosts
	// jobRanks: what it starts are the ranks of a job. It gives them little time to end, so they are stopped before it.
	jobRanks
	// untilEnd: it stays until all its ranks have ended, and is ended where it stays for longer.
	untilEnd

	ranks    = hostProcesses | otherHosts | jobRanks
	mpiRanks = ranks | untilEnd
)

// launchers are all launchers, in the order in which their variables are set. A new one is a file, and a name here.
var launchers = []*Launcher{
	&openMPI4, &openMPI5, &mpich, &intelMPI, &mvapich, &horovod, &deepSpeed, &sockets,
	&torchrun, &accelerate, &schedulerRun, &remoteShells,
}

// launcherPrograms are the launchers that have a program of this name.
func launcherPrograms(name string) (found []*Launcher) {
	for _, l := range launchers {
		if slices.Contains(l.Programs, name) {
			found = append(found, l)
		}
	}
	return found
}

// rankVariables are the variables that tell a rank its number, by all launchers.
func rankVariables() (names []string) {
	for _, l := range launchers {
		names = append(names, l.RankVariables...)
	}
	return names
}

// InsideRank reports whether a launcher that reaches other hosts has started this process as a rank, or below one.
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

// has reports whether the launcher starts all of this.
func (l *Launcher) has(what starts) bool { return l.Starts&what == what }

// programStarts reports whether a program of this name or path starts all of this, under some launcher.
func programStarts(name string, what starts) bool {
	for _, l := range launcherPrograms(path.Base(name)) {
		if l.has(what) {
			return true
		}
	}
	return false
}

// lineStarts reports whether a command line, by the name of its program or as `python -m MODULE`, starts all of this.
// A shell cannot be seen through.
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
