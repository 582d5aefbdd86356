package localapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"reflect"
	"strconv"
	"text/tabwriter"
	"time"
)

// WriteTable prints a status as text: the phase with a sentence about the ranks, the time of each phase, and a row for
// each rank.
func (s *Status) WriteTable(w io.Writer, ranks string, now time.Time) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %s\nthis is rank %s", s.Phase, ranks, numberOr(s.Rank, "unknown"))
	if s.Hash != "" {
		fmt.Fprintf(&b, ", epoch %d, roster %.12s", s.Epoch, s.Hash)
	}
	for _, phase := range []string{"listen", "gather", "launch"} {
		if t, ok := s.Timings[phase]; ok {
			fmt.Fprintf(&b, ", %s %.3fs", phase, t)
		}
	}
	b.WriteString("\n\n")
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "RANK\tNAME\tADDRESS\tSTATE\tSINCE\tSLOTS\tGPUS\tFABRIC\tREASON") // a Buffer never fails
	for _, r := range s.Ranks {
		addr := r.Host
		if r.Port > 0 {
			addr = net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%v\t%s\t%s\t%s\t%s\n",
			numberOr(r.Rank, "-"), r.Alias, addr, r.State, now.Sub(r.Since).Truncate(time.Second),
			numberOr(r.Slots, "-"), numberOr(r.GPUs, "-"), r.Fabric, r.Reason)
	}
	_ = t.Flush()
	_, err := b.WriteTo(w)
	return err
}

// numberOr formats a number, or returns the text for an unknown one.
func numberOr(n int, unknown string) string {
	if n < 0 {
		return unknown
	}
	return strconv.Itoa(n)
}

// Changes asks every second. It yields the status now, and again after every change until the job has ended. It ends
// after an error.
func (c Client) Changes(ctx context.Context) iter.Seq2[*Status, error] {
	return func(yield func(*Status, error) bool) {
		for last := (*Status)(nil); ; {
			s, err := c.Status(ctx)
			if err != nil {
				yield(nil, err)
				return
			}
			if !reflect.DeepEqual(last, s) && !yield(s, nil) || s.Phase == Ended {
				return
			}
			last = s
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}
