package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/rendezvous"
)

func members(hosts ...string) []rendezvous.Member {
	var out []rendezvous.Member
	for i, h := range hosts {
		m := rendezvous.Member{Alias: "worker-" + string(rune('0'+i))}
		m.Host, m.Rank = h, i
		out = append(out, m)
	}
	return out
}

func TestHostNames(t *testing.T) {
	for _, tt := range []struct {
		name     string
		in, want []string
	}{
		{"plain and unique", []string{"a1", "b2"}, []string{"a1", "b2"}},
		{"two containers on one host", []string{"node", "node", "other"}, []string{"worker-0", "worker-1", "other"}},
		{"a dot would be cut off", []string{"a.example.org", "b"}, []string{"worker-0", "b"}},
		{"a number would be an address", []string{"123456789012", "b"}, []string{"worker-0", "b"}},
		{"the name of the own role and index", []string{"worker-0", "worker-1"}, []string{"worker-0", "worker-1"}},
		{"the name of another's role and index", []string{"worker-1", "x"}, []string{"worker-0", "x"}},
		{"an underscore ends Open MPI's daemons", []string{"a_b", "c"}, []string{"worker-0", "c"}},
		{"a word of Open MPI's", []string{"port", "c"}, []string{"worker-0", "c"}},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, hostNames(members(tt.in...))) })
	}
	roles := members("node", "node")
	roles[0].Alias, roles[1].Alias = "hvd_worker-0", "ps.server-1"
	require.Equal(t, []string{"rank-0", "rank-1"}, hostNames(roles))
}

type addresses map[string][]string

func (a addresses) LookupHost(_ context.Context, name string) (addrs []netip.Addr, err error) {
	for _, s := range a[name] {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	if addrs == nil {
		err = &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return addrs, err
}

func (addresses) LookupPTR(context.Context, netip.Addr) ([]string, error) {
	return nil, errors.ErrUnsupported
}

func TestMemberAt(t *testing.T) {
	all := members("a", "b", "c", "d")
	for i, addr := range []string{"10.0.0.1:1", "[fd00::2]:1", "10.0.0.3:1", "10.0.0.3:2"} {
		all[i].Addr = netip.MustParseAddrPort(addr)
	}
	dns := addresses{
		"host1": {"10.0.0.1"}, "host2": {"10.0.0.2", "fd00::2"}, "host3": {"10.0.0.3"},
		"several":    {"10.0.0.1", "fd00::2"},
		"github.com": {"192.0.2.1"}, "192.0.2.1": {"10.0.0.1"}, "": {"10.0.0.1"},
	}
	for host, want := range map[string]string{
		"host1": "worker-0", "host2": "worker-1",
		"host3": "", "several": "", "github.com": "", "unknown": "", "192.0.2.1": "", "": "",
	} {
		m, ok := memberAt(t.Context(), dns, all, host)
		require.Equal(t, want, m.Alias, host)
		require.Equal(t, want != "", ok, host)
	}
}

// A signal that comes while nobody is responsible waits for who will be; the others are not for keeping.
func TestSignalsBetweenTwoPhases(t *testing.T) {
	in := make(chan os.Signal)
	s := watchSignals(in, false)
	defer s.close()
	got := make(chan os.Signal, 2)
	in <- syscall.SIGUSR1
	in <- syscall.SIGTERM
	s.to(func(sig os.Signal) { got <- sig })
	require.Equal(t, syscall.SIGTERM, <-got)
	in <- syscall.SIGUSR1
	require.Equal(t, syscall.SIGUSR1, <-got)
	require.True(t, s.first())
	require.False(t, s.first())
}

func TestCommandOf(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"paiinit"}, "run"},
		{[]string{"paiinit", "env"}, "env"},
		{[]string{"paiinit", "--", "env"}, "run"},
		{[]string{"paiinit", "--role", "worker"}, "run"},
		{[]string{"paiinit", "mpirun"}, "run"},
		{[]string{"paiinit", "-h"}, "help"},
		{[]string{"paiinit", "--version"}, "version"},
	} {
		require.Equal(t, tt.want, commandOf(tt.args), "%q", tt.args)
	}
}
