// Package testsignals gives the processes that a test starts the signal dispositions that the test expects.
//
// nohup, background jobs of a shell and some CI runners start a test with SIGHUP, SIGINT or SIGQUIT ignored, and every
// child process inherits that.
package testsignals

import (
	"os"
	"os/signal"
	"syscall"
)

// Default makes future child processes start with the default disposition of the signals that this process inherited as
// ignored. This process still survives these signals. A TestMain calls it first.
func Default() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			// exec resets a caught signal to its default, but not an ignored one; Stop and Reset would ignore it again.
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}
