package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

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
	if isRemoteShell(args) || commandOf(args) != "run" {
		return args, environ
	}
	rest := runArgs(args)[2:]
	for changed := false; ; changed = true {
		i := firstWord(runFlags(), rest)
		flags, words := rest[:i:i], rest[i:]
		if len(words) > 0 && words[0] == "--" {
			words = words[1:]
		}
		switch {
		case len(words) > 0 && len(words[0]) > 1 && words[0][0] == '-': // a flag, because no program has such a name
			rest = append(flags, words...)
			if own := commandOf(append(args[:1:1], words...)); own != "run" {
				return append(args[:1:1], words...), asEnvironment(flags, environ)
			}
		case len(words) > 0 && isSelf(words[0]):
			if isRemoteShell(words) || commandOf(words) != "run" {
				return words, asEnvironment(flags, environ)
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

// asEnvironment turns flags of run into variables, for a command that may not have all of these flags.
func asEnvironment(flags, environ []string) []string {
	var set []string
	for i := 0; i < len(flags); i++ {
		name, value, given := strings.Cut(strings.TrimLeft(flags[i], "-"), "=")
		for _, f := range runFlags() {
			if !slices.Contains(f.Names(), name) {
				continue
			}
			if d, ok := f.(cli.DocGenerationFlag); !given && ok && d.TakesValue() && i+1 < len(flags) {
				i++
				value, given = flags[i], true
			}
			if !given {
				value = "true"
			}
			set = append(set, twin(name)+"="+value)
		}
	}
	slices.Reverse(set) // in an environment the first entry of a name wins, on a command line the last
	return slices.Concat(set, environ)
}

// isSelf reports whether a word of a command line names this program: paiinit, or another name of the same file. The
// names of the links in the state directory's bin do not count: under these, this program does the work of another
// program, which may be a job's command.
func isSelf(word string, environ []string) bool {
	switch filepath.Base(word) {
	case "paiinit":
		return true
	case "ssh", "rsh":
		return false
	}
	if launch.FillNamed(filepath.Base(word)) != nil {
		return false
	}
	dir, err := os.Getwd()
	if err != nil {
		return false
	}
	path, err := launch.Look(word, environ, dir)
	if err != nil {
		return false
	}
	own, errOwn := os.Stat("/proc/self/exe")
	other, err := os.Stat(path)
	return errOwn == nil && err == nil && os.SameFile(own, other)
}
