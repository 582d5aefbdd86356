package launch

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFirstCause(t *testing.T) {
	for _, tt := range []struct {
		want string
		r    Result
		oom  int
	}{
		{"rank 0's command x ended with status 0", Result{Tail: []string{"fine"}}, 0},
		{
			"rank 0's command x ended with status 3; its last lines on stderr:\na\nb",
			Result{Code: 3, Tail: []string{"a", "b"}}, 0,
		},
		{
			"rank 0's command x was killed by SIGKILL; the kernel killed a process for lack of memory on rank 0",
			Result{Signal: syscall.SIGKILL}, 1,
		},
		{"rank 0's command x ended with status 0 after SIGTERM", Result{Forwarded: syscall.SIGTERM}, 0},
		{
			"rank 0's command x was stopped by SIGTERM",
			Result{Signal: syscall.SIGTERM, Forwarded: syscall.SIGTERM}, 0,
		},
		{
			"rank 0's command x was killed by SIGKILL after SIGTERM",
			Result{Signal: syscall.SIGKILL, Forwarded: syscall.SIGTERM}, 0,
		},
	} {
		require.Equal(t, tt.want, FirstCause(0, "x", tt.r, tt.oom))
	}
	long := FirstCause(7, "x", Result{Code: 1, Tail: []string{strings.Repeat("y", 5000)}}, 0)
	require.Less(t, len(long), 2*tailWidth)
}
