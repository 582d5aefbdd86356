package rsh

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOutputs(t *testing.T) {
	a := startAgent(t, startPeer(t, "worker-0", nil), startPeer(t, "worker-1", nil), startPeer(t, "worker-2", nil))
	hosts := []string{"worker-2", "worker-9", "worker-0", "worker-1"}
	require.Equal(t, []Output{
		{Host: "worker-2", Text: []byte("a\n")},
		{Host: "worker-9", Text: []byte{}, Status: exitTransport},
		{Host: "worker-0", Text: []byte("a\n")},
		{Host: "worker-1", Text: []byte("a\n")},
	}, Caller{Socket: a.socket}.Outputs(t.Context(), hosts, "echo a", 2))
	require.Empty(t, Caller{}.Outputs(t.Context(), nil, "echo a", 2))
}
