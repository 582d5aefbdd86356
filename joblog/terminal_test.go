package joblog

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// atTime gives every record the same time.
type atTime struct {
	slog.Handler
	at time.Time
}

func (h atTime) Handle(ctx context.Context, r slog.Record) error {
	r.Time = h.at
	return h.Handler.Handle(ctx, r)
}

func (h atTime) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atTime{h.Handler.WithAttrs(attrs), h.at}
}

func (h atTime) WithGroup(name string) slog.Handler { return atTime{h.Handler.WithGroup(name), h.at} }

func TestColour(t *testing.T) {
	var b bytes.Buffer
	h := Terminal{colour: true}.Handler(&b, FormatText, slog.LevelDebug)
	log := slog.New(atTime{h, time.Date(2026, 5, 4, 20, 53, 38, 0, time.UTC)}).With("self", "w-0")
	log.Info("one")
	log.Warn("two")
	log.Error("three")
	log.Debug("\x1b[31mfour")
	require.Equal(t, "\x1b[2m20:53:38 w-0: \x1b[0mone\n"+
		"\x1b[2m20:53:38 w-0: \x1b[0m\x1b[33mwarning:\x1b[0m two\n"+
		"\x1b[2m20:53:38 w-0: \x1b[0m\x1b[1;31merror:\x1b[0m three\n"+
		"\x1b[2m20:53:38 w-0: \x1b[0m\x1b[2mdebug:\x1b[0m \\x1b[31mfour\n", b.String())
}

// The waiting line is redrawn once per second, and gone before the next record. What it cuts stands above it once.
func TestWaitingLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		narrow := Terminal{width: func() int { return 65 }}
		log := slog.New(narrow.Handler(&b, FormatText, slog.LevelInfo)).With("self", "w-0")
		start := time.Now()
		log.Info("first")
		waiting := func(missing string) {
			log.Info("waiting for ranks", "phase", "gather", "present", 3, "size", 4, "missing", missing,
				"left", 10*time.Minute-time.Since(start))
		}
		waiting("w-2")
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		const long = "w-2, w-3\x1b (it reaches rank 0, but rank 0 cannot connect to its 12345/tcp: no answer)"
		waiting(long)
		time.Sleep(900 * time.Millisecond)
		waiting(long)
		waiting("w-3, " + long)
		time.Sleep(500 * time.Millisecond)
		log.Info("all ranks are present")
		time.Sleep(10 * time.Second)
		at := func(after time.Duration) string { return start.Add(after).Format(time.TimeOnly) }
		require.Equal(t, at(0)+" w-0: first\n"+
			clearLine+at(0)+" w-0: 3 of 4 present, 10m00s left; missing: w-2"+
			clearLine+at(time.Second)+" w-0: 3 of 4 present, 9m59s left; missing: w-2"+
			clearLine+at(2*time.Second)+" w-0: 3 of 4 present, 9m58s left; missing: w-2"+
			clearLine+at(2500*time.Millisecond)+" w-0: 3 of 4 present; missing: w-2, w-3\\x1b (it reaches\n"+
			"  rank 0, but rank 0 cannot connect to its 12345/tcp: no answer)\n"+
			clearLine+at(2500*time.Millisecond)+" w-0: 3 of 4 present, 9m58s left; missing: w-2, w-3\\x1b…"+
			clearLine+at(3400*time.Millisecond)+" w-0: 3 of 4 present, 9m57s left; missing: w-2, w-3\\x1b…"+
			clearLine+at(3400*time.Millisecond)+" w-0: 3 of 4 present; missing: w-3, w-2, w-3\\x1b (it\n"+
			"  reaches rank 0, but rank 0 cannot connect to its 12345/tcp: no\n  answer)\n"+
			clearLine+at(3400*time.Millisecond)+" w-0: 3 of 4 present, 9m57s left; missing: w-3, w-2, w-…"+
			clearLine+at(3900*time.Millisecond)+" w-0: all ranks are present\n", b.String())
	})
}

// A file, a narrow or detached terminal, and a level above info get no line that is redrawn.
func TestNoWaitingLine(t *testing.T) {
	for name, terminal := range map[string]Terminal{
		"file": {}, "detached": {width: func() int { return 0 }}, "narrow": {width: func() int { return minWidth - 1 }},
	} {
		var b bytes.Buffer
		log := slog.New(terminal.Handler(&b, FormatText, slog.LevelInfo))
		log.Info("waiting for ranks", "present", 1, "size", 2)
		require.Contains(t, b.String(), "waiting for ranks: 1 of 2 present\n", name)
	}
	var b bytes.Buffer
	log := slog.New(Terminal{width: func() int { return 80 }}.Handler(&b, FormatText, slog.LevelWarn))
	log.Warn("waiting for ranks", "present", 1, "size", 3, "left", time.Minute, "missing", "a\nb")
	require.Contains(t, b.String(), "warning: waiting for ranks: 1 of 3 present, 1m00s left; missing: a b\n")
}

func BenchmarkHandler(b *testing.B) {
	for _, format := range []Format{FormatText, FormatLogfmt, FormatJSON} {
		b.Run(string(format), func(b *testing.B) {
			log := slog.New(Handler(io.Discard, format, slog.LevelInfo)).With("self", "worker-2")
			for b.Loop() {
				log.Info("all ranks are present", "phase", "gather", "size", 4, "elapsed", time.Second)
			}
		})
	}
}
