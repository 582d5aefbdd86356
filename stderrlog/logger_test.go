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
		for json, want := range map[bool]string{
			false: `msg="standard error was not read, log lines were dropped" lines=1`,
			true:  `"msg":"standard error was not read, log lines were dropped","lines":1}`,
		} {
			r, w := io.Pipe()
			l := New(w)
			log := l.Logger(json, slog.LevelWarn)
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
