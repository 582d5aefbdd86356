package cmdline

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// FlagsFirst moves the words of a command behind its flags, because the library stops parsing flags at the first word.
func FlagsFirst(flags []cli.Flag, args []string) []string {
	var words []string
	for {
		i := FirstWord(flags, args)
		if i == len(args) || args[i] == "--" {
			return slices.Concat(args[:i], words, args[i:])
		}
		words = append(words, args[i])
		args = slices.Concat(args[:i], args[i+1:])
	}
}

// FirstWord returns the index of the first argument that is neither a flag nor the value of a flag. "--" counts as a
// word.
func FirstWord(flags []cli.Flag, args []string) int {
	for i := 0; i < len(args); i++ {
		switch name := strings.TrimLeft(args[i], "-"); {
		case args[i] == "--" || args[i] == "-" || !strings.HasPrefix(args[i], "-"):
			return i
		case takesValue(flags, name):
			i++ // its value is the next argument: with --name=value, name would not match
		}
	}
	return len(args)
}

func takesValue(flags []cli.Flag, name string) bool {
	d, ok := named(flags, name).(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// named returns the flag of a name, nil if there is none.
func named(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// Variables returns the twins of the flags in args, with their values, from the last to the first: of equal names the
// first wins in an environment, the last on a command line.
func Variables(flags []cli.Flag, args []string) []string {
	var set []string
	for i := 0; i < len(args); i++ {
		name, value, given := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if named(flags, name) == nil {
			continue
		}
		if !given {
			value = "true"
			if takesValue(flags, name) && i+1 < len(args) {
				i++
				value = args[i]
			}
		}
		set = append(set, Twin(name)+"="+value)
	}
	slices.Reverse(set)
	return set
}

// Closest returns the first of the names that needs the fewest edits to become the word, "" if all need more than a
// third of the word's length.
func Closest(word string, names []string) string {
	for edits := range 1 + len(word)/3 {
		for _, name := range names {
			if within(edits, strings.ToLower(word), name) {
				return name
			}
		}
	}
	return ""
}

// within reports whether at most this number of edits turns one word into the other: insertions, deletions,
// replacements, and swaps of neighbours.
func within(edits int, a, b string) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	switch {
	case max(len(a), len(b)) <= edits:
		return true
	case edits == 0, len(a) > len(b)+edits, len(b) > len(a)+edits:
		return false
	case a != "" && within(edits-1, a[1:], b), b != "" && within(edits-1, a, b[1:]):
		return true
	case a == "" || b == "":
		return false
	}
	swapped := len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0]
	return within(edits-1, a[1:], b[1:]) || swapped && within(edits-1, a[2:], b[2:])
}
