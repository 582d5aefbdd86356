package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/pid1"
	"github.com/paiinit/paiinit/rdma"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/signals"
	"github.com/paiinit/paiinit/sshd"
)

// controlChannel is the SSH channel type of the connection from rank 0 that carries the commit and the outcome.
const controlChannel = "control@paiinit"

// container is this container during one launch: who it is, what it holds open, and what the ranks have agreed on.
type container struct {
	identity
	opened
	launching launching
	launcher  ownLauncher
	signals   *signals.Switch
	oomKills  int // of this container before the launch
	devices   *rdma.Search
	unfit     *rendezvous.Outcome // why it cannot take part in a launch; nil = it can
	people    sshd.PersonSessions
	agreement atomic.Pointer[agreement]

	mu      sync.Mutex
	timings map[string]time.Duration // from begin to the end of each phase
}

func newContainer(s settings, agent pid1.Agent) *container {
	// A forwarded PAIINIT_AGENT names another paiinit. The command gets ours.
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
		c.log.Warn("resource limits could not be raised", "phase", "identify", "err", err)
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
		return err // for example because another paiinit runs in this container
	}
	if runtime.GOMAXPROCS(0) > c.job.CPUs { // main.go disables the runtime's own lookup
		runtime.GOMAXPROCS(c.job.CPUs)
	}
	if !c.isAlone() {
		c.serve.Go(jobkey.Warm) // concurrently
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
	for _, secret := range c.agent.Secrets { // even if deriveKeys has used none of them
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

// stoppable returns a context that a signal ends. If rank 0 is connected, the first signal goes to rank 0, which ends
// the job on all ranks. Otherwise, and if the signal came twice, it ends the context directly.
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

// untilStopped returns a context that a signal ends, for a container that is about to end.
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

// gather waits until all ranks have agreed on a roster.
func (c *container) gather(ctx context.Context) (*agreement, error) {
	ctx, end := c.stoppable(ctx)
	defer end()
	defer tuneWhileGathering(ctx, c.job, c.devices.Done(), &c.serve)()
	roster, err := c.node.Gather(ctx)
	c.signals.To(nil)
	if err == nil && ctx.Err() != nil { // a signal came together with the last rank
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	fabric := c.agreeOnFabric(c.devices, roster)
	if err := writeFabric(c.state, fabric); err != nil { // sessions get the same settings by variables
		c.log.Warn("UCX's configuration cannot be written", "phase", "gather", "err", err)
	}
	a := c.agree(roster, fabric)
	self := a.self()
	if self.Rank != 0 || c.exec == execAll {
		c.watchOthers()
	}
	c.mark("gather")
	c.log.Info("all ranks are present", "phase", "gather", "rank", self.Rank, "size", len(roster.Members),
		"epoch", roster.Epoch, "hash", roster.Hash[:12], "elapsed", c.elapsed())
	return a, nil
}

// stoppedError says that a signal stopped this container.
type stoppedError struct {
	signal int
	name   string
}

func (e *stoppedError) Error() string {
	return fmt.Sprintf("%s was stopped by %s", e.name, launch.SignalName(e.signal))
}

// dismiss ends a container that cannot run its part of the job. Rank 0 logs the reason at once and tells the ranks that
// are present or start within a few seconds, so that they do not wait for it.
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
	if ferr := c.node.Finish(ctx, *c.unfit, notifyTimeout); ferr != nil {
		c.log.Warn("not every rank got the outcome", "phase", "exit", "err", ferr)
	}
	c.sayEnd(*c.unfit)
	return c.unfit.Status, nil
}

// notifyTimeout is how long rank 0 waits for the other ranks, to report a failure to them. Containers of one job start
// within seconds.
const notifyTimeout = 5 * time.Second

// giveUp ends the job, which was not launched, on all connected ranks.
func (c *container) giveUp(err error) (int, error) {
	o := rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	ctx, end := c.untilStopped(context.Background())
	defer end()
	var stopped *stoppedError
	if errors.As(err, &stopped) {
		leaving, cancel := context.WithTimeout(ctx, notifyTimeout)
		c.node.Withdraw(leaving, o) // tells rank 0, or ranks that will tell it
		cancel()
	}
	var ended *rendezvous.EndedError
	if errors.As(err, &ended) {
		o = ended.Outcome
	}
	var missing *rendezvous.MissingError
	// Rank 0 waits for ranks that start now, which would otherwise look for a rank 0 that has ended. After --timeout it
	// waits only for ranks with another secret or version, because these ranks exist.
	lateRanks := notifyTimeout
	if errors.As(err, &missing) && !missing.OtherSecret() && !missing.OtherVersion() {
		lateRanks = 0
	}
	if ferr := c.node.Finish(ctx, o, lateRanks); ferr != nil {
		c.log.Warn("not every rank got the outcome", "phase", "exit", "err", ferr)
	}
	return o.Status, err
}

// wait waits, on every rank but 0, until rank 0 reports how the job ended.
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

// finish tells every rank the outcome before rank 0 ends.
func (c *container) finish(ctx context.Context, o rendezvous.Outcome) (int, error) {
	ctx, end := c.untilStopped(ctx)
	defer end()
	err := c.node.Finish(ctx, o, 0)
	if bug := (*rendezvous.BugError)(nil); errors.As(err, &bug) {
		return statusBug, err
	}
	if err != nil {
		c.log.Warn("not every rank got the outcome", "phase", "exit", "err", err)
	}
	c.sayEnd(o)
	return o.Status, nil
}

// Once the outcome is known, closing has a deadline: no peer and no client may delay the exit status.
const (
	closeTimeout   = 5 * time.Second
	stoppedTimeout = time.Second // after a signal
)

// close releases everything that this container holds. At the deadline the process ends without the rest.
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
