package main

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/probe"
	"github.com/paiinit/paiinit/rendezvous"
)

// checkHTTP refuses --http without a secret: the port then takes connections from the hosts of the job alone, and no
// probe reaches it.
func (s *settings) checkHTTP() error {
	if s.http && s.insecure {
		return &advisedError{
			cmdline.Errorf("--http (%s) cannot be used with --insecure (%s), which admits the hosts of the job alone",
				cmdline.Twin("http"), cmdline.Twin("insecure")),
			"give the job a secret, or use exec probes: paiinit status --ready",
		}
	}
	return nil
}

// serveProbes answers HTTP on a listener.
func (a answers) serveProbes(ctx context.Context, ln net.Listener) {
	job := probe.Job{
		Ready:   func(ctx context.Context) string { return a.c.node().Unready(ctx) },
		Metrics: a.metrics,
		Page: func(ctx context.Context, w io.Writer) error {
			return pageOf(a.Timeline(ctx), a.Status(ctx)).WriteHTML(w)
		},
	}
	a.c.statusServers.Go(a.c.logged("the server for probes has stopped",
		func() error { return probe.Serve(ctx, ln, job.Handler()) }))
}

// metrics returns the metrics that this container knows without asking rank 0.
func (a answers) metrics() probe.Metrics {
	s := a.c.node().View()
	m := probe.Metrics{
		Version: version, Started: a.c.begin, Phase: string(s.Phase), PhaseBegan: s.Since,
		Steps: make(map[string]float64), Restarts: a.c.generation() - 1,
	}
	for _, p := range []localapi.Phase{localapi.Gathering, localapi.Prepared, localapi.Running, localapi.Ended} {
		m.Phases = append(m.Phases, string(p))
	}
	for step, seconds := range a.c.timings.Range {
		m.Steps[step.(string)] = seconds.(float64)
	}
	if s.Leads {
		m.Ranks = make(map[string]int)
		for _, state := range []rendezvous.Standing{
			rendezvous.Present, rendezvous.Absent, rendezvous.Spare, rendezvous.Lost,
		} {
			m.Ranks[string(state)] = 0
		}
		for _, r := range s.Ranks {
			m.Ranks[string(r.Standing)]++
		}
	}
	if a.c.server != nil {
		m.Sessions = a.c.server.Sessions()
	}
	if s.Outcome != nil {
		m.ExitStatus = &s.Outcome.Status
	}
	return m
}

// Ready returns why the job is not ready.
func (a answers) Ready(ctx context.Context) *localapi.Refusal {
	if why := a.c.node().Unready(ctx); why != "" {
		return &localapi.Refusal{Exit: statusUnready, Text: why}
	}
	return nil
}

// statusUnready is the exit status of a probe that fails.
const statusUnready = 1

// showProbe answers status --ready and status --live, on one line.
func showProbe(c *cli.Context, ask localapi.Client) error {
	word, question := "live", ask.Live
	if c.Bool("ready") {
		word, question = "ready", ask.Ready
	}
	if c.Bool("ready") && c.Bool("live") {
		return cmdline.Errorf("--ready and --live ask different questions: give one of them")
	}
	err := explain(question(c.Context))
	if err == nil {
		_, err = fmt.Fprintln(c.App.Writer, word)
		return err
	}
	if _, werr := fmt.Fprintln(c.App.Writer, err); werr != nil {
		return werr
	}
	return endStatus(statusUnready)
}
