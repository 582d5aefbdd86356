package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/paiinit/paiinit/integration/lab"
)

// milestone is a step of a launch, which a record of paiinit's log reports.
type milestone struct {
	name string
	is   func(record map[string]string) bool
}

// milestones are in the order of time.
var milestones = []milestone{
	{"all present", func(r map[string]string) bool { return r["phase"] == "gather" && r["last"] != "" }},
	{"launched", func(r map[string]string) bool { return r["phase"] == "launch" && r["command"] != "" }},
	{"done", func(r map[string]string) bool { return r["phase"] == "exit" }},
}

// timeline returns the times of the milestones since begin. lines must be in the order of time; a milestone counts for
// the first host that logs it.
func timeline(lines []lab.Line, begin time.Time) string {
	var parts []string
	for _, m := range milestones {
		at := time.Duration(-1)
		for _, l := range lines {
			if m.is(parseRecord(l.Text)) && (at < 0) {
				at = l.Time.Sub(begin)
			}
		}
		if at < 0 {
			parts = append(parts, m.name+" never")
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %.2fs", m.name, at.Seconds()))
	}
	return strings.Join(parts, ", ")
}

// parseRecord parses a line of log/slog's text format: key=value pairs, with quoted values if necessary. It ignores all
// other words.
func parseRecord(text string) map[string]string {
	record := map[string]string{}
	for text != "" {
		word, rest, _ := strings.Cut(text, " ")
		key, value, ok := strings.Cut(word, "=")
		if ok && strings.HasPrefix(value, `"`) {
			quoted, err := strconv.QuotedPrefix(text[len(key)+1:])
			if err == nil {
				rest = text[len(key)+1+len(quoted):]
				value, _ = strconv.Unquote(quoted)
			}
		}
		if ok && key != "" {
			record[key] = value
		}
		text = strings.TrimLeft(rest, " ")
	}
	return record
}
