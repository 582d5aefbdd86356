package localapi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTimeline(t *testing.T) {
	c := startServer(t, newJob())
	got, err := c.Timeline(t.Context())
	require.NoError(t, err)
	require.Equal(t, newJob().Timeline(t.Context()), got)
}

func TestRankInWords(t *testing.T) {
	for want, r := range map[string]Rank{
		"10.0.0.1:22 8 slots, 2 GPUs, RoCE":    {Host: "10.0.0.1", Port: 22, Slots: 8, GPUs: 2, Fabric: "RoCE"},
		"[fd00::1]:22 1 slot, no GPU, no RDMA": {Host: "fd00::1", Port: 22, Slots: 1, Fabric: "none"},
		"name ":                                {Host: "name", Slots: -1, GPUs: -1},
	} {
		require.Equal(t, want, r.Address()+" "+r.Equipment())
	}
}
