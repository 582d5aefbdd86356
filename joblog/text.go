package joblog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// unnamed stands where the name of the container is not known yet.
const unnamed = "paiinit"

// textHandler writes records for people.
type textHandler struct {
	out   *screen
	level slog.Leveler
	name  string
	group string
	attrs []slog.Attr // of With; keys have their group
}

// screen is where a textHandler and all handlers made from it write.
type screen struct {
	terminal Terminal

	mu    sync.Mutex
	w     io.Writer
	live  *liveLine // nil = no line is redrawn
	whole string    // the missing ranks that were written in full
}

// Enabled implements slog.Handler.
func (h *textHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

// WithAttrs implements slog.Handler.
func (h *textHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.attrs = slices.Clip(slices.Clone(h.attrs))
	for _, a := range attrs {
		if a.Key == keySelf && h.group == "" {
			with.name = string(appendEscaped(nil, a.Value.Resolve().String()))
			continue
		}
		with.attrs = appendFlat(with.attrs, h.group, a)
	}
	return &with
}

// WithGroup implements slog.Handler.
func (h *textHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	with.group += name + "."
	return &with
}

// Handle implements slog.Handler.
func (h *textHandler) Handle(_ context.Context, r slog.Record) error {
	attrs := slices.Clone(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = appendFlat(attrs, h.group, a)
		return true
	})
	name := h.name
	attrs = slices.DeleteFunc(attrs, func(a slog.Attr) bool {
		if a.Key == keySelf {
			name = string(appendEscaped(nil, a.Value.String()))
		}
		return a.Key == keySelf || a.Key == keyPhase
	})
	message := r.Message
	if message == waitingMessage {
		line := waitingLine(name, r.Time, attrs)
		if h.level.Level() <= slog.LevelInfo && h.out.show(line, r.Time) {
			return nil
		}
		message, attrs = waitingMessage+": "+line.sentence(r.Time), nil
	}
	return h.out.write(h.out.terminal.appendHead(nil, r.Time, name, r.Level), message, attrs)
}

// write writes one record after its head.
func (s *screen) write(head []byte, message string, attrs []slog.Attr) error {
	first, rest := sentenceOf(message, attrs)
	s.mu.Lock()
	defer s.mu.Unlock()
	line := append(appendEscaped(append(s.clear(), head...), first), '\n')
	for _, next := range rest {
		if !strings.HasPrefix(next, indent) { // a line of the job must not look like the first line of a record
			next = indent + next
		}
		line = append(appendEscaped(line, strings.TrimRight(next, " \r\t")), '\n')
	}
	_, err := s.w.Write(line)
	return err
}

// appendHead appends the time, the name of the container, and the severity of a warning or an error.
func (t Terminal) appendHead(b []byte, at time.Time, name string, level slog.Level) []byte {
	b = append(at.AppendFormat(append(b, t.code(dim)...), time.TimeOnly), ' ')
	b = append(append(append(b, name...), ": "...), t.code(plain)...)
	var mark, colour string
	switch {
	case level >= slog.LevelError:
		mark, colour = "error:", red
	case level >= slog.LevelWarn:
		mark, colour = "warning:", yellow
	case level < slog.LevelInfo:
		mark, colour = "debug:", dim
	default:
		return b
	}
	return append(append(append(append(b, t.code(colour)...), mark...), t.code(plain)...), ' ')
}

// sentenceOf returns a record as a line and the lines below it.
func sentenceOf(message string, attrs []slog.Attr) (first string, rest []string) {
	var details []byte
	hint := ""
	for _, a := range attrs {
		if text, ok := a.Value.Any().(sentence); ok {
			lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
			return lines[0], lines[1:]
		}
		value := valueText(a.Value)
		switch {
		case value == "":
			continue
		case a.Key == keyHint:
			hint = value
			continue
		case a.Key == keyErr, a.Key == keyReason:
			message += ": " + value
			continue
		}
		if details != nil {
			details = append(details, ", "...)
		}
		if a.Key == keyElapsed && a.Value.Kind() == slog.KindDuration {
			details = append(append(details, "after "...), value...)
			continue
		}
		details = append(append(details, a.Key...), ' ')
		details = append(details, strings.ReplaceAll(value, "\n", `\n`)...)
	}
	lines := strings.Split(strings.TrimRight(message, "\n"), "\n")
	first, rest = lines[0], lines[1:]
	if details != nil {
		first += " (" + string(details) + ")"
	}
	if hint != "" {
		rest = append(rest, strings.Split("hint: "+hint, "\n")...)
	}
	return first, rest
}

// valueText returns a value as people read it, and "" for a value that says nothing.
func valueText(v slog.Value) string {
	switch v.Kind() {
	case slog.KindDuration:
		return Seconds(v.Duration())
	case slog.KindFloat64:
		return strconv.FormatFloat(v.Float64(), 'g', 6, 64)
	case slog.KindTime:
		return v.Time().Format(time.RFC3339)
	case slog.KindAny:
		if v.Any() == nil {
			return ""
		}
		return fmt.Sprint(v.Any())
	}
	return v.String()
}

// appendFlat appends an attribute, and the members of a group under their full names.
func appendFlat(attrs []slog.Attr, group string, a slog.Attr) []slog.Attr {
	a.Value = a.Value.Resolve()
	if a.Value.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, member := range a.Value.Group() {
			attrs = appendFlat(attrs, group, member)
		}
		return attrs
	}
	if a.Key == "" {
		return attrs
	}
	a.Key = group + a.Key
	return append(attrs, a)
}

// appendDuration appends a duration as people read it. It rounds to what matters at that length.
func appendDuration(b []byte, d time.Duration) []byte {
	switch {
	case d < 0:
		return append(b, d.String()...)
	case d > 0 && d < 100*time.Millisecond:
		return append(strconv.AppendInt(b, d.Round(time.Millisecond).Milliseconds(), 10), " ms"...)
	case d < 10*time.Second-50*time.Millisecond:
		d = d.Round(100 * time.Millisecond)
		return append(strconv.AppendFloat(b, d.Seconds(), 'f', -1, 64), " s"...)
	case d < time.Minute-500*time.Millisecond:
		return append(strconv.AppendInt(b, int64(d.Round(time.Second).Seconds()), 10), " s"...)
	case d < time.Hour-500*time.Millisecond:
		d = d.Round(time.Second)
		return fmt.Appendf(b, "%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	d = d.Round(time.Minute)
	return fmt.Appendf(b, "%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
}
