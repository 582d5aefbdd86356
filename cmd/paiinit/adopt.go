package main

import (
	"path/filepath"
	"slices"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/launch"
)

// adopt merges an ENTRYPOINT and a command that both name this program into one command line. It returns that command
// line and its environment:
//
//	paiinit --timeout 1m -- paiinit --exec all -- CMD   paiinit run --timeout 1m --exec all -- CMD
//	paiinit --state-dir /x -- paiinit status            paiinit status, with PAIINIT_STATE_DIR=/x
//	paiinit -- --timeout 1m CMD                         paiinit run --timeout 1m -- CMD
//
// If a flag is given twice, the inner one wins. isSelf reports whether a word is the name of this program. The loop
// ends, because every round removes words.
func adopt(args, environ []string, isSelf func(word string) bool) (adopted, environment []string) {
	if isRemoteShell(args) || early.CommandOf(args) != "run" {
		return args, environ
	}
	known, rest := runFlags(), runArgs(args)[2:]
	for changed := false; ; changed = true {
		i := cmdline.FirstWord(known, rest)
		flags, words := rest[:i:i], rest[i:]
		// for another command, which may not have all of these flags
		asEnvironment := append(cmdline.Variables(known, flags), environ...)
		if len(words) > 0 && words[0] == "--" {
			words = words[1:]
		}
		switch {
		case len(words) > 0 && len(words[0]) > 1 && words[0][0] == '-': // a flag, because no program has such a name
			rest = append(flags, words...)
			if own := early.CommandOf(append(args[:1:1], words...)); own != "run" {
				return append(args[:1:1], words...), asEnvironment
			}
		case len(words) > 0 && isSelf(words[0]):
			if isRemoteShell(words) || early.CommandOf(words) != "run" {
				return words, asEnvironment
			}
			rest = append(flags, runArgs(words)[2:]...)
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

// isSelf reports whether a word of a command line names this program: paiinit, or another name of the same file. The
// names of the links in the state directory's bin do not count: under these, this program does the work of another
// program, which may be a job's command.
func isSelf(word string, environ []string) bool {
	switch name := filepath.Base(word); {
	case name == "paiinit":
		return true
	case name == "ssh", name == "rsh", launch.FillNamed(name) != nil:
		return false
	}
	path, err := launch.Look(word, environ, "")
	return err == nil && launch.IsSelf(path)
}
