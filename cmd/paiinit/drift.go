package main

import (
	"context"
	"os"

	"github.com/paiinit/paiinit/inspect"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/rendezvous"
)

// checks are the site's own check of this container, and on rank 0 the results and the facts of all ranks.
type checks struct {
	facts     inspect.Check
	preflight launch.Preflights
}

func (k *checks) noted(n rendezvous.Note) {
	if n.Kind == rendezvous.Facts {
		k.facts.Put(n.ID, n.Text, n.Skew)
	} else {
		k.preflight.Put(n.ID, n.Text)
	}
}

// begin runs the preflight until ctx ends, and tells rank 0 the facts of this container.
func (k *checks) begin(ctx context.Context, c *container) {
	self := c.node.Self()
	tell := func(kind string) func([]byte) {
		return func(text []byte) {
			k.noted(rendezvous.Note{ID: self.ID, Kind: kind, Text: text})
			c.node.Tell(kind, text)
		}
	}
	rest := func() bool { // until after the launch, or into a long wait
		soon, cancel := context.WithTimeout(c.running, postLaunchDelay)
		defer cancel()
		_, _ = c.node.Gather(soon)
		return c.node.Rest(c.running, deferUntilLaunched)
	}
	if c.job.Size != 1 {
		s := inspect.Here(c.agent.Environ, self.Network)
		s.Program, s.Words, s.Dir, s.GPUs = c.command, c.settings.command, c.dir, c.job.GPUs
		c.serve.Go(func() { k.facts.Collect(c.running, rest, s, tell(rendezvous.Facts)) })
	}
	cmd := launch.Command{Dir: c.dir, Stderr: os.Stderr, Fork: c.agent.StartWithSlack}
	cmd.Environ, _ = launch.Merge(c.agent.Environ, c.agreed().position().Variables())
	c.serve.Go(func() { k.preflight.Run(ctx, cmd, c.timeout, tell(rendezvous.Preflight)) })
}

// refuse returns the outcome of a job whose preflights have failed, or whose ranks differ with --check require.
func (k *checks) refuse(r rendezvous.Roster) *rendezvous.Outcome {
	ranks := ranksToCompare(r.Members)
	if reason := k.preflight.Refuse(inspect.Names(ranks)); reason != "" {
		return &rendezvous.Outcome{Status: statusUnmendable, Reason: reason}
	}
	reason, retry := k.facts.Refuse(ranks)
	switch {
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
			Rank: m.Rank, ID: m.ID, Name: m.Alias, Role: m.Role, LaunchOnly: m.Slots == 0, GPUs: m.GPUs,
		})
	}
	return ranks
}

// Drift returns what differs between the ranks, on rank 0.
func (a answers) Drift() (*localapi.Drift, *localapi.Refusal) {
	r := a.c.agreed().roster.Members
	switch {
	case len(r) == 0:
		return nil, &localapi.Refusal{Exit: statusRetry, Text: "the ranks are compared once all are present"}
	case r[0].Nonce != a.c.nonce:
		return nil, &localapi.Refusal{Exit: statusUsage, Text: "rank 0 compares the ranks; " +
			"ask there: paiinit rsh " + r[0].Alias + " paiinit status --drift"}
	}
	rows, absent := a.c.checks.facts.Table(ranksToCompare(r))
	return &localapi.Drift{Mode: a.c.compare, Size: len(r), Absent: absent, Rows: rows}, nil
}
