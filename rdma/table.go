package rdma

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteTable writes a line for each port of a container, one for what they share, and the findings.
func (r Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "%s\n", r.Summary()) // Flush reports all errors
	if len(r.Devices) > 0 {
		_, _ = fmt.Fprint(w, "\nPORT\tFABRIC\tSTATE\tRATE\tUSABLE\tADDRESS\tNODE\tPCI\tNUMA\tFIRMWARE\n")
	}
	for _, d := range r.Devices {
		node := strconv.Itoa(d.NUMANode)
		if d.NUMANode < 0 {
			node = "-"
		}
		place := strings.Join([]string{orDash(d.Verbs), orDash(d.PCI), node, orDash(d.Firmware)}, "\t")
		for _, p := range d.Ports {
			usable := "yes"
			if !p.Usable {
				usable = p.Why
			}
			_, _ = fmt.Fprintf(w, "%s:%d\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, p.Port, p.Fabric, orDash(p.State),
				rateText(p.RateGbps), usable, addressText(p), place)
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
		if err := f.write(out, f.Device); err != nil {
			return err
		}
	}
	return nil
}

// write writes a finding and its place.
func (f Finding) write(out io.Writer, where string) error {
	if where != "" {
		where += ": "
	}
	_, err := fmt.Fprintf(out, "\n%s: %s%s\n", f.Severity, where, f.What)
	if err == nil && f.Fix != "" {
		_, err = fmt.Fprintf(out, "    %s\n", f.Fix)
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

func memlockText(l Limits) string {
	switch {
	case l.Memlock < 0:
		return "unlimited"
	case l.IPCLock:
		return "unlimited (IPC_LOCK)"
	}
	return fmt.Sprintf("%d KiB", l.Memlock>>10)
}

// addressText returns how to reach a port: LID and partition keys, or the last of its GIDs, which is the best one.
func addressText(p Port) string {
	switch {
	case p.Fabric == KindInfiniBand:
		return fmt.Sprintf("lid %d, pkey %s", p.LID, orDash(strings.Join(p.PKeys, " ")))
	case len(p.GIDs) > 0:
		return fmt.Sprintf("gid %d %s", p.GIDs[len(p.GIDs)-1].Index, p.GIDs[len(p.GIDs)-1].GID)
	}
	return "-"
}

// RankReport is the report of one rank of a job.
type RankReport struct {
	Rank    int
	Name    string
	Report  *Report // nil: see Error
	Summary Summary // of the report
	Error   string
}

// JudgeReports judges the reports of all ranks. If a rank has no report, its Error says why.
func JudgeReports(ranks []RankReport) Verdict {
	summaries := make([]Summary, len(ranks))
	for i, r := range ranks {
		summaries[i] = r.Summary
	}
	v := Judge(summaries)
	for i, l := range v.Lacks {
		if e := ranks[l.Rank].Error; e != "" {
			v.Lacks[i].Why = e
		}
	}
	return v
}

// WriteJobTable writes a line for each rank of a job, with a star at each value that differs from most ranks', the
// verdict with its details, and each finding once.
func WriteJobTable(out io.Writer, ranks []RankReport, verdict string, details ...string) error {
	header := []string{"RANK", "NAME", "USABLE", "PORTS", "PKEYS", "FIRMWARE",
		"LOCKED MEMORY", "GPUDIRECT", "PEER MEMORY"}
	var rows [][]string
	for _, r := range ranks {
		if r.Report == nil {
			rows = append(rows, []string{strconv.Itoa(r.Rank), r.Name, r.Error})
			continue
		}
		var keys, firmware []string
		for _, d := range r.Report.Devices {
			firmware = append(firmware, orDash(d.Firmware))
			for _, p := range d.Ports {
				if p.Fabric == KindInfiniBand {
					keys = append(keys, p.PKeys...)
				}
			}
		}
		rows = append(rows, []string{
			strconv.Itoa(r.Rank), r.Name, r.Summary.String(),
			unique(r.Report.Ports(r.Summary.Best())), unique(keys), unique(firmware),
			memlockText(r.Report.Limits), orDash(r.Report.GPUDirect), orDash(r.Report.PeerMemory),
		})
	}
	starred := markOdd(rows, 2)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, strings.Join(header, "\t")) // Flush reports all errors
	for _, row := range rows {
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if starred {
		_, _ = fmt.Fprint(w, "\n* unlike most ranks\n")
	}
	_, _ = fmt.Fprintf(w, "\nverdict: %s\n", verdict)
	for _, l := range details {
		if l != "" {
			_, _ = fmt.Fprintf(w, "    %s\n", l)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return writeFindings(out, ranks)
}

// writeFindings writes each finding once, with the ranks and devices that have it.
func writeFindings(out io.Writer, ranks []RankReport) error {
	where := make(map[Finding][]string)
	var order []Finding
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
		if err := f.write(out, strings.Join(where[f], ", ")); err != nil {
			return err
		}
	}
	return nil
}

func unique(words []string) string {
	slices.Sort(words)
	return orDash(strings.Join(slices.Compact(words), " "))
}

// markOdd adds a star to each cell that differs from the most frequent one of its column (the first of equally frequent
// ones), from column from on.
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
