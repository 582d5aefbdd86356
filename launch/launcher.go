package launch

import (
	"path"
	"slices"
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
}

// starts says what a program starts: a set of bits.
type starts uint8

const (
	// hostProcesses: it starts the processes of its own host, and tells each of them its rank.
	hostProcesses starts = 1 << iota
	// otherHosts: it reaches other hosts itself, so it belongs on one rank.
	otherHosts
	// jobRanks: what it starts are the ranks of a job, to which a stop goes first.
	jobRanks
	// untilEnd: it stays until all its ranks have ended, and is ended where it stays for longer.
	untilEnd

	ranks    = hostProcesses | otherHosts | jobRanks
	mpiRanks = ranks | untilEnd
)

// launchers are all launchers, in the order in which their variables are set. A new one is a file, and a name here.
var launchers = []*Launcher{
	&openMPI4, &openMPI5, &mpich, &intelMPI, &horovod, &deepSpeed, &sockets,
	&torchrun, &accelerate, &schedulerRun, &remoteShells,
}

// has reports whether the launcher starts all of this.
func (l *Launcher) has(what starts) bool { return l.Starts&what == what }

// programStarts reports whether a program of this name or path starts all of this, under some launcher.
func programStarts(name string, what starts) bool {
	name = path.Base(name)
	return slices.ContainsFunc(launchers, func(l *Launcher) bool {
		return l.has(what) && slices.Contains(l.Programs, name)
	})
}

// lineStarts reports whether a command line, by the name of its program or as `python -m MODULE`, starts all of this.
// A shell cannot be seen through.
func lineStarts(line []string, what starts) bool {
	name := program(line)
	return slices.ContainsFunc(launchers, func(l *Launcher) bool {
		return l.has(what) && (slices.Contains(l.Programs, name) || slices.Contains(l.Modules, name) ||
			what == hostProcesses && slices.Contains(l.HostModules, name))
	})
}
