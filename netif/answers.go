package netif

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// Answers returns an error unless something answers at the address before the timeout, if only to refuse the
// connection. It returns none if ctx was cancelled.
func Answers(ctx context.Context, addr netip.AddrPort, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
	var late net.Error
	switch {
	case err == nil:
		_ = conn.Close()
		return nil
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET),
		errors.Is(ctx.Err(), context.Canceled):
		return nil
	case errors.As(err, &late) && late.Timeout():
		return fmt.Errorf("no answer from %v/tcp within %v", addr, timeout)
	}
	return err
}
