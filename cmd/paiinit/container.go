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
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/internal/unixsock"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/pid1"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/signals"
	"github.com/paiinit/paiinit/sshd"
	"github.com/paiinit/paiinit/statedir"
)

// controlChannel is the SSH channel type of the connection from rank 0 that carries the commit and the outcome.
const controlChannel = "control@paiinit"

// container is this container during one launch: what it found out, and what it holds open. Whatever is nil does not
// exist yet.
type container struct {
	identity
	opened
	launching launching
	launcher  ownLauncher
	signals   *signals.Switch
	oomKills  int // before anything was started
	devices   *rdma.Search
	unfit     *rendezvous.Outcome // why it can have no part in a launch: it only comes to say so
	people    sshd.PersonSessions
	agreement atomic.Pointer[agreement]

	mu      sync.Mutex
	timings map[string]time.Duration // from begin to the end of each phase
}

// opened is what listen opens and release closes.
type opened struct {
	task   *netif.HeldPort // for the job's own use
	port   *rendezvous.Port
	node   *rendezvous.Node
	server *sshd.Server
	pool   *rsh.Pool

	safe    func() error       // proves once that the server refuses logins without the job's key
	uncheck context.CancelFunc // ends that proof
	running context.Context    // until the job has ended, or this container leaves
	stop    context.CancelFunc // ends the services
	serve   sync.WaitGroup     // of the services
	asked   sync.WaitGroup     // of the services that need the rendezvous

	hostKeys hostKeys
}

func newContainer(s settings, agent pid1.Agent) *container {
	// A PAIINIT_AGENT that a launcher or a shell has forwarded names another paiinit: the command gets ours.
	agent.Environ = slices.DeleteFunc(slices.Clone(agent.Environ), func(kv string) bool {
		return strings.HasPrefix(kv, "PAIINIT_AGENT=")
	})
	return &container{
		identity: identity{
			settings: s, agent: agent, begin: time.Now(), first: os.Getppid(), log: s.logger(s.logOutput()),
		},
		signals: signals.Watch(agent.Signals, isTerminal(os.Stdin)),
	}
}

// identify finds out who this container is, takes its state directory, and derives the keys.
func (c *container) identify(ctx context.Context) error {
	if err := launch.Limits(); err != nil {
		c.log.Warn("resource limits stay as they are", "phase", "identify", "err", err)
	}
	c.devices = c.look()
	c.oomKills = oomKills(os.DirFS("/"))
	jobErr := c.readJob(ctx)
	if jobErr != nil && contradictionIn(jobErr) == nil {
		return jobErr
	}
	c.nonce = rendezvous.NewNonce()
	var err error
	self := identityOf(c.job, c.host, c.nonce, c.begin)
	if c.state, err = openState(ctx, c.stateDir, self, c.agent.Environ); err != nil {
		return err // of a second paiinit in this container, for one
	}
	if runtime.GOMAXPROCS(0) > c.job.CPUs { // main.go says why the runtime does not look itself
		runtime.GOMAXPROCS(c.job.CPUs)
	}
	if !c.isAlone() {
		c.serve.Go(jobkey.Warm) // beside the rest
	}
	c.askLauncher(ctx)
	for _, w := range c.job.Warnings {
		c.log.Warn(w, "phase", "identify")
	}
	c.warnServerPort()
	source, fingerprint := "not needed", ""
	if !c.isAlone() {
		source, err = c.deriveKeys(c.log)
	}
	for _, secret := range c.agent.Secrets { // also where a file was preferred, or no secret was needed
		clear(secret)
	}
	if err != nil {
		return cmp.Or(jobErr, err)
	}
	if c.keys != nil {
		fingerprint = c.keys.Fingerprint()
	}
	c.log = c.log.With("self", c.job.Alias)
	c.launching = newLaunching(&c.identity, func(ctx context.Context, r launch.Request) (map[string]int, error) {
		return c.agreed().slotsAsked(ctx, r)
	})
	c.mark("identify")
	c.log.Info("this container is identified", "phase", "identify", "system", c.job.System, "job", c.job.ID,
		"attempt", c.job.Attempt, "rank", rankText(c.job.Rank), "size", sizeText(c.job.Size), "slots", c.job.Slots,
		"secret", source, "fingerprint", fingerprint, "version", version)
	return jobErr
}

// findCommand looks the command up. A container that is certain to be rank 0 needs one.
func (id *identity) findCommand() error {
	if len(id.job.Peers) == id.job.Size { // otherwise rank 0 looks when all roles are known
		var roles []string
		for _, p := range id.job.Peers {
			roles = append(roles, p.Role)
		}
		if err := id.checkUntil(roles); err != nil {
			return err
		}
	}
	if len(id.settings.command) == 0 {
		if id.job.Rank == 0 || id.job.First {
			return &usageError{errors.New("this container is rank 0 and has no COMMAND to run")}
		}
		if id.exec == execAll {
			return &usageError{errors.New("with --exec all every rank needs a COMMAND, and this one has none")}
		}
		return nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("finding the working directory: %w", err)
	}
	id.command, err = launch.Look(id.settings.command[0], id.agent.Environ, dir)
	if look := (*launch.LookError)(nil); errors.As(err, &look) && look.Status == 127 && mistyped(look.Name) != "" {
		if o := id.state.Beside(id.stateDir); o != nil { // a question to that paiinit, mistyped
			return &statedir.RunningError{Owner: *o}
		}
	}
	if err != nil && id.job.Rank > 0 && id.exec == execRank0 {
		id.log.Debug("the command of this rank cannot be run; only rank 0's is", "phase", "identify", "err", err)
		id.command = ""
		return nil
	}
	return err
}

// listen opens everything that others may come to: the port with its SSH server and gossip, and the agent's socket.
func (c *container) listen(ctx context.Context) error {
	var err error
	if c.task, err = netif.HoldPort(mathrand.IntN); err != nil {
		c.log.Warn("no port could be kept free for the job", "phase", "listen", "err", err)
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
	started := make(chan struct{}) // closed when there is a node: who comes earlier waits for it
	control := func(ctx context.Context, rwc io.ReadWriteCloser, from net.Addr) {
		select {
		case <-started:
			c.node.Accept(ctx, rwc, from)
		case <-ctx.Done():
			_ = rwc.Close()
		}
	}
	checking, uncheck := context.WithCancel(ctx)
	c.uncheck = uncheck
	c.safe = sync.OnceValue(func() error { return c.server.SelfCheck(checking) })
	cfgServer := c.serverConfig(c.keys, id)
	cfgServer.AuthorizedKeys, cfgServer.Known, cfgServer.Admit = c.keysFile, func(addr netip.Addr) bool { return c.agreed().isPeer(addr) }, c.safe
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
			c.log.Error("nobody can log in to this container", "phase", "listen", "err", err)
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
	// Others are let in as soon as it is seen, not believed, that nobody gets in without the job's key. They may come, and prove who they are, meanwhile.
	if c.job.Size != 1 { // where nobody has to get in before the command starts, and most likely nobody ever comes
		if err := c.safe(); err != nil {
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

// serverConfig is what sessions get, and whose keys open them.
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

// remoteAgent finds the hosts for the remote shell, and hears what became of its commands.
func (c *container) remoteAgent() rsh.Agent {
	return rsh.Agent{
		Person:  answers{c}.personBehind,
		Resolve: func(ctx context.Context, host string) (rsh.Target, bool) { return c.agreed().resolve(ctx, host) },
		Foreign: func(host, command string) bool { return c.agreed().foreign(host, command) },
		Hosts:   func() [][]string { return c.agreed().book().Both() },
		OnExec:  c.launching.onExec, OnExit: c.launching.onExit, OnFailure: c.launching.onFailure,
	}
}

// answerAll begins to answer the commands that ask, and to keep status.json.
func (c *container) answerAll(ctx context.Context) {
	c.asked.Go(func() {
		server := localapi.Server{Job: answers{c}, Version: version, Logger: c.log}
		if err := server.Serve(ctx, c.state.Status); err != nil {
			c.log.Error("paiinit status, wait and barrier are not answered any more", "err", err)
		}
	})
	c.asked.Go(func() { answers{c}.keepStatusFile(ctx) })
	running, over := context.WithCancel(ctx)
	c.running = running
	c.asked.Go(func() {
		defer over()
		_, _ = c.node.Wait(ctx) // how it ended is not asked here
	})
	c.mark("listen")
}

// sayPortTaken names who has the port that the other ranks look for first.
func (id *identity) sayPortTaken(ctx context.Context, instead int) {
	ctx, cancel := context.WithTimeout(ctx, portOwnerTimeout)
	defer cancel()
	label, listener, err := rsh.Listener(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(id.job.Port)))
	owner := "a program that does not say what it is"
	switch {
	case err == nil && label == id.keys.Label():
		owner = listener + " of this job, or of another job that was given no name of its own (--job)"
	case err == nil:
		owner = fmt.Sprintf("%s of another job or attempt (label %s, ours is %s)", listener, label, id.keys.Label())
	case errors.Is(err, rsh.ErrNotPaiinit):
		owner = "another program than paiinit"
	}
	id.log.Warn("the port is taken, using another one", "phase", "listen", "port", id.job.Port,
		"instead", instead, "owner", owner)
}

// portOwnerTimeout is how long the program on our port may take to say what it is.
const portOwnerTimeout = time.Second

func (c *container) rendezvousConfig(id string) rendezvous.Config {
	cfg := rendezvous.Config{
		Status: rendezvous.Statuses{Retry: statusRetry, Conflict: statusConfig},
		Self: rendezvous.Record{
			ID: id, Role: c.job.Role, Index: c.job.Index, Rank: c.job.Rank, Order: c.job.Order, Nonce: c.nonce, Host: c.host,
			Slots: c.job.Slots, GPUs: c.job.GPUs, Version: version,
			Task: c.task.Number(), Exec: c.whoRuns(), Launch: c.launcher.found(&c.identity),
		},
		Size: max(c.job.Size, 0), Port: c.port, Known: func(addr netip.Addr) bool { return c.agreed().isPeer(addr) },
		Unfit: c.unfit, Dial: c.dialControl, Verify: c.check, Timeout: c.timeout, Logger: c.log,
		Delay: func() time.Duration { return proc.RunDelay(os.DirFS("/proc")) },
	}
	if slices.ContainsFunc(c.agent.Environ, func(kv string) bool { return strings.HasPrefix(kv, "KUBERNETES_SERVICE_HOST=") }) {
		cfg.AskAfter = time.Second // the cluster's DNS learns of a pod about 0.4 s after its start, and remembers a denial for 5 s
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
		cfg.GoDelay = headStart
	}
	for _, p := range c.job.Peers {
		if p.Role == c.job.Role && p.Index == c.job.Index {
			if a, err := netip.ParseAddr(p.Host); err == nil {
				cfg.Self.Addr = netip.AddrPortFrom(a, 0)
			}
			continue
		}
		if p.Host != "" && p.Port > 0 {
			cfg.Peers = append(cfg.Peers, rendezvous.Peer{ID: rendezvous.MakeID(p.Role, p.Index, ""), Rank: p.Rank, Host: p.Host, Port: p.Port})
		}
	}
	for _, s := range c.job.Seeds {
		cfg.Seeds = append(cfg.Seeds, rendezvous.Seed{Host: s.Host, Port: s.Port, Role: s.Role})
	}
	return cfg
}

// headStart is how long rank 0 may take to start the command before all others wake up to what they do then.
const headStart = 100 * time.Millisecond

// dialControl is how the rendezvous reaches a container: over the connection that mpirun's agent will use later.
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
		return nil, fmt.Errorf("what answers %w%s", rendezvous.ErrOtherContainer, strings.TrimPrefix(dial.Err.Error(), rsh.ErrOtherID.Error()))
	case known && errors.Is(err, rsh.ErrNotPaiinit):
		return nil, &otherProgramError{fmt.Errorf("%s: %w", dial.Stage, dial.Err)}
	case known:
		return nil, fmt.Errorf("%s: %w", dial.Stage, dial.Err)
	}
	return nil, err
}

// otherProgramError keeps what the program has said.
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

// stoppable is a context that a signal ends: through rank 0, which ends the job everywhere, or here when rank 0 cannot be
// told or a person is in a hurry.
func (c *container) stoppable(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.signals.To(func(sig os.Signal) {
		if n := signals.Terminating(sig); n > 0 {
			err := &stoppedError{signal: n, name: c.job.Alias}
			if sig == syscall.SIGKILL {
				err.signal = int(syscall.SIGINT)
			}
			if sig == syscall.SIGKILL || !c.node.RequestStop(n, err.Error()) {
				cancel(err)
			}
		}
	})
	return ctx, func() {
		c.signals.To(nil)
		cancel(nil)
	}
}

// untilStopped is a context that a signal ends, for a container that leaves anyway.
func (c *container) untilStopped(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	c.signals.To(func(sig os.Signal) {
		if signals.Terminating(sig) > 0 {
			cancel()
		}
	})
	return ctx, func() {
		c.signals.To(nil)
		cancel()
	}
}

// gather waits for all ranks.
func (c *container) gather(ctx context.Context) (*agreement, error) {
	ctx, end := c.stoppable(ctx)
	defer end()
	// What this makes of a few MB of garbage would fall into the launch as often as not, on rank 0 above all.
	percent := debug.SetGCPercent(gcPercent(c.job.Size))
	defer time.AfterFunc(launchFirst, func() { debug.SetGCPercent(percent) })
	limit := debug.SetMemoryLimit(memoryLimit(c.job.Size))
	defer time.AfterFunc(launchFirst, func() { debug.SetMemoryLimit(limit) })
	if c.job.Rank > 0 {
		// What wakes up a rank that waits is little, and the threads that Go wakes up on further processors, to look for more, cost several
		// times as much. That matters where containers share processors, and all wake up at the same moment. To look at devices is work.
		most := runtime.GOMAXPROCS(0)
		c.serve.Go(func() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(lastFirst):
			}
			select {
			case <-ctx.Done():
			case <-c.devices.Done():
				runtime.GOMAXPROCS(1)
			}
		})
		defer time.AfterFunc(launchFirst, func() { runtime.GOMAXPROCS(most) })
	}
	roster, err := c.node.Gather(ctx)
	c.signals.To(nil)
	if err == nil && ctx.Err() != nil { // the signal came when the last rank did
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	fabric := c.agreeOnFabric(c.devices, roster)
	a := c.agree(roster, fabric)
	self := a.self()
	if self.Rank != 0 || c.exec == execAll {
		c.watchOthers()
	}
	if err := writeFabric(c.state, fabric); err != nil { // the variables of sessions say the same
		c.log.Warn("UCX's configuration cannot be written", "phase", "gather", "err", err)
	}
	c.mark("gather")
	c.log.Info("all ranks are present", "phase", "gather", "rank", self.Rank, "size", len(roster.Members), "epoch", roster.Epoch,
		"hash", roster.Hash[:12], "elapsed", c.elapsed())
	return a, nil
}

// gcPercent is how much garbage the heap may hold until the launch, in percent of what is in use (runtime/debug.SetGCPercent): the runtime's usual
// 100 for a large job, where that is much.
func gcPercent(size int) int {
	return max(100, min(400, 100*256/max(size, 1)))
}

// memoryLimit is how many bytes the process may use until the launch before the garbage collector runs regardless of
// gcPercent (runtime/debug.SetMemoryLimit). A launch of size ranks stays below it; a flood from strangers does not.
func memoryLimit(size int) int64 {
	return 96<<20 + int64(max(size, 0))*256<<10
}

// watchOthers looks from now on after those who are connected. Rank 0 does so once the command has started: a launch does not wait for what is
// to be said to the kernel about each connection.
func (c *container) watchOthers() {
	if c.isAlone() {
		return
	}
	c.pool.Watch(silence, signOfLife)
	c.server.Watch(silence, signOfLife)
}

// silence is for how long the machine of another rank may acknowledge nothing while the job runs.
const silence = 6 * time.Second

// signOfLife is how often a running job's agents ask each other whether they still answer, which only finds one that was stopped for good:
// rank 0 has a connection to every rank, and 64 that asked each 15 s woke it 120 times a second (TestQuiet).
const signOfLife = 5 * time.Minute

func (a *agreement) self() rendezvous.Member {
	m, _ := a.roster.Self(a.nonce) // a roster without this start of the container is refused by the rendezvous
	return m
}

func (id *identity) elapsed() time.Duration { return time.Since(id.begin).Round(time.Microsecond) }

// stoppedError says that this container was told to stop before the launch.
type stoppedError struct {
	signal int
	name   string
}

func (e *stoppedError) Error() string {
	return fmt.Sprintf("%s was stopped by %s", e.name, launch.SignalName(e.signal))
}

// dismiss is the way out of a container that cannot do what it was told to. Rank 0 says so at once, and then to the
// ranks that are there or come within a few seconds, so that they do not wait for it.
func (c *container) dismiss(ctx context.Context, err error) (int, error) {
	first := c.job.Rank == 0 || c.job.First
	var contradiction *envspec.VarError
	needed := first || c.exec == execAll || errors.As(err, &contradiction)
	if c.job.Size == 1 || c.keys == nil || !needed {
		return 0, err
	}
	c.unfit = &rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	if !first {
		return c.withdraw(ctx, err)
	}
	c.log.Error(err.Error(), "phase", "identify", "status", statusOf(err), "hint", hint(err, c.settings.command))
	if lerr := c.listen(ctx); lerr != nil {
		return statusOf(err), lerr
	}
	ctx, end := c.untilStopped(ctx)
	defer end()
	if ferr := c.node.Finish(ctx, *c.unfit, dismissal); ferr != nil {
		c.log.Warn("not every rank was told", "phase", "exit", "err", ferr)
	}
	c.sayEnd(*c.unfit)
	return c.unfit.Status, nil
}

// dismissal is how long rank 0 stays to send the others home; containers of one job start within seconds.
const dismissal = 5 * time.Second

// giveUp ends the job on all ranks that are there: it will not be launched.
func (c *container) giveUp(err error) (int, error) {
	o := rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	ctx, end := c.untilStopped(context.Background())
	defer end()
	var stopped *stoppedError
	if errors.As(err, &stopped) {
		leaving, cancel := context.WithTimeout(ctx, dismissal)
		c.node.Withdraw(leaving, o) // rank 0, or ranks that will tell it
		cancel()
	}
	var ended *rendezvous.EndedError
	if errors.As(err, &ended) {
		o = ended.Outcome
	}
	var missing *rendezvous.MissingError
	// A rank that is just starting would wait for a rank 0 that is gone, or has to see for itself that secrets differ.
	patience := dismissal
	if errors.As(err, &missing) && !missing.OtherSecret() && !missing.OtherVersion() {
		patience = 0
	}
	if ferr := c.node.Finish(ctx, o, patience); ferr != nil {
		c.log.Warn("not every rank was told", "phase", "exit", "err", ferr)
	}
	return o.Status, err
}

// wait is the part of every rank but 0: until rank 0 says how the job ended.
func (c *container) wait(ctx context.Context) (int, error) {
	leaveDirectory()
	ctx, end := c.stoppable(ctx)
	defer end()
	o, err := c.awaitEnd(ctx)
	if err != nil {
		return statusOf(err), err
	}
	c.sayEnd(o)
	return o.Status, nil
}

// finish is rank 0's last act: every rank learns the outcome, and only then it leaves.
func (c *container) finish(ctx context.Context, o rendezvous.Outcome) (int, error) {
	ctx, end := c.untilStopped(ctx)
	defer end()
	err := c.node.Finish(ctx, o, 0)
	if bug := (*rendezvous.BugError)(nil); errors.As(err, &bug) {
		return statusBug, err
	}
	if err != nil {
		c.log.Warn("not every rank was told", "phase", "exit", "err", err)
	}
	c.sayEnd(o)
	return o.Status, nil
}

// What follows the outcome has a deadline: the exit status is known, and nothing that a peer or a client does may hold
// it back.
const (
	closeTimeout   = 5 * time.Second
	stoppedTimeout = time.Second // after a signal
)

// close gives back everything that this container holds. At the deadline the process ends with what is left.
func (c *container) close() {
	done := make(chan struct{})
	var closing atomic.Pointer[string]
	closing.Store(new(string))
	go func() {
		defer close(done)
		c.release(func(what string) { closing.Store(&what) })
	}()
	deadline := time.NewTimer(closeTimeout)
	defer deadline.Stop()
	var once sync.Once
	c.signals.To(func(sig os.Signal) {
		if signals.Terminating(sig) > 0 {
			once.Do(func() { deadline.Reset(stoppedTimeout) })
		}
	})
	select {
	case <-done:
	case <-deadline.C:
		c.log.Warn("leaving before everything was closed", "phase", "exit", "closing", *closing.Load(),
			"elapsed", c.elapsed())
	}
	c.signals.Close()
}

// release closes everything, in the reverse order of listen, and says what it is about to close.
func (c *container) release(about func(what string)) {
	about("the SSH server")
	if c.uncheck != nil {
		c.uncheck()
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
	c.asked.Wait() // they tell how it ended
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
	c.task.Release()
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
