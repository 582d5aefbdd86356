package timeline

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	width    = 80
	fewRanks = 16 // more ranks are not all listed
	slowest  = 10 // ranks that are listed then
	longName = 16
)

// WriteText writes the timeline for a terminal of 80 columns: the critical path, then a bar for each rank, the slowest
// first. Of many ranks it folds the early ranks.
func (t *Timeline) WriteText(w io.Writer) error {
	var b strings.Builder
	b.WriteString(t.headline() + "\n")
	for _, line := range wrap(t.Critical(), width) {
		b.WriteString(line + "\n")
	}
	b.WriteString("\n")
	t.writeBars(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// headline says in one line when the launch began, came and ended.
func (t *Timeline) headline() string {
	origin := t.origin()
	s := fmt.Sprintf("%d ranks", len(t.Ranks))
	if len(t.Ranks) == 1 {
		s = "1 rank"
	}
	s += ", from " + origin.UTC().Format("15:04:05") + " UTC"
	launched, ended := t.launched(), t.ended()
	if launched.IsZero() {
		s += ": not launched"
	} else {
		s += ": launched after " + Span(launched.Sub(origin))
	}
	if !ended.IsZero() {
		return s + ", ended after " + Span(ended.Sub(origin))
	}
	return s + ", now at " + Span(t.Now.Sub(origin))
}

// scale maps times to columns.
type scale struct {
	from, to time.Time
	columns  int
}

func (s scale) column(at time.Time) int {
	whole := s.to.Sub(s.from)
	if whole <= 0 {
		return 0
	}
	c := int(float64(at.Sub(s.from)) / float64(whole) * float64(s.columns))
	return min(max(c, 0), s.columns)
}

// end returns the end of the bars: what comes after the launch would squeeze what led to it.
func (t *Timeline) end() time.Time {
	launched := t.launched()
	if launched.IsZero() {
		if e := t.ended(); !e.IsZero() {
			return e
		}
		return t.Now
	}
	end := launched
	for i := range t.Ranks {
		for _, at := range []time.Time{t.Ranks[i].Launched, t.Ranks[i].Session} {
			// A session long after the launch belongs to the job, not to its start.
			if at.After(end) && at.Sub(launched) <= 2*launched.Sub(t.origin())+time.Second {
				end = at
			}
		}
	}
	return end.Add(end.Sub(t.origin()) / 12) // room that shows that the job goes on
}

func (t *Timeline) writeBars(b *strings.Builder) {
	ranks := t.slowestFirst()
	var folded []*Rank
	if len(ranks) > fewRanks {
		ranks, folded = split(ranks)
	}
	names, whole := 4, t.end().Sub(t.origin())
	for _, r := range ranks {
		names = max(names, min(utf8.RuneCountInString(r.Name), longName))
	}
	s := scale{t.origin(), t.end(), width - names - len("  0.00 s  0.00 s  ") - 1}
	left, right := "0 s", Span(whole)
	gap := max(1, s.columns-len(left)-len(right))
	fmt.Fprintf(b, "%-*s  START   READY   %s%s%s\n", names, "RANK", left, strings.Repeat(" ", gap), right)
	said := ""
	if s := t.Critical(); len(folded) == 0 && s == t.missing() && len(ranks) > 0 {
		said = ranks[0].Reason // no other rank is missing
	}
	for _, r := range ranks {
		name := cut(clean(r.Name), names)
		line := fmt.Sprintf("%-*s %7s %7s  ", names, name, t.after(r.Started), t.after(r.Reachable))
		fmt.Fprintln(b, strings.TrimRight(line+t.bar(r, s), " "))
		if r.Reason != "" && r.Reason != said {
			said = r.Reason
			for _, part := range wrap(r.Reason, width-4) {
				fmt.Fprintln(b, "    "+part)
			}
		}
	}
	absent := 0
	for absent < len(folded) && folded[absent].failed() {
		absent++
	}
	if absent > 0 {
		fmt.Fprintf(b, "%d more are missing or lost\n", absent)
	}
	if early := folded[absent:]; len(early) > 0 {
		first, last := early[len(early)-1].Reachable, early[0].Reachable
		fmt.Fprintf(b, "%d more, ready between %s and %s\n", len(early), t.after(first), t.after(last))
	}
	b.WriteString("\n")
	for i, k := range kinds() {
		if i > 0 {
			b.WriteString("  ")
		}
		b.WriteString(k.char + " " + k.name)
	}
	b.WriteString("  S session\n")
}

// split returns the ranks that are listed, and the ranks that are folded into one line: the slowest, as many that
// failed, and rank 0 are listed.
func split(all []*Rank) (listed, folded []*Rank) {
	count := map[bool]int{}
	for _, r := range all {
		if count[r.failed()]++; count[r.failed()] <= slowest || r.Rank == 0 {
			listed = append(listed, r)
		} else {
			folded = append(folded, r)
		}
	}
	return listed, folded
}

// after returns the time from the origin to an event, "-" for an unknown event.
func (t *Timeline) after(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return Span(at.Sub(t.origin()))
}

// bar draws the stages of a rank. A later stage covers an earlier one in the same column, so that a short step is seen.
func (t *Timeline) bar(r *Rank, s scale) string {
	row := []byte(strings.Repeat(" ", s.columns))
	for _, g := range t.stages(r) {
		from, to := s.column(g.from), s.column(g.to)
		for c := min(from, s.columns-1); c <= min(max(to-1, from), s.columns-1); c++ {
			row[c] = kinds()[g.kind].char[0]
		}
	}
	if at := s.column(r.Session); !r.Session.IsZero() && !r.Session.After(s.to) {
		row[min(at, s.columns-1)] = 'S'
	}
	if at := s.column(r.Ended); r.Lost && !r.Ended.After(s.to) {
		row[min(at, s.columns-1)] = 'X'
	}
	return string(row)
}

// wrap breaks a text at spaces. A longer word has a line of its own.
func wrap(text string, columns int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(clean(text)) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= columns:
			line += " " + word
		default:
			lines = append(lines, line)
			line = "  " + word
		}
	}
	return append(lines, line)
}

// clean replaces characters that a terminal or a browser acts on instead of showing them: a job could forge lines.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			return utf8.RuneError
		}
		return r
	}, s)
}

// cut shortens a name in its middle: names of one job differ at their ends.
func cut(name string, columns int) string {
	r := []rune(name)
	if len(r) <= columns {
		return name
	}
	keep := (columns - 1) * 2 / 3
	return string(slices.Concat(r[:columns-1-keep], []rune("~"), r[len(r)-keep:]))
}
