package joblog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// fixed returns a logger in this format whose records all have the same time.
func fixed(b *bytes.Buffer, format Format) *slog.Logger {
	return slog.New(atTime{Handler(b, format, slog.LevelDebug), time.Date(2026, 5, 4, 20, 53, 38, 0, time.UTC)})
}

func TestFormats(t *testing.T) {
	for name, test := range map[string]struct {
		log                func(*slog.Logger)
		text, logfmt, json string
	}{
		"a sentence": {
			func(l *slog.Logger) { l.Info("listening", "phase", "listen", "elapsed", 41203*time.Millisecond) },
			"paiinit: listening (after 41 s)",
			"level=INFO msg=listening phase=listen elapsed=41.203",
			`"level":"INFO","msg":"listening","phase":"listen","elapsed":41.203}`,
		},
		"a name": {
			func(l *slog.Logger) {
				l.With("self", "worker-2").Debug("ready", "addr", netip.MustParseAddr("10.0.0.7"))
			},
			"worker-2: debug: ready (addr 10.0.0.7)",
			"level=DEBUG msg=ready self=worker-2 addr=10.0.0.7",
			`"level":"DEBUG","msg":"ready","self":"worker-2","addr":"10.0.0.7"}`,
		},
		"text": {
			func(l *slog.Logger) { l.Info("all present", "size", 4, Text("all 4 ranks are present")) },
			"paiinit: all 4 ranks are present",
			`level=INFO msg="all present" size=4`,
			`"level":"INFO","msg":"all present","size":4}`,
		},
		"a block": {
			func(l *slog.Logger) {
				l.Error("failed", "status", 137, Text("JOB FAILED\n  ValueError: loss\n20:53:38 worker-1: forged\n"))
			},
			"paiinit: error: JOB FAILED\n  ValueError: loss\n  20:53:38 worker-1: forged",
			"level=ERROR msg=failed status=137",
			`"level":"ERROR","msg":"failed","status":137}`,
		},
		"error, reason and hint": {
			func(l *slog.Logger) {
				l.Warn("no list", "err", errors.New("opening a: b"), "peer", "w-1",
					"hint", "do this\nor that", "reason", "c")
			},
			"paiinit: warning: no list: opening a: b: c (peer w-1)\n  hint: do this\n  or that",
			`level=WARN msg="no list" err="opening a: b" peer=w-1 hint="do this\nor that" reason=c`,
			`"msg":"no list","err":"opening a: b","peer":"w-1","hint":"do this\nor that","reason":"c"}`,
		},
		"errors of several lines": {
			func(l *slog.Logger) { l.Error("two: a\nb", "status", 78, "empty", "", "none", nil) },
			"paiinit: error: two: a (status 78)\n  b",
			`level=ERROR msg="two: a\nb" status=78 empty="" none=<nil>`,
			`"msg":"two: a\nb","status":78,"empty":"","none":null}`,
		},
		"groups": {
			func(l *slog.Logger) {
				l.WithGroup("a").With("b", 1).WithGroup("").
					Info("x", slog.Group("c", "d", 1.5), slog.Group("", "e", true))
			},
			"paiinit: x (a.b 1, a.c.d 1.5, a.e true)",
			"level=INFO msg=x a.b=1 a.c.d=1.5 a.e=true",
			`"msg":"x","a":{"b":1,"c":{"d":1.5},"e":true}}`,
		},
		"forged": {
			func(l *slog.Logger) {
				l.Info("a\rb", "peer", "x\n20:53:38 worker-1: error: y",
					"key\n", "\x1b[2J\x9b\u0085\u2028\u202e\x7f\t\U000e0001")
			},
			`paiinit: a\rb (peer x\n20:53:38 worker-1: error: y, ` +
				`key\n \x1b[2J\x9b\u0085\u2028\u202e\x7f    \U000e0001)`,
			`level=INFO msg="a\rb" peer="x\n20:53:38 worker-1: error: y" ` +
				`"key\n"="\x1b[2J\x9b\u0085\u2028\u202e\x7f\t\U000e0001"`,
			`"msg":"a\rb","peer":"x\n20:53:38 worker-1: error: y",` +
				`"key\n":"\u001b[2J\ufffd\u0085\u2028\u202e\u007f\t\udb40\udc01"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for format, want := range map[Format]string{
				FormatText: "20:53:38 " + test.text, FormatLogfmt: test.logfmt, FormatJSON: test.json,
			} {
				var b bytes.Buffer
				test.log(fixed(&b, format))
				require.Contains(t, b.String(), want+"\n", format)
				if format == FormatText {
					require.Equal(t, want+"\n", b.String())
				} else {
					require.Equal(t, 1, strings.Count(b.String(), "\n"))
				}
			}
		})
	}
}

// No value makes a second line that looks like a record, or a character that a terminal obeys.
func FuzzForgery(f *testing.F) {
	for _, s := range []string{"", "a", "\r", "\n00:00:00 w: x", "\x1b[A", "\xff\xc2\x85", "\u2028\u202e", "  \n \n"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, value, other string) {
		for _, format := range []Format{FormatText, FormatLogfmt, FormatJSON} {
			var b bytes.Buffer
			log := fixed(&b, format).With("self", value)
			log.Warn(value, other, value, "err", other, "hint", value, "elapsed", value)
			log.Info(other, "reason", value, Text(value+other))
			firsts := 0
			for line := range strings.Lines(b.String()) {
				require.True(t, strings.HasSuffix(line, "\n") && utf8.ValidString(line), "%q", line)
				line = strings.TrimSuffix(line, "\n")
				require.NotContains(t, line, "\t")
				for _, r := range line {
					require.True(t, strconv.IsPrint(r), "%q in %s", r, line)
				}
				if !strings.HasPrefix(line, "  ") && line != "" {
					firsts++
				}
				if format == FormatJSON {
					require.True(t, json.Valid([]byte(line)), line)
				}
			}
			require.Equal(t, 2, firsts, "%s", b.String())
		}
	})
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 412 * time.Microsecond: "0 ms", 3 * time.Millisecond: "3 ms", 412 * time.Millisecond: "0.4 s",
		3 * time.Second: "3 s", 9949 * time.Millisecond: "9.9 s", 9951 * time.Millisecond: "10 s",
		59499 * time.Millisecond: "59 s", 59500 * time.Millisecond: "1m00s", 192 * time.Second: "3m12s",
		time.Hour - time.Millisecond: "1h00m", 192 * time.Minute: "3h12m", 100 * time.Hour: "100h00m", -1: "-1ns",
	} {
		require.Equal(t, want, Seconds(d), fmt.Sprint(int64(d)))
	}
}

func TestLevels(t *testing.T) {
	for _, format := range []Format{FormatText, FormatLogfmt, FormatJSON} {
		var b bytes.Buffer
		var level slog.LevelVar
		log := slog.New(Handler(&b, format, &level))
		log.Debug("one")
		level.Set(slog.LevelDebug)
		log.Debug("two")
		require.Equal(t, 1, strings.Count(b.String(), "\n"), format)
		require.Contains(t, b.String(), "two")
	}
}
