package cmdline

import (
	"slices"

	"github.com/urfave/cli/v2"
)

// Program is what Adopt knows of this program.
type Program struct {
	Flags   func() []cli.Flag          // of run
	Command func(args []string) string // the command that a command line asks for, run if it names none
	IsSelf  func(word string) bool     // reports whether a word is the name of this program
}

// Adopt merges an ENTRYPOINT and a command that both name this program into one command line. It returns that command
// line and its environment:
//
//	paiinit --timeout 1m -- paiinit --exec all -- CMD   paiinit run --timeout 1m --exec all -- CMD
//	paiinit --state-dir /x -- paiinit status            paiinit status, with PAIINIT_STATE_DIR=/x
//	paiinit -- --timeout 1m CMD                         paiinit run --timeout 1m -- CMD
//
// If a flag is given twice, the inner one wins. The loop ends, because every round removes words.
func (p Program) Adopt(args, environ []string) (adopted, environment []string) {
	if p.Command(args) != "run" {
		return args, environ
	}
	known, rest := p.Flags(), RunArgs(args)[2:]
	for changed := false; ; changed = true {
		i := FirstWord(known, rest)
		flags, words := rest[:i:i], rest[i:]
		// for another command, which may not have all of these flags
		asEnvironment := append(Variables(known, flags), environ...)
		if len(words) > 0 && words[0] == "--" {
			words = words[1:]
		}
		switch {
		case len(words) > 0 && len(words[0]) > 1 && words[0][0] == '-': // a flag, because no program has such a name
			rest = append(flags, words...)
			if own := append(args[:1:1], words...); p.Command(own) != "run" {
				return own, asEnvironment
			}
		case len(words) > 0 && p.IsSelf(words[0]):
			if p.Command(words) != "run" {
				return words, asEnvironment
			}
			rest = append(flags, RunArgs(words)[2:]...)
		case changed:
			if len(words) > 0 {
				words = append([]string{"--"}, words...)
			}
			return slices.Concat(args[:1], []string{"run"}, flags, words), environ
		default:
			return args, environ
		}
	}
}

// RunArgs returns the command line with "run" as its first word.
func RunArgs(args []string) []string {
	rest := args[1:]
	if len(rest) > 0 && rest[0] == "run" {
		rest = rest[1:]
	}
	return append([]string{args[0], "run"}, rest...)
}
