package launch

import (
	"path"
	"slices"
	"strings"
)

// Called splits a command line that starts a launcher: by its name or path, as the script of an interpreter (the form
// in /proc), or as a Python module. name is a program of a launcher of ranks, "" for every other command.
func Called(line []string) (name string, args []string) {
	name, module, args := split(line, true)
	for _, l := range launchers {
		switch {
		case !l.has(ranks):
		case module && slices.Contains(l.Modules, name):
			return l.Programs[0], args
		case !module && slices.Contains(l.Programs, name):
			return name, args
		}
	}
	return "", nil
}

// split returns the name of the program that a command line starts, and its arguments. Behind python, and behind a
// shell if shells is true, the program is the script or the module; it has no name if it is a text.
func split(line []string, shells bool) (name string, module bool, args []string) {
	if len(line) == 0 {
		return "", false, nil
	}
	name, args = path.Base(line[0]), line[1:]
	python := strings.HasPrefix(name, "python")
	interpreter := python || shells && wrapper(name) == shell
	if !interpreter {
		return name, false, args
	}
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		switch {
		case python && word == "-m" && len(args) > 0:
			return args[0], true, args[1:]
		case python && strings.HasPrefix(word, "-m"):
			return word[2:], true, args
		case python && (word == "-W" || word == "-X") && len(args) > 0:
			args = args[1:]
		case !strings.HasPrefix(word, "-"):
			return path.Base(word), false, args
		case word == "-" || !strings.HasPrefix(word, "--") && strings.HasSuffix(word, "c"):
			return "", false, nil // -c, alone or after other letters
		}
	}
	return "", false, nil
}

// ReachesHosts reports whether a command line calls a program that starts processes on other hosts itself, so that only
// one rank may run it.
func ReachesHosts(line []string) bool {
	name, _ := Called(line)
	return name != "" || len(line) > 0 && programStarts(line[0], otherHosts)
}

// asksVersion reports whether a launcher, or a script in its place, only prints its version: it has no ranks.
func asksVersion(line []string) bool {
	if len(line) < 2 || len(line) > 3 {
		return false
	}
	name, _ := Called(line)
	last := line[len(line)-1]
	return last == "--version" || name != "" && last == versionOption(name)
}

// isProbe reports whether a command only finds out whether another host answers and how it is reached.
func isProbe(command string) bool {
	words := strings.Fields(command)
	if len(words) == 1 && words[0] == "true" {
		return true
	}
	module := slices.Index(words, "-m") + 1
	return module > 0 && module < len(words) && slices.ContainsFunc(launchers, func(l *Launcher) bool {
		return slices.Contains(l.Probes, words[module])
	})
}

// options are the options of a program that reads its command line with Python's argparse, without dashes, by the
// number of words that follow each. They are strings, because maps would be built at every start of the program.
type options struct{ none, one, two string }

// option is one option on a command line.
type option struct {
	word  string // as the user wrote it
	name  string // without dashes, in full
	value string // "a b" if two words follow it
	known bool
}

// read takes the options at the beginning of args, and returns the words after them.
func (o options) read(args []string) (found []option, rest []string) {
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && args[0] != "--" {
		word := args[0]
		args = args[1:]
		name, value, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
		n, known := o.words(name)
		if !known && strings.HasPrefix(word, "--") {
			name = o.complete(name)
			n, known = o.words(name)
		} else if m, short := o.words(word[1:2]); !known && short && m == 1 { // "-Ha:1" is "-H a:1"
			name, value, given, known = word[1:2], word[2:], true, true
		}
		if !given {
			n = min(n, len(args))
			value, args = strings.Join(args[:n], " "), args[n:]
		}
		found = append(found, option{word, name, value, known})
	}
	return found, args
}

// words returns the number of words that follow an option.
func (o options) words(name string) (n int, known bool) {
	for n, names := range []string{o.none, o.one, o.two} {
		if slices.Contains(strings.Fields(names), name) {
			return n, true
		}
	}
	return 0, false
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
