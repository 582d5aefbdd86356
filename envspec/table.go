package envspec

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteTable prints what was detected about the job: field, value, and the variable, flag or file that it came from. Of
// a secret it prints only the file that has it.
func (j *Job) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := func(field string, value any, source string) {
		_, _ = fmt.Fprintf(w, "%s\t%v\t%s\n", field, value, source) // Flush returns the error
	}
	number := func(n int) string {
		if n < 0 {
			return "unknown"
		}
		return strconv.Itoa(n)
	}
	for _, field := range []struct {
		name  string
		value any
	}{
		{"system", j.System}, {"job", j.ID}, {"attempt", j.Attempt}, {"role", j.Role}, {"index", number(j.Index)},
		{"rank", number(j.Rank)}, {"size", number(j.Size)}, {"slots", j.Slots}, {"gpus", j.GPUs}, {"port", j.Port},
	} {
		row(field.name, field.value, j.Sources[field.name])
	}
	source := j.Sources["peers"]
	for _, p := range j.Peers {
		place := "unknown address"
		if p.Host != "" && p.Port != 0 {
			place = fmt.Sprintf("%s:%d", p.Host, p.Port)
		}
		row("peer", fmt.Sprintf("%s rank %s at %s, slots %s", p.Alias, number(p.Rank), place, number(p.Slots)), source)
		source = ""
	}
	for _, s := range j.Seeds {
		row("seed", fmt.Sprintf("%s:%d", s.Host, s.Port), j.Sources["seeds"])
	}
	for _, s := range j.Secrets {
		row("secret", s.Name, "")
	}
	if len(j.AzureRDMA) > 0 {
		row("azure_rdma", strings.Join(j.AzureRDMA, ", "), j.Sources["azure_rdma"])
	}
	for _, warning := range j.Warnings {
		row("warning", warning, "")
	}
	return w.Flush()
}
