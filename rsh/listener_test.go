package rsh

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// Listener tells which paiinit holds a port. The server waits for the first byte, which distinguishes SSH from gossip.
func TestListener(t *testing.T) {
	for name, tt := range map[string]struct{ says, label, id string }{
		"a paiinit":       {"SSH-2.0-paiinit 0123456789abcdef worker-1\r\n", "0123456789abcdef", "worker-1"},
		"a later version": {"SSH-2.0-paiinit 0123456789abcdef worker-1 2\r\n", "0123456789abcdef", "worker-1"},
		"another server":  {"SSH-2.0-OpenSSH_9.2p1\r\n", "", ""},
		"another program": {"HTTP/1.1 400 Bad Request\r\n\r\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				_, _ = bufio.NewReader(conn).ReadString('\n')
				_, _ = conn.Write([]byte(tt.says))
				_ = conn.Close()
			}()
			label, id, err := Listener(t.Context(), netip.MustParseAddrPort(ln.Addr().String()))
			if tt.id == "" {
				require.ErrorIs(t, err, ErrNotPaiinit)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, []string{tt.label, tt.id}, []string{label, id})
			<-done
			require.NoError(t, ln.Close())
		})
	}
	t.Run("no answer", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = ln.Close() }()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if conn, err := ln.Accept(); err == nil {
				_, _ = bufio.NewReader(conn).ReadString('\n')
				cancel()
				_, _ = conn.Read(make([]byte, 1))
				_ = conn.Close()
			}
		}()
		_, _, err = Listener(ctx, netip.MustParseAddrPort(ln.Addr().String()))
		require.ErrorIs(t, err, context.Canceled)
		cancel()
	})
}
