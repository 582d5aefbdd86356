package rsh

import (
	"bufio"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOwner(t *testing.T) {
	for says, want := range map[string]string{
		"SSH-2.0-paiinit 0123 ps-0 1\r\n":     "ps-0 of this job, or of another job without a name of its own (--job)",
		"SSH-2.0-paiinit 4567 worker-1 1\r\n": "worker-1 of another job or attempt (label 4567, ours is 0123)",
		"HTTP/1.1 400 Bad Request\r\n\r\n":    "a program other than paiinit",
		"":                                    "a program that does not identify itself",
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if conn, err := ln.Accept(); err == nil {
				_, _ = bufio.NewReader(conn).ReadString('\n')
				_, _ = conn.Write([]byte(says))
				_ = conn.Close()
			}
		}()
		require.Equal(t, want, Owner(t.Context(), netip.MustParseAddrPort(ln.Addr().String()), "0123"))
		<-done
		require.NoError(t, ln.Close())
	}
}
