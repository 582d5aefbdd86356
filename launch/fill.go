package launch

import (
	"slices"
	"strconv"
)

// Fill describes how to pass hosts to a launcher that takes them from its command line only: a program of its name in
// the job's bin directory adds words and executes the real launcher.
type Fill struct {
	// Read reads the arguments.
	Read func(args []string) HostLine
	// Dialect is the dialect of the host list, which limits the names of hosts.
	Dialect string
	// NetworkOption is the option that chooses its interface; NetworkVariables are variables that do so.
	NetworkOption    string
	NetworkVariables []string
	// LacksNetwork reports, from the beginning of the program's file, whether this version lacks that option.
	LacksNetwork func(file []byte) bool
	// Words returns the words that pass it the hosts, each "NAME:SLOTS"; ranks is 0 if the user sets the number of
	// ranks.
	Words func(hosts []string, ranks int) []string
}

// HostLine holds what a command line says about where to run.
type HostLine struct {
	Request
	// Launches is false if the command only prints something (--version, --check-build, --help) or has no COMMAND.
	Launches bool
	// Given is the option by which the user has chosen the hosts; "" if there is none.
	Given string
	// Network is the option by which the user has chosen the network; "" if there is none.
	Network string
	// Unread is the first unknown option; "" if there is none.
	Unread string
	// Options is the number of words before COMMAND.
	Options int

	readable bool
}

// HostSlots is a host of the job. Local says that the launcher runs on it.
type HostSlots struct {
	Name  string
	Slots int
	Local bool
}

// Add returns the words that pass these hosts to a launcher, the number of all their slots, and whether any of the
// hosts passed is another than the launcher's own. Without slots there are no words.
func (f *Fill) Add(line HostLine, all []HostSlots) (words []string, slots int, remote bool) {
	var hosts []string
	for _, h := range all {
		n := h.Slots
		// Horovod 0.28's gloo ignores -np and starts a process on every listed slot.
		if room := line.Ranks - slots; line.Ranks > 0 && line.Unread == "" && room < n {
			n = max(room, 0)
		}
		if n > 0 {
			hosts = append(hosts, h.Name+":"+strconv.Itoa(n))
			remote = remote || !h.Local
		}
		slots += h.Slots
	}
	ranks := 0
	if line.Ranks == 0 && line.Unread == "" {
		ranks = slots
	}
	if len(hosts) > 0 {
		words = f.Words(hosts, ranks)
	}
	return words, slots, remote
}

// FillNamed returns how to pass hosts to a program; nil if it needs no words for that.
func FillNamed(program string) *Fill {
	for _, l := range launchers {
		if l.Fill != nil && slices.Contains(l.Programs, program) {
			return l.Fill
		}
	}
	return nil
}

// Fills returns the programs that get their hosts by words on the command line.
func Fills() (programs []string) {
	for _, l := range launchers {
		if l.Fill != nil {
			programs = append(programs, l.Programs...)
		}
	}
	return programs
}

// HostfileReader is a program that looks for its hosts in one fixed file.
type HostfileReader struct{ Program, Hostfile string }

// HostfileReaders returns all launchers that look for their hosts in a fixed file.
func HostfileReaders() (found []HostfileReader) {
	for _, l := range launchers {
		if l.Hostfile != "" {
			found = append(found, HostfileReader{l.Programs[0], l.Hostfile})
		}
	}
	return found
}
