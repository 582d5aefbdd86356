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

// mpiOptions are the options of a launcher of the form `mpirun [OPTION...] PROGRAM [ARG...]`, without their dashes, in
// words with blanks between them.
type mpiOptions struct {
	// What is read: the number of ranks, names of hosts, the path of a host list.
	ranks, hosts, hostfile string
	// one are further options with one word of their own, two with two.
	one, two string
	// With unread the number of ranks or hosts follows from something else.
	unread string
}

// What an option means; where launchers that share a program differ, the first of these.
const (
	optionUnread = iota
	optionRanks
	optionHosts
	optionHostfile
	optionTwo
	optionOne
	optionNone // it has no word of its own, or nothing is known of it
)

// meaning is what an option means to a program, which may belong to several launchers.
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

// Asked reads the command line of a launcher, see [Called]. ok is false where
// it says something that this package does not understand: then nothing follows from it.
func Asked(line []string) (r Request, ok bool) {
	name, args := Called(line)
	for _, l := range launcherPrograms(name) {
		if l.Asked != nil {
			return l.Asked(args)
		}
	}
	return mpiAsked(name, args)
}

// mpiAsked reads the arguments of a program.
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
