package main

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

func TestOtherHost(t *testing.T) {
	members := func(places ...string) (all []rendezvous.Member) {
		for i, p := range places {
			m := rendezvous.Member{Alias: fmt.Sprint(i)}
			m.Addr, m.Task = netip.MustParseAddrPort(p), int(netip.MustParseAddrPort(p).Port())
			all = append(all, m)
		}
		return all
	}
	m, ok := otherHost(members("10.0.0.1:20000", "10.0.0.1:20001", "10.0.0.2:0", "10.0.0.3:20003"))
	require.True(t, ok)
	require.Equal(t, "3", m.Alias, "the second is on the same host, the third keeps no port")
	_, ok = otherHost(members("10.0.0.1:20000", "10.0.0.1:20001"))
	require.False(t, ok)
}
