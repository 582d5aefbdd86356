package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/localapi"
)

func TestSayStatus(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(s time.Duration) time.Time { return now.Add(-s * time.Second) }
	for name, row := range map[string]struct {
		status localapi.Status
		text   string
	}{
		"waiting": {
			localapi.Status{
				Phase: localapi.Gathering, Rank: -1, Size: 4, Timings: map[string]float64{"listen": 0.0123},
				Ranks: []localapi.Rank{
					{
						Rank: 0, Alias: "ps-0", Host: "10.0.0.1", Port: 12345, State: localapi.Present,
						Since: ago(90), Slots: 0, GPUs: 0, Fabric: "none",
					},
					{
						Rank: 1, Alias: "worker-0", Host: "fd00::1", Port: 22, State: localapi.Heard,
						Since: ago(1), Slots: 8, GPUs: 8,
					},
					{
						Rank: 2, Alias: "worker-1", Host: "w1", Port: 22, State: localapi.Missing,
						Since: ago(90), Slots: -1, GPUs: -1, Reason: "never heard",
					},
					{
						Rank: -1, Alias: "1 rank", State: localapi.Missing,
						Since: ago(90), Slots: -1, GPUs: -1, Reason: "never heard: w has 3 addresses",
					},
				},
			},
			//nolint:lll // the text as it is printed
			`gathering: 2 of 4 ranks are present; missing: worker-1 (never heard); 1 rank (never heard: w has 3 addresses)
this is rank unknown, listen 0.012s

RANK  NAME      ADDRESS         STATE    SINCE  SLOTS  GPUS  FABRIC  REASON
0     ps-0      10.0.0.1:12345  present  1m30s  0      0     none    
1     worker-0  [fd00::1]:22    heard    1s     8      8             
2     worker-1  w1:22           missing  1m30s  -      -             never heard
-     1 rank                    missing  1m30s  -      -             never heard: w has 3 addresses
`,
		},
		"running": {
			localapi.Status{
				Phase: localapi.Running, Rank: 0, Size: 1, Epoch: 2, Hash: strings.Repeat("ab", 32),
				Timings: map[string]float64{"listen": 0.01, "gather": 1, "launch": 1.5},
				Ranks: []localapi.Rank{{
					Rank: 0, Alias: "rank-0", Host: "10.0.0.1", Port: 12345, State: localapi.Present,
					Since: now, Slots: 1, GPUs: 0,
				}},
			},
			`running: 1 of 1 ranks are present
this is rank 0, epoch 2, roster abababababab, listen 0.010s, gather 1.000s, launch 1.500s

RANK  NAME    ADDRESS         STATE    SINCE  SLOTS  GPUS  FABRIC  REASON
0     rank-0  10.0.0.1:12345  present  0s     1      0             
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			require.NoError(t, sayStatus(&b, &row.status, now))
			require.Equal(t, row.text, b.String())
		})
	}
}
