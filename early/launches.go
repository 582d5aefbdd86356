package early

import (
	"os"
	"path"
	"slices"
	"syscall"

	"github.com/paiinit/paiinit/pid1"
)

// Commands returns the first words of command lines that are not a launch.
func Commands() []string {
	return []string{
		"rsh", "each", "status", "wait", "barrier", "hosts", "hostfile", "env", "check", "rdma", "install", "version",
		"help", "sftp-server", "--help", "-h", "-help", "--version", "-v", "-version",
	}
}

// nested returns the variables that mark a process inside the job; package envspec has the same list.
func nested() []string {
	return []string{"PAIINIT_ACTIVE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID"}
}

// CompletionFlag is the last word of a command line that a shell wants to complete.
const CompletionFlag = "--generate-bash-completion"

// launches reports whether this is certainly the first process of a launch. It leaves the rest to main: other commands,
// ranks that a launcher has started, and command lines that may name this program twice.
func launches(args, environ []string) bool {
	if base(args) != "paiinit" || len(args) > 1 && slices.Contains(Commands(), args[1]) ||
		args[len(args)-1] == CompletionFlag {
		return false
	}
	for _, name := range append(nested(), pid1.Variable) { // pid1.Variable marks the second process
		if slices.ContainsFunc(environ, func(entry string) bool { return isSet(name, entry) }) {
			return false
		}
	}
	for _, word := range firstWords(args[1:]) {
		if isFlag(word) || isProgram(word) {
			return false
		}
	}
	return true
}

// firstWords returns the words that may be the job's command: only main knows which flags take a value.
func firstWords(words []string) []string {
	var found []string
	for i, word := range words {
		switch {
		case word == "--":
			return append(found, words[i+1:min(i+2, len(words))]...)
		case isFlag(word):
			continue
		}
		found = append(found, word)
		if i == 0 || !isFlag(words[i-1]) {
			break // this word is no flag's value, so it is the command or follows it
		}
	}
	return found
}

// isProgram reports whether a word may name the file of this program.
func isProgram(word string) bool {
	var own syscall.Stat_t
	if path.Base(word) == "paiinit" || syscall.Stat("/proc/self/exe", &own) != nil {
		return true
	}
	var other syscall.Stat_t
	same := func(file string) bool {
		return syscall.Stat(file, &other) == nil && other.Dev == own.Dev && other.Ino == own.Ino
	}
	if slices.Contains([]byte(word), '/') {
		return same(word)
	}
	search := os.Getenv("PATH")
	for begin, i := 0, 0; i <= len(search); i++ {
		if i < len(search) && search[i] != ':' {
			continue
		}
		if same(search[begin:i] + "/" + word) {
			return true
		}
		begin = i + 1
	}
	return false
}

func isFlag(word string) bool { return word != "" && word[0] == '-' }

// isSet reports whether an entry of the environment sets the variable.
func isSet(name, entry string) bool {
	return len(entry) > len(name) && entry[:len(name)] == name && entry[len(name)] == '='
}
