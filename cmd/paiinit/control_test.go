package main

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/sshd"
	"github.com/paiinit/paiinit/statedir"
)

// If a container answers in place of the called one, the rendezvous learns its name.
func TestWhoAnswers(t *testing.T) {
	derive := func(secret, attempt string) *jobkey.Keys {
		keys, err := jobkey.Derive([]byte(secret), "job", attempt)
		require.NoError(t, err)
		return keys
	}
	const secret = "a secret of a test"
	log := slog.New(slog.DiscardHandler)
	c := &container{identity: identity{log: log, keys: derive(secret, "1")}}
	c.pool = rsh.New(poolConfig(c.keys, 2, c.log))
	defer func() { require.NoError(t, c.pool.Close()) }()
	for name, tt := range map[string]struct {
		keys *jobkey.Keys
		id   string
		is   error
		text string
		wire string // version of the wire format in the greeting, after the ID; "" = ours
	}{
		"the one that was called": {derive(secret, "1"), "worker-1", nil, "", ""},
		"another container": {derive(secret, "1"), "worker-2", rendezvous.ErrOtherContainer,
			`the container there is another container of the job: it is "worker-2", expected "worker-1"`, ""},
		"another secret": {derive("another secret of a test", "1"), "worker-1", rendezvous.ErrOtherSecret,
			"worker-1 has another secret", ""},
		"another attempt": {derive(secret, "2"), "worker-1", rendezvous.ErrOtherJob,
			"the container there belongs to another job or attempt", ""},
		"another version": {derive(secret, "1"), "worker-1", rendezvous.ErrOtherVersion,
			"the container there has another version of paiinit: its protocol is 3, ours 2", " 3"},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := sshd.New(sshd.Config{
				HostKey: tt.keys.Host(tt.id), Comment: tt.keys.Label() + " " + tt.id + cmp.Or(tt.wire, " 2"),
				Authorized: []ssh.PublicKey{tt.keys.User().PublicKey()}, Logger: log,
				Channels: map[string]func(context.Context, io.ReadWriteCloser, net.Addr){
					controlChannel: func(_ context.Context, rwc io.ReadWriteCloser, _ net.Addr) { _ = rwc.Close() },
				},
			})
			require.NoError(t, err)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			served := make(chan error, 1)
			go func() { served <- server.Serve(ln) }()
			defer func() {
				require.NoError(t, server.Shutdown(context.Background()))
				require.ErrorIs(t, <-served, sshd.ErrServerClosed)
			}()
			rwc, err := c.dialControl(t.Context(), "worker-1", ln.Addr().(*net.TCPAddr).AddrPort())
			if tt.is == nil {
				require.NoError(t, err)
				_ = rwc.Close()
				return
			}
			require.ErrorIs(t, err, tt.is)
			require.EqualError(t, err, tt.text)
		})
	}
}

// TestLoginPatience: client and server of a login wait for each other as long as the rendezvous waits for both.
func TestLoginPatience(t *testing.T) {
	c := &container{identity: identity{
		log: slog.New(slog.DiscardHandler), keys: jobkey.Insecure("job", ""), state: &statedir.Dir{},
	}}
	c.job.Size = 1000
	require.Equal(t, 50*time.Second, poolConfig(c.keys, c.job.Size, c.log).Patience)
	require.Equal(t, 50*time.Second, c.serverConfig(c.keys, "worker-1").Patience)
}
