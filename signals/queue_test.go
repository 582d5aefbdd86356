package signals_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/signals"
)

func TestQueue(t *testing.T) {
	q := make(signals.Queue, 2)
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1} {
		q.Put(sig) // returns even if the queue is full
	}
	require.Len(t, q, 2)
	require.Equal(t, syscall.SIGTERM, <-q)
	require.Equal(t, syscall.SIGINT, <-q)
}
