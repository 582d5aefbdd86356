package envspec_test

import (
	"net/netip"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

// Only docker's DNS is asked for the name of a container, and only if the environment does not tell it.
func TestAskName(t *testing.T) {
	addr := netip.MustParseAddr("172.18.0.3")
	dns := fakeDNS{ptrs: map[netip.Addr][]string{
		addr:                                {"proj-worker-2.proj_default."},
		netip.MustParseAddr("172.18.0.4"):   {"stack_worker.1.a1b2.stack_default."},
		netip.MustParseAddr("172.18.0.5"):   {"-\x1b[2J.net."},
		netip.MustParseAddr("10.0.0.1"):     {"alone"},
		netip.MustParseAddr("192.168.0.10"): {"z-2.net.", "a-1.net."},
	}}
	docker := fstest.MapFS{"etc/resolv.conf": {Data: []byte("search lan\nnameserver 127.0.0.11\noptions ndots:0\n")}}
	other := fstest.MapFS{"etc/resolv.conf": {Data: []byte("nameserver 10.96.0.10\n")}}
	unnamed := envspec.Job{Alias: "worker-1", Name: "worker-1"}
	for at, want := range map[string]string{
		"172.18.0.3": "proj-worker-2", "172.18.0.4": "stack_worker.1.a1b2", "172.18.0.5": "", "172.18.0.6": "",
		"10.0.0.1": "alone", "192.168.0.10": "a-1", "::ffff:172.18.0.3": "proj-worker-2",
	} {
		got := unnamed.AskName(t.Context(), docker, dns, netip.MustParseAddr(at))
		require.Equal(t, want, got, at)
	}
	require.Empty(t, unnamed.AskName(t.Context(), other, dns, addr))
	require.Empty(t, unnamed.AskName(t.Context(), fstest.MapFS{}, dns, addr))
	named := envspec.Job{Alias: "worker-1", Name: "train-1"}
	require.Equal(t, "train-1", named.AskName(t.Context(), docker, dns, addr))
}
