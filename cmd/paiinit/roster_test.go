package main

import (
	"context"
	"testing"

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
