package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/internal/unixsock"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/sshd"
	"github.com/paiinit/paiinit/statedir"
)

// opened is what listen opens and release closes.
type opened struct {
	reservedPort *netif.HeldPort // reserved for the command
	port         *rendezvous.Port
	node         *rendezvous.Node
	server       *sshd.Server
	pool         *rsh.Pool

	selfCheck       func() error       // proves once that the server refuses logins without the job's key
	cancelSelfCheck context.CancelFunc // ends that proof
	running         context.Context    // ends when the job has ended or this container leaves
	stop            context.CancelFunc // ends the services
	serve           sync.WaitGroup     // of the services
	statusServers   sync.WaitGroup     // of the services that need the rendezvous

	hostKeys hostKeys
}

// listen opens the port, with its SSH server and gossip, and the sockets of the state directory.
func (c *container) listen(ctx context.Context) error {
	var err error
	if c.reservedPort, err = netif.HoldPort(mathrand.IntN); err != nil {
		c.log.Warn("no port could be reserved for the command", "phase", "listen", "err", err)
	}
	if c.isAlone() {
		return c.listenAlone()
	}
	var only []netip.Addr
	if c.open {
		if only, err = c.closedList(); err != nil {
			return err
		}
	}
	port, err := rendezvous.Listen(ctx, c.job.Port, only, c.log)
	if err != nil {
		return err
	}
	c.port = port
	id := rendezvous.MakeID(c.job.Role, c.job.Index, c.nonce)
	c.pool = newPool(c.keys, &c.hostKeys, c.log)
	started := make(chan struct{}) // closed when the node exists; earlier connections wait
	control := func(ctx context.Context, rwc io.ReadWriteCloser, from net.Addr) {
		select {
		case <-started:
			c.node.Accept(ctx, rwc, from)
		case <-ctx.Done():
			_ = rwc.Close()
		}
	}
	checking, cancel := context.WithCancel(ctx)
	c.cancelSelfCheck = cancel
	c.selfCheck = sync.OnceValue(func() error { return c.server.SelfCheck(checking) })
	cfgServer := c.serverConfig(c.keys, id)
	cfgServer.AuthorizedKeys, cfgServer.Known, cfgServer.Admit = c.keysFile, c.isPeer, c.selfCheck
	cfgServer.Channels = map[string]func(context.Context, io.ReadWriteCloser, net.Addr){controlChannel: control}
	c.server, err = sshd.New(cfgServer)
	if err != nil && c.keysFile != "" {
		return &usageError{err}
	}
	if err != nil {
		return err
	}
	c.serve.Go(func() {
		if err := c.server.Serve(c.port.SSH(c.server.Greeting())); !errors.Is(err, sshd.ErrServerClosed) {
			c.log.Error("the SSH server has stopped, no login is possible", "phase", "listen", "err", err)
		}
	})
	serving, stop := context.WithCancel(context.Background())
	c.stop = stop
	cfg := c.rendezvousConfig(id)
	cfg.Fabric = c.tellFabric(serving)
	c.node, err = rendezvous.Start(cfg)
	if err != nil {
		return err
	}
	close(started)
	// The server admits logins once this check has proved that it refuses logins without the job's key. Clients may
	// connect and authenticate meanwhile. A job of one rank checks at its first login, which most likely never comes.
	if c.job.Size != 1 {
		if err := c.selfCheck(); err != nil {
			return err
		}
	}
	c.tellLauncher(serving)
	if c.port.Number() != c.job.Port {
		c.serve.Go(func() { c.sayPortTaken(serving, c.port.Number()) })
	}
	c.serve.Go(func() {
		if err := c.pool.ServeAgent(serving, c.state.Agent, c.remoteAgent()); err != nil {
			c.log.Error("the agent ended", "err", err)
		}
	})
	keys, err := unixsock.Listen(c.state.File(statedir.KeysSocket))
	if err != nil {
		return err
	}
	c.serve.Go(func() {
		if err := c.pool.ServeKey(serving, keys, c.remoteAgent()); err != nil {
			c.log.Error("the key agent ended", "err", err)
		}
	})
	c.answerAll(serving)
	c.log.Info("listening", "phase", "listen", "addr", c.node.Self().Addr, "state", c.state.Path,
		"elapsed", c.elapsed())
	return nil
}

// serverConfig returns the settings of the SSH server: its keys, and what its sessions get.
func (c *container) serverConfig(keys *jobkey.Keys, id string) sshd.Config {
	return sshd.Config{
		HostKey:        keys.Host(id),
		Comment:        rsh.Comment(keys.Label(), id),
		Authorized:     []ssh.PublicKey{keys.User().PublicKey()},
		SFTP:           []string{"/proc/self/exe", sftpServer},
		Hidden:         c.hidden(),
		Environ:        c.agent.Environ,
		Extra:          func() []string { return c.agreed().forSession() },
		StartWithSlack: c.agent.StartWithSlack,
		OnCommand:      c.people.Note,
		Grace:          time.Second,
		Logger:         c.log,
	}
}

// remoteAgent returns what the remote shell needs: the hosts of the job, and functions that follow its commands.
func (c *container) remoteAgent() rsh.Agent {
	return rsh.Agent{
		Person:  answers{c}.personBehind,
		Resolve: func(ctx context.Context, host string) (rsh.Target, bool) { return c.agreed().resolve(ctx, host) },
		Foreign: func(host, command string) bool { return c.agreed().foreign(host, command) },
		Hosts:   func() [][]string { return c.agreed().book().Both() },
		OnExec:  c.launching.onExec, OnExit: c.launching.onExit, OnFailure: c.launching.onFailure,
	}
}

// answerAll starts the server of status.sock and the writer of status.json.
func (c *container) answerAll(ctx context.Context) {
	c.statusServers.Go(func() {
		server := localapi.Server{Job: answers{c}, Version: version, Logger: c.log}
		if err := server.Serve(ctx, c.state.Status); err != nil {
			c.log.Error("the server for paiinit status, wait and barrier has stopped", "err", err)
		}
	})
	c.statusServers.Go(func() { answers{c}.keepStatusFile(ctx) })
	running, over := context.WithCancel(ctx)
	c.running = running
	c.statusServers.Go(func() {
		defer over()
		_, _ = c.node.Wait(ctx) // only the end counts here
	})
	c.mark("listen")
}

// sayPortTaken logs which program has the port that the other ranks try first.
func (id *identity) sayPortTaken(ctx context.Context, instead int) {
	ctx, cancel := context.WithTimeout(ctx, portOwnerTimeout)
	defer cancel()
	local := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(id.job.Port))
	label, listener, err := rsh.Listener(ctx, local)
	owner := "a program that does not identify itself"
	switch {
	case err == nil && label == id.keys.Label():
		owner = listener + " of this job, or of another job without a name of its own (--job)"
	case err == nil:
		owner = fmt.Sprintf("%s of another job or attempt (label %s, ours is %s)", listener, label, id.keys.Label())
	case errors.Is(err, rsh.ErrNotPaiinit):
		owner = "a program other than paiinit"
	}
	id.log.Warn("the port is taken, using another one", "phase", "listen", "port", id.job.Port,
		"instead", instead, "owner", owner)
}

// portOwnerTimeout is how long the program on our port may take to identify itself.
const portOwnerTimeout = time.Second

func (c *container) rendezvousConfig(id string) rendezvous.Config {
	cfg := rendezvous.Config{
		Status: rendezvous.Statuses{Retry: statusRetry, Conflict: statusConfig},
		Self: rendezvous.Record{
			ID: id, Role: c.job.Role, Index: c.job.Index, Rank: c.job.Rank, Order: c.job.Order,
			Nonce: c.nonce, Host: c.host, Slots: c.job.Slots, GPUs: c.job.GPUs, Version: version,
			Task: c.reservedPort.Number(), Exec: c.whoRuns(), Launch: c.launcher.found(&c.identity),
		},
		Size: max(c.job.Size, 0), Port: c.port, Known: c.isPeer,
		Unfit: c.unfit, Dial: c.dialControl, Verify: c.check, Timeout: c.timeout, Logger: c.log,
		Delay: func() time.Duration { return proc.RunDelay(os.DirFS("/proc")) },
	}
	if lookup(c.agent.Environ, "KUBERNETES_SERVICE_HOST") != "" {
		// The cluster's DNS learns of a pod about 0.4 s after its start, and caches a denial for 5 s.
		cfg.AskAfter = time.Second
	}
	c.launcher.versions.Start(launch.Found{Host: cfg.Self.ID, Launchers: cfg.Self.Launch})
	cfg.Network = func(addr netip.Addr) string { return netif.Of(addr).Name }
	cfg.Late = func(r rendezvous.Record) { c.launcher.hearLate(r, c.log) }
	if c.keys != nil {
		cfg.Key, cfg.Label = c.keys.Gossip(), rsh.Comment(c.keys.Label(), "gossip")
	}
	if c.job.First {
		cfg.Self.Rank = 0
	}
	if c.exec == execRank0 {
		cfg.GoDelay = goDelay
	}
	for _, p := range c.job.Peers {
		if p.Role == c.job.Role && p.Index == c.job.Index {
			if a, err := netip.ParseAddr(p.Host); err == nil {
				cfg.Self.Addr = netip.AddrPortFrom(a, 0)
			}
			continue
		}
		if p.Host != "" && p.Port > 0 {
			cfg.Peers = append(cfg.Peers, rendezvous.Peer{
				ID: rendezvous.MakeID(p.Role, p.Index, ""), Rank: p.Rank, Host: p.Host, Port: p.Port,
			})
		}
	}
	for _, s := range c.job.Seeds {
		cfg.Seeds = append(cfg.Seeds, rendezvous.Seed{Host: s.Host, Port: s.Port, Role: s.Role})
	}
	return cfg
}

// isPeer reports whether an address belongs to the job.
func (c *container) isPeer(addr netip.Addr) bool { return c.agreed().isPeer(addr) }

// goDelay is the head start of rank 0's command over the other ranks' wake-up.
const goDelay = 100 * time.Millisecond

// dialControl connects the rendezvous to a container, over the connection that mpirun's remote shell will use later.
func (o *opened) dialControl(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error) {
	rwc, err := o.pool.Control(ctx, rsh.Target{Name: id, ID: id, Addr: addr})
	var dial *rsh.DialError
	known := errors.As(err, &dial)
	switch {
	case err == nil:
		return rwc, nil
	case errors.Is(err, rsh.ErrOtherSecret):
		return nil, fmt.Errorf("%s %w", claimedName(id, err), rendezvous.ErrOtherSecret)
	case errors.Is(err, rsh.ErrOtherJob):
		return nil, fmt.Errorf("what answers %w", rendezvous.ErrOtherJob)
	case known && errors.Is(err, rsh.ErrOtherVersion):
		return nil, fmt.Errorf("what answers %w%s", rendezvous.ErrOtherVersion,
			strings.TrimPrefix(dial.Err.Error(), rsh.ErrOtherVersion.Error()))
	case known && errors.Is(err, rsh.ErrOtherID):
		return nil, fmt.Errorf("what answers %w%s", rendezvous.ErrOtherContainer,
			strings.TrimPrefix(dial.Err.Error(), rsh.ErrOtherID.Error()))
	case known && errors.Is(err, rsh.ErrNotPaiinit):
		return nil, &otherProgramError{fmt.Errorf("%s: %w", dial.Stage, dial.Err)}
	case known:
		return nil, fmt.Errorf("%s: %w", dial.Stage, dial.Err)
	}
	return nil, err
}

// otherProgramError keeps the text of the program that answered.
type otherProgramError struct{ error }

func (e *otherProgramError) Is(target error) bool { return target == rendezvous.ErrOtherProgram }

func claimedName(id string, err error) string {
	var dial *rsh.DialError
	if id == "" && errors.As(err, &dial) && dial.Target.ID != "" {
		return dial.Target.ID
	}
	if id == "" {
		return "what answers"
	}
	return id
}

// release closes everything in the reverse order of listen, and calls about before each step.
func (c *container) release(about func(what string)) {
	about("the SSH server")
	if c.cancelSelfCheck != nil {
		c.cancelSelfCheck()
	}
	if c.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if err := c.server.Shutdown(ctx); err != nil {
			c.log.Debug("sessions were ended by force", "err", err)
		}
		cancel()
	}
	if c.stop != nil {
		c.stop()
	}
	about("the answers to commands")
	c.statusServers.Wait() // their answers tell how the job ended
	about("the rendezvous")
	if c.node != nil {
		if err := c.node.Close(); err != nil {
			c.log.Debug("leaving the rendezvous", "err", err)
		}
	}
	about("the connections to other ranks")
	if c.pool != nil {
		_ = c.pool.Close() // its connections end either way
	}
	about("the services of this container")
	if c.launcher.cancel != nil {
		c.launcher.cancel()
	}
	c.serve.Wait()
	about("the port and the state directory")
	c.reservedPort.Release()
	if c.port != nil {
		_ = c.port.Close() // the process ends
	}
	if unlink := c.agreed().unlinkHostfile; unlink != nil {
		unlink()
	}
	if c.state != nil {
		c.state.Close()
	}
}

// watchOthers shortens the keepalive of every connection. Rank 0 does so after the start of the command, which need not
// wait for the system calls.
func (o *opened) watchOthers() {
	if o.port == nil { // a job of one rank has no connections
		return
	}
	o.pool.Watch(ackTimeout, keepaliveInterval)
	o.server.Watch(ackTimeout, keepaliveInterval)
}

// ackTimeout is how long data to another rank may stay unacknowledged while the job runs.
const ackTimeout = 6 * time.Second

// keepaliveInterval is the keepalive interval between the agents of a running job, which detects stopped agents. A
// short interval, such as 15 s, disturbs the job on rank 0 (TestQuiet).
const keepaliveInterval = 5 * time.Minute
