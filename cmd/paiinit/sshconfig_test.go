package main

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/rendezvous"
)

func TestSSHConfig(t *testing.T) {
	member := func(rank int, alias, host, addr string) rendezvous.Member {
		m := rendezvous.Member{Alias: alias}
		m.Rank, m.Host, m.Addr = rank, host, netip.MustParseAddrPort(addr)
		return m
	}
	members := []rendezvous.Member{
		member(0, "master-0", "node-a", "10.0.0.1:12345"),
		member(1, "worker-0", "node-b", "10.0.0.2:20001"),
		member(2, "worker-1", "node-b", "10.0.0.2:20002"), // on the same machine
		member(3, "worker-2", "a*b", "[fd00::1]:12345"),   // no name for a pattern
	}
	got := sshConfig(members, hostNames(members), "/run/paiinit")
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

// A container that ends does not derive the host keys of hundreds of others first.
func TestNoSSHFilesAfterTheJob(t *testing.T) {
	c := &container{identity: identity{keys: jobkey.Insecure("job", "")}}
	over, end := context.WithCancel(t.Context())
	end()
	a := c.newAgreement(rendezvous.Roster{Members: members("a", "b")})
	require.ErrorIs(t, c.writeSSH(over, a), context.Canceled)
	require.Empty(t, c.hostKeys.byID)
}
