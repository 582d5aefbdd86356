package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// report is one section of docs/benchmarks.md.
type report struct {
	name    string // marks the section in the file's comments
	title   string
	intro   []string // paragraphs above the table
	plot    string   // what an image of the section's name in the directory plots shows; "" = no image
	columns []string
	rows    [][]string
	command string // makes the section again
}

// text formats the report for a terminal.
func (r report) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 3, ' ', 0)
	for _, row := range append([][]string{append([]string{""}, r.columns...)}, r.rows...) {
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t")) // writing to a strings.Builder never fails
	}
	_ = w.Flush()
	return b.String()
}

// markdown formats the report as a section of docs/benchmarks.md.
func (r report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n## %s\n\n", r.begin(), r.title)
	for _, paragraph := range r.intro {
		fmt.Fprintf(&b, "%s\n\n", paragraph)
	}
	if r.plot != "" {
		fmt.Fprintf(&b, "![%s](plots/%s.svg)\n\n", r.plot, r.name)
	}
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(r.columns, " | "), strings.Repeat("---:|", len(r.columns)))
	for _, row := range r.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	if r.command != "" {
		fmt.Fprintf(&b, "\nMade by `%s`.\n", r.command)
	}
	fmt.Fprintf(&b, "%s\n", r.end())
	return b.String()
}

func (r report) begin() string { return fmt.Sprintf("<!-- %s: written by make bench -->", r.name) }
func (r report) end() string   { return fmt.Sprintf("<!-- end of %s -->", r.name) }

// update replaces the section in the file, or appends it.
func (r report) update(file string) error {
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := string(old)
	before, rest, found := strings.Cut(text, r.begin()+"\n")
	_, after, ended := strings.Cut(rest, r.end()+"\n")
	switch {
	case found && ended:
		text = before + r.markdown() + after
	case found:
		return fmt.Errorf("%s: the section %s has no end", file, r.name)
	case text == "":
		text = "# Benchmarks\n\n" + r.markdown()
	default:
		text = strings.TrimRight(text, "\n") + "\n\n" + r.markdown()
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// nineOfTen explains a cell (see series.cell) to readers of a section.
const nineOfTen = "Each cell shows the median and, in parentheses, the range that holds nine of ten values."

// series holds the values of one measurement, in one unit.
type series []float64

func (s series) median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// cell formats the median and the range that holds nine of ten values.
func (s series) cell(format string) string {
	if len(s) == 0 {
		return "-"
	}
	sorted := slices.Sorted(slices.Values(s))
	last := len(sorted) - 1
	low, high := sorted[last/20], sorted[last-last/20]
	if low == high {
		return fmt.Sprintf(format, low)
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", s.median(), low, high)
}
