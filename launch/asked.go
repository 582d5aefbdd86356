package launch

import (
	"slices"
	"strconv"
	"strings"
)

// Request is what a launcher's command line asks for.
type Request struct {
	// Ranks is the number of ranks, 0 if it is left to the launcher: one on every slot.
	Ranks int
	// Hosts are the names of -host, each as often as it has slots there; nil if there is no such list.
	Hosts []string
	// Hostfile is the path of the host list that is read instead of the one in the environment, "" if there is none.
	Hostfile string
	// HostfileOptional says that the hosts of the job are meant where there is no Hostfile.
	HostfileOptional bool
	// Without are hosts of the list that are not used.
	Without []string
	// Nodes is the number of hosts on which every slot is used, 0 if the hosts follow from Ranks.
	Nodes int
}

// FewestHosts is how many hosts the launcher needs at least, given the slots of each host that it may use.
func (r Request) FewestHosts(slots []int) int {
	n := FewestHosts(r.Ranks, slots)
	if r.Nodes > 0 {
		return min(n, r.Nodes)
	}
	return n
}

// Options of Open MPI's mpirun (orterun(1), prterun(1)) and of hydra's mpiexec (its --help), without their dashes.
var (
	optionsRanks    = []string{"n", "np", "c"}
	optionsHosts    = []string{"H", "host", "hosts"}
	optionsHostfile = []string{"hostfile", "machinefile", "default-hostfile", "f"}

	// optionsWords are further options with one word of their own, optionsTwoWords with two.
	optionsWords = []string{
		"x", "wdir", "wd", "map-by", "rank-by", "bind-to", "path", "prefix", "output-filename", "output", "stdin", "timeout", "report-state-on-timeout",
		"am", "tune", "max-restarts", "report-uri", "report-pid", "server", "ompi-server", "personality", "rf", "rankfile", "cpu-set", "cpu-list", "display",
		"runtime-options", "prtemca-file", "iface", "launcher", "bootstrap", "launcher-exec", "bootstrap-exec", "rmk", "demux", "wdir", "configfile",
		"envlist", "genvlist", "ckpoint-interval", "usize", "outfile-pattern", "errfile-pattern", "topolib", "gpus-per-proc",
	}
	optionsTwoWords = []string{"mca", "gmca", "prtemca", "pmixmca", "omca", "env", "genv"}

	// With these the number of ranks or hosts follows from something else.
	optionsUnread = []string{"N", "npernode", "pernode", "npersocket", "ppn", "perhost", "app", "configfile", "hnp", "dvm", "loadbalance"}
)

// Asked reads the command line of a launcher: an MPI launcher, horovodrun or deepspeed, see [Called]. ok is false where
// it says something that this package does not understand: then nothing follows from it.
func Asked(line []string) (r Request, ok bool) {
	switch name, args := Called(line); name {
	case "":
		return Request{}, false
	case "horovodrun":
		return horovodAsked(args)
	case "deepspeed":
		return deepSpeedAsked(args)
	default:
		return mpiAsked(args)
	}
}

func mpiAsked(words []string) (r Request, ok bool) {
	next := func() string {
		if len(words) == 0 {
			return ""
		}
		w := words[0]
		words = words[1:]
		return w
	}
	for len(words) > 0 {
		word := next()
		if !strings.HasPrefix(word, "-") || word == "-" {
			// The program. Behind a ":" there may be another one, with options of its own.
			if slices.Contains(words, ":") {
				return Request{}, false
			}
			return r, true
		}
		name, value, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
		take := func() string {
			if given {
				return value
			}
			return next()
		}
		switch {
		case slices.Contains(optionsUnread, name):
			return Request{}, false
		case slices.Contains(optionsRanks, name):
			n, err := strconv.Atoi(take())
			if err != nil || n < 1 {
				return Request{}, false
			}
			r.Ranks = n
		case slices.Contains(optionsHosts, name):
			hosts, ok := hostWords(take())
			if !ok {
				return Request{}, false
			}
			r.Hosts = append(r.Hosts, hosts...)
		case slices.Contains(optionsHostfile, name):
			r.Hostfile = take()
		case slices.Contains(optionsTwoWords, name):
			next()
			next()
		case slices.Contains(optionsWords, name):
			take()
		}
	}
	return Request{}, false // no program
}

// hostWords reads "a,b:2": a once, b twice.
func hostWords(list string) (hosts []string, ok bool) {
	for h := range strings.SplitSeq(list, ",") {
		name, count, counted := strings.Cut(h, ":")
		n := 1
		if counted {
			var err error
			if n, err = strconv.Atoi(count); err != nil || n < 1 || n > 1<<16 {
				return nil, false
			}
		}
		if name == "" || strings.HasPrefix(name, "+") {
			return nil, false
		}
		hosts = append(hosts, slices.Repeat([]string{name}, n)...)
	}
	return hosts, true
}

// FewestHosts is how many hosts a number of ranks needs at least, given the slots of each host. 0 ranks are one on every slot.
func FewestHosts(ranks int, slots []int) int {
	slots = slices.DeleteFunc(slices.Clone(slots), func(n int) bool { return n < 1 })
	slices.Sort(slots)
	slices.Reverse(slots) // SortFunc for numbers would make the program 8 kB bigger
	if ranks == 0 {
		return len(slots)
	}
	for i, n := range slots {
		if ranks -= n; ranks <= 0 {
			return i + 1
		}
	}
	return len(slots)
}
