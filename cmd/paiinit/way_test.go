package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

func TestDropped(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := netip.MustParseAddrPort(listener.Addr().String())
	require.NoError(t, dropped(t.Context(), at), "a program listens")
	require.NoError(t, listener.Close())
	require.NoError(t, dropped(t.Context(), at), "the kernel refuses")
	inNetwork(t, func() { // the host at the other end of the cable answers nothing
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader("link add near type veth peer name far\naddr add 192.0.2.1/24 dev near\n" +
			"link set near up\nlink set far up\nneigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev near\n")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		silent := netip.MustParseAddrPort("192.0.2.2:20000")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.EqualError(t, dropped(ctx, silent), "no answer from 192.0.2.2:20000/tcp within 4s")
		ended, end := context.WithCancel(t.Context())
		end()
		require.NoError(t, dropped(ended, silent), "the job has ended meanwhile")
		require.Error(t, dropped(t.Context(), netip.MustParseAddrPort("198.51.100.1:20000")), "no route")
	})
}

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
