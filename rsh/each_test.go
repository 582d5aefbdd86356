package rsh

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuote(t *testing.T) {
	require.Equal(t, "echo $HOME | cat", Quote([]string{"echo $HOME | cat"}))
	require.Equal(t, `'echo' '$HOME' 'it'\''s' ''`, Quote([]string{"echo", "$HOME", "it's", ""}))
}

// Each line of the output begins with the number of its host, and Run returns the highest status.
func TestEach(t *testing.T) {
	var stdout, stderr bytes.Buffer
	var mu sync.Mutex
	var ended []int
	e := &Each{
		Socket: filepath.Join(t.TempDir(), "no-agent"), AtOnce: 2, Stdout: &stdout, Stderr: &stderr,
		Ended: func(h Numbered, status int, err error) {
			mu.Lock()
			defer mu.Unlock()
			require.NoError(t, err)
			require.Equal(t, exitTransport, status)
			ended = append(ended, h.Number)
		},
	}
	hosts := []Numbered{{0, "a"}, {3, "b"}, {4, "c"}}
	require.Equal(t, exitTransport, e.Run(t.Context(), hosts, "true", nil))
	require.ElementsMatch(t, []int{0, 3, 4}, ended)
	require.Empty(t, stdout.String())
	lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
	slices.Sort(lines)
	require.Len(t, lines, 3)
	for i, line := range lines {
		require.Regexp(t, `^`+[]string{"0", "3", "4"}[i]+`: paiinit rsh: `, line)
	}
}

// After a signal that asks to end, no further command starts.
func TestEachIsStopped(t *testing.T) {
	caught := make(chan os.Signal)
	e := &Each{AtOnce: 1, Ended: func(Numbered, int, error) { t.Error("nothing is to start") }}
	e.running = make(map[chan os.Signal]bool)
	done := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() { e.pass(caught, done) })
	caught <- syscall.SIGHUP
	caught <- syscall.SIGTERM
	close(done)
	passing.Wait()
	require.Equal(t, 143, e.Run(t.Context(), []Numbered{{0, "a"}}, "true", nil))
}
