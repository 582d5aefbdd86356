package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

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
