package launch

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Blame is what a launcher reports about the process that failed first. The exit status of a launcher alone does not
// tell which of its processes failed, nor where.
type Blame struct {
	Process string         // such as "MPI rank 4"; "" if the launcher reports no process
	Rank    string         // the number with which the launcher marks the lines of this process; "" = unknown
	Host    string         // where the process ran, as the launcher names it; "" = unknown
	Local   string         // its number on its host; "" = unknown
	Status  int            // its exit status, or the error code of Abort
	Signal  syscall.Signal // the signal that ended it
	Abort   string         // the function by which it ended the job, such as MPI_Abort
	Unsure  string         // why another process may have failed first
	Cause   string         // what the launcher reports beside or instead of a process
	Unnamed bool           // the launcher reports that a process failed, but not which
}

// set adds what another report tells; the first report counts.
func (b *Blame) set(o Blame) {
	cause := b.Cause
	if b.Unnamed {
		cause = ""
	}
	switch {
	case b.Process == "":
		*b = o
	case b.Rank == o.Rank && b.Host == "": // the next report of the same failure
		b.Host = o.Host
	}
	if cause != "" {
		b.Cause = cause
	}
}

// status returns the exit status of the process as a shell reports it, 0 if it is unknown.
func (b *Blame) status() int {
	if b.Signal > 0 {
		return 128 + int(b.Signal)
	}
	return b.Status
}

// printed is the end of what a command has printed on one stream.
type printed struct {
	lines []string // without the marks of a launcher
	own   []bool   // lines that a launcher writes about every failure; nothing is lost without them
}

func newPrinted(lines []string) *printed { return &printed{lines, make([]bool, len(lines))} }

// claim marks the lines from begin to end, without end, as the launcher's own.
func (p *printed) claim(begin, end int) {
	for i := begin; i < end; i++ {
		p.own[i] = true
	}
}

// claimAll marks each line that an expression matches, as find, and returns the submatches of the first one.
func (p *printed) claimAll(text, expression string) (first []string) {
	for i, m := range p.find(text, expression) {
		p.own[i] = true
		if first == nil {
			first = m
		}
	}
	return first
}

// find yields each line that has a text and that an expression matches, with the submatches. The text is a part of
// every match: to compile the expressions of all launchers takes 1.5 ms, which most commands save.
func (p *printed) find(text, expression string) func(yield func(int, []string) bool) {
	return func(yield func(int, []string) bool) {
		var re *regexp.Regexp
		for i, l := range p.lines {
			if !strings.Contains(l, text) {
				continue
			}
			if re == nil {
				re = regexp.MustCompile(expression)
			}
			if m := re.FindStringSubmatch(l); m != nil && !yield(i, m) {
				return
			}
		}
	}
}

// readBlame returns what the launchers report at the end of the streams, and claims their own lines.
func readBlame(streams ...*printed) (b Blame) {
	for _, l := range slices.Backward(launchers) { // MPI last: others run below mpirun, or print frames as it does
		if l.Blames == nil {
			continue
		}
		for _, s := range streams {
			l.Blames(s, &b)
		}
	}
	return b
}

// wasKilled is the Unsure of launchers that end the other processes by the signal that they report.
const wasKilled = "the launcher may have sent the signal after another process had failed"

// number reads a decimal number, 0 if it is none.
func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// mostCause is the maximum length in bytes of a text of a launcher in a cause.
const mostCause = 600

// joined returns the words of lines, separated by blanks.
func joined(lines []string) string {
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}

// oneLine joins lines by blanks, and shortens the result.
func oneLine(lines []string) string {
	text := joined(lines)
	if len(text) > mostCause {
		text = strings.ToValidUTF8(text[:mostCause], "") + " ..."
	}
	return text
}

// withoutOwn returns the lines that are not the launcher's, without blank lines at both ends.
func (p *printed) withoutOwn() (rest []string) {
	for i, l := range p.lines {
		if !p.own[i] {
			rest = append(rest, l)
		}
	}
	return trimBlank(rest)
}

func trimBlank(lines []string) []string {
	text := func(l string) bool { return strings.TrimSpace(l) != "" }
	first := slices.IndexFunc(lines, text)
	if first < 0 {
		return nil
	}
	last := len(lines)
	for !text(lines[last-1]) {
		last--
	}
	return lines[first:last]
}

// negated returns the blame for a process of a Python launcher, whose negative exit codes are signals.
func negated(process, rank, host string, code int) Blame {
	b := Blame{Process: process, Rank: rank, Host: host, Status: code}
	if code < 0 {
		b.Status, b.Signal = 0, syscall.Signal(-code)
	}
	return b
}
