package main

import (
	"context"
	"io"
	"runtime"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/timeline"
)

// Timeline returns what happened to each rank, and how the job ended.
func (a answers) Timeline(ctx context.Context) *localapi.Timeline {
	out := &localapi.Timeline{
		Job:   a.c.job.ID,
		Facts: [][]string{{"paiinit", version}, {"Go", runtime.Version()}, {"scheduler", a.c.job.System}},
	}
	for _, t := range a.c.node().Times(ctx) {
		out.Ranks = append(out.Ranks, localapi.Times(t))
	}
	if roster := a.c.agreed().roster; len(roster.Members) > 0 && roster.Members[0].Launch != "" {
		out.Facts = append(out.Facts, []string{"launcher", roster.Members[0].Launch})
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if o, err := a.c.node().Wait(now); err == nil {
		out.Ended, out.Status, out.Reason, out.Stopped = true, o.Status, launch.Outcome(o).Text(0), o.Stopped
	}
	if d, refusal := a.Drift(); refusal == nil {
		out.Drift = d.Rows
	}
	out.Now = time.Now()
	return out
}

func timelineOf(told *localapi.Timeline) timeline.Timeline {
	t := timeline.Timeline{Now: told.Now}
	for _, r := range told.Ranks {
		t.Ranks = append(t.Ranks, timeline.Rank(r))
	}
	return t
}

func pageOf(told *localapi.Timeline, s *localapi.Status) *timeline.Page {
	p := &timeline.Page{
		Job: told.Job, Phase: string(s.Phase), Made: told.Now, Timeline: timelineOf(told),
		Ended: told.Ended, Stopped: told.Stopped, Status: told.Status, Reason: told.Reason,
		Facts: told.Facts, Drift: told.Drift,
	}
	for _, r := range s.Ranks {
		p.States = append(p.States, timeline.State{
			Rank: r.Rank, Name: rendezvous.Display(r.Name, r.Alias), Address: r.Address(), State: string(r.State),
			Reason: r.Reason, Equipment: r.Equipment(),
		})
	}
	return p
}

// showTimeline answers status --timeline and status --html.
func showTimeline(c *cli.Context, ask localapi.Client) error {
	told, err := ask.Timeline(c.Context)
	if err != nil {
		return err
	}
	if file := c.String("html"); file != "" {
		s, err := ask.Status(c.Context)
		if err != nil {
			return err
		}
		return timeline.WriteFile(file, pageOf(told, s).WriteHTML)
	}
	t := timelineOf(told)
	if c.String("timeline") == "trace" {
		return t.WriteTrace(c.App.Writer)
	}
	return t.WriteText(c.App.Writer)
}

// leaveReport writes the report of --report, on rank 0 after the end of the job.
func (a answers) leaveReport() {
	if a.c.report == "" || a.c.node() == nil {
		return
	}
	s := a.status(a.c.node().View())
	if s.Rank != 0 {
		return
	}
	p := pageOf(a.Timeline(context.Background()), s)
	if err := p.Leave(a.c.report, func(w io.Writer) error { return printJSON(w, s) }); err != nil {
		a.c.log.Warn("the report cannot be written", "phase", "exit", "dir", a.c.report, "err", err)
	}
}
