package stderrlog

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func testLog(out io.Writer) *Log {
	l := New(out)
	l.lostText = func(n int) []byte { return fmt.Appendf(nil, "lost %d\n", n) }
	return l
}

func TestLogIsWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		l := testLog(&out)
		for i := range 100 {
			_, err := fmt.Fprintln(l, i)
			require.NoError(t, err)
			require.Equal(t, i+1, strings.Count(out.String(), "\n"), "before the call returns")
		}
		l.Close()
	})
}

// A standard error that is not read delays only one line, memory stays bounded, and the log reports dropped lines.
func TestLogThatIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		l := testLog(w)
		began := time.Now()
		const lines = 10000
		for i := range lines {
			_, err := fmt.Fprintf(l, "line %d %s\n", i, strings.Repeat("x", 100))
			require.NoError(t, err)
		}
		require.Equal(t, writeTimeout, time.Since(began))
		require.LessOrEqual(t, l.size, queueLimit)
		in := bufio.NewReader(r)
		next := func() string {
			line, err := in.ReadString('\n')
			require.NoError(t, err)
			return line
		}
		got := 0
		line := next()
		for ; !strings.HasPrefix(line, "lost"); line = next() {
			require.True(t, strings.HasPrefix(line, fmt.Sprintf("line %d ", got)), line)
			got++
		}
		require.Equal(t, fmt.Sprintf("lost %d\n", lines-got), line)
		require.Greater(t, got, 1000)
		_, _ = fmt.Fprintln(l, "read again")
		require.Equal(t, "read again\n", next())
		l.Close()
	})
}

// Close waits a moment for a reader, which then sees the reason first.
func TestLogAtTheEnd(t *testing.T) {
	for after, want := range map[time.Duration][]string{
		0:                      {"in flight", "queued", "the reason"},
		700 * time.Millisecond: {"in flight", "the reason", "queued"},
		time.Hour:              nil,
	} {
		synctest.Test(t, func(t *testing.T) {
			r, w := io.Pipe()
			l := testLog(w)
			_, _ = fmt.Fprintln(l, "in flight")
			_, _ = fmt.Fprintln(l, "queued")
			l.Ending()
			_, _ = fmt.Fprintln(l, "the reason")
			began := time.Now()
			go l.Close()
			time.Sleep(after)
			if want == nil {
				<-time.After(0)
				require.NoError(t, r.Close())
				<-l.over
				return
			}
			in := bufio.NewScanner(r)
			for _, line := range want {
				require.True(t, in.Scan())
				require.Equal(t, line, in.Text())
			}
			<-l.over
			require.Equal(t, after, time.Since(began))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		l := testLog(w)
		_, _ = fmt.Fprintln(l, "never read")
		began := time.Now()
		l.Close()
		require.Equal(t, flushTimeout, time.Since(began))
		require.NoError(t, r.Close())
		<-l.over
	})
}
