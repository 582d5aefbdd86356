package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/paiinit/paiinit/integration/lab"
)

// milestone is a step of a launch, which a line of paiinit's log reports.
type milestone struct {
	name string
	line *regexp.Regexp
}

// milestones are in the order of time.
var milestones = []milestone{
	{"all present", regexp.MustCompile(`^[\d:]{8} \S+: all \d+ present after `)},
	{"launched", regexp.MustCompile(`^[\d:]{8} \S+: launching `)},
	{"done", regexp.MustCompile(`^[\d:]{8} \S+: (error: JOB |the job has ended)`)},
}

// timeline returns the times of the milestones since begin. lines must be in the order of time; a milestone counts for
// the first host that logs it.
func timeline(lines []lab.Line, begin time.Time) string {
	var parts []string
	for _, m := range milestones {
		at := time.Duration(-1)
		for _, l := range lines {
			if at < 0 && m.line.MatchString(l.Text) {
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
