package launch

import (
	"cmp"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// last returns the last lines that were printed, numbered as those of the processes.
func (t *tail) last() (lines []kept) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.partial) > 0 {
		t.keep()
	}
	text := splitLines(t.recent, len(t.recent) >= recentBytes)
	for i, l := range text {
		lines = append(lines, kept{t.count - len(text) + 1 + i, l})
	}
	return lines
}

// splitLines returns the lines of the end of a stream; cut reports that the first one may lack its beginning.
func splitLines(b []byte, cut bool) (lines []string) {
	b = b[max(0, len(b)-recentBytes):]
	for l := range strings.Lines(string(b)) {
		l = strings.TrimSuffix(strings.TrimSuffix(l, "\n"), "\r")
		lines = append(lines, strings.ToValidUTF8(l[:min(len(l), maxLine)], "\ufffd"))
	}
	if cut && len(lines) > 1 {
		lines = lines[1:]
	}
	return lines
}

// lastLines is the end of what a command has printed.
type lastLines struct {
	blame          Blame
	stderr, stdout []string // at most the given number; none of the lines that a launcher writes about every failure
	own            bool     // stderr is that of the process in blame alone
	lostDaemon     bool     // a launcher has reported the loss of a daemon; unknown after a failure
}

// lastLines chooses the lines that tell most about a failure: those of the process that the launcher blames, if lines
// are marked, else the last ones, preceded by lines of the process that failed first if others have pushed these out.
// stdout is nil if it is not known. Reports of launchers are searched only after a failure.
func (t *tail) lastLines(stdout []string, most int, failed bool) (l lastLines) {
	if t == nil {
		return l
	}
	all := t.last()
	errs, outs := t.unmarked(texts(all)), t.unmarked(stdout)
	if failed {
		l.blame = readBlame(errs.printed, outs.printed)
	} else {
		l.lostDaemon = slices.ContainsFunc(errs.lines, reportsLostDaemon)
	}
	if r := t.named(l.blame); r != nil {
		one := t.unmarked(texts(r.lines))
		_ = readBlame(one.printed) // claims lines
		l.stderr, l.own = one.withoutOwn(), true
	}
	if len(l.stderr) == 0 {
		l.own = false
		l.stderr = t.mixed(all, errs.own, most)
	}
	for i := range outs.lines { // the other processes' lines
		if outs.names[i] != "" && l.blame.Rank != "" && !l.blame.wrote(outs.names[i]) {
			outs.own[i] = true
		}
	}
	l.stdout = outs.withoutOwn()
	l.stderr = l.stderr[max(0, len(l.stderr)-2*most):]
	l.stdout = l.stdout[max(0, len(l.stdout)-most):]
	return l
}

// reportsLostDaemon reports whether a line is that of a launcher that has lost a daemon and may still end with 0.
func reportsLostDaemon(line string) bool {
	return slices.ContainsFunc(launchers, func(l *Launcher) bool {
		return l.LostDaemon != "" && strings.Contains(line, l.LostDaemon)
	})
}

// mixed returns the last lines of all processes, with their marks.
func (t *tail) mixed(all []kept, own []bool, most int) (lines []string) {
	var rest []kept
	for i, l := range all {
		if !own[i] {
			rest = append(rest, l)
		}
	}
	rest = rest[max(0, len(rest)-most):]
	if r := t.culprit(); r != nil && len(rest) > 0 {
		for _, l := range r.lines {
			if l.number < rest[0].number {
				lines = append(lines, l.text)
			}
		}
	}
	return trimBlank(append(lines, texts(rest)...))
}

func texts(lines []kept) (all []string) {
	for _, l := range lines {
		all = append(all, l.text)
	}
	return all
}

// named returns the lines of the process that is blamed, nil if there are none or lines are not marked.
func (t *tail) named(b Blame) *ring {
	for name, r := range t.origins {
		if b.wrote(name) {
			return r
		}
	}
	return nil
}

// wrote reports whether the name in a mark is that of the process. PyTorch marks tracebacks with the rank, and torchrun
// --tee marks lines with the role and the number of the process on its host.
func (b *Blame) wrote(name string) bool {
	number := strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz_")
	return b.Rank != "" && (name == b.Rank || strings.HasSuffix(name, ","+b.Rank) || name == "rank"+b.Rank ||
		b.Local != "" && number == b.Local && number != name && !strings.HasPrefix(name, "rank"))
}

// culprit returns the lines of the process that failed first, if the launcher names none: the first with a line that
// looks like an error, else the last that wrote; nil if the launcher marks no lines.
func (t *tail) culprit() *ring {
	if len(t.origins) == 0 {
		return nil // most commands end here and save the time for compiling the expression
	}
	alarm := regexp.MustCompile(`Traceback \(most recent call last\)|` +
		`(?i:error|exception|fatal|abort|killed|segmentation fault|panic:)`)
	var first, latest *ring
	at := 0
	for _, r := range t.origins {
		if latest == nil || r.last() > latest.last() {
			latest = r
		}
		i := slices.IndexFunc(r.lines, func(l kept) bool { return alarm.MatchString(l.text) })
		if i >= 0 && (first == nil || r.lines[i].number < at) {
			first, at = r, r.lines[i].number
		}
	}
	return cmp.Or(first, latest)
}

// unmarked is text without the marks of processes.
type unmarked struct {
	*printed
	names []string // the process that wrote each line, "" if the line has no mark
}

func (t *tail) unmarked(lines []string) unmarked {
	u := unmarked{printed: newPrinted(make([]string, len(lines))), names: make([]string, len(lines))}
	for i, l := range lines {
		u.names[i] = t.origin(l)
		u.lines[i] = unmark(l, u.names[i])
	}
	// Open MPI 5 writes a blank after its mark, version 4 does not: take away what all marked lines begin with.
	blank := false
	for i, l := range u.lines {
		if u.names[i] == "" || l == "" {
			continue
		}
		if blank = l[0] == ' '; !blank {
			break
		}
	}
	for i, l := range u.lines {
		if blank && u.names[i] != "" {
			u.lines[i] = strings.TrimPrefix(l, " ")
		}
	}
	return u
}

// unmark removes the mark of a process from a line. Open MPI and hydra repeat it within a line that the process wrote
// in several pieces.
func unmark(line, name string) string {
	if name == "" {
		return line
	}
	begin := strings.Index(line, name)
	after := begin + len(name)
	rest := line[after:]
	if !strings.HasPrefix(rest, "]") {
		return strings.TrimPrefix(rest, ": ") // pdsh
	}
	if stream, text, ok := strings.Cut(rest, ">:"); ok && strings.HasPrefix(stream, "]<") {
		return strings.ReplaceAll(text, "["+name+stream+">:", "")
	}
	if text, ok := strings.CutPrefix(rest, "] "); ok { // hydra
		return strings.TrimSuffix(text, "["+name+"] ")
	}
	text := strings.TrimPrefix(rest, "]:")
	if strings.HasPrefix(name, "rank") { // PyTorch's tracebacks; torchrun --tee writes no blank
		text = strings.TrimPrefix(text, " ")
	}
	return text
}

// isPipe reports whether a file is a pipe. The tail of other files is not copied: a terminal must stay a terminal, and
// programs may use a socket in both directions.
func isPipe(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

func isRegular(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular()
}

// sameFile reports whether two files are the same one, as after 2>&1.
func sameFile(a, b *os.File) bool {
	var x, y unix.Stat_t
	return unix.Fstat(int(a.Fd()), &x) == nil && unix.Fstat(int(b.Fd()), &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// fileEnd returns what was written to a regular file since it had a size, at most recentBytes; nil for other files.
func fileEnd(f *os.File, since int64) []byte {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	r, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(f.Fd()))) // f may be open for writing only
	if err != nil {
		return nil
	}
	defer func() { _ = r.Close() }()
	from := max(since, info.Size()-recentBytes)
	if from >= info.Size() {
		return nil
	}
	b, _ := io.ReadAll(io.NewSectionReader(r, from, info.Size()-from))
	return b
}
