package main

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/hosts"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// A container that ends skips the host keys of the other containers, which may be hundreds.
func TestNoSSHFilesAfterTheJob(t *testing.T) {
	c := &container{identity: identity{keys: jobkey.Insecure("job", "")}}
	over, end := context.WithCancel(t.Context())
	end()
	agreed := c.newAgreement(rendezvous.Roster{Members: members("a", "b")}, launch.Fabric{})
	hostKey := func(string) ssh.PublicKey {
		t.Error("derived a host key")
		return nil
	}
	require.ErrorIs(t, agreed.writeSSH(over, hostKey), context.Canceled)
}

// TestHostsOfTheNextGeneration: what all ranks say of the hosts is made anew if a host has changed, and only then.
func TestHostsOfTheNextGeneration(t *testing.T) {
	c := &container{identity: identity{log: slog.New(slog.DiscardHandler)}}
	agree := func(change func(m *rendezvous.Member)) *hosts.Book {
		all := members("a", "b")
		change(&all[1])
		return c.agree(rendezvous.Roster{Members: all}, launch.Fabric{}).book()
	}
	last := agree(func(*rendezvous.Member) {})
	require.Same(t, last, agree(func(m *rendezvous.Member) { m.Nonce, m.Task = "another start", 1234 }))
	for name, change := range map[string]func(m *rendezvous.Member){
		"address":   func(m *rendezvous.Member) { m.Addr = netip.MustParseAddrPort("10.0.0.9:12345") },
		"port":      func(m *rendezvous.Member) { m.Addr = netip.AddrPortFrom(m.Addr.Addr(), 1) },
		"id":        func(m *rendezvous.Member) { m.ID = "x" },
		"alias":     func(m *rendezvous.Member) { m.Alias = "x" },
		"host name": func(m *rendezvous.Member) { m.Host = "x" },
		"own name":  func(m *rendezvous.Member) { m.Own = "x" },
		"role":      func(m *rendezvous.Member) { m.Role = "x" },
		"index":     func(m *rendezvous.Member) { m.Index = 7 },
	} {
		changed := agree(change)
		require.NotSame(t, last, changed, name)
		require.NotEqual(t, last.Hosts[1], changed.Hosts[1], name)
		last = agree(func(*rendezvous.Member) {})
		require.NotSame(t, changed, last, name)
	}
}

// TestAwaitAgreement: a session that comes while the ranks commit gets what they have agreed on, not what held before.
func TestAwaitAgreement(t *testing.T) {
	for phase, waits := range map[rendezvous.Phase]bool{
		rendezvous.Gathering: false, rendezvous.Prepared: true, rendezvous.Running: true, rendezvous.Ended: false,
	} {
		took := func(limit time.Duration) time.Duration {
			if waits {
				return limit
			}
			return 0
		}
		synctest.Test(t, func(t *testing.T) {
			g := newGeneration(nil)
			g.phase = func() rendezvous.Phase { return phase }
			begin := time.Now()
			go func() {
				time.Sleep(time.Second)
				g.agree()
			}()
			g.awaitAgreement()
			require.Equal(t, took(time.Second), time.Since(begin), phase)
			<-g.agreed
			g.awaitAgreement()

			g = newGeneration(nil)
			g.phase = func() rendezvous.Phase { return phase }
			begin = time.Now()
			g.awaitAgreement()
			require.Equal(t, took(agreementTimeout), time.Since(begin), phase)
		})
	}
}
