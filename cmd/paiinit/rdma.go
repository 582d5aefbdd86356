package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/urfave/cli/v3"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/statedir"
)

func rdmaCommand(environ []string, usage cli.OnUsageErrorFunc) *cli.Command {
	return &cli.Command{
		Name: "rdma", Usage: "the verbs devices of this container, or of all ranks, and what is wrong with them", HideHelpCommand: true,
		Description: "The status is 69 where there are devices and none can be used; with --all, where not all ranks can use one together.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "for programs"},
			&cli.BoolFlag{Name: "all", Usage: "one table for all ranks of the job, and the verdict on them; asks the running paiinit"},
			&cli.StringFlag{Name: "root", Usage: "`DIR` with sys/, dev/ and proc/ of another container", Value: "/"},
		},
		OnUsageError: usage,
		Action: func(ctx context.Context, c *cli.Command) error {
			out := c.Root().Writer
			switch {
			case c.Bool("all") && c.IsSet("root"):
				return &usageError{errors.New("--all asks running containers, --root looks at a captured one")}
			case c.Bool("all"):
				dir, err := chooseDir(environ, "")
				if err != nil {
					return err
				}
				return explain(showFabric(ctx, out, dir, c.Bool("json")))
			}
			return showRDMA(out, rdma.Probe(rdmaConfig(c.String("root"))), c.Bool("json"))
		},
	}
}

// rdmaConfig looks at the own container, or at a captured one, where nodes cannot be opened and nothing be asked.
func rdmaConfig(root string) rdma.Config {
	if root == "/" {
		return rdma.System()
	}
	tree := os.DirFS(root)
	return rdma.Config{Root: tree, Limits: rdma.TreeLimits(tree)}
}

// unusableError says that there are verbs devices, but none that works, or not on all ranks.
type unusableError struct{ why string }

func (e *unusableError) Error() string { return e.why }

// reportJSON is a report as `paiinit rdma --json` tells it.
type reportJSON struct {
	rdma.Report
	// Summary is for people, Record what other ranks judge.
	Summary string `json:"summary"`
	Record  []byte `json:"record"`
	// Variables are what commands get if every rank is like this one, by name.
	Variables map[string]string `json:"variables"`
}

func showRDMA(out io.Writer, r rdma.Report, asJSON bool) error {
	s := r.Summary()
	vars := ownVars(r, rdma.Judge([]rdma.Summary{s}))
	if asJSON {
		if err := printJSON(out, reportJSON{r, s.String(), s.Encode(), varMap(vars)}); err != nil {
			return err
		}
	} else if err := errors.Join(tableRDMA(out, r), tableVars(out, "if every rank is like this one, commands get", vars)); err != nil {
		return err
	}
	if len(r.Devices) > 0 && !s.Usable() && !r.NetworkDirect {
		return &unusableError{"no verbs device can be used: " + s.String()}
	}
	return nil
}

func ownVars(r rdma.Report, v rdma.Verdict) []launch.Var {
	f := fabricOf(v, r)
	return slices.Concat(f.Job(), f.Own())
}

func varMap(vars []launch.Var) map[string]string {
	m := make(map[string]string)
	for _, v := range vars {
		m[v.Name] = v.Value
	}
	return m
}

// tableRDMA is one container at a glance: a line for each port, one for what they share, and what is wrong.
func tableRDMA(out io.Writer, r rdma.Report) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "%s\n", r.Summary()) // all reported by Flush
	if len(r.Devices) > 0 {
		_, _ = fmt.Fprint(w, "\nPORT\tFABRIC\tSTATE\tRATE\tUSABLE\tADDRESS\tNODE\tPCI\tNUMA\tFIRMWARE\n")
	}
	for _, d := range r.Devices {
		place := fmt.Sprintf("%s\t%s\t%s\t%s", orDash(d.Verbs), orDash(d.PCI), strconv.Itoa(d.NUMANode), orDash(d.Firmware))
		if d.NUMANode < 0 {
			place = fmt.Sprintf("%s\t%s\t-\t%s", orDash(d.Verbs), orDash(d.PCI), orDash(d.Firmware))
		}
		for _, p := range d.Ports {
			usable := "yes"
			if !p.Usable {
				usable = p.Why
			}
			_, _ = fmt.Fprintf(w, "%s:%d\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, p.Port, p.Fabric, orDash(p.State), rateText(p.RateGbps), usable, addressText(p), place)
		}
		if len(d.Ports) == 0 {
			_, _ = fmt.Fprintf(w, "%s\t-\t-\t-\tno port\t-\t%s\n", d.Name, place)
		}
	}
	_, _ = fmt.Fprintf(w, "\nlocked memory %s, GPUDirect %s, devices of network namespaces %s, peer memory %s\n",
		memlockText(r.Limits), orDash(r.GPUDirect), orDash(r.NetnsMode), orDash(r.PeerMemory))
	if err := w.Flush(); err != nil {
		return err
	}
	for _, f := range r.Findings {
		if err := sayFinding(out, f, f.Device); err != nil {
			return err
		}
	}
	return nil
}

func sayFinding(out io.Writer, f rdma.Finding, where string) error {
	if where != "" {
		where += ": "
	}
	_, err := fmt.Fprintf(out, "\n%s: %s%s\n", f.Severity, where, f.What)
	if err == nil && f.Fix != "" {
		_, err = fmt.Fprintf(out, "    %s\n", f.Fix)
	}
	return err
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

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func rateText(gbps float64) string {
	if gbps == 0 {
		return "-"
	}
	return strconv.FormatFloat(gbps, 'f', -1, 64) + " Gb/s"
}

func memlockText(l rdma.Limits) string {
	switch {
	case l.Memlock < 0:
		return "unlimited"
	case l.IPCLock:
		return "unlimited (IPC_LOCK)"
	}
	return fmt.Sprintf("%d KiB", l.Memlock>>10)
}

// addressText is by what a port is reached: its LID and partition keys, or the last of its GIDs, which are the best.
func addressText(p rdma.Port) string {
	switch {
	case p.Fabric == rdma.KindInfiniBand:
		return fmt.Sprintf("lid %d, pkey %s", p.LID, orDash(strings.Join(p.PKeys, " ")))
	case len(p.GIDs) > 0:
		return fmt.Sprintf("gid %d %s", p.GIDs[len(p.GIDs)-1].Index, p.GIDs[len(p.GIDs)-1].GID)
	}
	return "-"
}

// rankRDMA is what one rank answered.
type rankRDMA struct {
	Rank   int         `json:"rank"`
	Name   string      `json:"name"`
	Report *reportJSON `json:"report"` // null: see Error
	Error  string      `json:"error"`
}

// fabricJSON is what `paiinit rdma --all --json` tells.
type fabricJSON struct {
	Verdict string     `json:"verdict"`
	Fabric  rdma.Kind  `json:"fabric"` // "none" for TCP
	Lacks   string     `json:"lacks"`  // which ranks stand in the way of a better one
	Notes   string     `json:"notes"`
	Ranks   []rankRDMA `json:"ranks"`
}

// showFabric asks all ranks at once and judges them as rank 0 did before the launch.
func showFabric(ctx context.Context, out io.Writer, dir string, asJSON bool) error {
	hosts, err := clientIn(dir).Names(ctx)
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		return &absentError{errors.New("the ranks are not all there yet")}
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

	var roster rendezvous.Roster
	var summaries []rdma.Summary
	for _, r := range ranks {
		var s rdma.Summary
		if r.Report != nil {
			if s, err = rdma.DecodeSummary(r.Report.Record); err != nil {
				return fmt.Errorf("rank %d: %w", r.Rank, err)
			}
		}
		summaries = append(summaries, s)
		roster.Members = append(roster.Members, rendezvous.Member{Alias: r.Name})
	}
	v := rdma.Judge(summaries)
	for i, l := range v.Lacks {
		if e := ranks[l.Rank].Error; e != "" {
			v.Lacks[i].Why = e
		}
	}
	answer := fabricJSON{v.String(), v.Fabric, foldLacks(roster, v.Lacks), foldLacks(roster, v.Notes), ranks}
	if asJSON {
		err = printJSON(out, answer)
	} else {
		err = tableFabric(out, answer, summaries)
	}
	if err == nil && v.Devices && !v.RDMA() {
		err = &unusableError{v.String() + ": " + answer.Lacks}
	}
	return err
}

// askRDMA runs paiinit rdma on a rank, in a session such as the launcher's.
func askRDMA(ctx context.Context, socket, self string, rank int, host string) rankRDMA {
	answer := rankRDMA{Rank: rank, Name: host}
	fail := func(format string, args ...any) rankRDMA {
		answer.Error = fmt.Sprintf(format, args...)
		return answer
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fail("%v", err)
	}
	var text []byte
	var reading sync.WaitGroup
	reading.Go(func() { text, err = io.ReadAll(r) })
	c := rsh.Caller{Socket: socket, Stdout: w, Stderr: os.Stderr}
	// A report that nothing can be used is a report, too: its error is ours to tell.
	status := c.Run(ctx, rsh.Invocation{Host: host, Command: shellWords([]string{self, "rdma", "--json"}) + " 2>/dev/null", NoStdin: true})
	_ = w.Close()
	reading.Wait()
	_ = r.Close()
	var report reportJSON
	switch {
	case err != nil:
		return fail("%v", err)
	case status != 0 && status != statusUnmendable:
		return fail("paiinit rdma ended there with status %d", status)
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return fail("its answer: %v", err)
	}
	answer.Report = &report
	return answer
}

// tableFabric is the whole job at a glance: a line for each rank, with a star at each value that most others do not have.
func tableFabric(out io.Writer, answer fabricJSON, summaries []rdma.Summary) error {
	header := []string{"RANK", "NAME", "USABLE", "PORTS", "PKEYS", "FIRMWARE", "LOCKED MEMORY", "GPUDIRECT", "PEER MEMORY"}
	var rows [][]string
	for i, r := range answer.Ranks {
		if r.Report == nil {
			rows = append(rows, []string{strconv.Itoa(r.Rank), r.Name, r.Error})
			continue
		}
		s := summaries[i]
		var keys, firmware []string
		for _, d := range r.Report.Devices {
			firmware = append(firmware, orDash(d.Firmware))
			for _, p := range d.Ports {
				if p.Fabric == rdma.KindInfiniBand {
					keys = append(keys, p.PKeys...)
				}
			}
		}
		rows = append(rows, []string{
			strconv.Itoa(r.Rank), r.Name, s.String(), unique(r.Report.Ports(s.Best())), unique(keys), unique(firmware),
			memlockText(r.Report.Limits), orDash(r.Report.GPUDirect), orDash(r.Report.PeerMemory),
		})
	}
	starred := markOdd(rows, 2)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, strings.Join(header, "\t")) // all reported by Flush
	for _, row := range rows {
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if starred {
		_, _ = fmt.Fprint(w, "\n* unlike most ranks\n")
	}
	_, _ = fmt.Fprintf(w, "\nverdict: %s\n", answer.Verdict)
	for _, l := range []string{answer.Lacks, answer.Notes} {
		if l != "" {
			_, _ = fmt.Fprintf(w, "    %s\n", l)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return foldFindings(out, answer.Ranks)
}

// foldFindings tells each finding once, with the ranks and devices that have it.
func foldFindings(out io.Writer, ranks []rankRDMA) error {
	where := make(map[rdma.Finding][]string)
	var order []rdma.Finding
	for _, r := range ranks {
		if r.Report == nil {
			continue
		}
		for _, f := range r.Report.Findings {
			place := fmt.Sprintf("rank %d", r.Rank)
			if f.Device != "" {
				place += " " + f.Device
			}
			f.Device = ""
			if where[f] == nil {
				order = append(order, f)
			}
			where[f] = append(where[f], place)
		}
	}
	for _, f := range order {
		if err := sayFinding(out, f, strings.Join(where[f], ", ")); err != nil {
			return err
		}
	}
	return nil
}

func unique(words []string) string {
	slices.Sort(words)
	return orDash(strings.Join(slices.Compact(words), " "))
}

// markOdd puts a star behind each cell that differs from the most frequent one of its column, of equally frequent ones the
// first. Columns before from are left alone.
func markOdd(rows [][]string, from int) (marked bool) {
	if len(rows) < 2 {
		return false
	}
	for column := from; ; column++ {
		count := make(map[string]int)
		usual, most, cells := "", 0, 0
		for _, row := range rows {
			if column < len(row) {
				cells++
				count[row[column]]++
			}
		}
		if cells == 0 {
			return marked
		}
		for _, row := range rows {
			if column < len(row) && count[row[column]] > most {
				usual, most = row[column], count[row[column]]
			}
		}
		for _, row := range rows {
			if column < len(row) && row[column] != usual {
				row[column] += " *"
				marked = true
			}
		}
	}
}
