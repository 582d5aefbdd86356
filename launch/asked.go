package launch

import (
	"slices"
	"strconv"
	"strings"
)

// Request holds what a launcher's command line asks for.
type Request struct {
	Ranks    int      // 0 means one per slot
	Hosts    []string // of -host, each as often as it has slots there; nil if there is no such option
	Hostfile string   // is read instead of the host list in the environment
	// HostfileOptional says that the launcher uses the hosts of the job if Hostfile does not exist.
	HostfileOptional bool
	Without          []string // hosts of the list that the launcher does not use
	Nodes            int      // the number of hosts on which all slots are used; 0 if Ranks decides about the hosts
}

// FewestHosts returns the smallest number of hosts that the launcher needs, given the slots of each host.
func (r Request) FewestHosts(slots []int) int {
	slots = slices.DeleteFunc(slices.Clone(slots), func(n int) bool { return n < 1 })
	slices.Sort(slots)
	slices.Reverse(slots) // SortFunc would make the program 8 kB bigger
	hosts := len(slots)
	if r.Nodes > 0 {
		hosts = min(hosts, r.Nodes)
	}
	room := 0
	for i, n := range slots[:hosts] {
		if room += n; r.Ranks > 0 && room >= r.Ranks {
			return i + 1
		}
	}
	return hosts
}

// mpiOptions are options of `mpirun [OPTION...] PROGRAM [ARG...]`, without dashes and separated by blanks.
type mpiOptions struct {
	ranks, hosts, hostfile string // the number of ranks, the names of hosts, the path of a host list
	one, two               string // other options with one word, with two words
	unread                 string // options with an effect on ranks or hosts that this package does not compute
}

// The meanings of an option. If launchers that share a program differ, the first meaning wins.
const (
	optionUnread = iota
	optionRanks
	optionHosts
	optionHostfile
	optionTwo
	optionOne
	optionNone // it takes no word, or is unknown
)

// meaning returns the meaning of an option of a program, which may belong to several launchers.
func meaning(program, option string) int {
	best := optionNone
	for _, l := range launcherPrograms(program) {
		o := &l.Options
		for i, list := range [...]string{o.unread, o.ranks, o.hosts, o.hostfile, o.two, o.one} {
			if i < best && slices.Contains(strings.Fields(list), option) {
				best = i
			}
		}
	}
	return best
}

// Asked reads the command line of a launcher, see [Called]. ok is false if something on it is not understood.
func Asked(line []string) (r Request, ok bool) {
	name, args := Called(line)
	for _, l := range launcherPrograms(name) {
		if l.Asked != nil {
			return l.Asked(args)
		}
	}
	return mpiAsked(name, args)
}

// mpiAsked reads the arguments of an MPI launcher's program.
func mpiAsked(program string, words []string) (r Request, ok bool) {
	next := func() (word string) {
		if len(words) > 0 {
			word, words = words[0], words[1:]
		}
		return word
	}
	for len(words) > 0 {
		word := next()
		if !strings.HasPrefix(word, "-") || word == "-" {
			// This is the user's program. After a ":" there may be another one with options of its own.
			return r, !slices.Contains(words, ":")
		}
		name, value, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
		what := meaning(program, name)
		if what != optionNone && !given {
			value = next()
		}
		switch what {
		case optionUnread:
			return Request{}, false
		case optionRanks:
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return Request{}, false
			}
			r.Ranks = n
		case optionHosts:
			hosts, ok := hostWords(value)
			if !ok {
				return Request{}, false
			}
			r.Hosts = append(r.Hosts, hosts...)
		case optionHostfile:
			r.Hostfile = value
		case optionTwo:
			next()
		}
	}
	return Request{}, false // no program
}

// hostWords reads a list such as "a,b:2", which holds a once and b twice.
func hostWords(list string) (hosts []string, ok bool) {
	for h := range strings.SplitSeq(list, ",") {
		name, count, counted := strings.Cut(h, ":")
		n, err := 1, error(nil)
		if counted {
			n, err = strconv.Atoi(count)
		}
		if err != nil || n < 1 || n > 1<<16 || name == "" || strings.HasPrefix(name, "+") {
			return nil, false
		}
		hosts = append(hosts, slices.Repeat([]string{name}, n)...)
	}
	return hosts, true
}
