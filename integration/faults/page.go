package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// The generated section of docs/reliability.md.
const (
	pageBegin = "<!-- faults: written by make faults -->\n"
	pageEnd   = "<!-- end of faults -->\n"
)

// expected describes the statuses for the page.
func (e expectation) expected(c cell) string {
	target := c.role.name
	switch {
	case e.guest != 0:
		return fmt.Sprintf("%d; the other container %d", e.status, e.guest)
	case e.hit == waits:
		return fmt.Sprintf("%d; the container of %s that is cut off waits until `--rejoin`", e.status, target)
	case e.next:
		return fmt.Sprintf("%d; the lost container of %s %d", e.status, target, e.hit)
	case e.hit != same && e.hit != e.status:
		return fmt.Sprintf("%d; %s %d", e.status, target, e.hit)
	}
	return fmt.Sprint(e.status)
}

// rule is the part of a row that the oracle knows; rest is what was seen.
func (c cell) rule() string {
	e := c.expect()
	return fmt.Sprintf("| `%s` | %s | %s | %v |", c.id(), e.expected(c), e.why, e.within)
}

// row is the row of a cell that has passed.
func (r result) row() string {
	return fmt.Sprintf("%s %.1f s | %s |\n", r.rule(), r.took.Seconds(), quoted(r.line))
}

var clock = regexp.MustCompile(`^\d\d:\d\d:\d\d `)

// quoted formats a line of the log as a cell of a table.
func quoted(line string) string {
	line = clock.ReplaceAllString(strings.TrimSpace(line), "")
	return "`" + strings.NewReplacer("|", `\|`, "`", "'").Replace(line) + "`"
}

// section returns the generated section. rows has a row for each cell, by its rule.
func section(rows map[string]string, where string) string {
	var b strings.Builder
	list, omitted := cells()
	fmt.Fprintf(&b, "%s## The matrix\n\n%d cells. %s\n\n", pageBegin, len(list), where)
	for _, p := range phases {
		fmt.Fprintf(&b, "### %s%s\n\nHeld by: %s.\n\n", strings.ToUpper(p.name[:1]), p.name[1:], p.held)
		b.WriteString("| row | status | because | at most | seen | printed |\n|---|---|---|---:|---:|---|\n")
		for _, c := range list {
			if c.phase == p {
				b.WriteString(rows[c.rule()])
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("### The faults\n\n| fault | what is done |\n|---|---|\n")
	for _, f := range faults {
		fmt.Fprintf(&b, "| %s | %s |\n", f.name, f.does)
	}
	b.WriteString("\n### Left out\n\n| combinations | because |\n|---:|---|\n")
	for _, o := range omitted {
		fmt.Fprintf(&b, "| %d | %s |\n", o.cells, o.why)
	}
	return b.String() + pageEnd
}

// readRows returns the rows of a page, by their rule, and what is before and after the generated section.
func readRows(page string) (rows map[string]string, before, after string, err error) {
	before, rest, found := strings.Cut(page, pageBegin)
	text, after, ended := strings.Cut(rest, pageEnd)
	if !found || !ended {
		return nil, "", "", fmt.Errorf("the page has no lines %q and %q", pageBegin, pageEnd)
	}
	rows = map[string]string{}
	list, _ := cells()
	for line := range strings.Lines(text) {
		for _, c := range list {
			if rule := c.rule(); strings.HasPrefix(line, rule) {
				rows[rule] = line
			}
		}
	}
	return rows, before, after, nil
}

// update replaces the rows of the page for which there are results.
func update(file string, results []result, where string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	rows, before, after, err := readRows(string(page))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, r := range results {
		if r.err == nil && r.skipped == nil {
			rows[r.rule()] = r.row()
		}
	}
	return os.WriteFile(file, []byte(before+section(rows, where)+after), 0o644)
}

// summary says in one line what was run.
func summary(results []result, took time.Duration) string {
	failed, skipped := 0, 0
	for _, r := range results {
		switch {
		case r.skipped != nil:
			skipped++
		case r.err != nil:
			failed++
		}
	}
	return fmt.Sprintf("%d cells in %v: %d failed, %d skipped", len(results), took.Round(time.Second), failed, skipped)
}
