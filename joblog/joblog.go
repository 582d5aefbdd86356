// Package joblog formats the log of a container: as sentences for people, as logfmt or as JSON for machines. It writes
// each record with one Write, as a line or as an indented block, so that the job's output cannot imitate a record.
//
// Callers log through *slog.Logger with a constant message and attributes. In every format a duration is a number of
// seconds for machines, and readable for people.
package joblog

import (
	"io"
	"log/slog"
	"math"
	"time"
)

// Format is a format of the log.
type Format string

// The formats. Text is for people, Logfmt and JSON are for machines and have every attribute.
const (
	FormatText   Format = "text"
	FormatLogfmt Format = "logfmt"
	FormatJSON   Format = "json"
)

// Attributes with a meaning in the text format.
const (
	keySelf    = "self"    // the name of this container
	keyPhase   = "phase"   // left out: the sentence says it
	keyErr     = "err"     // follows the message
	keyReason  = "reason"  // follows the message
	keyHint    = "hint"    // gets a line of its own
	keyElapsed = "elapsed" // reads "after 41 s"
	keyText    = "text"    // see Text
)

// sentence is the value of the attribute that Text returns.
type sentence string

// Text returns an attribute that replaces the message and the attributes of its record in the text format. The other
// formats leave it out. Lines after the first one are indented.
func Text(s string) slog.Attr { return slog.Any(keyText, sentence(s)) }

// Handler returns a handler that writes records of at least this level to w, which is not a terminal.
func Handler(w io.Writer, format Format, level slog.Leveler) slog.Handler {
	return Terminal{}.Handler(w, format, level)
}

// Handler returns a handler that writes records of at least this level to w, which leads to the terminal.
func (t Terminal) Handler(w io.Writer, format Format, level slog.Leveler) slog.Handler {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: forMachines}
	switch format {
	case FormatLogfmt:
		return slog.NewTextHandler(escapingWriter{w}, options)
	case FormatJSON:
		return slog.NewJSONHandler(escapingWriter{w}, options)
	}
	return &textHandler{out: &screen{terminal: t, w: w}, level: level, name: unnamed}
}

// forMachines writes a duration as a number of seconds and removes what Text returned.
func forMachines(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		a.Value = slog.Float64Value(math.Round(a.Value.Duration().Seconds()*1e6) / 1e6)
	case slog.KindAny:
		if _, ok := a.Value.Any().(sentence); ok {
			return slog.Attr{}
		}
	}
	return a
}

// Seconds returns a duration as people read it: 0.4 s, 41 s, 3m12s, 3h12m.
func Seconds(d time.Duration) string { return string(appendDuration(nil, d)) }
