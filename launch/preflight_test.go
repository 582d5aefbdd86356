package launch

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPreflight(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		limit      time.Duration
		tail       []string
		text       string
		stderr     string
	}{
		{"passes", "echo out; echo err >&2", 0, []string{"out", "err"}, "", "out\nerr\n"},
		{
			"fails", "for i in 1 2 3 4 5 6; do echo $i; done; exit 3", time.Hour,
			[]string{"2", "3", "4", "5", "6"}, "exit status 3", "1\n2\n3\n4\n5\n6\n",
		},
		{"has its environment", `test "$A" = b && test "$PWD" = /`, 0, []string{}, "", ""},
		{"keeps to its line", `echo "a'b" '$0'`, 0, []string{"a'b $0"}, "", "a'b $0\n"},
		{"is killed", "kill -9 $$", 0, []string{}, "was ended by SIGKILL", ""},
		{
			"hides that it was stopped", "trap 'exit 0' TERM; sleep 1000 & wait", 300 * time.Millisecond,
			[]string{}, "did not end in 300ms", "",
		},
		{
			"writes a long line", "printf '\\033\\377%01000d' 0", 0,
			[]string{"??" + strings.Repeat("0", preflightLine-4)}, "", "\x1b\xff" + strings.Repeat("0", 1000),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			failure, tail, written := preflight(t, tt.line, tt.limit)
			require.Equal(t, tt.text, failure)
			require.Equal(t, tt.tail, tail)
			require.Equal(t, tt.stderr, written)
		})
	}
}

// preflight runs Preflight, and returns also what the line has written.
func preflight(t *testing.T, line string, limit time.Duration) (failure string, tail []string, written string) {
	t.Helper()
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer func() { _ = stderr.Close() }()
	c := Command{Environ: []string{"A=b", "PATH=/usr/bin:/bin"}, Dir: "/", Stderr: stderr}
	failure, tail = Preflight(t.Context(), c, line, limit)
	b, err := os.ReadFile(stderr.Name())
	require.NoError(t, err)
	return failure, append([]string{}, tail...), string(b)
}

// What a line has written before it hangs is kept.
func TestPreflightThatHangs(t *testing.T) {
	var tail []string
	var written string
	// A slow machine may start the shell only after a short limit, so a longer one follows if it has written nothing.
	for limit := 300 * time.Millisecond; written == "" && limit < time.Minute; limit *= 10 {
		var failure string
		failure, tail, written = preflight(t, "echo waits; exec sleep 1000", limit)
		require.Equal(t, "did not end in "+limit.String(), failure)
	}
	require.Equal(t, []string{"waits"}, tail)
	require.Equal(t, "waits\n", written)
}

// The end of the job ends the preflight.
func TestPreflightEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = r.Close() }()
	ended := make(chan string, 1)
	go func() {
		defer func() { _ = w.Close() }()
		c := Command{Environ: []string{"PATH=/usr/bin:/bin"}, Stderr: w}
		failure, _ := Preflight(ctx, c, "echo begun; exec sleep 1000", 0)
		ended <- failure
	}()
	_, err = r.Read(make([]byte, 16)) // it runs
	require.NoError(t, err)
	cancel()
	require.Equal(t, "was ended by SIGTERM", <-ended)
}
