package early

import "slices"

// CommandOf returns the command of this program on a command line: run, if the line names none. It returns "complete"
// for a shell that asks for completions, unless the flag for that follows "--" and so belongs to COMMAND.
func CommandOf(args []string) string {
	if args[len(args)-1] == CompletionFlag && !slices.Contains(args, "--") {
		return "complete"
	}
	if len(args) < 2 || !slices.Contains(Commands(), args[1]) {
		return "run"
	}
	switch args[1] {
	case "--help", "-h", "-help":
		return "help"
	case "--version", "-v", "-version":
		return "version"
	}
	return args[1]
}
