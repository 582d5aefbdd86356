package rdma

import (
	"cmp"
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
		place := strings.Join([]string{cmp.Or(d.Verbs, "-"), cmp.Or(d.PCI, "-"), node, cmp.Or(d.Firmware, "-")}, "\t")
		for _, p := range d.Ports {
			_, _ = fmt.Fprintf(w, "%s:%d\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, p.Port, p.Fabric, cmp.Or(p.State, "-"),
				rateText(p.RateGbps), cmp.Or(p.Why, "yes"), addressText(p), place)
		}
		if len(d.Ports) == 0 {
			_, _ = fmt.Fprintf(w, "%s\t-\t-\t-\tno port\t-\t%s\n", d.Name, place)
		}
	}
	_, _ = fmt.Fprintf(w, "\nlocked memory %s, GPUDirect %s, devices of network namespaces %s, peer memory %s\n",
		memlockText(r.Limits), cmp.Or(r.GPUDirect, "-"), cmp.Or(r.NetnsMode, "-"), cmp.Or(r.PeerMemory, "-"))
	for _, f := range r.Findings {
		f.write(w, f.Device)
	}
	return w.Flush()
}

// write writes a finding and its place to a table, whose Flush reports errors.
func (f Finding) write(w *tabwriter.Writer, where string) {
	if where != "" {
		where += ": "
	}
	_, _ = fmt.Fprintf(w, "\n%s: %s%s\n", f.Severity, where, f.What)
	if f.Fix != "" {
		_, _ = fmt.Fprintf(w, "    %s\n", f.Fix)
	}
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
		return fmt.Sprintf("lid %d, pkey %s", p.LID, cmp.Or(strings.Join(p.PKeys, " "), "-"))
	case len(p.GIDs) > 0:
		return fmt.Sprintf("gid %d %s", p.GIDs[len(p.GIDs)-1].Index, p.GIDs[len(p.GIDs)-1].GID)
	}
	return "-"
}

// WriteJobTable writes a line for each rank of a job, with a star at each value that differs from most ranks', the
// verdict with its details, and each finding once.
func WriteJobTable(out io.Writer, ranks []RankReport, verdict string, details ...string) error {
	const header = "RANK\tNAME\tUSABLE\tPORTS\tPKEYS\tFIRMWARE\tLOCKED MEMORY\tGPUDIRECT\tPEER MEMORY"
	var rows [][]string
	for _, r := range ranks {
		if r.Report == nil {
			rows = append(rows, []string{strconv.Itoa(r.Rank), r.Name, r.Error})
			continue
		}
		var keys, firmware []string
		for _, d := range r.Report.Devices {
			firmware = append(firmware, cmp.Or(d.Firmware, "-"))
			for _, p := range d.Ports {
				if p.Fabric == KindInfiniBand {
					keys = append(keys, p.PKeys...)
				}
			}
		}
		rows = append(rows, []string{
			strconv.Itoa(r.Rank), r.Name, r.Summary.String(),
			unique(r.Report.Ports(r.Summary.Best())), unique(keys), unique(firmware),
			memlockText(r.Report.Limits), cmp.Or(r.Report.GPUDirect, "-"), cmp.Or(r.Report.PeerMemory, "-"),
		})
	}
	starred := markOdd(rows, 2)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, header) // Flush reports all errors
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
	writeFindings(w, ranks)
	return w.Flush()
}

// writeFindings writes each finding once, with the ranks and devices that have it.
func writeFindings(w *tabwriter.Writer, ranks []RankReport) {
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
		f.write(w, strings.Join(where[f], ", "))
	}
}

func unique(words []string) string {
	slices.Sort(words)
	return cmp.Or(strings.Join(slices.Compact(words), " "), "-")
}

// markOdd adds a star to each cell that differs from the most frequent one of its column (the first of equally frequent
// ones), from column from on.
func markOdd(rows [][]string, from int) (marked bool) {
	if len(rows) < 2 {
		return false
	}
	for column := from; ; column++ {
		var cells []*string
		count := make(map[string]int)
		for _, row := range rows {
			if column < len(row) {
				cells = append(cells, &row[column])
				count[row[column]]++
			}
		}
		if len(cells) == 0 {
			return marked
		}
		usual := *cells[0]
		for _, cell := range cells {
			if count[*cell] > count[usual] {
				usual = *cell
			}
		}
		for _, cell := range cells {
			if *cell != usual {
				*cell += " *"
				marked = true
			}
		}
	}
}
