package netif

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTryPort(t *testing.T) {
	tcp, udp := TryPort(0) // any free one
	require.NoError(t, tcp)
	require.NoError(t, udp)

	listener, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	tcp, _ = TryPort(listener.Addr().(*net.TCPAddr).Port)
	require.ErrorIs(t, tcp, syscall.EADDRINUSE)

	packets, err := net.ListenPacket("udp", ":0")
	require.NoError(t, err)
	defer func() { _ = packets.Close() }()
	_, udp = TryPort(packets.LocalAddr().(*net.UDPAddr).Port)
	require.ErrorIs(t, udp, syscall.EADDRINUSE)
}

func TestGreeting(t *testing.T) {
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	port := listener.Addr().(*net.TCPAddr).Port
	greets := make(chan string)
	go func() {
		for text := range greets {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(text)) // the test sees what has arrived
		}
	}()
	greets <- "SSH-2.0-paiinit 1\r\nmore"
	require.Equal(t, "SSH-2.0-paiinit 1\r\n", Greeting(t.Context(), port))
	greets <- ""
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.Empty(t, Greeting(ctx, port), "a silent server")
	require.Empty(t, Greeting(ctx, port), "too late")
	close(greets)
}
