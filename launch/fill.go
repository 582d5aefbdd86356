package launch

import (
	"slices"
	"strconv"
)

// Fill is how a launcher is given its hosts that learns them from its command line alone: a program of its name in the
// job's bin directory adds words, and executes the real one.
type Fill struct {
	// Read reads the arguments.
	Read func(args []string) HostLine
	// Dialect is the host list whose names it can express.
	Dialect string
	// NetworkOption is the option that chooses its interface, and NetworkVariables are variables that do.
	NetworkOption    string
	NetworkVariables []string
	// LacksNetwork reports from the beginning of the program's file whether this version has no such option.
	LacksNetwork func(file []byte) bool
	// Words are those that give it hosts, each "NAME:SLOTS"; ranks is 0 where the user gives their number.
	Words func(hosts []string, ranks int) []string
}

// HostLine is what a command line says of where to run.
type HostLine struct {
	Request
	// Launches is false where it only tells something, as with --version, --check-build and --help, or has no COMMAND.
	Launches bool
	// Given is the option by which the user has chosen the hosts; "" if there is none.
	Given string
	// Network is the option by which the user has chosen the network; "" if there is none.
	Network string
	// Unread is the first option that is not known here; "" if there is none.
	Unread string
	// Options is the number of words before COMMAND.
	Options int

	readable bool
}

// HostSlots is a host of the job. Local says that the launcher runs there.
type HostSlots struct {
	Name  string
	Slots int
	Local bool
}

// Add returns the words that give a launcher these hosts, the number of all their slots, and whether a host that it gets is
// another than its own. Without a slot anywhere there are no words.
func (f *Fill) Add(line HostLine, all []HostSlots) (words []string, slots int, remote bool) {
	var hosts []string
	for _, h := range all {
		n := h.Slots
		// Horovod 0.28's gloo starts a process on every slot that is listed, whatever -np says.
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

// FillNamed returns how a program is given its hosts; nil if it needs no words for that.
func FillNamed(program string) *Fill {
	for _, l := range launchers {
		if l.Fill != nil && slices.Contains(l.Programs, program) {
			return l.Fill
		}
	}
	return nil
}

// Fills are the programs that get their hosts by words.
func Fills() (programs []string) {
	for _, l := range launchers {
		if l.Fill != nil {
			programs = append(programs, l.Programs...)
		}
	}
	return programs
}

// HostfileReader is a program that looks for its hosts in one file.
type HostfileReader struct{ Program, Hostfile string }

// HostfileReaders are all launchers that look for their hosts in one file each.
func HostfileReaders() (found []HostfileReader) {
	for _, l := range launchers {
		if l.Hostfile != "" {
			found = append(found, HostfileReader{l.Programs[0], l.Hostfile})
		}
	}
	return found
}
