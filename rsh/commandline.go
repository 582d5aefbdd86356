package rsh

import (
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Help is the help text of the command line.
const Help = `paiinit rsh: run a command or a shell on another rank, like ssh

Usage: paiinit rsh [--secret-file FILE] [SSH OPTIONS] [USER@]HOST [COMMAND...]

HOST is a name or an address of a rank: see paiinit env, or the host list. The
/bin/sh of that container runs the words of COMMAND, joined by spaces. Without
COMMAND, at a terminal, rsh starts a shell (~. leaves it).

Under the name ssh, a HOST outside of the job is handed to the next ssh in
PATH, if there is one, with all its words.

Options are those of OpenSSH's client, before or after HOST. -t, -tt, -T, -n,
-s, -e, -p, their -o twins, SetEnv and SendEnv work as they do there; the other
rank accepts LANG, LC_*, TERM and COLORTERM. COMMAND runs as the user of the
other container; USER@ may name that user or the caller. The job knows the
address, the login and the host key of each rank, so most other options are
ignored. -D, -G, -L, -N, -O, -R, -W, -w and RemoteCommand are refused.

rsh asks the paiinit that started it, else the paiinit of PAIINIT_AGENT or
PAIINIT_STATE_DIR, else the only paiinit here. If none runs, rsh connects to
HOST itself. For that it needs the secret of the job: --secret-file,
PAIINIT_SECRET_FILE, PAIINIT_SECRET, or the key that the scheduler shares.

The exit status is that of COMMAND; 128+n if signal n ended it; 255 if it could
not be run or its connection was lost.

Examples:
  paiinit rsh worker-3
  paiinit rsh 10.0.0.7 'df -h | grep shm'
`

// CommandLine reads the words after `paiinit rsh` or ssh: those of Parse, and --secret-file, the only option that ssh
// does not have. It drops the caller's own login name: the other container's user may have another name.
func CommandLine(words, environ []string) (inv Invocation, secretFile string, err error) {
	secretFile, words = takeSecretFile(words)
	inv, err = Parse(words)
	if isOwnName(inv.User, environ) {
		inv.User = ""
	}
	return inv, secretFile, err
}

// takeSecretFile removes --secret-file, which stands before HOST.
func takeSecretFile(words []string) (secretFile string, rest []string) {
	for i, w := range words {
		if !strings.HasPrefix(w, "-") {
			break
		}
		if v, ok := strings.CutPrefix(w, "--secret-file="); ok {
			return v, slices.Delete(slices.Clone(words), i, i+1)
		}
		if w == "--secret-file" && i+1 < len(words) {
			return words[i+1], slices.Delete(slices.Clone(words), i, i+2)
		}
	}
	return "", words
}

// isOwnName reports whether name is the login name of this process's user. It also accepts USER and the numeric ID, for
// users without an entry in the user database.
func isOwnName(name string, environ []string) bool {
	uid := strconv.Itoa(os.Getuid())
	if name == "" || name == uid || slices.Contains(environ, "USER="+name) {
		return true
	}
	u, err := user.LookupId(uid)
	return err == nil && u.Username == name
}

// CatchSignals returns a channel of the signals that a caller forwards.
func CatchSignals() <-chan os.Signal {
	caught := make(chan os.Signal, 16)
	signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH)
	return caught
}
