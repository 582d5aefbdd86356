package rendezvous

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOtherHost(t *testing.T) {
	members := func(places ...string) (all []Member) {
		for i, p := range places {
			m := Member{Alias: fmt.Sprint(i)}
			m.Addr, m.Task = netip.MustParseAddrPort(p), int(netip.MustParseAddrPort(p).Port())
			all = append(all, m)
		}
		return all
	}
	m, ok := (&Roster{Members: members("10.0.0.1:20000", "10.0.0.1:20001", "10.0.0.2:0", "10.0.0.3:20003")}).OtherHost()
	require.True(t, ok)
	require.Equal(t, "3", m.Alias, "the second is on the same host, the third keeps no port")
	_, ok = (&Roster{Members: members("10.0.0.1:20000", "10.0.0.1:20001")}).OtherHost()
	require.False(t, ok)
}
