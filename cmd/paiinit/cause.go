package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/joblog"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

const tailLines = 20 // of a failed command's stderr, which every container logs

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
	say := c.routine
	if o.Status != 0 {
		say = c.log.Error
	}
	o.After = cmp.Or(o.After, c.elapsed())
	c.writeTermination(c.agent.Environ, c.log, o)
	c.stderr.Ending()
	sayOutcome(say, o)
}

// sayOutcome logs how the job ended.
func sayOutcome(say func(string, ...any), o rendezvous.Outcome) {
	line := []any{"phase", "exit", "status", o.Status, "reason", o.Reason, "elapsed", o.After}
	for _, a := range [][2]string{{"stderr", o.Stderr}, {"stdout", o.Stdout}, {"hint", o.Next}} {
		if a[1] != "" {
			line = append(line, a[0], a[1])
		}
	}
	say("the job has ended", append(line, joblog.Text(launch.Outcome(o).Text(0)))...)
}

// writeTermination writes the reason of a failure to the file that Kubernetes reads, if that file exists or
// PAIINIT_TERMINATION_LOG names it.
func (s *settings) writeTermination(environ []string, log *slog.Logger, o rendezvous.Outcome) {
	asked := s.absolute(launch.Value(environ, "PAIINIT_TERMINATION_LOG"))
	if err := launch.Outcome(o).WriteTermination(asked); err != nil {
		log.Warn("the termination message cannot be written", "phase", "exit", "err", err)
	}
}

// nextAfter says what to do after a command on this rank has failed. lost are the ranks that rank 0 does not reach.
func (id *identity) nextAfter(o rendezvous.Outcome, ooms []launch.OOM, lost ...rendezvous.Loss) string {
	if o.Status == 0 || o.Stopped {
		return ""
	}
	if o.Hung {
		return hangAdvice(id.display())
	}
	_, docker := os.Stat("/.dockerenv")
	here := launch.Container{
		Environ: id.agent.Environ, Host: id.host, Own: id.job.Own(), Display: id.display(), Docker: docker == nil,
		Compose: id.job.System == "compose", Alone: id.job.Size == 1,
	}
	var names []string
	for _, l := range lost {
		names = append(names, l.Name)
	}
	return here.Next(ooms, o.Status == statusRetry, strings.Join(rendezvous.FoldNames(names), ", "))
}

// scene says where the command of this rank runs.
func (a *agreement) scene() launch.Scene {
	return launch.Scene{Rank: a.self().Rank, Place: a.place(a.self()), Find: func(host string) string {
		if h, ok := a.book().Find(host); ok {
			return rendezvous.DisplayAt(h.Tool, h.Alias, h.Addr.Addr())
		}
		return host
	}}
}

// place names the container of a rank; "" in a job of one.
func (a *agreement) place(m rendezvous.Member) string {
	if len(a.roster.Members) == 1 {
		return ""
	}
	return rendezvous.DisplayAt(m.Own, m.Alias, m.Addr.Addr())
}

// ooms asks all ranks how many processes the kernel has killed for lack of memory; here is the answer of this one.
func (a *agreement) ooms(ctx context.Context, node *rendezvous.Node, here int) (found []launch.OOM) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	kills := map[int]int{}
	if len(a.roster.Members) > 1 {
		kills = node.Kills(ctx)
	}
	kills[a.self().Rank] = here
	for _, m := range a.roster.Members {
		if n := kills[m.Rank]; n > 0 {
			found = append(found, launch.OOM{Place: a.place(m), Kills: n})
		}
	}
	return found
}
