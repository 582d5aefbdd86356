package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"

	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/joblog"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

const (
	tailLines = 20 // of a failed command's stderr, which every container logs

	// Kubernetes truncates a termination message to this many bytes (core/v1, Container.terminationMessagePath).
	maxTermination = 4096
)

// keptLines returns how many lines of the command's stderr to keep. It keeps none of a terminal: a pipe in its place
// would change how the command behaves.
func keptLines() int {
	if early.IsTerminal(int(os.Stderr.Fd())) {
		return 0
	}
	return tailLines
}

// sayEnd writes the termination message and the last log line of this container.
func (c *container) sayEnd(o rendezvous.Outcome) {
	line := []any{"phase", "exit", "status", o.Status, "reason", o.Reason, "elapsed", c.elapsed()}
	say := c.routine
	if o.Status != 0 {
		say = c.log.Error
		if n := launch.OOMKills(os.DirFS("/")) - c.oomKills; n > 0 {
			line = append(line, "memory", launch.OOMText(n)+" in this container")
			o.Reason += "; " + launch.OOMText(n) + " in " + c.job.Alias
		}
	}
	c.writeTermination(c.agent.Environ, c.log, o)
	c.stderr.Ending()
	say("the job has ended", append(line, joblog.Text(fmt.Sprintf("the job has ended with status %d after %s: %s",
		o.Status, joblog.Seconds(c.elapsed()), o.Reason)))...)
}

// writeTermination writes the reason of a failure to the file that Kubernetes reads, if that file exists or
// PAIINIT_TERMINATION_LOG names it.
func (s *settings) writeTermination(environ []string, log *slog.Logger, o rendezvous.Outcome) {
	asked := s.absolute(launch.Value(environ, "PAIINIT_TERMINATION_LOG"))
	name := cmp.Or(asked, "/dev/termination-log")
	if _, err := os.Stat(name); o.Status == 0 || asked == "" && err != nil {
		return
	}
	text := fmt.Sprintf("paiinit: the job ended with status %d: %s\n", o.Status, o.Reason)
	if len(text) > maxTermination {
		text = text[:maxTermination-1] + "\n"
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil && asked != "" {
		log.Warn("the termination message cannot be written", "phase", "exit", "err", err)
	}
}
