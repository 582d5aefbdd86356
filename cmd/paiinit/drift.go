package main

import (
	"context"
	"os"
	"time"

	"github.com/paiinit/paiinit/inspect"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/rendezvous"
)

// checkSetup describes this container for the comparison of the ranks and for its own preflight.
func (o *opened) checkSetup(id *identity, environ []launch.Var) inspect.Setup {
	self := o.node().Self()
	s := inspect.Setup{
		ID: self.ID, Alone: id.job.Size == 1, Node: o.node(), Timeout: id.timeout,
		Source: inspect.Here(id.agent.Environ, self.Network),
	}
	s.Source.Program, s.Source.Words, s.Source.Dir = id.command, id.settings.command, id.dir
	s.Source.GPUs = id.job.GPUs
	cmd := launch.Command{Dir: id.dir, Stderr: os.Stderr, Fork: id.agent.StartWithSlack}
	cmd.Environ, _ = launch.Merge(id.agent.Environ, environ)
	s.Preflight = func(ctx context.Context, limit time.Duration) (failure string, tail []string) {
		return launch.Preflight(ctx, cmd, id.preflight, limit)
	}
	return s
}

// refuseChecked returns the outcome of a job whose preflights have failed, or whose ranks differ with --check require.
func (o *opened) refuseChecked(r rendezvous.Roster) *rendezvous.Outcome {
	switch reason, retry := o.checks.Refuse(ranksToCompare(r.Members)); {
	case retry:
		return &rendezvous.Outcome{Status: statusRetry, Reason: reason}
	case reason != "":
		return &rendezvous.Outcome{Status: statusUnmendable, Reason: reason}
	}
	return nil
}

func ranksToCompare(members []rendezvous.Member) (ranks []inspect.Rank) {
	for _, m := range members {
		ranks = append(ranks, inspect.Rank{
			Rank: m.Rank, ID: m.ID, Name: m.Display(), Role: m.Role, LaunchOnly: m.Slots == 0, GPUs: m.GPUs,
		})
	}
	return ranks
}

// Drift returns what differs between the ranks, on rank 0.
func (a answers) Drift() (*localapi.Drift, *localapi.Refusal) {
	rows, absent, err := a.c.checks.Table()
	if err != nil {
		return nil, &localapi.Refusal{Exit: statusUsage, Text: err.Error()}
	}
	return &localapi.Drift{Mode: a.c.compare, Size: len(a.c.agreed().roster.Members), Absent: absent, Rows: rows}, nil
}
