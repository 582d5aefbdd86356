package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/launch"
)

// adopt returns the command line, and the environment, that a container was meant to start with: an ENTRYPOINT and a
// command that both name this program are one command line.
//
//	paiinit --timeout 1m -- paiinit --exec all -- CMD   paiinit run --timeout 1m --exec all -- CMD
//	paiinit --state-dir /x -- paiinit status            paiinit status, with PAIINIT_STATE_DIR=/x
//	paiinit -- --timeout 1m CMD                         paiinit run --timeout 1m -- CMD
//
// Of a flag that is given twice, the inner one wins. isSelf reports whether a word is the name of this program. Every
// round takes words away, so there is an end.
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
		case len(words) > 0 && len(words[0]) > 1 && words[0][0] == '-': // no program has such a name
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

// asEnvironment gives the variables of flags of run, for a command that may not have all of these flags.
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
	slices.Reverse(set) // the first of a name counts in an environment, the last one on a command line
	return slices.Concat(set, environ)
}

// isSelf reports whether a word of a command line is the name of this program: paiinit, or another name of the same
// file. By the names of the links in the state directory's bin it does another program's work, which a job may have as
// its command.
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
