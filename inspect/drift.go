package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rank is a rank of the job with the facts of its container.
type Rank struct {
	Rank       int
	ID         string // for a Board
	Name, Role string
	LaunchOnly bool   // launchers start no process there
	GPUs       int    // devices
	Facts      []Fact // nil = not known, and not compared
}

// Drift is a fact that differs between ranks that should be equal.
type Drift struct {
	Name   string
	Values []Value // the most frequent one first
	// Info says that the difference alone is no reason for a warning.
	Info bool
}

// Value is one value of a fact, and the ranks that have it.
type Value struct {
	Text  string
	Names []string // by rank
}

// Compare returns what differs. The result does not depend on the order of the ranks.
//
// A fact is compared between the ranks of one role, and those on which a launcher starts no process are apart: a
// launcher's container needs no GPUs, and a parameter server no library for them. What processes with GPUs need to
// communicate is compared between all ranks with GPUs, whatever their roles.
func Compare(ranks []Rank) []Drift {
	ranks = slices.DeleteFunc(slices.Clone(ranks), func(r Rank) bool { return r.Facts == nil })
	slices.SortStableFunc(ranks, func(a, b Rank) int { return cmp.Compare(a.Rank, b.Rank) })
	values := make([]map[string]string, len(ranks))
	var names []string
	seen := make(map[string]bool)
	present := make(map[[2]string]bool) // by group of the role and name
	for i, r := range ranks {
		values[i] = make(map[string]string, len(r.Facts))
		group := r.group()
		for _, f := range r.Facts {
			values[i][f.Name] = f.Value
			present[[2]string{group, f.Name}] = true
			if !seen[f.Name] {
				seen[f.Name] = true
				names = append(names, f.Name)
			}
		}
	}
	var drifts []Drift
	for _, name := range names {
		var order []string // of groups
		groups := make(map[string]*Drift)
		for i, r := range ranks {
			value, ok := values[i][name]
			switch {
			case ok:
			case strings.HasPrefix(name, FilePrefix), !present[[2]string{r.group(), name}], name == ClockFact:
				continue // the rank does not need it
			case isSetting(name):
				value = "not set"
			default:
				value = "none"
			}
			key := r.groupFor(name)
			if groups[key] == nil {
				groups[key] = &Drift{Name: name, Info: name == kernelFact}
				order = append(order, key)
			}
			groups[key].add(value, r.Name)
		}
		for _, key := range order {
			if d := groups[key]; len(d.Values) > 1 {
				// By rank where two values are as frequent: the sort is stable.
				slices.SortStableFunc(d.Values, func(a, b Value) int { return cmp.Compare(len(b.Names), len(a.Names)) })
				drifts = append(drifts, *d)
			}
		}
	}
	return drifts
}

func (d *Drift) add(value, name string) {
	i := slices.IndexFunc(d.Values, func(v Value) bool { return v.Text == value })
	if i < 0 {
		i = len(d.Values)
		d.Values = append(d.Values, Value{Text: value})
	}
	d.Values[i].Names = append(d.Values[i].Names, name)
}

// group returns what the ranks have in common that should be equal.
func (r Rank) group() string { return r.Role + "\x00" + strconv.FormatBool(r.LaunchOnly) }

// groupFor returns what the ranks have in common on which a fact should be equal.
func (r Rank) groupFor(name string) string {
	switch {
	case name == ClockFact:
		return ""
	case r.GPUs > 0 && isShared(name):
		return "\x00GPUs"
	}
	return r.group()
}

// isShared reports whether processes that communicate should agree on a fact, whatever their roles.
func isShared(name string) bool {
	return isSetting(name) || slices.Contains([]string{
		driverFact, "libmpi", "libnccl", "librccl", "libnccl of Python", mtuFact,
	}, name)
}

// ClockFact is the fact that [Board.Skew] adds.
const ClockFact = "clock"

// Matter reports whether a difference is worth a warning.
func Matter(drifts []Drift) bool {
	return slices.ContainsFunc(drifts, func(d Drift) bool { return !d.Info })
}

// Rows returns a row for each value: the fact, the value, and the ranks that have it.
func Rows(drifts []Drift) [][]string {
	var rows [][]string
	for _, d := range drifts {
		for i, v := range d.Values {
			rows = append(rows, []string{d.Name, v.Text, v.ranks(i == 0)})
		}
	}
	return rows
}

// Several names of the most frequent value are counted, and those of the other values are folded.
const (
	countFrom = 4
	foldFrom  = 4
)

func (v Value) ranks(first bool) string {
	if n := len(v.Names); first && n >= countFrom {
		return fmt.Sprintf("%d ranks", n)
	}
	return foldNames(v.Names)
}

// maxRuns bounds how many groups of names a line lists.
const maxRuns = 12

// foldNames lists names. From foldFrom names on, it writes numbered names like worker-[0-3,7].
func foldNames(names []string) string {
	if len(names) < foldFrom {
		return strings.Join(names, ", ")
	}
	var parts []string
	for i, runs := 0, 0; i < len(names); {
		if runs >= maxRuns {
			parts = append(parts, fmt.Sprintf("%d more", len(names)-i))
			break
		}
		prefix, _, numbered := cutNumber(names[i])
		if !numbered {
			parts = append(parts, names[i])
			runs, i = runs+1, i+1
			continue
		}
		var list []string
		begin := i
		for i < len(names) && runs < maxRuns {
			p, from, ok := cutNumber(names[i])
			if !ok || p != prefix {
				break
			}
			to := from
			for i++; i < len(names); i++ {
				if p, n, ok := cutNumber(names[i]); !ok || p != prefix || n != to+1 {
					break
				}
				to++
			}
			run := strconv.Itoa(from)
			if to > from {
				run += "-" + strconv.Itoa(to)
			}
			list = append(list, run)
			runs++
		}
		if i == begin+1 {
			parts = append(parts, names[begin])
		} else {
			parts = append(parts, prefix+"["+strings.Join(list, ",")+"]")
		}
	}
	return strings.Join(parts, ", ")
}

// cutNumber splits worker-7 into worker- and 7. A number with leading zeros is part of the name.
func cutNumber(name string) (prefix string, number int, ok bool) {
	at := len(strings.TrimRight(name, "0123456789"))
	number, err := strconv.Atoi(name[at:])
	return name[:at], number, err == nil && strconv.Itoa(number) == name[at:]
}

// lineLength is the longest line that Lines fills with several values.
const lineLength = 78

// Lines formats differences for people: one line for each fact, or for each value where they are long.
func Lines(drifts []Drift) []string {
	width := 0
	for _, d := range drifts {
		width = max(width, len(d.Name))
	}
	var lines []string
	for _, d := range drifts {
		var values []string
		for i, v := range d.Values {
			values = append(values, v.Text+" on "+v.ranks(i == 0))
		}
		if one := fmt.Sprintf("%-*s  %s", width, d.Name, strings.Join(values, "; ")); len(one) <= lineLength {
			lines = append(lines, one)
			continue
		}
		for i, value := range values {
			name := d.Name
			if i > 0 {
				name = ""
			}
			lines = append(lines, fmt.Sprintf("%-*s  %s", width, name, value))
		}
	}
	return lines
}
