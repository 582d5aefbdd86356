package localapi

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// View shows a status that changes: on a terminal in place, elsewhere as one paragraph for each change.
type View struct {
	JSON  bool // instead of text
	Watch bool // show every change until the job ends

	Out    io.Writer
	Layout Layout
	Size   func() (columns, rows int) // of the terminal; nil = Out is none

	last  *Status
	drawn int // lines above the cursor
}

// Show shows a status. On a terminal it draws over the one before; elsewhere it prints what is new since then.
func (v *View) Show(s *Status, now time.Time) error {
	defer func() { v.last = s }()
	switch {
	case v.Size != nil:
		return v.draw(s, now)
	case v.last == nil:
		return v.Layout.WriteTable(v.Out, s, now)
	}
	var changed []Rank
	for _, r := range s.Ranks {
		if !slices.ContainsFunc(v.last.Ranks, func(o Rank) bool { return r.stable() == o.stable() }) {
			changed = append(changed, r)
		}
	}
	if len(changed) == 0 && s.Phase == v.last.Phase && s.unready() == v.last.unready() &&
		reflect.DeepEqual(s.Outcome, v.last.Outcome) {
		return nil
	}
	lines := v.Layout.changes(s, changed, now)
	_, err := io.WriteString(v.Out, strings.Join(lines, "\n")+"\n")
	return err
}

// changes says which time it is, which phase, and what is new of some ranks.
func (l Layout) changes(s *Status, changed []Rank, now time.Time) (out []string) {
	if l.Width == 0 {
		l.Width = usualWidth
	}
	out = l.wrap(now.Format(time.TimeOnly)+" "+s.headline(now), "", "    ")
	if text := s.unready(); text != "" {
		out = append(out, l.wrap(text, "    ", "    ")...)
	}
	if s.Outcome != nil {
		for line := range strings.Lines(s.Outcome.Reason) {
			out = append(out, l.wrap(printable(line), "    ", "    ")...)
		}
	}
	l.Width -= 2
	for _, row := range l.rows(changed, s, now) {
		out = append(out, "  "+row)
	}
	return out
}

// widestTerminal is the width up to which the lines fill a terminal.
const widestTerminal = 120

// draw moves the cursor to the first line that is drawn and draws over all of them, with one write, so that nothing
// flickers. What does not fit is left out: the cursor cannot move above the terminal's first row.
func (v *View) draw(s *Status, now time.Time) error {
	columns, rows := v.Size()
	l := v.Layout
	if columns > 0 {
		l.Width = min(columns, widestTerminal)
	}
	lines := l.lines(s, now)
	if most := rows - 1; rows > 2 && len(lines) > most {
		lines = append(lines[:most-1:most-1], fmt.Sprintf("... and %d more lines", len(lines)-most+1))
	}
	var b strings.Builder
	if v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", min(v.drawn, max(rows-1, 1)))
	}
	for _, line := range lines {
		b.WriteString("\r" + line + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	v.drawn = len(lines)
	_, err := io.WriteString(v.Out, b.String())
	return err
}

// stable returns a rank without what changes from one question to the next.
func (r Rank) stable() Rank {
	r.Since, r.RTT = time.Time{}, 0
	return r
}

// stable returns a status without what changes from one question to the next, in a form to compare.
func (s *Status) stable() []byte {
	c := *s
	c.Deadline, c.Ranks = time.Time{}, nil
	for _, r := range s.Ranks {
		c.Ranks = append(c.Ranks, r.stable())
	}
	b, _ := json.Marshal(c) // cannot fail: it came as JSON
	return b
}

// TerminalSize returns the size of the terminal on standard output; 0 = unknown.
func TerminalSize() (columns, rows int) {
	size, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Col), int(size.Row)
}

// Print shows the first status, or with Watch all of them. An error that comes after a status means that the job has
// ended; lost gets it.
func (v *View) Print(changes iter.Seq2[*Status, error], lost func(error)) error {
	first := true
	for s, err := range changes {
		switch e := json.NewEncoder(v.Out); {
		case err != nil && first:
			return err
		case err != nil:
			lost(err)
			return nil
		case v.JSON && v.Watch:
			err = e.Encode(s) // one line for each change
		case v.JSON:
			e.SetIndent("", "  ")
			err = e.Encode(s)
		default:
			err = v.Show(s, time.Now())
		}
		if err != nil || !v.Watch {
			return err
		}
		first = false
	}
	return nil
}
