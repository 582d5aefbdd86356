package inspect

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Result is the outcome of [Checkup.Run]. Its JSON is that of `paiinit check --json`.
type Result struct {
	Findings []Finding `json:"findings"`
	OK       int       `json:"ok"`
	Warn     int       `json:"warn"`
	Fail     int       `json:"fail"`
	Status   int       `json:"status"` // the exit status of paiinit run here, 0 without a failure
}

func (r *Result) add(findings ...Finding) { r.Findings = append(r.Findings, findings...) }

// count sums up the findings. A launch meets the failures in the order of the findings, so the first one gives the
// status.
func (r *Result) count() {
	for _, f := range r.Findings {
		switch f.Severity {
		case SeverityOK:
			r.OK++
		case SeverityWarn:
			r.Warn++
		case SeverityFail:
			r.Fail++
			if r.Status == 0 {
				r.Status = f.status
			}
		}
	}
}

// The columns of the table.
const (
	nameColumn = 6
	textColumn = 17
	tableWidth = 80
)

// Write writes the result as JSON or as a table.
func (r Result) Write(out io.Writer, asJSON bool) error {
	if !asJSON {
		return r.WriteTable(out)
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteTable writes one line for each finding, what to do below it, and a summary. No line is longer than 80 columns.
func (r Result) WriteTable(out io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		head := fmt.Sprintf("%-*s%-*s", nameColumn, strings.ToUpper(string(f.Severity)), textColumn-nameColumn, f.Name)
		lines := wrap(f.Text, tableWidth-textColumn)
		if f.Fix != "" {
			lines = append(lines, wrap("fix: "+f.Fix, tableWidth-textColumn)...)
		}
		for _, line := range lines {
			b.WriteString(head + line + "\n")
			head = strings.Repeat(" ", textColumn)
		}
	}
	b.WriteString("\n")
	for _, line := range wrap(r.summary(), tableWidth) {
		b.WriteString(line + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// summary counts the findings, and names every finding that is not OK.
func (r Result) summary() string {
	text := ""
	for _, severity := range []Severity{SeverityFail, SeverityWarn} {
		var names []string
		n := 0
		for _, f := range r.Findings {
			if f.Severity != severity {
				continue
			}
			n++
			if !slices.Contains(names, f.Name) {
				names = append(names, f.Name)
			}
		}
		if n > 0 {
			text += fmt.Sprintf("%d %s (%s), ", n, strings.ToUpper(string(severity)), strings.Join(names, ", "))
		}
	}
	text += fmt.Sprintf("%d OK", r.OK)
	if r.Status != 0 {
		text += fmt.Sprintf(": paiinit run would end with status %d here", r.Status)
	}
	return text
}

// wrap breaks a text into lines of at most width characters, between words where it can. Control characters are shown
// escaped: a value of the environment must not look like a line of ours.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Split(escaped(text), " ") {
		for utf8.RuneCountInString(word) > width { // a path, for example
			if line != "" {
				lines = append(lines, line)
				line = ""
			}
			cut := len(string([]rune(word)[:width]))
			lines = append(lines, word[:cut])
			word = word[cut:]
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

func escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\x%02x", r)
		}
	}
	return b.String()
}
