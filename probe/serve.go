package probe

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits of what strangers can make the server keep. Each connection carries one request.
const (
	maxHeader    = 4 << 10 // bytes; net/http reads 4 KiB more
	readTimeout  = 2 * time.Second
	writeTimeout = 5 * time.Second

	maxConnections = 128
	maxOfAddress   = 32
)

// Serve answers on ln until ctx ends. Then it closes ln and all connections, and returns when no goroutine of the
// server is left.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	var open sync.WaitGroup
	defer open.Wait()
	only := new(http.Protocols)
	only.SetHTTP1(true)
	server := http.Server{
		Handler: h, Protocols: only, DisableGeneralOptionsHandler: true,
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog:    log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed:
				open.Done()
			}
		},
	}
	server.SetKeepAlivesEnabled(false)
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err := server.Serve(&crowd{Listener: ln, most: maxConnections, each: maxOfAddress})
	_ = server.Close()
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// crowd bounds the open connections of a listener, in total and from one address. A connection too many ends the oldest
// one of the address that has the most: that of a slow client, because a request is answered in milliseconds.
type crowd struct {
	net.Listener
	most, each int

	mu   sync.Mutex
	open []*guest // the oldest first
}

type guest struct {
	net.Conn
	crowd *crowd
	from  netip.Prefix
}

func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &guest{Conn: conn, crowd: c, from: network(conn.RemoteAddr())}
	if oldest := c.enter(g); oldest != nil {
		_ = oldest.Close()
	}
	return g, nil
}

// enter adds a connection, and returns the connection that Accept must close for it, or nil.
func (c *crowd) enter(g *guest) (oldest *guest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count, most := make(map[netip.Prefix]int), 0
	for _, o := range c.open {
		count[o.from]++
		most = max(most, count[o.from])
	}
	crowded := func(o *guest) bool { return count[o.from] == most }
	if count[g.from] >= c.each {
		crowded = func(o *guest) bool { return o.from == g.from }
	}
	if len(c.open) >= c.most || count[g.from] >= c.each {
		oldest = c.open[slices.IndexFunc(c.open, crowded)]
	}
	c.open = append(c.open, g)
	return oldest
}

func (g *guest) Close() error {
	g.crowd.mu.Lock()
	g.crowd.open = slices.DeleteFunc(g.crowd.open, func(o *guest) bool { return o == g })
	g.crowd.mu.Unlock()
	return g.Conn.Close()
}

// network returns the addresses that one host can use: an IPv4 address, or the /64 of an IPv6 one.
func network(a net.Addr) netip.Prefix {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{}
	}
	addr, bits := ap.Addr().Unmap().WithZone(""), 64
	if addr.Is4() {
		bits = 32
	}
	return netip.PrefixFrom(addr, bits).Masked()
}
