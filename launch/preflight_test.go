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
		want       Checked
		text       string
		stderr     string
	}{
		{"passes", "echo out; echo err >&2", 0, Checked{Tail: []string{"out", "err"}}, "exit status 0", "out\nerr\n"},
		{
			"fails", "for i in 1 2 3 4 5 6; do echo $i; done; exit 3", time.Hour,
			Checked{Status: 3, Tail: []string{"2", "3", "4", "5", "6"}}, "exit status 3", "1\n2\n3\n4\n5\n6\n",
		},
		{"has its environment", `test "$A" = b && test "$PWD" = /`, 0, Checked{Tail: []string{}}, "exit status 0", ""},
		{"keeps to its line", `echo "a'b" '$0'`, 0, Checked{Tail: []string{"a'b $0"}}, "exit status 0", "a'b $0\n"},
		{"is killed", "kill -9 $$", 0, Checked{Status: 137, Tail: []string{}}, "was ended by SIGKILL", ""},
		{
			"hangs", "echo waits; exec sleep 1000", 300 * time.Millisecond,
			Checked{Status: 143, Limit: 300 * time.Millisecond, Tail: []string{"waits"}}, "did not end in 300ms", "waits\n",
		},
		{
			"hides that it was stopped", "trap 'exit 0' TERM; sleep 1000 & wait", 300 * time.Millisecond,
			Checked{Status: 1, Limit: 300 * time.Millisecond, Tail: []string{}}, "did not end in 300ms", "",
		},
		{
			"writes a long line", "printf '\\033\\377%01000d' 0", 0,
			Checked{Tail: []string{"??" + strings.Repeat("0", preflightLine-4)}}, "exit status 0", "\x1b\xff" + strings.Repeat("0", 1000),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
			require.NoError(t, err)
			defer func() { _ = stderr.Close() }()
			c := Command{Environ: []string{"A=b", "PATH=/usr/bin:/bin"}, Dir: "/", Stderr: stderr}
			got := Preflight(t.Context(), c, tt.line, tt.limit)
			if len(got.Tail) == 0 {
				got.Tail = []string{}
			}
			require.Equal(t, tt.want, got)
			require.Equal(t, tt.text, got.String())
			require.Equal(t, tt.want.Status != 0, got.Failed())
			written, err := os.ReadFile(stderr.Name())
			require.NoError(t, err)
			require.Equal(t, tt.stderr, string(written))
		})
	}
}

// The end of the job ends the preflight.
func TestPreflightEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = r.Close() }()
	ended := make(chan Checked, 1)
	go func() {
		defer func() { _ = w.Close() }()
		ended <- Preflight(ctx, Command{Environ: []string{"PATH=/usr/bin:/bin"}, Stderr: w}, "echo begun; exec sleep 1000", 0)
	}()
	_, err = r.Read(make([]byte, 16)) // it runs
	require.NoError(t, err)
	cancel()
	require.Equal(t, 143, (<-ended).Status)
}

func TestPreflightsRefuse(t *testing.T) {
	var p Preflights
	ids, names := []string{"a", "b", "c"}, []string{"worker-0", "worker-1", "worker-2"}
	require.Empty(t, p.Refuse(ids, names))
	p.Put("a", Checked{}.Encode())
	p.Put("b", Checked{Running: true}.Encode())
	p.Put("c", []byte("not JSON"))
	require.Empty(t, p.Refuse(ids, names))
	p.Put("b", Checked{Status: 3, Tail: []string{"GPU 3: ECC errors", "bad"}}.Encode())
	p.Put("c", Checked{Status: 1, Limit: 9 * time.Minute}.Encode())
	require.Equal(t, "the preflight failed on 2 of 3 ranks\n  worker-1: exit status 3\n    GPU 3: ECC errors\n    bad\n"+
		"  worker-2: did not end in 9m0s", p.Refuse(ids, names))

	var many []string
	for range 20 {
		many = append(many, "b")
	}
	require.True(t, strings.HasSuffix(p.Refuse(many, many), "\n  and 12 more"))
	b := Checked{Status: 1}
	for range preflightLines {
		b.Tail = append(b.Tail, strings.Repeat("<", preflightLine)) // takes 6 bytes in JSON
	}
	require.Less(t, len(b.Encode()), 8<<10)
}
