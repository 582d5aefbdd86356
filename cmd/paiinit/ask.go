package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/rdma"
)

// ask runs the commands that only tell something, on standard output, without being an init.
func ask(args, environ []string) int {
	args = slices.Clone(args)
	switch commandOf(args) {
	case "version":
		args[1] = "version"
	case "help":
		args[1] = "--help"
	}
	err := newApp(environ, nil).Run(args)
	if err == nil {
		return 0
	}
	complain("error: %v", err)
	if h := hint(err); h != "" {
		complain("hint: %s", h)
	}
	return statusOf(err)
}

func showVersion(c *cli.Context) error {
	_, err := fmt.Fprintf(c.App.Writer, "paiinit %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// showEnv prints what was detected about the job. Secrets are named by their places, never shown.
func showEnv(c *cli.Context, environ []string) error {
	s := settings{job: make(map[string]string)}
	for _, f := range jobFlags() {
		if name := f.Names()[0]; c.IsSet(name) {
			s.job[twin(name)] = c.String(name)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("finding the host name: %w", err)
	}
	in, err := envInput(environ, s.job, host)
	if err != nil {
		return err
	}
	job, err := envspec.Read(context.Background(), in)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, job)
	}
	w := tabwriter.NewWriter(c.App.Writer, 0, 8, 2, ' ', 0)
	row := func(field string, value any) {
		_, _ = fmt.Fprintf(w, "%s\t%v\t%s\n", field, value, job.Sources[field]) // reported by Flush
	}
	row("system", job.System)
	row("job", job.ID)
	row("attempt", job.Attempt)
	row("role", job.Role)
	row("index", unknown(job.Index))
	row("rank", unknown(job.Rank))
	row("size", unknown(job.Size))
	row("slots", job.Slots)
	row("port", job.Port)
	for _, p := range job.Peers {
		_, _ = fmt.Fprintf(w, "peer\t%s\trank %s at %s:%d, slots %s\n", p.Alias, unknown(p.Rank), p.Host, p.Port, unknown(p.Slots))
	}
	for _, s := range job.Seeds {
		_, _ = fmt.Fprintf(w, "seed\t%s:%d\t%s\n", s.Host, s.Port, job.Sources["seeds"])
	}
	for _, s := range job.Secrets {
		_, _ = fmt.Fprintf(w, "secret\t%s\t\n", s.Name)
	}
	for _, warning := range job.Warnings {
		_, _ = fmt.Fprintf(w, "warning\t%s\t\n", warning)
	}
	return w.Flush()
}

func unknown(n int) string {
	if n < 0 {
		return "unknown"
	}
	return fmt.Sprint(n)
}

// unusableError says that there are verbs devices, but none that works.
type unusableError struct{ summary string }

func (e *unusableError) Error() string { return "no verbs device can be used: " + e.summary }

func showRDMA(c *cli.Context) error {
	report := probeRDMA(os.DirFS(c.String("root")))
	if c.Bool("json") {
		if err := printJSON(c.App.Writer, report); err != nil {
			return err
		}
	} else if err := tableRDMA(c.App.Writer, report); err != nil {
		return err
	}
	if len(report.Devices) > 0 && !report.Summary().Usable() {
		return &unusableError{report.Summary().String()}
	}
	return nil
}

func tableRDMA(out io.Writer, r rdma.Report) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "%s\n", r.Summary())
	for _, d := range r.Devices {
		for _, p := range d.Ports {
			_, _ = fmt.Fprintf(w, "%s:%d\t%s\t%s\t%g Gb/s\t%s\n", d.Name, p.Port, p.LinkLayer, p.State, p.RateGbps, d.Driver)
		}
	}
	for _, f := range r.Findings {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Severity, f.Device, f.What, f.Fix)
	}
	return w.Flush()
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// probeRDMA looks at the devices of a container's root directory. Nodes can only be opened in the own one.
func probeRDMA(root fs.FS) rdma.Report {
	return rdma.Probe(rdma.Config{
		Root: root,
		Open: func(path string) error {
			f, err := os.OpenFile("/"+strings.TrimPrefix(path, "/"), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			return f.Close()
		},
		Limits: rdma.SystemLimits(),
	})
}
