package main

import (
	"cmp"
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
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/inspect"
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
	current      atomic.Pointer[generation]
	server       *sshd.Server
	pool         *rsh.Pool
	checks       *inspect.Comparison

	cancelSelfCheck    context.CancelFunc // ends the proof that the server refuses logins without the job's key
	cancelVersionQuery context.CancelFunc
	running            context.Context    // ends when the job has ended or this container leaves
	stop               context.CancelFunc // ends the services
	serve              sync.WaitGroup     // of the services
	statusServers      sync.WaitGroup     // of the services that need the rendezvous

	hostKey func(id string) ssh.PublicKey
}

// listen opens the port, with its SSH server and gossip, and the sockets of the state directory.
func (c *container) listen(ctx context.Context) error {
	var err error
	if c.reservedPort, err = netif.HoldPort(mathrand.IntN); err != nil {
		c.log.Warn("no port could be reserved for the command", "phase", "listen", "err", err)
	}
	if c.isAlone() {
		return c.listenAlone(ctx)
	}
	var only []netip.Addr
	if c.open {
		if only, err = c.job.Addresses(); err != nil {
			return &secretError{err}
		}
	}
	if c.port, err = rendezvous.Listen(ctx, c.job.Port, only, c.log); err != nil {
		return err
	}
	id := rendezvous.MakeID(c.job.Role, c.job.Index, c.nonce)
	connections := poolConfig(c.keys, c.job.Size, c.log)
	c.pool, c.hostKey = rsh.New(connections), connections.Host
	started := make(chan struct{}) // closed when the node exists; earlier connections wait
	control := func(ctx context.Context, rwc io.ReadWriteCloser, from net.Addr) {
		select {
		case <-started:
			c.node().Accept(ctx, rwc, from)
		case <-ctx.Done():
			_ = rwc.Close()
		}
	}
	checking, cancel := context.WithCancel(ctx)
	c.cancelSelfCheck = cancel
	selfCheck := sync.OnceValue(func() error { return c.server.SelfCheck(checking) })
	cfgServer := c.serverConfig(c.keys, id)
	cfgServer.AuthorizedKeys, cfgServer.Admit = c.keysFile, selfCheck
	cfgServer.Known = func(addr netip.Addr) bool { return c.agreed().isPeer(addr) }
	cfgServer.Channels = map[string]func(context.Context, io.ReadWriteCloser, net.Addr){controlChannel: control}
	if c.server, err = sshd.New(cfgServer); err != nil {
		if c.keysFile != "" {
			err = &usageError{Err: err}
		}
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
	cfg.Fabric = c.checks.Hold(serving, &c.serve, c.tellFabric(serving, c.devices, &c.serve))
	node, err := rendezvous.Start(cfg)
	if err != nil {
		return err
	}
	c.current.Store(newGeneration(node))
	close(started)
	if c.http {
		answers{c}.serveProbes(serving, c.port.HTTP())
	}
	// The server admits logins once this check has proved that it refuses logins without the job's key. Clients may
	// connect and authenticate meanwhile. A job of one rank checks at its first login, which most likely never comes.
	if c.job.Size != 1 {
		if err := selfCheck(); err != nil {
			return err
		}
	}
	c.tellLauncher(serving)
	c.serve.Go(func() {
		c.node().SetName(c.job.AskName(serving, os.DirFS("/"), netif.Resolver{}, c.node().Self().Addr.Addr()))
	})
	if c.port.Number() != c.job.Port {
		c.serve.Go(func() { c.sayPortTaken(serving, c.port.Number()) })
	}
	agent := answers{c}.remoteAgent()
	c.serve.Go(c.logged("the agent ended", func() error { return c.pool.ServeAgent(serving, c.state.Agent, agent) }))
	keys, err := unixsock.Listen(c.state.File(statedir.KeysSocket))
	if err != nil {
		return err
	}
	c.serve.Go(c.logged("the key agent ended", func() error { return c.pool.ServeKey(serving, keys, agent) }))
	answers{c}.serve(serving)
	say := c.log.Debug
	if c.keysFile != "" {
		say = c.log.Info // people want to know the port
	}
	say("listening", "phase", "listen", "addr", c.node().Self().Addr, "state", c.state.Path, "elapsed", c.elapsed())
	return nil
}

// node returns the rendezvous of the present generation; nil before listen.
func (o *opened) node() *rendezvous.Node {
	if g := o.current.Load(); g != nil {
		return g.node
	}
	return nil
}

// logged returns a function that runs a service and logs its failure.
func (id *identity) logged(failure string, service func() error) func() {
	return func() {
		if err := service(); err != nil {
			id.log.Error(failure, "err", err)
		}
	}
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
		Extra:          c.sessionVars,
		Patience:       rendezvous.LoginPatience(c.job.Size),
		StartWithSlack: c.agent.StartWithSlack,
		OnCommand:      c.people.Note,
		Grace:          time.Second,
		Logger:         c.log,
	}
}

// The values of --people.
const (
	peopleJob   = "job"
	peopleLocal = "local"
)

// personBehind names the person behind a process, and refuses the process if it may not use the other ranks.
func (a answers) personBehind(pid int) (string, error) {
	if a.c.server != nil { // without a server, no person can log in
		a.c.server.AwaitStarts()
	}
	name := a.c.people.Behind(proc.System{}, pid)
	if name != "" && a.c.settings.people == peopleLocal {
		return "", fmt.Errorf("%s may run commands only in this container (--people local)", name)
	}
	return name, nil
}

// remoteAgent returns what the remote shell needs: the hosts of the job, and functions that follow its commands.
func (a answers) remoteAgent() rsh.Agent {
	c := a.c
	return rsh.Agent{
		Person:  a.personBehind,
		Resolve: func(ctx context.Context, host string) (rsh.Target, bool) { return c.agreed().resolve(ctx, host) },
		Foreign: func(host, command string) bool { return c.agreed().foreign(host, command) },
		Hosts:   func() [][]string { return c.agreed().book().Both() },
		OnExec: func(t rsh.Target, command string) {
			c.sessions().Begun(t.Name, command)
			if _, daemon := launch.DaemonOf(command); daemon {
				c.node().Session(t.ID)
			}
		},
		OnExit: func(t rsh.Target, command string, s rsh.Status) {
			c.sessions().Ended(t.Name, command, s.Code, s.Signal)
		},
		OnFailure: a.onFailure,
	}
}

// serve starts the server of status.sock and the writer of status.json.
func (a answers) serve(ctx context.Context) {
	c := a.c
	server := localapi.Server{Job: a, Version: version, Logger: c.log}
	c.statusServers.Go(c.logged("the server for paiinit status, wait and barrier has stopped",
		func() error { return server.Serve(ctx, c.state.Status) }))
	c.statusServers.Go(func() { a.keepStatusFile(ctx) })
	running, over := context.WithCancel(ctx)
	c.running = running
	c.statusServers.Go(func() {
		defer over()
		_, _ = c.awaitEnd(ctx) // only the end counts here
	})
	c.mark("listen")
}

// sayPortTaken logs which program has the port that the other ranks and probes try first.
func (id *identity) sayPortTaken(ctx context.Context, instead int) {
	label := "" // a job of one rank has none
	if id.keys != nil {
		label = id.keys.Label()
	}
	local := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(id.job.Port))
	id.log.Warn("the port is taken, using another one", "phase", "listen", "port", id.job.Port,
		"instead", instead, "owner", rsh.Owner(ctx, local, label))
}

func (c *container) rendezvousConfig(id string) rendezvous.Config {
	c.checks = inspect.NewComparison(c.compare, c.preflight, c.log)
	cfg := rendezvous.Config{
		Status: rendezvous.Statuses{Retry: statusRetry, Conflict: statusConfig},
		Self: rendezvous.Record{
			ID: id, Role: c.job.Role, Index: c.job.Index, Rank: c.job.Rank, Order: c.job.Order,
			Nonce: c.nonce, Host: c.host, Own: c.job.Own(), Slots: c.job.Slots, GPUs: c.job.GPUs, Version: version,
			Task: c.reservedPort.Number(), Exec: c.whoRuns(), Launch: c.ownLauncher(id),
		},
		Size: max(c.job.Size, 0), Port: c.port,
		Known:    func(addr netip.Addr) bool { return c.agreed().isPeer(addr) },
		Everyone: c.exec == execAll,
		Rejoin:   c.policy.Restarts != 0, Unfit: c.unfit, Dial: c.dialControl, Verify: c.check,
		Timeout: c.timeout, Logger: c.log,
		Delay:   func() time.Duration { return proc.RunDelay(proc.System{}) },
		Network: func(addr netip.Addr) string { return netif.Of(addr).Name },
		Late:    c.hearLate, Kills: c.oomKills, Noted: c.checks.Put, NoteWait: c.checks.Wait(),
		NameOf: func(ctx context.Context, addr netip.Addr) string {
			return envspec.NameAt(ctx, os.DirFS("/"), netif.Resolver{}, addr)
		},
	}
	if launch.Value(c.agent.Environ, "KUBERNETES_SERVICE_HOST") != "" {
		// The cluster's DNS learns of a pod about 0.4 s after its start, and caches a denial for 5 s.
		cfg.AskAfter = time.Second
	}
	if c.keys != nil {
		cfg.Key, cfg.Label = c.keys.Gossip(), rsh.Comment(c.keys.Label(), "gossip")
	}
	if c.job.First {
		cfg.Self.Rank = 0
	}
	if c.policy.Restarts != 0 && c.job.Rank == 0 { // where ranks are agreed, the job ends with its rank 0
		if c.checkSpares() == nil { // otherwise the other ranks are only told
			cfg.Spares, cfg.SpareAfter = c.spares, c.spareAfter
		}
		cfg.Text, cfg.Adopt = c.restarts.Tell(c.policy, c.restartGrace, c.rejoin), c.restarts.Adopt
	}
	cfg.GoDelay = goDelay
	if c.first == 1 { // otherwise the container ran something else before
		cfg.Started = c.begin
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
				ID: rendezvous.MakeID(p.Role, p.Index, ""), Own: p.Own(), Rank: p.Rank,
				Host: p.Host, Port: p.Port, Slots: p.Slots, Decided: p.Decided,
			})
		}
	}
	for _, s := range c.job.Seeds {
		cfg.Seeds = append(cfg.Seeds, rendezvous.Seed{Host: s.Host, Port: s.Port, Role: s.Role})
	}
	return cfg
}

// What need not happen before the launch waits, so that it does not disturb it.
const (
	goDelay            = 100 * time.Millisecond // head start of rank 0's command over the other ranks' wake-up
	postLaunchDelay    = time.Second            // after all ranks are present, of work that the launch does not need
	deferUntilLaunched = 100 * time.Millisecond // after the start, of a rank's work that rank 0 does not need
)

// dialControl connects the rendezvous to a container, over the connection that mpirun's remote shell will use later.
func (o *opened) dialControl(ctx context.Context, id string, addr netip.AddrPort) (io.ReadWriteCloser, error) {
	rwc, err := o.pool.Control(ctx, rsh.Target{Name: id, ID: id, Addr: addr})
	var dial *rsh.DialError
	if !errors.As(err, &dial) {
		return rwc, err
	}
	details := func(reason error) string { return strings.TrimPrefix(dial.Err.Error(), reason.Error()) }
	switch {
	case errors.Is(err, rsh.ErrOtherSecret):
		return nil, fmt.Errorf("%s %w", cmp.Or(id, "the container there"), rendezvous.ErrOtherSecret)
	case errors.Is(err, rsh.ErrOtherJob):
		return nil, fmt.Errorf("the container there %w", rendezvous.ErrOtherJob)
	case errors.Is(err, rsh.ErrOtherVersion):
		return nil, fmt.Errorf("the container there %w%s", rendezvous.ErrOtherVersion, details(rsh.ErrOtherVersion))
	case errors.Is(err, rsh.ErrOtherID):
		return nil, fmt.Errorf("the container there %w%s", rendezvous.ErrOtherContainer, details(rsh.ErrOtherID))
	}
	err = fmt.Errorf("%s: %w", dial.Stage, dial.Err)
	if errors.Is(err, rsh.ErrNotPaiinit) {
		err = &otherProgramError{err}
	}
	return nil, err
}

// otherProgramError keeps the text of the program that answered.
type otherProgramError struct{ error }

func (e *otherProgramError) Is(target error) bool { return target == rendezvous.ErrOtherProgram }

// release closes everything in the reverse order of listen, and calls about before each step.
func (c *container) release(about func(what string)) {
	about("the SSH server")
	if c.cancelSelfCheck != nil {
		c.cancelSelfCheck()
	}
	if g := c.current.Load(); g != nil {
		g.agree() // no session waits any longer
	}
	if c.server != nil {
		c.shutDown(c.server)
	}
	if c.stop != nil {
		c.stop()
	}
	about("the answers to commands")
	c.statusServers.Wait() // their answers tell how the job ended
	about("the rendezvous")
	if c.node() != nil {
		if err := c.node().Close(); err != nil {
			c.log.Debug("leaving the rendezvous", "err", err)
		}
	}
	about("the connections to other ranks")
	if c.pool != nil {
		_ = c.pool.Close() // its connections end either way
	}
	about("the services of this container")
	if c.cancelVersionQuery != nil {
		c.cancelVersionQuery()
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

// shutDown ends an SSH server, and after a second the sessions that are left.
func (id *identity) shutDown(server *sshd.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		id.log.Debug("sessions were ended by force", "err", err)
	}
}

// watchOthers shortens the keepalive of every connection. Rank 0 does so after the start of the command, which need not
// wait for the system calls.
func (o *opened) watchOthers() {
	if o.pool == nil { // a job of one rank has no connections
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
