package launch

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Fill describes how to pass hosts to a launcher that takes them from its command line only: a program of its name in
// the job's bin directory adds words and executes the real launcher.
type Fill struct {
	Read    func(args []string) HostLine
	Dialect string // of the host list, which limits the names of hosts
	// NetworkOption is the option that chooses its interface; NetworkVariables are variables that do so.
	NetworkOption    string
	NetworkVariables []string
	// LacksNetwork reports, from the beginning of the program's file, whether its version lacks that option.
	LacksNetwork func(file []byte) bool
	// Words returns the words that pass it the hosts, each "NAME:SLOTS", and the number of ranks unless it is 0.
	Words func(hosts []string, ranks int) []string
}

// HostLine holds what a command line says about where to run.
type HostLine struct {
	Request
	// Launches is false if the command only prints something (--version, --check-build, --help) or has no COMMAND.
	Launches bool
	Given    string // the option by which the user has chosen the hosts
	Network  string // the option by which the user has chosen the network
	Unread   string // the first unknown option
	Options  int    // the number of words before COMMAND
	readable bool
}

// HostSlots is a host of the job.
type HostSlots struct {
	Name  string
	Slots int
	Local bool // the launcher runs there
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
	for _, l := range launcherPrograms(program) {
		if l.Fill != nil {
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

// HostfileReaders returns the launchers that look for their hosts in a fixed file and that a command may start on all
// hosts: the command is the launcher, or may be a script that calls it. If every rank runs the command, a script's
// launcher stays on its own host, because every rank starts one. A user may start any of them beside an empty command.
func HostfileReaders(command []string, everywhere bool) (found []HostfileReader) {
	name, _ := Called(command)
	mayBeScript := name == "" && !everywhere && !Spawns(command) && !ReachesHosts(command)
	for _, l := range launchers {
		if l.Hostfile != "" && (mayBeScript || name == l.Programs[0]) {
			found = append(found, HostfileReader{l.Programs[0], l.Hostfile})
		}
	}
	return found
}

// FillCall is a call of a launcher that takes its hosts from its command line only.
type FillCall struct {
	Args    []string // without those of COMMAND
	Dir     string   // working directory
	Network string   // the interface that the environment names, "" if it names none
	Old     bool     // this version has no option for the interface
}

// Call describes a call of the launcher in the file path, without its working directory. ok is false if the call needs
// no hosts: it only prints something, or its process is a rank.
func (f *Fill) Call(args []string, path string, environ []string) (c FillCall, ok bool) {
	line := f.Read(args)
	if !line.Launches || InsideRank(environ) {
		return FillCall{}, false
	}
	c.Args = append(slices.Clone(args[:line.Options]), "COMMAND")
	if file, err := os.Open(path); err == nil {
		b, err := io.ReadAll(io.LimitReader(file, 4096))
		c.Old = err == nil && f.LacksNetwork(b)
		_ = file.Close()
	}
	for _, variable := range f.NetworkVariables {
		c.Network = cmp.Or(c.Network, Value(environ, variable))
	}
	return c, true
}

// FillJob is the job whose hosts a launcher gets.
type FillJob struct {
	Hosts      []HostSlots                      // of all ranks
	Everywhere bool                             // every rank runs the command
	Network    string                           // the interface that the ranks share, "" to leave it to the launcher
	Check      func(dialect, host string) error // why a host list of a dialect cannot hold a name
	Settled    func(option string) bool         // whether the user has chosen already what an option would choose
}

// Fill returns the arguments that a launcher's command line lacks: the hosts with slots, the number of processes, and
// the network interface.
func (a *Asks) Fill(ctx context.Context, program string, c FillCall, job FillJob) []string {
	how := FillNamed(program)
	line := how.Read(c.Args)
	switch {
	case len(job.Hosts) < 2 || !line.Launches:
		return nil
	case job.Everywhere:
		a.Log.Warn(program+" gets no hosts with --exec all", "phase", "launch",
			"reason", "every rank would start the processes of all ranks",
			"hint", "with --exec rank0, the default, "+program+" starts once and uses all hosts")
		return nil
	case line.Given != "":
		a.Log.Debug(program+" gets no hosts: its command line chooses them", "phase", "launch", "option", line.Given)
		a.Note(ctx, slices.Concat([]string{program}, c.Args), c.Dir)
		return nil
	}
	hosts := slices.DeleteFunc(job.Hosts, func(h HostSlots) bool { return h.Slots < 1 })
	for _, h := range hosts {
		if err := job.Check(how.Dialect, h.Name); err != nil {
			a.Log.Warn(program+" gets no hosts", "phase", "launch", "err", err)
			return nil
		}
	}
	add, slots, remote := how.Add(line, hosts)
	if len(add) == 0 {
		return nil
	}
	// Horovod fails if it gets an interface and all hosts are local.
	if job.Network != "" && remote && line.Network == "" && !c.Old && (c.Network == "" || c.Network == job.Network) &&
		!job.Settled(how.NetworkOption) {
		add = append(add, how.NetworkOption, job.Network)
	}
	a.Log.Debug(program+" is given the hosts of this job", "phase", "launch", "added", strings.Join(add, " "))
	if line.Ranks > slots {
		a.Log.Warn(program+" is asked for more processes than the job has slots", "phase", "launch",
			"processes", line.Ranks, "slots", slots,
			"hint", "--slots sets how many processes belong on a container")
	}
	a.Note(ctx, slices.Concat([]string{program}, add, c.Args), c.Dir)
	return add
}

// Slots returns the slots of the hosts from which the launcher may choose, by the names that find returns. all has the
// slots of all hosts; read reads a host list.
func (r Request) Slots(
	all map[string]int, find func(host string) (name string, ok bool), read func(file string) ([]HostSlots, error),
) (map[string]int, error) {
	file := r.Hostfile
	if _, err := os.Stat(file); err != nil && r.HostfileOptional {
		file = ""
	}
	listed, slots := []HostSlots(nil), make(map[string]int)
	switch {
	case r.Hosts != nil:
		for _, host := range r.Hosts {
			listed = append(listed, HostSlots{Name: host, Slots: 1})
		}
	case file != "":
		var err error
		if listed, err = read(file); err != nil {
			return nil, err
		}
	default:
		maps.Copy(slots, all)
	}
	for _, h := range listed {
		name, ok := find(h.Name)
		if !ok {
			return nil, fmt.Errorf("%s is no container of this job", h.Name)
		}
		slots[name] += h.Slots
	}
	for _, host := range r.Without {
		if name, ok := find(host); ok {
			delete(slots, name)
		}
	}
	return slots, nil
}
