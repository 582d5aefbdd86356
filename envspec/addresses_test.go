package envspec_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

// Without a secret, only listed addresses may connect: loopback is listed or not, like any other.
func TestAddresses(t *testing.T) {
	for hosts, want := range map[string][]string{
		"10.0.0.1 10.0.0.2":          {"10.0.0.1", "10.0.0.2"},
		"fd00::1 ::ffff:10.0.0.2":    {"fd00::1", "10.0.0.2"},
		"127.0.0.1 127.0.0.1":        {"127.0.0.1", "127.0.0.1"},
		"127.0.0.2 127.0.0.3":        {"127.0.0.1", "127.0.0.1"}, // from which the kernel connects to both
		"::1 ::1":                    {"::1", "::1"},
		"worker-0 10.0.0.2":          nil,
		"10.0.0.1 10.0.0.2 10.0.0.3": nil,
	} {
		job := envspec.Job{Size: 2}
		for _, host := range strings.Fields(hosts) {
			job.Peers = append(job.Peers, envspec.Peer{Host: host})
		}
		list, err := job.Addresses()
		require.Equal(t, want == nil, err != nil, "%s: %v", hosts, err)
		var got []string
		for _, a := range list {
			got = append(got, a.String())
		}
		require.Equal(t, want, got, hosts)
	}
	list, err := (&envspec.Job{}).Addresses()
	require.NoError(t, err)
	require.NotNil(t, list, "an empty list admits no address, no list admits all")

	for _, tt := range []struct {
		job  envspec.Job
		want string
	}{
		{envspec.Job{Size: -1}, " (known to rank 0); the environment lists 0"},
		{envspec.Job{Size: 2}, " (2); the environment lists 0"},
		{envspec.Job{Seeds: []envspec.Seed{{}}}, " (0); the environment lists 0"},
		{envspec.Job{Size: 1, Peers: []envspec.Peer{{Alias: "w-0", Host: "w"}}}, `; w-0 is known as "w" only`},
	} {
		_, err := tt.job.Addresses()
		require.EqualError(t, err, "--insecure needs the addresses of all containers"+tt.want)
	}
}

func TestHosts(t *testing.T) {
	job := envspec.Job{
		Peers: []envspec.Peer{{Host: "a"}, {Host: ""}, {Host: "10.0.0.1"}}, Seeds: []envspec.Seed{{Host: "dns"}},
	}
	require.Equal(t, []string{"a", "10.0.0.1", "dns"}, job.Hosts())
}
