package launch

import (
	"path"
	"slices"
	"strings"
)

// launcherModule returns the launcher that a Python module starts, "" if it starts none.
func launcherModule(name string) string {
	for _, l := range launchers {
		if l.has(ranks) && slices.Contains(l.Modules, name) {
			return l.Programs[0]
		}
	}
	return ""
}

var shells = []string{"sh", "bash", "dash", "ash", "ksh", "zsh"}

// Called splits a command line that starts a launcher: by its name or path, as the script of an interpreter (the form
// in /proc), or as a Python module. name is a program of a launcher of ranks, "" for every other command.
func Called(line []string) (name string, args []string) {
	if len(line) == 0 {
		return "", nil
	}
	name, args = path.Base(line[0]), line[1:]
	python := strings.HasPrefix(name, "python")
	if !python && !slices.Contains(shells, name) {
		return launcherName(name), args
	}
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		switch {
		case python && word == "-m" && len(args) > 0:
			return launcherModule(args[0]), args[1:]
		case python && strings.HasPrefix(word, "-m"):
			return launcherModule(word[2:]), args
		case python && (word == "-W" || word == "-X") && len(args) > 0:
			args = args[1:]
		case word == "-" || strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--") &&
			strings.HasSuffix(word, "c"):
			return "", nil // -c, alone or after other letters: the program is text
		case !strings.HasPrefix(word, "-"):
			return launcherName(path.Base(word)), args
		}
	}
	return "", nil
}

func launcherName(name string) string {
	if programStarts(name, ranks) {
		return path.Base(name)
	}
	return ""
}

// ReachesHosts reports whether a command line calls a program that starts processes on other hosts itself, so that only
// one rank may run it. It does not look into shell scripts.
func ReachesHosts(line []string) bool {
	name, _ := Called(line)
	return name != "" || len(line) > 0 && programStarts(line[0], otherHosts)
}

// asksVersion reports whether a launcher, or a script in its place, was started only to print its version: such a
// launcher has no ranks.
func asksVersion(line []string) bool {
	if len(line) < 2 || len(line) > 3 {
		return false
	}
	name, _ := Called(line)
	last := line[len(line)-1]
	return last == "--version" || name != "" && last == versionOption(name)
}

// isProbe reports whether a command on another host only finds out whether that host answers and how it is reached.
// horovodrun does so before it starts anything.
func isProbe(command string) bool {
	words := strings.Fields(command)
	if len(words) == 1 && words[0] == "true" {
		return true
	}
	i := slices.Index(words, "-m")
	for _, l := range launchers {
		if i >= 0 && i+1 < len(words) && slices.Contains(l.Probes, words[i+1]) {
			return true
		}
	}
	return false
}

// options are the options of a program that reads its command line with Python's argparse, without dashes, by the
// number of words that follow each. They are strings, because maps would be built at every start of the program.
type options struct{ none, one, two string }

// words returns the number of words that follow an option.
func (o options) words(name string) (n int, known bool) {
	for n, names := range []string{o.none, o.one, o.two} {
		if slices.Contains(strings.Fields(names), name) {
			return n, true
		}
	}
	return 0, false
}

// next takes the first option from args and returns its name, its values, and the words after it. known is false if the
// option is not listed; ok is false if args does not begin with an option.
func (o options) next(args []string) (name string, values, rest []string, known, ok bool) {
	if len(args) == 0 || len(args[0]) < 2 || args[0][0] != '-' || args[0] == "--" {
		return "", nil, args, false, false
	}
	word, rest := args[0], args[1:]
	name, value, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
	n, known := o.words(name)
	if !known && strings.HasPrefix(word, "--") {
		name = o.complete(name)
		n, known = o.words(name)
	} else if !known && len(word) > 2 { // "-Ha:1" is "-H a:1"
		if m, short := o.words(word[1:2]); short && m == 1 {
			return word[1:2], []string{word[2:]}, rest, true, true
		}
	}
	switch {
	case !known:
		return name, nil, rest, false, true
	case given:
		return name, []string{value}, rest, true, true
	}
	n = min(n, len(rest))
	return name, rest[:n], rest[n:], true, true
}

// complete returns the only option that begins with prefix; if there are none or several, prefix itself.
func (o options) complete(prefix string) string {
	found := prefix
	for _, full := range strings.Fields(o.none + " " + o.one + " " + o.two) {
		switch {
		case len(prefix) < 2 || !strings.HasPrefix(full, prefix):
		case found != prefix:
			return prefix
		default:
			found = full
		}
	}
	return found
}
