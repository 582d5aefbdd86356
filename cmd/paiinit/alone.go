package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/internal/unixsock"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/sshd"
)

// isAlone reports whether this container is the whole job and admits no login from outside. It then opens no port, and
// derives keys only when it needs them.
func (id *identity) isAlone() bool { return id.job.Size == 1 && id.keysFile == "" }

// listenAlone replaces listen for a job of one rank. It answers the commands that ask, and starts the server for
// `paiinit rsh` and `paiinit each` at their first use.
func (c *container) listenAlone() error {
	serving, stop := context.WithCancel(context.Background())
	c.stop = stop
	cfg := c.rendezvousConfig(rendezvous.MakeID(c.job.Role, c.job.Index, c.nonce))
	cfg.Dial = func(context.Context, string, netip.AddrPort) (io.ReadWriteCloser, error) {
		return nil, errors.New("a job of one rank has no other ranks")
	}
	cfg.Fabric = c.tellFabric(serving)
	if !cfg.Self.Addr.IsValid() {
		addr, err := rendezvous.OwnAddr()
		if err != nil {
			return fmt.Errorf("finding this container's address: %w", err)
		}
		cfg.Self.Addr = netip.AddrPortFrom(addr, 0)
	}
	var err error
	if c.node, err = rendezvous.Start(cfg); err != nil {
		return err
	}
	c.serve.Go(func() {
		if err := c.serveOwnHost(serving); err != nil {
			c.log.Error("paiinit rsh and paiinit each do not work in this container", "err", err)
		}
	})
	c.tellLauncher(serving)
	c.answerAll(serving)
	c.log.Info("ready", "phase", "listen", "addr", c.node.Self().Addr.Addr(), "state", c.state.Path,
		"elapsed", c.elapsed())
	return nil
}

// serveOwnHost waits for the first call of the remote shell, and serves this and all later calls until ctx ends. Its
// SSH server is reachable only from this process.
func (c *container) serveOwnHost(ctx context.Context) error {
	if err := unixsock.Await(ctx, c.state.Agent); err != nil || ctx.Err() != nil {
		return err
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // its documentation says that it never fails
	keys, err := jobkey.Derive(secret, c.job.ID, c.job.Attempt)
	clear(secret)
	if err != nil {
		return err
	}
	id := c.node.Self().ID
	cfg := c.serverConfig(keys, id)
	server, err := sshd.New(cfg)
	if err != nil {
		return err
	}
	pool := rsh.New(rsh.Config{
		User: keys.User(), Label: keys.Label(), Logger: c.log,
		Dial: func(context.Context, netip.AddrPort) (net.Conn, error) { return server.Connect() },
		Host: func(id string) ssh.PublicKey { return keys.Host(id).PublicKey() },
	})
	err = pool.ServeAgent(ctx, c.state.Agent, c.remoteAgent())
	stopping, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if serr := server.Shutdown(stopping); serr != nil {
		c.log.Debug("sessions were ended by force", "err", serr)
	}
	_ = pool.Close() // Close has ended every connection even if it fails
	return err
}
