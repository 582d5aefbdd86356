package main

import (
	"context"
	"os"
	"time"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/launch"
)

// hangSettings say when a command that goes on without progress has failed.
type hangSettings struct {
	hang         time.Duration // 0 = never
	progressFile string
}

// hangAdvice is what to do about a command that has hung in a container: its stacks are lost with it.
func hangAdvice(where string) string {
	return "start it again, and look at its stacks on " + where + " while it hangs: py-spy dump --pid PID, " +
		"or gdb -p PID; a longer --hang allows longer pauses"
}

// toTerminal reports whether the command writes to a terminal. A pipe in its place would change how it behaves.
func toTerminal() bool {
	return early.IsTerminal(int(os.Stdout.Fd())) || early.IsTerminal(int(os.Stderr.Fd()))
}

// checkHang refuses --hang where nothing shows whether the command goes on.
func (s *settings) checkHang() error {
	if s.hang == 0 || s.progressFile != "" || !toTerminal() {
		return nil
	}
	return cmdline.Errorf("--hang (%s) sees no output on a terminal: give --progress-file (%s), "+
		"or a standard output and standard error that are not terminals", cmdline.Twin("hang"),
		cmdline.Twin("progress-file"))
}

// watching returns how this rank watches its command. The workers of a leader write nothing while they wait for it.
func (a *agreement) watching() launch.Hang {
	h := launch.Hang{After: a.hang, File: a.progressFile, Terminal: toTerminal()}
	if a.hasLeader() && a.self().Rank != 0 {
		h.After = 0
	}
	if h.After > 0 && h.Terminal {
		a.log.Warn("--hang watches only the progress file", "phase", "launch", "file", h.File,
			"reason", "output on a terminal is not seen")
	}
	return h
}

// progress returns the state of the progress file, "" if there is none, or if its file system does not answer.
func (s *settings) progress(ctx context.Context) string {
	if s.progressFile == "" {
		return ""
	}
	state := make(chan string, 1)
	go func() { state <- launch.FileState(s.progressFile) }() // it may never return
	select {
	case text := <-state:
		return text
	case <-time.After(progressTimeout):
	case <-ctx.Done():
	}
	return ""
}

// progressTimeout is how long a restart waits for the state of the progress file.
const progressTimeout = 2 * time.Second
