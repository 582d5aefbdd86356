package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// A container that ends does not derive the host keys of hundreds of others first.
func TestNoSSHFilesAfterTheJob(t *testing.T) {
	c := &container{identity: identity{keys: jobkey.Insecure("job", "")}}
	over, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, c.newAgreement(rendezvous.Roster{Members: members("a", "b")}, launch.Fabric{}).writeSSH(over), context.Canceled)
	require.Empty(t, c.hostKeys.byID)
}
