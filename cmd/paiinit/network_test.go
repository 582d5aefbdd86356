package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

func TestNetwork(t *testing.T) {
	require.Equal(t, network{}, networkOf(netip.MustParseAddr("127.0.0.1")))
	require.Empty(t, networkOf(netip.MustParseAddr("192.0.2.1")).name, "nobody has an address of the documentation")

	at := func(addrs ...string) (members []rendezvous.Member) {
		for _, a := range addrs {
			members = append(members, rendezvous.Member{Record: rendezvous.Record{Addr: netip.AddrPortFrom(netip.MustParseAddr(a), 1)}})
		}
		return members
	}
	n := network{name: "eth1", prefix: netip.MustParsePrefix("10.0.0.0/24"), several: true}
	require.Equal(t, "10.0.0.0/24", n.common(at("10.0.0.1", "10.0.0.9")))
	require.Empty(t, n.common(at("10.0.0.1", "10.0.1.1")), "one rank is behind a router")
	n.several = false
	require.Empty(t, n.common(at("10.0.0.1")), "there is nothing to choose")
}
