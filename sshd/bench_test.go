package sshd_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/sshd"
	"github.com/paiinit/paiinit/sshd/sshdtest"
)

// BenchmarkCommand runs "true" over an open connection.
func BenchmarkCommand(b *testing.B) {
	client := sshdtest.Start(b, sshd.Config{}).Dial(b)
	for b.Loop() {
		session, err := client.NewSession()
		require.NoError(b, err)
		require.NoError(b, session.Run("true"))
	}
}

// BenchmarkLogin connects and logs in.
func BenchmarkLogin(b *testing.B) {
	server := sshdtest.Start(b, sshd.Config{})
	for b.Loop() {
		client, err := ssh.Dial("tcp", server.Addr.String(), server.ClientConfig())
		require.NoError(b, err)
		_ = client.Close()
	}
}
