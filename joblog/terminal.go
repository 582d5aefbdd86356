package joblog

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Terminal describes a terminal that shows the log: the text format has colours there and redraws the waiting line in
// place. The zero value is no terminal.
type Terminal struct {
	colour bool
	width  func() int // columns; nil or 0 = unknown, for example because no client is attached to a container
}

// On describes the terminal that f is, as the environment wants it: NO_COLOR (no-color.org) and TERM=dumb are obeyed.
func On(f *os.File, environ []string) Terminal {
	width := func() int {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return 0
		}
		return int(size.Col)
	}
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || slices.Contains(environ, "TERM=dumb") {
		return Terminal{}
	}
	plain := slices.ContainsFunc(environ, func(kv string) bool {
		return strings.HasPrefix(kv, "NO_COLOR=") && kv != "NO_COLOR="
	})
	return Terminal{colour: !plain, width: width}
}

// Parameters of the control sequence that sets colours (ECMA-48, SGR).
const (
	plain  = "0"
	dim    = "2"
	red    = "1;31"
	yellow = "33"
)

func (t Terminal) code(parameters string) string {
	if !t.colour {
		return ""
	}
	return "\x1b[" + parameters + "m"
}

// The record that a terminal shows as one line that is redrawn, and its attributes.
const (
	waitingMessage = "waiting for ranks"
	keyPresent     = "present"
	keySize        = "size"
	keyMissing     = "missing"
	keyLeft        = "left" // until the deadline
)

const (
	redrawInterval = time.Second
	clearLine      = "\r\x1b[K"
	minWidth       = 20 // columns, below which a redrawn line is of no use
)

// indent begins each line below the first one of a record.
const indent = "  "

// liveLine is the waiting line on the terminal. It is redrawn until another record follows.
type liveLine struct {
	name     string
	counts   string
	missing  string
	deadline time.Time // zero = none
	over     chan struct{}
}

// waitingLine returns what a waiting record says.
func waitingLine(name string, at time.Time, attrs []slog.Attr) *liveLine {
	line := &liveLine{name: name, over: make(chan struct{})}
	var present, size string
	for _, a := range attrs {
		switch a.Key {
		case keyPresent:
			present = a.Value.String()
		case keySize:
			size = a.Value.String()
		case keyMissing:
			line.missing = valueText(a.Value)
		case keyLeft:
			if a.Value.Kind() == slog.KindDuration {
				line.deadline = at.Add(a.Value.Duration())
			}
		}
	}
	line.counts = present + " of " + size + " present"
	return line
}

// sentence returns who is present and who is missing.
func (l *liveLine) sentence(at time.Time) string {
	text := l.counts
	if !l.deadline.IsZero() {
		text += ", " + Seconds(max(l.deadline.Sub(at), 0).Round(time.Second)) + " left"
	}
	return text + l.absent()
}

// absent returns who is missing, and why.
func (l *liveLine) absent() string {
	if l.missing == "" {
		return ""
	}
	return "; missing: " + strings.ReplaceAll(l.missing, "\n", " ")
}

func (l *liveLine) head(at time.Time) string { return at.Format(time.TimeOnly) + " " + l.name + ": " }

// show draws a waiting line in place from now on. It reports false on anything but a terminal. A line that is too long
// is cut, and its reasons stay above it in full: once, unless they change.
func (s *screen) show(line *liveLine, at time.Time) bool {
	if s.terminal.width == nil || s.terminal.width() < minWidth {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	cleared := s.clear()
	s.live = line
	if _, cut := s.fitted(at); cut && s.whole != line.missing {
		s.whole = line.missing
		_, _ = s.w.Write(append(cleared, s.folded(line, at)...))
	}
	s.draw(at)
	go s.redraw(line)
	return true
}

// folded returns who is present and missing, on lines that end between words.
func (s *screen) folded(l *liveLine, at time.Time) []byte {
	head, width := l.head(at), s.terminal.width()
	text := s.terminal.code(dim) + head + s.terminal.code(plain)
	column := utf8.RuneCountInString(head)
	for i, word := range strings.Fields(string(appendEscaped(nil, l.counts+l.absent()))) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n >= width:
			text, column = text+"\n"+indent, len(indent)
		default:
			text, column = text+" ", column+1
		}
		text, column = text+word, column+n
	}
	return []byte(text + "\n")
}

// redraw draws the line once per interval.
func (s *screen) redraw(line *liveLine) {
	ticker := time.NewTicker(redrawInterval)
	defer ticker.Stop()
	for {
		select {
		case <-line.over:
			return
		case at := <-ticker.C:
			s.mu.Lock()
			if s.live == line {
				s.draw(at)
			}
			s.mu.Unlock()
		}
	}
}

// draw draws the waiting line over itself.
func (s *screen) draw(at time.Time) {
	line, _ := s.fitted(at)
	drawn := clearLine + s.terminal.code(dim) + s.live.head(at) + s.terminal.code(plain) + line
	_, _ = s.w.Write([]byte(drawn)) // like a log line, it may get lost
}

// fitted returns as much of the waiting line as the terminal is wide, and whether it is cut.
func (s *screen) fitted(at time.Time) (line string, cut bool) {
	line = string(appendEscaped(nil, s.live.sentence(at)))
	room := max(s.terminal.width()-1-utf8.RuneCountInString(s.live.head(at)), 0)
	if utf8.RuneCountInString(line) <= room {
		return line, false
	}
	return string([]rune(line)[:max(room-1, 0)]) + "…", true
}

// clear ends the waiting line and returns what removes it from the terminal.
func (s *screen) clear() []byte {
	if s.live == nil {
		return nil
	}
	close(s.live.over)
	s.live = nil
	return []byte(clearLine)
}
