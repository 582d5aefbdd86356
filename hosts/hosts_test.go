package hosts

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

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

func TestResolve(t *testing.T) {
	var book Book
	for i, addr := range []string{"10.0.0.1:1", "[fd00::2]:1", "10.0.0.3:1", "10.0.0.3:2"} {
		alias := "worker-" + strconv.Itoa(i)
		book.Hosts = append(book.Hosts, Host{Alias: alias, Addr: netip.MustParseAddrPort(addr)})
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
		h, ok := book.Resolve(t.Context(), dns, host)
		require.Equal(t, want, h.Alias, host)
		require.Equal(t, want != "", ok, host)
	}
}

// Find finds a host by every name that the job knows; a name of two hosts finds neither.
func TestFind(t *testing.T) {
	book := Book{
		Self: "worker-1",
		Hosts: []Host{
			{ID: "master/0", Name: "node-a", Alias: "master-0", Own: "node-a", Role: "master", Addr: at("10.0.0.1")},
			{ID: "worker/0", Name: "worker-0", Alias: "worker-0", Own: "node-b", Role: "worker", Addr: at("10.0.0.2")},
			{ID: "worker/1", Name: "worker-1", Alias: "worker-1", Own: "node-b",
				Role: "worker", Index: 1, Addr: at("10.0.0.2")},
		},
		Peers: []Peer{
			{Role: "worker", Index: 1, Alias: "worker-1", Host: "job-worker-1", Names: []string{"job-worker-1.svc"}},
			{Role: "worker", Index: 2, Alias: "worker-2", Host: "job-worker-2"},
		},
	}
	for name, want := range map[string]string{
		"node-a": "master-0", "master-0": "master-0", "master/0": "master-0", "10.0.0.1": "master-0",
		"::ffff:10.0.0.1": "master-0", "node-a.example.org": "master-0",
		"localhost": "worker-1", "127.0.0.1": "worker-1", "::1": "worker-1",
		"job-worker-1": "worker-1", "job-worker-1.svc": "worker-1", "worker-1.example.org": "worker-1",
		"node-b": "", "10.0.0.2": "", "job-worker-2": "", "other": "", "": "",
	} {
		h, ok := book.Find(name)
		require.Equal(t, want, h.Alias, name)
		require.Equal(t, want != "", ok, name)
	}
	for name, want := range map[string]bool{
		"node-b": true, "10.0.0.2": true, "worker-2": true, "job-worker-2": true, "job-worker-1.svc": true,
		"github.com": false, "10.0.0.3": false,
	} {
		require.Equal(t, want, book.Claims(name), name)
	}
	require.Equal(t, []string{"node-a", "worker-0", "worker-1"}, book.Names())
	require.Equal(t, [][]string{{"node-a", "master-0"}, {"worker-0"}, {"worker-1"}}, book.Both())
}

// Before the ranks are agreed, hosts of the environment are found there, and others by DNS.
func TestLocate(t *testing.T) {
	book := Book{Peers: []Peer{
		{Alias: "worker-0", Host: "10.0.0.1", Port: 20001},
		{Alias: "worker-1", Host: "10.0.0.1", Port: 20002, Names: []string{"one"}},
		{Alias: "worker-2", Host: "two"},
	}}
	dns := addresses{"10.0.0.1": {"10.0.0.1"}, "two": {"10.0.0.2", "fd00::2"}, "other": {"192.0.2.1"}}
	for _, tt := range []struct {
		name         string
		given, usual int
		want         string
	}{
		{"worker-0", 0, 22, "10.0.0.1:20001"},
		{"one", 22, 0, "10.0.0.1:20002"},
		{"10.0.0.1", 0, 22, "10.0.0.1:20001"},
		{"10.0.0.1", 20002, 22, "10.0.0.1:20002"},
		{"10.0.0.1", 23, 22, "10.0.0.1:23"},
		{"worker-2", 0, 22, "10.0.0.2:22"},
		{"other", 0, 22, "192.0.2.1:22"},
		{"other", 23, 22, "192.0.2.1:23"},
		{"other", 0, 0, ""},
		{"unknown", 0, 22, ""},
	} {
		addr, ok := book.Locate(t.Context(), dns, tt.name, tt.given, tt.usual)
		require.Equal(t, tt.want != "", ok, "%+v", tt)
		if ok {
			require.Equal(t, tt.want, addr.String(), "%+v", tt)
		}
	}
}

func at(addr string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(addr), 12345) }

func TestSSHConfig(t *testing.T) {
	host := func(name, alias, own, addr string) Host {
		return Host{Name: name, Alias: alias, Own: own, Addr: netip.MustParseAddrPort(addr)}
	}
	book := Book{Hosts: []Host{
		host("node-a", "master-0", "node-a", "10.0.0.1:12345"),
		host("worker-0", "worker-0", "node-b", "10.0.0.2:20001"),
		host("worker-1", "worker-1", "node-b", "10.0.0.2:20002"), // on the same machine
		host("worker-2", "worker-2", "a*b", "[fd00::1]:12345"),   // not a plain host name
	}}
	got := book.SSHConfig(SSHFiles{
		Config: "/run/paiinit/ssh_config", Agent: "/run/paiinit/keys.sock", KnownHosts: "/run/paiinit/known_hosts",
	})
	//nolint:lll // the file as it is written
	require.Equal(t, `# For OpenSSH: ssh -F /run/paiinit/ssh_config HOST, or "Include /run/paiinit/ssh_config" in another one.
Host node-a master-0 10.0.0.1 worker-0 worker-1 worker-2 fd00::1
    User root
    IdentityAgent "/run/paiinit/keys.sock"
    IdentityFile none
    UserKnownHostsFile "/run/paiinit/known_hosts"
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    PasswordAuthentication no
    KbdInteractiveAuthentication no
    ServerAliveInterval 15
    Ciphers aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,aes128-ctr

Host node-a master-0 10.0.0.1
    HostName 10.0.0.1
    Port 12345
    HostKeyAlias master-0

Host worker-0
    HostName 10.0.0.2
    Port 20001
    HostKeyAlias worker-0

Host worker-1
    HostName 10.0.0.2
    Port 20002
    HostKeyAlias worker-1

Host worker-2 fd00::1
    HostName fd00::1
    Port 12345
    HostKeyAlias worker-2
`, string(got))
}

func TestKnownHosts(t *testing.T) {
	book := &Book{Hosts: []Host{{ID: "worker-0.1", Alias: "worker-0"}, {ID: "ps-0.2", Alias: "ps-0"}}}
	known, err := book.KnownHosts(t.Context(), func(id string) []byte { return []byte("key of " + id + "\n") })
	require.NoError(t, err)
	require.Equal(t, "worker-0 key of worker-0.1\nps-0 key of ps-0.2\n", string(known))

	over, end := context.WithCancel(t.Context())
	end()
	_, err = book.KnownHosts(over, func(string) []byte { t.Error("no key is needed any more"); return nil })
	require.ErrorIs(t, err, context.Canceled)
}
