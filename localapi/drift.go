package localapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// askDrift is the question of `paiinit status --drift`.
const askDrift = "drift"

// Drift is what `paiinit status --drift --json` prints: what differs between the ranks, as rank 0 knows it.
type Drift struct {
	Mode   string     `json:"check"`  // --check of rank 0
	Size   int        `json:"size"`   // ranks of the job
	Absent []string   `json:"absent"` // ranks whose facts are not known
	Rows   [][]string `json:"rows"`   // a fact, one of its values, and the ranks that have this value
}

// Drift asks what differs between the ranks.
func (c Client) Drift(ctx context.Context) (*Drift, error) {
	a, err := c.ask(ctx, request{Ask: askDrift})
	if err == nil && a.Drift == nil {
		err = errors.New("reading the answer of paiinit: the comparison is missing")
	}
	return a.Drift, err
}

// PrintDrift asks what differs between the ranks, and prints it as text or as JSON.
func (c Client) PrintDrift(ctx context.Context, w io.Writer, asJSON bool) error {
	d, err := c.Drift(ctx)
	switch {
	case err != nil:
		return err
	case asJSON:
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(d)
	}
	return d.WriteTable(w)
}

// WriteTable prints the differences as text.
func (d *Drift) WriteTable(w io.Writer) error {
	var b bytes.Buffer
	told := d.Size - len(d.Absent)
	switch {
	case d.Mode == "off":
		b.WriteString("the ranks are not compared (--check off)\n")
	case len(d.Rows) == 0:
		fmt.Fprintf(&b, "no differences between %d of %d ranks\n", told, d.Size)
	default:
		t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		_, _ = fmt.Fprintln(t, "FACT\tVALUE\tRANKS") // a Buffer never fails
		last := ""
		for _, row := range d.Rows {
			fact := row[0]
			if fact == last {
				row = append([]string{""}, row[1:]...)
			}
			last = fact
			_, _ = fmt.Fprintln(t, strings.Join(row, "\t"))
		}
		_ = t.Flush()
	}
	if n := len(d.Absent); n > 0 && d.Mode != "off" {
		fmt.Fprintf(&b, "\nnothing is known about %d of %d ranks: %s\n", n, d.Size, strings.Join(d.Absent, ", "))
	}
	_, err := b.WriteTo(w)
	return err
}
