package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

// answers implements localapi.Job: it answers the queries of processes in this container.
type answers struct{ c *container }

func (a answers) Status(ctx context.Context) *localapi.Status {
	return a.status(a.c.node().Status(ctx))
}

// Hosts lists the hosts of the live ranks.
func (a answers) Hosts(ctx context.Context) ([]localapi.Host, *localapi.Refusal) {
	return a.hosts(a.c.node().Status(ctx), true)
}

func (a answers) Hostfile(context.Context) ([]localapi.Host, *localapi.Refusal) {
	return a.hosts(a.c.node().View(), false)
}

// Names returns the names of every rank. It refuses sessions of people who may not use other ranks (--people local).
func (a answers) Names(pid int) ([][]string, *localapi.Refusal) {
	if _, err := a.personBehind(pid); err != nil {
		a.c.log.Warn("refused to name the hosts", "err", err)
		return nil, &localapi.Refusal{Exit: statusOf(err), Text: err.Error()}
	}
	return a.c.agreed().book().All(), nil
}

// status converts the status of the rendezvous to the output of `paiinit status`.
func (a answers) status(s rendezvous.Status) *localapi.Status {
	out := &localapi.Status{
		Phase: localapi.Phase(s.Phase), Rank: a.c.job.Rank, Size: a.c.job.Size, Epoch: s.Epoch, Hash: s.Hash,
		Ranks: []localapi.Rank{}, Timings: map[string]float64{}, Name: a.c.job.Name, Deadline: s.Deadline,
		Generation: a.c.generation(), Restarts: a.restarts(), Spare: s.Spare,
		NotReady: s.Unready,
	}
	if s.Outcome != nil {
		out.Outcome = &localapi.Outcome{Status: s.Outcome.Status, Reason: s.Outcome.Reason}
	}
	if a.c.job.First {
		out.Rank = 0
	}
	if roster := a.c.agreed().roster; len(roster.Members) > 0 {
		out.Rank, out.Size = a.c.agreed().self().Rank, len(roster.Members)
	}
	if s.Spare {
		out.Rank, out.Size = -1, 0
		for _, r := range s.Ranks {
			if r.Rank >= 0 {
				out.Size++
			}
		}
	}
	for _, r := range s.Ranks {
		row := localapi.Rank{
			Rank: r.Rank, Alias: r.Alias, Host: r.Host, Port: r.Port, State: localapi.State(r.Standing),
			Reason: r.Reason, Since: r.Since, Slots: r.Slots, GPUs: r.GPUs,
			Name: cmp.Or(r.Own, r.Alias), RTT: float64(r.RTT.Microseconds()) / 1000,
		}
		if f, err := rdma.DecodeSummary(r.Fabric); err == nil && len(r.Fabric) > 0 {
			row.Fabric = f.String()
		}
		out.Ranks = append(out.Ranks, row)
	}
	for phase, seconds := range a.c.timings.Range {
		out.Timings[phase.(string)] = seconds.(float64)
	}
	return out
}

// missing lists the missing ranks with the reasons, worded as in the log.
func missing(s *localapi.Status) *rendezvous.MissingError {
	e := &rendezvous.MissingError{Size: s.Size}
	for _, r := range s.Ranks {
		switch {
		case r.State == localapi.Spare:
		case (r.State == localapi.Present || r.State == localapi.Heard) && r.Reason == "":
			e.Present++
		default:
			name := rendezvous.Display(r.Name, r.Alias)
			e.Missing = append(e.Missing, rendezvous.Missing{Rank: r.Rank, Name: name, Reason: r.Reason})
		}
	}
	return e
}

// Wait waits for all ranks.
func (a answers) Wait(ctx context.Context) *localapi.Refusal {
	_, err := a.c.node().Gather(ctx)
	var ended *rendezvous.EndedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ended):
		return &localapi.Refusal{Exit: cmp.Or(ended.Outcome.Status, statusRetry), Text: err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		s := a.status(a.c.node().Status(context.WithoutCancel(ctx)))
		return &localapi.Refusal{Exit: statusRetry, Text: missing(s).Error()}
	case ctx.Err() != nil:
		return a.over("before all ranks were present")
	}
	return &localapi.Refusal{Exit: statusOf(err), Text: err.Error()}
}

func (a answers) Barrier(ctx context.Context, name string) *localapi.Refusal {
	err := a.c.node().Barrier(ctx, name)
	var absent *rendezvous.BarrierError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rendezvous.ErrOver), errors.Is(ctx.Err(), context.Canceled):
		return a.over(fmt.Sprintf("before every rank had called the barrier %q", name))
	case errors.As(err, &absent):
		return &localapi.Refusal{Exit: statusRetry, Text: err.Error()}
	}
	return &localapi.Refusal{Exit: statusUsage, Text: err.Error()}
}

// over returns the answer for a process that was waiting when the job ended. A job that has succeeded fails the wait
// with 75.
func (a answers) over(when string) *localapi.Refusal {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	o, err := a.c.node().Wait(now)
	switch {
	case errors.Is(err, context.Canceled):
		return &localapi.Refusal{Exit: statusRetry, Text: "paiinit is ending in this container " + when}
	case err != nil:
		return &localapi.Refusal{Exit: statusOf(err), Text: fmt.Sprintf("the job ended %s: %v", when, err)}
	}
	text := fmt.Sprintf("the job ended with status %d %s: %s", o.Status, when, o.Reason)
	return &localapi.Refusal{Exit: cmp.Or(o.Status, statusRetry), Text: text}
}

// hosts lists the hosts with slots, as the host lists of launchers do. Names and slots are known after the commit.
func (a answers) hosts(s rendezvous.Status, liveOnly bool) ([]localapi.Host, *localapi.Refusal) {
	agreed := a.c.agreed()
	members, names := agreed.named()
	if len(members) == 0 {
		text := "no host list yet: " + missing(a.status(s)).Error()
		return nil, &localapi.Refusal{Exit: statusRetry, Text: text}
	}
	list := []localapi.Host{}
	for _, r := range s.Ranks {
		if r.Rank < 0 || r.Rank >= len(members) || liveOnly && r.Standing != rendezvous.Present {
			continue
		}
		if slots := members[r.Rank].Slots; slots > 0 {
			list = append(list, localapi.Host{Name: names[r.Rank], Slots: slots})
		}
	}
	return list, nil
}

// mark records the time at which a phase of the launch has ended.
func (c *container) mark(phase string) { c.timings.Store(phase, time.Since(c.begin).Seconds()) }

// statusInterval is the time between two writes of status.json while ranks are missing.
const statusInterval = 10 * time.Second

// keepStatusFile writes status.json, which stays readable after exit. In each generation it writes the file shortly
// after the wait begins, every statusInterval while ranks are missing, and less often where processors are short, after
// the launch, and at the end.
func (a answers) keepStatusFile(ctx context.Context) {
	for n := a.c.node(); n != nil; {
		soon, cancel := context.WithTimeout(ctx, deferUntilLaunched)
		_, err := n.Gather(soon)
		cancel()
		for errors.Is(err, context.DeadlineExceeded) {
			a.writeStatusFile()
			if !n.RestInGather(ctx, statusInterval) {
				break
			}
		}
		soon, cancel = context.WithTimeout(ctx, postLaunchDelay)
		_, err = n.Wait(soon)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			a.writeStatusFile()
			if n.Rest(ctx, 0) { // each rank derives the keys of all
				a.c.agreed().writeSSHFiles()
			}
			_, err = n.Wait(ctx) // the outcome is in status.json
		}
		if !errors.Is(err, rendezvous.ErrNext) { // else the next generation writes it
			a.writeStatusFile()
		}
		n = a.c.nodeAfter(ctx, n, err)
	}
}

func (a answers) writeStatusFile() {
	var b bytes.Buffer
	err := printJSON(&b, a.status(a.c.node().View()))
	if err == nil {
		err = a.c.state.WriteFile(statedir.StatusFile, b.Bytes())
	}
	if err != nil {
		a.c.log.Debug("status.json cannot be written", "err", err)
	}
}
