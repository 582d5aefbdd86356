package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/statedir"
)

func rdmaCommand(environ []string) *cli.Command {
	return &cli.Command{
		Name: "rdma", Usage: "print the verbs devices of this container or of all ranks, and what is wrong with them",
		Description: "Exits with 69 if there are devices and none is usable; " +
			"with --all, if the ranks cannot all use one together.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.BoolFlag{
				Name: "all", Usage: "print one table for all ranks of the running job, and the verdict on them",
			},
			&cli.StringFlag{Name: "root", Usage: "`DIR` with sys/, dev/ and proc/ of another container", Value: "/"},
		},
		Action: func(c *cli.Context) error {
			out := c.App.Writer
			switch {
			case c.Bool("all") && c.IsSet("root"):
				return &usageError{errors.New("--root reads another container's files, so it excludes --all")}
			case c.Bool("all"):
				dir, err := chooseDir(environ, "")
				if err != nil {
					return err
				}
				return explain(showFabric(c.Context, out, dir, c.Bool("json")))
			}
			return showRDMA(out, rdma.Probe(rdmaConfig(c.String("root"))), c.Bool("json"))
		},
	}
}

// rdmaConfig returns the configuration for a search in this container, or in the files of another container under root,
// where device files cannot be opened.
func rdmaConfig(root string) rdma.Config {
	if root == "/" {
		return rdma.System()
	}
	tree := os.DirFS(root)
	return rdma.Config{Root: tree, Limits: rdma.TreeLimits(tree)}
}

// unusableError says that verbs devices exist, but that none works on this rank or on all ranks.
type unusableError struct{ why string }

func (e *unusableError) Error() string { return e.why }

// reportJSON is the output of `paiinit rdma --json`.
type reportJSON struct {
	rdma.Report
	// Summary is the report as text, Record as other ranks judge it.
	Summary string `json:"summary"`
	Record  []byte `json:"record"`
	// Variables are the variables, by name, that commands get if every rank is like this one.
	Variables map[string]string `json:"variables"`
}

func showRDMA(out io.Writer, r rdma.Report, asJSON bool) error {
	s := r.Summary()
	vars := everyFabricVar(fabricOf(rdma.Judge([]rdma.Summary{s}), r))
	if asJSON {
		if err := printJSON(out, reportJSON{r, s.String(), s.Encode(), varMap(vars)}); err != nil {
			return err
		}
	} else if err := errors.Join(r.WriteTable(out),
		tableVars(out, "if every rank is like this one, commands get", vars)); err != nil {
		return err
	}
	if len(r.Devices) > 0 && !s.Usable() && !r.NetworkDirect {
		return &unusableError{"no verbs device can be used: " + s.String()}
	}
	return nil
}

func varMap(vars []launch.Var) map[string]string {
	m := make(map[string]string)
	for _, v := range vars {
		m[v.Name] = v.Value
	}
	return m
}

func tableVars(out io.Writer, title string, vars []launch.Var) error {
	if len(vars) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "\n%s\n", title)
	for _, v := range vars {
		if err == nil {
			_, err = fmt.Fprintf(out, "    %s=%s\n        %s\n", v.Name, v.Value, v.Reason)
		}
	}
	return err
}

// rankRDMA is the answer of one rank.
type rankRDMA struct {
	Rank   int         `json:"rank"`
	Name   string      `json:"name"`
	Report *reportJSON `json:"report"` // null: see Error
	Error  string      `json:"error"`
}

// fabricJSON is the output of `paiinit rdma --all --json`.
type fabricJSON struct {
	Verdict string     `json:"verdict"`
	Fabric  rdma.Kind  `json:"fabric"` // "none" for TCP
	Lacks   string     `json:"lacks"`  // which ranks prevent a better one, and why
	Notes   string     `json:"notes"`
	Ranks   []rankRDMA `json:"ranks"`
}

// showFabric asks all ranks for their devices concurrently and judges them as rank 0 does before the launch.
func showFabric(ctx context.Context, out io.Writer, dir string, asJSON bool) error {
	hosts, err := clientIn(dir).Names(ctx)
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		return &absentError{errors.New("no host list yet: not all ranks are present")}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program's own path: %w", err)
	}
	ranks := make([]rankRDMA, len(hosts))
	var asked sync.WaitGroup
	places := make(chan struct{}, eachAtOnce)
	for rank, names := range hosts {
		places <- struct{}{}
		asked.Go(func() {
			defer func() { <-places }()
			ranks[rank] = askRDMA(ctx, filepath.Join(dir, statedir.AgentSocket), self, rank, names[0])
		})
	}
	asked.Wait()

	return judgeRanks(out, ranks, asJSON)
}

// judgeRanks prints the answers of the ranks and the verdict on them.
func judgeRanks(out io.Writer, ranks []rankRDMA, asJSON bool) error {
	reports := make([]rdma.RankReport, len(ranks))
	names := make([]string, len(ranks))
	for i, r := range ranks {
		reports[i], names[i] = rdma.RankReport{Rank: r.Rank, Name: r.Name, Error: r.Error}, r.Name
		if r.Report != nil {
			s, err := rdma.DecodeSummary(r.Report.Record)
			if err != nil {
				return fmt.Errorf("rank %d: %w", r.Rank, err)
			}
			reports[i].Report, reports[i].Summary = &r.Report.Report, s
		}
	}
	v := rdma.JudgeReports(reports)
	answer := fabricJSON{v.String(), v.Fabric, foldLacks(names, v.Lacks), foldLacks(names, v.Notes), ranks}
	var err error
	if asJSON {
		err = printJSON(out, answer)
	} else {
		err = rdma.WriteJobTable(out, reports, answer.Verdict, answer.Lacks, answer.Notes)
	}
	if err == nil && v.Devices && !v.RDMA() {
		err = &unusableError{v.String() + ": " + answer.Lacks}
	}
	return err
}

// askRDMA runs paiinit rdma on a rank, in a session like a launcher's.
func askRDMA(ctx context.Context, socket, self string, rank int, host string) rankRDMA {
	answer := rankRDMA{Rank: rank, Name: host}
	fail := func(format string, args ...any) rankRDMA {
		answer.Error = fmt.Sprintf(format, args...)
		return answer
	}
	// Without a usable device the rank's report is complete: its standard error would repeat it.
	text, status, err := rsh.Caller{Socket: socket, Stderr: os.Stderr}.Output(ctx, rsh.Invocation{
		Host: host, Command: rsh.Quote([]string{self, "rdma", "--json"}) + " 2>/dev/null", NoStdin: true,
	})
	var report reportJSON
	switch {
	case err != nil:
		return fail("%v", err)
	case status != 0 && status != statusUnmendable:
		return fail("paiinit rdma ended there with status %d", status)
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return fail("reading its answer: %v", err)
	}
	answer.Report = &report
	return answer
}
