package launch

import (
	"slices"
	"strconv"
	"strings"
)

// Request holds what a launcher's command line asks for.
type Request struct {
	// Ranks is the number of ranks; 0 means one per slot.
	Ranks int
	// Hosts are the hosts of -host, each as often as it has slots there; nil if there is no such option.
	Hosts []string
	// Hostfile is the host list that is read instead of the one in the environment, "" if there is none.
	Hostfile string
	// HostfileOptional says that the launcher uses the hosts of the job if Hostfile does not exist.
	HostfileOptional bool
	// Without are hosts of the list that the launcher does not use.
	Without []string
	// Nodes is the number of hosts on which all slots are used; 0 if Ranks decides about the hosts.
	Nodes int
}

// FewestHosts returns the smallest number of hosts that the launcher needs, given the slots of each host that it may
// use.
func (r Request) FewestHosts(slots []int) int {
	n := FewestHosts(r.Ranks, slots)
	if r.Nodes > 0 {
		return min(n, r.Nodes)
	}
	return n
}

// mpiOptions are the options of a launcher of the form `mpirun [OPTION...] PROGRAM [ARG...]`, without dashes and
// separated by blanks.
type mpiOptions struct {
	// These options are read: the number of ranks, the names of hosts, the path of a host list.
	ranks, hosts, hostfile string
	// one are other options with one word, two those with two words.
	one, two string
	// unread are options that change the number of ranks or hosts in a way that this package does not compute.
	unread string
}

// The meanings of an option. If launchers that share a program differ, the first of these wins.
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

// Asked reads the command line of a launcher, see [Called]. ok is false if the line has something that this package
// does not understand; then nothing is known about the request.
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
			// This is the user's program. After a ":" there may be another one with options of its own.
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
		switch meaning(program, name) {
		case optionUnread:
			return Request{}, false
		case optionRanks:
			n, err := strconv.Atoi(take())
			if err != nil || n < 1 {
				return Request{}, false
			}
			r.Ranks = n
		case optionHosts:
			hosts, ok := hostWords(take())
			if !ok {
				return Request{}, false
			}
			r.Hosts = append(r.Hosts, hosts...)
		case optionHostfile:
			r.Hostfile = take()
		case optionTwo:
			next()
			next()
		case optionOne:
			take()
		}
	}
	return Request{}, false // no program
}

// hostWords reads a list such as "a,b:2", which holds a once and b twice.
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

// FewestHosts returns the smallest number of hosts that have room for a number of ranks, given the slots of each host.
// 0 ranks means one per slot.
func FewestHosts(ranks int, slots []int) int {
	slots = slices.DeleteFunc(slices.Clone(slots), func(n int) bool { return n < 1 })
	slices.Sort(slots)
	slices.Reverse(slots) // SortFunc would make the program 8 kB bigger
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
