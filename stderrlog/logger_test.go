package stderrlog

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := &slog.HandlerOptions{Level: slog.LevelWarn}
		for want, handler := range map[string]func(io.Writer) slog.Handler{
			`msg="standard error was not read, log lines were dropped" lines=1`: func(w io.Writer) slog.Handler {
				return slog.NewTextHandler(w, options)
			},
			`"msg":"standard error was not read, log lines were dropped","lines":1}`: func(w io.Writer) slog.Handler {
				return slog.NewJSONHandler(w, options)
			},
		} {
			r, w := io.Pipe()
			l := New(w)
			log := l.Logger(handler)
			log.Info("below the level")
			log.Warn("first")
			log.Warn(strings.Repeat("x", queueLimit)) // does not fit behind the first line, which is not read
			text := make(chan string)
			go func() {
				b, _ := io.ReadAll(r)
				text <- string(b)
			}()
			l.Close()
			require.NoError(t, w.Close())
			lines := strings.Split(strings.TrimSpace(<-text), "\n")
			require.Len(t, lines, 2)
			require.Contains(t, lines[0], "first")
			require.Contains(t, lines[1], want)
		}
	})
}
