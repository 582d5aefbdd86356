package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/internal/tuning"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/joblog"
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
	followed  atomic.Pointer[launchers]
	versions  launch.Versions // of the launchers of all ranks
	signals   *signals.Switch
	oomKills  func() int // of this container in this generation
	restarts  restarts
	stopped   atomic.Pointer[stoppedError]    // by this container's first signal
	request   atomic.Pointer[rendezvous.Stop] // the first request of another rank to end this generation
	devices   *rdma.Search
	runtime   tuning.Runtime
	unfit     *rendezvous.Outcome // why it cannot take part in a launch; nil = it can
	people    sshd.PersonSessions
	agreement atomic.Pointer[agreement]
	pulse     *pulse
	frozen    atomic.Bool // this generation is not confirmed since a freeze
	timings   sync.Map    // phase: seconds from begin to its end
}

// newContainer returns this container before it knows its name.
func newContainer(s settings, agent pid1.Agent, log *slog.Logger) *container {
	// A forwarded PAIINIT_AGENT names another paiinit. The command gets ours.
	agent.Environ = slices.DeleteFunc(slices.Clone(agent.Environ), func(kv string) bool {
		return strings.HasPrefix(kv, "PAIINIT_AGENT=")
	})
	return &container{
		identity: identity{
			settings: s, agent: agent, begin: time.Now(), first: os.Getppid(),
			log: log,
		},
		signals: signals.Watch(agent.Signals, early.IsTerminal(int(os.Stdin.Fd()))),
	}
}

// identify finds out who this container is, takes its state directory, and derives the keys.
func (c *container) identify(ctx context.Context) error {
	if err := launch.Limits(); err != nil {
		c.log.Warn("resource limits could not be raised", "phase", "identify", "err", err)
	}
	rdmaFlags := map[string]rdma.Flags{rdmaOff: rdma.FlagOff, rdmaRequire: rdma.FlagRequire}
	c.devices = rdma.Begin(rdma.At("/"), rdmaFlags[c.rdma]) // after Limits, which raises that of locked memory
	c.oomKills = launch.OOMKills(os.DirFS("/"))
	jobErr := c.readJob(ctx)
	if c.job.System == "" {
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
	if c.unknown != nil {
		c.log.Warn("variables with these names have no effect", "phase", "identify", "variables", c.unknown)
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
	c.log = c.log.With("self", c.display())
	c.followLaunchers()
	c.mark("identify")
	rank, size := known(c.job.Rank, "to be agreed"), known(c.job.Size, "known to rank 0")
	c.routine("this container is identified", "phase", "identify", "system", c.job.System, "job", c.job.ID,
		"attempt", c.job.Attempt, "rank", rank, "size", size, "slots", c.job.Slots, "secret", source,
		"fingerprint", fingerprint, "version", version,
		joblog.Text(fmt.Sprintf("paiinit %s, job %s (%s): rank %v, size %v, slots %d; secret %s, fingerprint %s",
			version, cmp.Or(c.job.ID, "unnamed"), c.job.System, rank, size, c.job.Slots, source, fingerprint)))
	if c.job.Sign != "" {
		c.log.Warn("this container runs its command alone, although a variable speaks of a job of several",
			"phase", "identify", "variable", c.job.Sign, "hint", "if that is right, set PAIINIT_SIZE=1 (--size 1); "+
				"else set the number of containers, PAIINIT_SIZE, and where they are, PAIINIT_PEERS")
	}
	return jobErr
}

// stoppable returns a context that a signal ends. If rank 0 is connected, the first signal goes to rank 0, which ends
// the job on all ranks. Otherwise, and if the signal came twice, it ends the context directly. A container that leaves
// between two generations ends alone.
func (c *container) stoppable(ctx context.Context, gathering bool) (context.Context, func()) {
	return c.signals.Context(ctx, func(sig os.Signal) error {
		err := &stoppedError{signal: signals.Terminating(sig), name: c.display()}
		if sig == syscall.SIGKILL {
			err.signal = int(syscall.SIGINT)
		} else if gathering && c.mayLeave() && c.leaves(err) {
			return err
		} else if c.requestStop(err) {
			return nil
		}
		return err
	})
}

// requestStop asks rank 0 to end the job, and remembers that, because rank 0 may begin the next generation before it
// reads the request.
func (c *container) requestStop(because *stoppedError) (told bool) {
	c.stopped.CompareAndSwap(nil, because)
	return c.node().RequestStop(because.signal, because.Error())
}

// untilStopped returns a context that a signal ends, for a container that is about to end.
func (c *container) untilStopped(ctx context.Context) (context.Context, func()) {
	return c.signals.Context(ctx, func(os.Signal) error { return context.Canceled })
}

// gather waits until all ranks have agreed on a roster.
func (c *container) gather(ctx context.Context) (*agreement, error) {
	ctx, end := c.stoppable(ctx, true)
	defer end()
	defer c.tuneRuntime(ctx)()
	preflight, cancel := context.WithCancel(ctx)
	defer cancel()
	first := c.generation() == 1
	if stopped := c.stopped.Load(); stopped != nil && !first {
		c.signals.To(nil)
		return nil, stopped
	}
	if first {
		c.checks.Begin(c.running, preflight, &c.serve, c.checkSetup(&c.identity, c.agreed().position().Variables()))
	}
	begin := time.Now()
	roster, err := c.node().Gather(ctx)
	if told := c.node().Told(); err == nil && told != nil { // rank 0 may have been started again
		err = c.restarts.Hear(told)
	}
	c.signals.To(nil)
	if err == nil && ctx.Err() != nil { // a signal came together with the last rank
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	verdict := judgeFabric(roster)
	fabric := fabricOf(verdict, c.devices.Report())
	fabric.ConfigDir = c.state.Path
	if err := writeFabric(c.state, fabric); err != nil { // sessions get the same settings by variables
		c.log.Warn("UCX's configuration cannot be written", "phase", "gather", "err", err)
	}
	a := c.agree(roster, fabric)
	self := a.self()
	if self.Rank != 0 || c.exec == execAll {
		c.watchOthers()
	}
	c.mark("gather")
	c.sayResumed(roster.Arrival.Wait, time.Since(begin))
	if c.policy.Restarts != 0 && first {
		c.restarts.listFiles()
		if self.Rank == 0 {
			c.restarts.First = c.progress(ctx)
		}
	}
	if !first {
		return a, nil
	}
	c.checks.Agreed(c.running, &c.serve, ranksToCompare(roster.Members), self.Rank, c.node())
	c.routine("all ranks are present", append([]any{"phase", "gather", "rank", self.Rank, "size", len(roster.Members),
		"epoch", roster.Epoch, "hash", roster.Hash[:12], "fabric", verdict.String(), "elapsed", c.elapsed(),
		joblog.Text(fmt.Sprintf("%s; this is rank %d; %s", roster.Arrived(c.elapsed()), self.Rank, verdict)),
	}, roster.Arrival.Attrs()...)...)
	return a, nil
}

// tuneRuntime tunes the Go runtime for the wait and the launch, and before a restart also for the end of a generation.
func (c *container) tuneRuntime(ctx context.Context) (restore func()) {
	g := tuning.Gathering{
		Size: c.job.Size, Rank: c.job.Rank, Devices: c.devices.Done(), Launch: postLaunchDelay,
	}
	if c.generation() == 1 && len(c.agreed().roster.Members) == 0 {
		g.Busy = deferUntilLaunched
	}
	return c.runtime.Start(ctx, &c.serve, g)
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
	needed := first || c.exec == execAll || is[*envspec.VarError](err)
	if c.job.Size == 1 || c.keys == nil || !needed {
		return 0, err
	}
	unfit := c.failure(err)
	c.unfit = &unfit
	if !first { // rank 0 adds the name of this container
		return c.withdraw(ctx, err)
	}
	c.unfit.Reason = c.display() + ": " + c.unfit.Reason
	c.log.Debug(err.Error(), "phase", "identify", "status", unfit.Status, "hint", unfit.Next)
	if lerr := c.listen(ctx); lerr != nil {
		return statusOf(err), lerr
	}
	return c.finish(ctx, *c.unfit, notifyTimeout)
}

// notifyTimeout is how long rank 0 waits for the other ranks, to report a failure to them. Containers of one job start
// within seconds.
const notifyTimeout = 5 * time.Second

// giveUp ends the job, which was not launched, on all connected ranks.
func (c *container) giveUp(err error) (int, error) {
	o := c.failure(err)
	o.After = c.elapsed()
	stopped, ok := errors.AsType[*stoppedError](err)
	if ok && c.mayLeave() && c.leaves(stopped) {
		return c.leave(stopped), nil
	}
	ctx, end := c.untilStopped(context.Background())
	defer end()
	if ok {
		leaving, cancel := context.WithTimeout(ctx, notifyTimeout)
		_, alone := c.node().Withdraw(leaving, o) // tells rank 0, or ranks that will tell it
		cancel()
		if alone { // the job runs in a later generation, which this container did not know
			return c.leave(stopped), nil
		}
	}
	if ended, ok := errors.AsType[*rendezvous.EndedError](err); ok {
		o = ended.Outcome
		if s := c.stopped.Load(); s != nil && o.Reason == s.Error() { // rank 0 ends only this container
			return c.leave(s), nil
		}
	}
	// Rank 0 waits for ranks that start now, which would otherwise look for a rank 0 that has ended. After --timeout it
	// waits only for ranks with another secret or version, because these ranks exist.
	lateRanks := notifyTimeout
	if m, ok := errors.AsType[*rendezvous.MissingError](err); ok && !m.OtherSecret() && !m.OtherVersion() {
		lateRanks = 0
	}
	if ferr := c.node().Finish(ctx, o, lateRanks); ferr != nil {
		c.log.Warn("not every rank got the outcome", "phase", "exit", "err", ferr)
	}
	return o.Status, err
}

// wait waits, on every rank but 0, until rank 0 reports how the job ended. When rank 0 orders it, wait stops the
// launcher's ranks in this container.
func (c *container) wait(ctx context.Context) (int, error) {
	c.agent.Settle()
	ctx, end := c.stoppable(ctx, false)
	defer end()
	if err := c.agreed().writeHosts(); err != nil {
		c.log.Warn("this rank has no host list", "phase", "wait", "err", err)
	}
	waiting, over := context.WithCancel(ctx)
	var obeying sync.WaitGroup
	obeying.Go(func() {
		for {
			select {
			case <-waiting.Done():
				return
			case s := <-c.node().Orders():
				c.log.Info("stopping the ranks in this container", "phase", "wait",
					"signal", launch.SignalName(s.Signal))
				c.stopRanks(syscall.Signal(s.Signal))
			}
		}
	})
	obeying.Go(func() { c.clearOnOrder(waiting) })
	o, err := c.node().Wait(ctx)
	over()
	obeying.Wait()
	if c.mayOutlive(err) {
		err = c.outlive(ctx)
	}
	if err != nil {
		return statusOf(err), err
	}
	c.sayEnd(o)
	return o.Status, nil
}

// finish tells every rank the outcome before rank 0 ends. lateRanks is how long it waits for ranks that start now.
func (c *container) finish(ctx context.Context, o rendezvous.Outcome, lateRanks time.Duration) (int, error) {
	ctx, end := c.untilStopped(ctx)
	defer end()
	o.After = c.elapsed()
	err := c.node().Finish(ctx, o, lateRanks)
	if is[*rendezvous.BugError](err) {
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
	var closing atomic.Value // of a string: what is being closed
	go func() {
		defer close(done)
		c.release(func(what string) { closing.Store(what) })
	}()
	deadline := time.NewTimer(closeTimeout)
	stopped, end := c.untilStopped(context.Background())
	context.AfterFunc(stopped, func() { deadline.Reset(stoppedTimeout) })
	select {
	case <-done:
	case <-deadline.C:
		c.log.Warn("leaving before everything was closed", "phase", "exit", "closing", closing.Load(),
			"elapsed", c.elapsed())
	}
	end()
	c.signals.Close()
}
