package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

// Without a secret, only listed addresses may connect: loopback is listed or not, like any other.
func TestClosedList(t *testing.T) {
	for hosts, want := range map[string][]string{
		"10.0.0.1 10.0.0.2":          {"10.0.0.1", "10.0.0.2"},
		"fd00::1 ::ffff:10.0.0.2":    {"fd00::1", "10.0.0.2"},
		"127.0.0.1 127.0.0.1":        {"127.0.0.1", "127.0.0.1"},
		"127.0.0.2 127.0.0.3":        {"127.0.0.1", "127.0.0.1"}, // from which the kernel connects to both
		"::1 ::1":                    {"::1", "::1"},
		"worker-0 10.0.0.2":          nil,
		"10.0.0.1 10.0.0.2 10.0.0.3": nil,
	} {
		c := &identity{job: envspec.Job{Size: 2}}
		for _, host := range strings.Fields(hosts) {
			c.job.Peers = append(c.job.Peers, envspec.Peer{Host: host})
		}
		list, err := c.closedList()
		require.Equal(t, want == nil, err != nil, "%s: %v", hosts, err)
		var got []string
		for _, a := range list {
			got = append(got, a.String())
		}
		require.Equal(t, want, got, hosts)
	}
	list, err := (&identity{}).closedList()
	require.NoError(t, err)
	require.NotNil(t, list, "an empty list admits no address, no list admits all")
}

func TestGarbageOfSmallJobs(t *testing.T) {
	for size, want := range map[int]int{-1: 400, 1: 400, 64: 400, 128: 200, 256: 100, 4000: 100} {
		require.Equal(t, want, gcPercent(size), "%d ranks", size)
	}
}
