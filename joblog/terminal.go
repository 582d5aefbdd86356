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

// sentence returns the line without its head.
func (l *liveLine) sentence(at time.Time) string {
	text := waitingMessage + ": " + l.counts
	if !l.deadline.IsZero() {
		text += ", " + Seconds(max(l.deadline.Sub(at), 0).Round(time.Second)) + " left"
	}
	if l.missing != "" {
		text += "; missing: " + strings.ReplaceAll(l.missing, "\n", " ")
	}
	return text
}

// show draws a waiting line in place from now on. It reports false on anything but a terminal.
func (s *screen) show(line *liveLine, at time.Time) bool {
	if s.terminal.width == nil || s.terminal.width() < minWidth {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live != nil {
		close(s.live.over)
	}
	s.live = line
	s.draw(at)
	go s.redraw(line)
	return true
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
	l := s.live
	head := at.Format(time.TimeOnly) + " " + l.name + ": "
	line := appendEscaped(nil, l.sentence(at))
	room := max(s.terminal.width()-1-utf8.RuneCountInString(head), 0)
	if n := utf8.RuneCount(line); n > room {
		line = []byte(string([]rune(string(line))[:max(room-1, 0)]) + "…")
	}
	drawn := clearLine + s.terminal.code(dim) + head + s.terminal.code(plain) + string(line)
	_, _ = s.w.Write([]byte(drawn)) // like a log line, it may get lost
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
