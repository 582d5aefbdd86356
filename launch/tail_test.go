package launch

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOrigin(t *testing.T) {
	tl := tail{hosts: map[string]bool{"worker-1": true}}
	for line, want := range map[string]string{
		"[1,2]<stderr>:Traceback":                    "1,2",
		"[1,2]<stderr>: text":                        "1,2",
		"[prterun-host-77@1,2]<stderr>: text":        "prterun-host-77@1,2",
		"Sun Nov 22 10:07:35 2026[1,0]<stdout>:text": "1,0",
		"[0]<stderr>:text":                           "0",
		"Sun Nov 22 10:07:35 2026[3]<stderr>:text":   "3",
		"[12] text": "12",
		"[rank3]: Traceback (most recent call last):": "rank3",
		"[default0]:text":                                  "default0",
		"worker-1: Traceback":                              "worker-1",
		"worker-2: Traceback":                              "",
		"ValueError: worker-1: x":                          "",
		"[2026-11-22 10:07:35,123] [INFO] [rank 0]: text":  "",
		"[INFO] text":                                      "",
		"[2023-01-01 10:00:00.1: E horovod/x.cc:1] [0]: x": "",
		"x[0] text":                                        "",
		"[]: x":                                            "",
		"[":                                                "",
		"":                                                 "",
		strings.Repeat("x", 50) + "[0]<stderr>:text": "",
	} {
		require.Equal(t, want, tl.origin(line), line)
	}
}

// tailOf returns the last lines of a command that writes these lines to stderr.
func tailOf(t *testing.T, most int, lines []string) []string {
	t.Helper()
	return tailOfBytes(t, most, []byte(strings.Join(lines, "\n")+"\n")).lastLines(nil, most, true).stderr
}

// A user looks for the rank's own traceback, but horovodrun --gloo ends with a longer one of its own.
func TestTailKeepsTheCulprit(t *testing.T) {
	many := func(prefix string, n int) (lines []string) {
		for i := range n {
			lines = append(lines, fmt.Sprintf("%s%d", prefix, i))
		}
		return lines
	}
	traceback := []string{"[2]<stderr>:Traceback (most recent call last):", "[2]<stderr>:ValueError: the rank's own"}
	rule := strings.Repeat("-", 74)
	gloo := append(many("  File driver.py ", 10),
		"RuntimeError: Horovod detected that one or more processes exited with non-zero status",
		"Process name: 2", "Exit code: 1")
	for name, tt := range map[string]struct{ lines, want []string }{
		"gloo": {
			join(many("[0]<stderr>:step ", 9), traceback, many("[1]<stderr>:connection error ", 9), gloo),
			[]string{"Traceback (most recent call last):", "ValueError: the rank's own"},
		},
		"gloo, without a message": {
			join([]string{"[2]<stderr>:disk full"}, many("[1]<stderr>:connection error ", 9), gloo),
			[]string{"disk full"},
		},
		"mpi": {
			join([]string{"[1,3]<stderr>:gone"}, many("[1,1]<stderr>:error ", 9),
				[]string{rule, "mpirun detected that one or more processes exited with non-zero status, thus causing",
					"the job to be terminated. The first process to do so was:", "",
					"  Process name: [[4,1],3]", "  Exit code:    3", rule}),
			[]string{"gone"},
		},
		"the first error": {
			join([]string{"[0] a warning"}, []string{"[3] Traceback (most recent call last):"}, many("[1] Error ", 9),
				many("x", 4)),
			join([]string{"[3] Traceback (most recent call last):"}, many("x", 4)),
		},
		"no error": {
			join(many("[0] step ", 9), many("[1] step ", 6), many("x", 4)),
			join([]string{"[1] step 2", "[1] step 3", "[1] step 4", "[1] step 5"}, many("x", 4)),
		},
		"none twice": {many("[0] error ", 9), []string{"[0] error 5", "[0] error 6", "[0] error 7", "[0] error 8"}},
		"no marks":   {many("error ", 9), []string{"error 5", "error 6", "error 7", "error 8"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, tailOf(t, 4, tt.lines)) })
	}
}

func join(parts ...[]string) (all []string) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// A slow reader of stderr is awaited for as long as it reads, a stopped one is not.
func TestAwait(t *testing.T) {
	for name, tt := range map[string]struct {
		chunks int // that are read, one every pause
		pause  time.Duration
		all    bool
		took   time.Duration
	}{
		"read at once":   {0, 0, true, 0},
		"read slowly":    {10, unreadTimeout - 1, true, 10 * (unreadTimeout - 1)},
		"not read":       {0, time.Hour, false, unreadTimeout},
		"no longer read": {3, unreadTimeout / 2, false, 3 * unreadTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tail := &tail{done: make(chan struct{}), waiting: 7}
				go func() {
					for range tt.chunks {
						time.Sleep(tt.pause)
						tail.mu.Lock()
						tail.written++
						tail.mu.Unlock()
					}
					if tt.all {
						close(tail.done)
					}
				}()
				began := time.Now()
				require.Equal(t, tt.all, tail.await())
				require.Equal(t, tt.took, time.Since(began))
				require.Equal(t, !tt.all, tail.left)
				require.Equal(t, !tt.all, tail.lost == 7, "the bytes of the blocked write")
			})
		})
	}
}

// Many ranks, or lines that only look marked, use bounded memory; the process that was silent longest is dropped first.
func TestTailIsBounded(t *testing.T) {
	tl := &tail{most: 3, origins: make(map[string]*ring)}
	for round := range 10 {
		for rank := range 10 * maxOrigins {
			tl.partial = fmt.Appendf(nil, "[%d]<stderr>:%d %s", rank, round, strings.Repeat("x", 2*maxOriginLine))
			tl.keep()
		}
	}
	require.Len(t, tl.origins, maxOrigins)
	require.Contains(t, tl.origins, fmt.Sprint(10*maxOrigins-1))
	require.NotContains(t, tl.origins, "0")
	for name, r := range tl.origins {
		require.LessOrEqual(t, len(r.lines), 3)
		for _, l := range r.lines {
			require.LessOrEqual(t, len(l.text), maxOriginLine, name)
		}
	}
}
