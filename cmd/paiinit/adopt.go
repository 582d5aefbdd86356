package main

import (
	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/early"
)

// adopt merges an ENTRYPOINT and a command that both name this program into one command line.
func adopt(args, environ []string, isSelf func(word string) bool) (adopted, environment []string) {
	command := func(args []string) string {
		if isRemoteShell(args) {
			return "rsh"
		}
		return early.CommandOf(args)
	}
	return cmdline.Program{Flags: runFlags, Command: command, IsSelf: isSelf}.Adopt(args, environ)
}
