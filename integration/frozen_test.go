package integration

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFrozenRank: a rank whose processes are all stopped, as by docker pause, does not delay the end of the other
// containers. It ends with the same status once it runs again.
func TestFrozenRank(t *testing.T) {
	for name, stop := range map[string]bool{"the end": false, "SIGTERM during the end": true} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			containers := startAll(t, peersHosts(t, l, 3), "sh", "-c", "echo launched; exec sleep 600")
			waitLine(t, containers[0], "launched")
			require.NoError(t, containers[2].Pause())
			begin := time.Now()
			require.NoError(t, containers[0].Signal(syscall.SIGTERM))
			limit := 12 * time.Second
			if stop {
				waitLine(t, containers[0], "the command has ended")
				require.NoError(t, containers[0].Signal(syscall.SIGTERM))
				limit = 5 * time.Second
			}
			status := 128 + int(syscall.SIGTERM)
			require.Equal(t, same(2, status), statuses(t, containers[:2]))
			require.Less(t, time.Since(begin), limit)
			require.NoError(t, containers[2].Resume())
			require.Equal(t, same(1, status), statuses(t, containers[2:]))
		})
	}
}
