package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/paiinit/paiinit/internal/unixsock"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/sshd"
)

// isAlone reports whether this container is the whole job and admits no login from outside. It then derives keys only
// when it needs them, and opens no port; with --http it opens a port for probes.
func (id *identity) isAlone() bool { return id.job.Size == 1 && id.keysFile == "" }

// listenAlone replaces listen for a job of one rank. It answers the commands that ask, and starts the server for
// `paiinit rsh` and `paiinit each` at their first use.
func (c *container) listenAlone(ctx context.Context) error {
	serving, stop := context.WithCancel(context.Background())
	c.stop = stop
	cfg := c.rendezvousConfig(rendezvous.MakeID(c.job.Role, c.job.Index, c.nonce))
	cfg.Dial = func(context.Context, string, netip.AddrPort) (io.ReadWriteCloser, error) {
		return nil, errors.New("a job of one rank has no other ranks")
	}
	cfg.Fabric = c.checks.Hold(serving, &c.serve, c.tellFabric(serving, c.devices, &c.serve))
	if !cfg.Self.Addr.IsValid() {
		addr, err := rendezvous.OwnAddr()
		if err != nil {
			return fmt.Errorf("finding this container's address: %w", err)
		}
		cfg.Self.Addr = netip.AddrPortFrom(addr, 0)
	}
	node, err := rendezvous.Start(cfg)
	if err != nil {
		return err
	}
	c.current.Store(newGeneration(node))
	c.serve.Go(c.logged("paiinit rsh and paiinit each do not work in this container",
		func() error { return c.serveOwnHost(serving) }))
	c.tellLauncher(serving)
	answers{c}.serve(serving)
	if c.http {
		var probes net.Listener
		if c.port, probes, err = rendezvous.ListenHTTP(ctx, c.job.Port, c.log); err != nil {
			return err
		}
		answers{c}.serveProbes(serving, probes)
		if c.port.Number() != c.job.Port {
			c.serve.Go(func() { c.sayPortTaken(serving, c.port.Number()) })
		}
	}
	c.log.Debug("ready", "phase", "listen", "addr", c.node().Self().Addr.Addr(), "state", c.state.Path,
		"elapsed", c.elapsed())
	return nil
}

// serveOwnHost waits for the first call of the remote shell, and serves this and all later calls until ctx ends. Its
// SSH server is reachable only from this process.
func (c *container) serveOwnHost(ctx context.Context) error {
	if err := unixsock.Await(ctx, c.state.Agent); err != nil || ctx.Err() != nil {
		return err
	}
	keys := jobkey.Random(c.job.ID, c.job.Attempt)
	server, err := sshd.New(c.serverConfig(keys, c.node().Self().ID))
	if err != nil {
		return err
	}
	connections := poolConfig(keys, c.job.Size, c.log)
	connections.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) { return server.Connect() }
	pool := rsh.New(connections)
	err = pool.ServeAgent(ctx, c.state.Agent, answers{c}.remoteAgent())
	c.shutDown(server)
	_ = pool.Close() // Close has ended every connection even if it fails
	return err
}
