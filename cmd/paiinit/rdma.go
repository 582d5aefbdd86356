package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/statedir"
)

func rdmaCommand(environ []string) *cli.Command {
	return &cli.Command{
		Name: "rdma", Usage: "print the verbs devices and what is wrong with them",
		Description: "Exits with 69 if there are devices and none is usable; with --all, if the ranks\n" +
			"cannot all use one together.\n\n" + cmdline.Examples("paiinit rdma", "paiinit rdma --all --json"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.BoolFlag{Name: "all", Usage: "print one table for all ranks of the running job"},
			&cli.StringFlag{Name: "root", Usage: "`DIR` with sys/, dev/ and proc/ of another container", Value: "/"},
		},
		Action: func(c *cli.Context) error {
			out := c.App.Writer
			switch {
			case c.Bool("all") && c.IsSet("root"):
				return &usageError{Err: errors.New("--root reads another container's files, so it excludes --all")}
			case c.Bool("all"):
				dir, err := chooseDir(environ, "")
				if err != nil {
					return err
				}
				return explain(showFabric(c.Context, out, dir, c.Bool("json")))
			}
			return showRDMA(out, rdma.Probe(rdma.At(c.String("root"))), c.Bool("json"))
		},
	}
}

// showRDMA prints the report of this container as if all ranks had the same.
func showRDMA(out io.Writer, r rdma.Report, asJSON bool) error {
	s := r.Summary()
	vars := fabricOf(rdma.Judge([]rdma.Summary{s}), r).Vars()
	var err error
	if asJSON {
		err = printJSON(out, r.Answer(launch.Values(nil, vars)))
	} else {
		err = errors.Join(r.WriteTable(out),
			launch.WriteVars(out, "if every rank is like this one, commands get", vars))
	}
	if err == nil && len(r.Devices) > 0 && !s.Usable() && !r.NetworkDirect {
		err = errors.New("no verbs device can be used: " + s.String())
	}
	return err
}

// showFabric asks all ranks for their devices, in sessions like a launcher's, and judges them as rank 0 does before the
// launch.
func showFabric(ctx context.Context, out io.Writer, dir string, asJSON bool) error {
	all, err := rankNames(ctx, dir)
	if err != nil {
		return err
	}
	names := make([]string, len(all))
	for rank := range all {
		names[rank] = all[rank][0]
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program's own path: %w", err)
	}
	caller := rsh.Caller{Socket: filepath.Join(dir, statedir.AgentSocket), Stderr: os.Stderr}
	// Without a usable device the rank's report is complete: its standard error would repeat it.
	command := rsh.Quote([]string{self, "rdma", "--json"}) + " 2>/dev/null"
	ranks := make([]rdma.RankReport, len(names))
	for rank, o := range caller.Outputs(ctx, names, command, eachAtOnce) {
		if o.Err == nil && o.Status != 0 && o.Status != statusUnmendable {
			o.Err = fmt.Errorf("paiinit rdma ended there with status %d", o.Status)
		}
		ranks[rank] = rdma.RankReport{Rank: rank, Name: o.Host}
		ranks[rank].Read(o.Text, o.Err)
	}
	report, v, err := rdma.JudgeReports(ranks, func(lacks []rdma.Lack) string { return foldLacks(names, lacks) })
	switch {
	case err != nil:
		return err
	case asJSON:
		err = printJSON(out, report)
	default:
		err = rdma.WriteJobTable(out, ranks, report.Verdict, report.Lacks, report.Notes)
	}
	if err == nil && v.Devices && !v.RDMA() {
		err = errors.New(report.Verdict + ": " + report.Lacks)
	}
	return err
}

// rankNames asks the running paiinit for the names of all ranks.
func rankNames(ctx context.Context, dir string) ([][]string, error) {
	names, err := clientIn(dir).Names(ctx)
	if err == nil && len(names) == 0 {
		err = &absentError{errors.New("no host list yet: not all ranks are present")}
	}
	return names, err
}
