package netif

import (
	"bufio"
	"context"
	"net"
	"strconv"
	"time"
)

// TryPort opens a port on all addresses, TCP and UDP, and closes both at once. It returns why one of them cannot be
// opened.
func TryPort(port int) (tcp, udp error) {
	address := net.JoinHostPort("", strconv.Itoa(port))
	var lc net.ListenConfig
	listener, tcp := lc.Listen(context.Background(), "tcp", address)
	if tcp == nil {
		defer func() { _ = listener.Close() }()
	}
	packets, udp := lc.ListenPacket(context.Background(), "udp", address)
	if udp == nil {
		_ = packets.Close()
	}
	return tcp, udp
}

// Greeting returns the first line that a server on this host sends to a silent client before ctx ends; "" if it sends
// none.
func Greeting(ctx context.Context, port int) string {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(port)))
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, _ := bufio.NewReaderSize(conn, 256).ReadString('\n')
	return line
}
