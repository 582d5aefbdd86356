package launch

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/paiinit/paiinit/joblog"
)

// Outcome is how the job ended. It is the same on every rank.
type Outcome struct {
	Status int
	Reason string        // the first cause on the first line; what else is known follows
	After  time.Duration // from the start of the job to its end, measured by rank 0; 0 = unknown
	Stderr string        // the last lines of the command that failed
	Stdout string
	Own    bool   // Stderr is that of the process that failed, and of no other
	Next   string // what a person can do next
	// Stopped says that a signal from outside ended the job: it has not failed.
	Stopped bool
	// Verdict says that Status is paiinit's own: the command could not be started.
	Verdict bool
	Hung    bool // the command made no progress
}

const (
	// tailWidth is the maximum length, in bytes, of each line that an outcome quotes.
	tailWidth = 300
	// Where stderr tells something, fewer lines of stdout are shown.
	stdoutBeside = 5
)

// quoted returns lines as an outcome carries them.
func quoted(lines []string) string {
	short := make([]string, len(lines))
	for i, l := range lines {
		short[i] = strings.ToValidUTF8(clean(l), "\ufffd")
		if len(short[i]) > tailWidth {
			short[i] = strings.ToValidUTF8(short[i][:tailWidth], "")
		}
	}
	return strings.Join(short, "\n")
}

// clean returns what a terminal shows of a line: a progress bar overwrites itself, and colours are no text.
func clean(line string) string {
	line = strings.TrimRight(line, "\r")
	if i := strings.LastIndexByte(line, '\r'); i >= 0 && strings.TrimSpace(line[i:]) != "" {
		line = line[i+1:]
	}
	if strings.ContainsRune(line, '\x1b') {
		line = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]").ReplaceAllString(line, "")
	}
	return strings.ReplaceAll(line, "\t", "    ")
}

// Text returns how the job ended as people read it. A failure has several lines: what failed, the last lines of its
// output, and what to do next. If limit is above 0, the text has at most so many bytes: it lacks the first of the last
// lines then. Control characters are escaped, so that no output of the job looks like a line of another program.
func (o Outcome) Text(limit int) string {
	if o.Status == 0 {
		return "the job has ended, status 0" + after(o.After) + optional(": ", escape(o.Reason))
	}
	title := "JOB FAILED"
	if o.Stopped {
		title = "JOB STOPPED"
	}
	head := []string{fmt.Sprintf("%s, status %d%s", title, o.Status, after(o.After))}
	for l := range strings.SplitSeq(o.Reason, "\n") {
		head = append(head, "  "+escape(l))
	}
	next := ""
	if o.Next != "" {
		next = "\n  next: " + escape(o.Next)
	}
	whose := "on "
	if o.Own {
		whose = "of its "
	}
	stderr := quotation("  last lines "+whose+"stderr:", o.Stderr, 0)
	beside := 0
	if len(stderr) > 0 {
		beside = stdoutBeside
	}
	stdout := quotation("  last lines "+whose+"stdout:", o.Stdout, beside)
	first := strings.Join(head, "\n")
	if limit <= 0 {
		return first + onLines(stderr) + onLines(stdout) + next
	}
	if most := limit - len(next); len(first) > most {
		next = strings.ToValidUTF8(next[:min(len(next), limit/2)], "")
		return strings.ToValidUTF8(first[:min(len(first), limit-len(next))], "") + next
	}
	room := limit - len(first) - len(next)
	errs := fit(stderr, room)
	return first + errs + fit(stdout, room-len(errs)) + next
}

// quotation returns a title and the lines of a text below it, or at most the last ones; nil for an empty text.
func quotation(title, text string, most int) (lines []string) {
	if text == "" {
		return nil
	}
	lines = strings.Split(text, "\n")
	if most > 0 {
		lines = lines[max(0, len(lines)-most):]
	}
	for i, l := range lines {
		lines[i] = "    " + escape(l)
	}
	return append([]string{title}, lines...)
}

// fit returns a section with as many of its last lines as have room.
func fit(section []string, room int) string {
	if len(section) == 0 {
		return ""
	}
	first := len(section)
	for room -= len(section[0]) + 1; first > 1 && len(section[first-1]) < room; first-- {
		room -= len(section[first-1]) + 1
	}
	if first == len(section) {
		return ""
	}
	return onLines(section[:1]) + onLines(section[first:])
}

// onLines puts each line on a line of its own.
func onLines(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString("\n" + strings.TrimRight(l, " "))
	}
	return b.String()
}

func after(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return ", after " + joblog.Seconds(d)
}

func optional(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

// escape makes a line printable.
func escape(line string) string {
	printable := func(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
	if strings.IndexFunc(line, func(r rune) bool { return !printable(r) }) < 0 {
		return line
	}
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(line, "\ufffd") {
		if printable(r) || r == '\ufffd' {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
