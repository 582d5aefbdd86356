package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/joblog"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/restart"
	"github.com/paiinit/paiinit/signals"
)

// restartSettings say whether a job that has failed starts again in place.
type restartSettings struct {
	restarts     string
	restartOn    string
	noRestartOn  string
	rejoin       time.Duration
	restartGrace time.Duration
	restartReset time.Duration
	spareText    string
	policy       restart.Policy
	spares       int           // containers without a rank at first
	spareAfter   time.Duration // how long a lost container may take to return before a spare takes its place
}

// complete sets what the flags do not set by themselves.
func (s *restartSettings) complete(given func(flag string) bool) (err error) {
	p := restart.Defaults()
	if p.Restarts, err = restart.ParseRestarts(cmp.Or(s.restarts, "0")); err != nil {
		return cmdline.Errorf("--restarts (%s): %w", cmdline.Twin("restarts"), err)
	}
	if p.NotOn, err = restart.ParseStatuses(s.noRestartOn); err != nil {
		return cmdline.Errorf("--no-restart-on (%s): %w", cmdline.Twin("no-restart-on"), err)
	}
	p.Reset, p.On = s.restartReset, restart.Causes(s.restartOn)
	s.policy = p
	spares, err := strconv.ParseUint(cmp.Or(s.spareText, "0"), 10, 16)
	switch {
	case err != nil:
		return cmdline.Errorf("--spares (%s) is %q: it must be a number", cmdline.Twin("spares"), s.spareText)
	case spares > 0 && p.Restarts == 0:
		return cmdline.Errorf("--spares (%s) is %d: it needs --restarts", cmdline.Twin("spares"), spares)
	}
	if s.spares = int(spares); given("rejoin") {
		s.spareAfter = s.rejoin
	}
	return nil
}

// checkSpares refuses spares that the job cannot have. Rank 0 alone has them.
func (id *identity) checkSpares() error {
	spares := fmt.Sprintf("--spares (%s) is %d", cmdline.Twin("spares"), id.spares)
	switch {
	case id.spares == 0 || id.job.Rank > 0:
		return nil
	case id.job.Rank < 0:
		return &usageError{Err: fmt.Errorf("%s: the environment must tell every container its rank", spares)}
	case id.spares > id.job.Size-2:
		return &usageError{Err: fmt.Errorf("%s: of %d containers at least two need a rank", spares, id.job.Size)}
	}
	return nil
}

// restarts is what this container knows of the restarts of its job, and has seen of them.
type restarts struct {
	restart.Book
	files [len(sharedDirs)][]fs.DirEntry // before the first launch
}

// sayRestarting logs that the job starts again.
func (c *container) sayRestarting() {
	c.log.Warn("restarting the job", append([]any{"phase", "clear"}, c.restarts.RestartingAttrs()...)...)
}

// sayResumed logs that the job runs again. present is the time until all ranks were present, gathered the time until
// they had agreed.
func (c *container) sayResumed(present, gathered time.Duration) {
	if attrs := c.restarts.Begun(c.generation(), present, gathered, time.Now()); attrs != nil {
		c.log.Info("the job runs again", append([]any{"phase", "gather"}, attrs...)...)
	}
}

// restartVars returns the variables by which the command learns of restarts.
func (c *container) restartVars() (vars []launch.Var) {
	oneProcess := c.exec == execAll && !launch.Spawns(c.settings.command) && !c.startsCluster()
	for _, v := range c.restarts.Variables(c.policy, c.generation(), oneProcess) {
		vars = append(vars, launch.Var{Name: v.Name, Value: v.Value})
	}
	return vars
}

// restarts lists the restarts for paiinit status.
func (a answers) restarts() (list []localapi.Restart) {
	for _, r := range a.c.restarts.Restarts() {
		list = append(list, localapi.Restart(r))
	}
	return list
}

// ending is how a generation ended, on rank 0.
type ending struct {
	rendezvous.Outcome
	own  bool // Status is paiinit's own verdict
	kind restart.Kind
	rank int // of the first cause; restart.NoRank = not known
	name string
}

// conclude ends the job on all ranks, or only the generation: then it returns rendezvous.ErrNext.
func (c *container) conclude(ctx context.Context, e ending) (int, error) {
	o := e.Outcome
	end := restart.End{
		Generation: c.generation(), Status: e.Status, Rank: e.rank, Name: e.name, Cause: e.Reason, Kind: e.kind,
		Stopped: e.Stopped, Own: e.own,
	}
	if c.policy.Restarts != 0 {
		end.Progress = c.progress(ctx)
	}
	if s := c.request.Load(); s != nil && s.Leaves() && e.Stopped && !c.signals.Asked() {
		end.Stopped, end.Kind, end.Cause, end.Name = false, restart.Lost, s.Reason, s.Name
		end.Status = cmp.Or(end.Status, 128+s.Signal) // a command that has saved its work may have ended with 0
	}
	if d := c.restarts.Ended(c.policy, end, time.Now()); d.Again {
		c.sayRestarting()
		failed := c.clearAll(ctx, d.Delay)
		if failed == nil {
			c.node().Next()
			return 0, rendezvous.ErrNext
		}
		o = *failed
	}
	o.Reason = c.restarts.Final(o.Status, o.Reason)
	return c.finish(ctx, o, 0)
}

// clearAll ends the processes of this generation on all ranks, and waits for the delay. It returns how the job ends
// instead if it is told to stop, or if a rank is lost or cannot end its processes.
func (c *container) clearAll(ctx context.Context, delay time.Duration) *rendezvous.Outcome {
	ctx, end := c.signals.Context(ctx, func(sig os.Signal) error {
		return &stoppedError{signal: signals.Terminating(sig), name: c.display()}
	})
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(nil)
	work.Go(func() { cancel(c.interruption(ctx)) })

	begin := time.Now()
	due := time.After(delay)
	limited, late := context.WithTimeout(ctx, c.restartGrace+clearTimeout)
	defer late()
	own := make(chan error, 1)
	work.Go(func() {
		_, err := c.clear(limited, c.restartGrace)
		own <- err
	})
	_, err := c.node().Clear(limited, c.restarts.Tell(c.policy, c.restartGrace, c.rejoin))
	if err = errors.Join(err, <-own); err == nil {
		c.restarts.Cleared(time.Since(begin))
		select {
		case <-due:
			return nil
		case <-ctx.Done():
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	o := c.failure(err)
	if !o.Stopped {
		o.Status = statusRetry
	}
	o.Next = c.nextAfter(o, nil)
	return &o
}

// clearTimeout is how long after --restart-grace all ranks may take to end their processes: 10 s to prove it, and 25 s
// until a rank that is lost cannot run its command any more.
const clearTimeout = proveTimeout + 25*time.Second

const proveTimeout = 10 * time.Second

// lostError says that a rank was lost, or could not end its processes, between two generations.
type lostError struct{ reason string }

func (e *lostError) Error() string { return e.reason }

// interruption waits for what ends the job between two generations.
func (c *container) interruption(ctx context.Context) error {
	for {
		select {
		case s := <-c.node().Stops():
			if s.Leaves() {
				continue // after it has ended its processes
			}
			if s.Signal > 0 {
				return &stoppedError{signal: s.Signal, name: s.Name}
			}
			return &lostError{s.Reason}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// noteRequest remembers the first request to end the job: if its container leaves, the job may go on with the next
// start of that container.
func (c *container) noteRequest(s rendezvous.Stop) { c.request.CompareAndSwap(nil, &s) }

// leaves reports whether this container, stopped by a signal, ends alone, while the job goes on with its next start.
func (c *container) leaves(stopped *stoppedError) bool {
	zero := c.job.Rank == 0 || c.job.First
	if a := c.agreement.Load(); a != nil {
		zero = a.self().Rank == 0
	}
	return stopped != nil && stopped.signal == int(syscall.SIGTERM) && !zero
}

// mayLeave reports whether the job goes on if a container ends that is gathering.
func (c *container) mayLeave() bool { return c.generation() > 1 || c.node().View().Spare }

// leave says that this container ends alone, and returns its exit status.
func (c *container) leave(stopped *stoppedError) int {
	status := 128 + stopped.signal
	c.log.Info("this container leaves the job", "phase", "exit", "status", status, "reason", stopped.Error(),
		"elapsed", c.elapsed(), joblog.Text(stopped.Error()+"; the job goes on with its next start"))
	return status
}

// clearOnOrder ends the processes of this generation when rank 0 orders it.
func (c *container) clearOnOrder(ctx context.Context) {
	var text []byte
	select {
	case <-ctx.Done():
		return
	case text = <-c.node().Clears():
	}
	var done launch.Cleared
	err := c.restarts.Hear(text)
	if err == nil {
		c.sayRestarting()
		order, _ := c.restarts.Told()
		done, err = c.clear(ctx, order.Grace)
	}
	if err != nil {
		if ctx.Err() == nil { // rank 0 ends the job
			c.node().RequestStop(0, c.display()+": "+err.Error())
		}
		return
	}
	c.restarts.Cleared(done.Took)
	c.node().Cleared(done.Ended, done.Took)
}

// mayOutlive reports whether an error is the loss of a rank 0 that the job may outlive, with this container's next
// start if it leaves. It notes how the generation ended.
func (c *container) mayOutlive(err error) bool {
	order, text := c.restarts.Told()
	stopped := c.stopped.Load()
	if !is[*rendezvous.LostError](err) || text == nil || c.job.Rank < 1 || stopped != nil && !c.leaves(stopped) ||
		c.node().Spares() > 0 {
		return false
	}
	zero := c.agreed().roster.Members[0]
	c.restarts.Ended(order.Policy, restart.End{
		Generation: c.generation(), Status: statusRetry, Rank: 0, Name: zero.Display(), Cause: err.Error(),
		Kind: restart.Lost, Own: true,
	}, time.Now())
	return true
}

// outlive ends the processes of this generation after the loss of rank 0. It returns rendezvous.ErrNext if the job goes
// on with the next start of rank 0.
func (c *container) outlive(ctx context.Context) error {
	order, _ := c.restarts.Told()
	d := c.restarts.Decision()
	if d.Again {
		c.sayRestarting()
	}
	due := time.After(d.Delay)
	limited, cancel := context.WithTimeout(ctx, order.Grace+proveTimeout)
	defer cancel()
	done, err := c.clear(limited, order.Grace)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return &lostError{c.display() + ": " + err.Error()}
	case !d.Again:
		return &lostError{c.restarts.Final(statusRetry, "")}
	}
	c.restarts.Cleared(done.Took)
	if c.leaves(c.stopped.Load()) {
		return rendezvous.ErrNext // the others wait for its next start
	}
	select {
	case <-due:
		return rendezvous.ErrNext
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// clear ends every process of this generation in this container. After a freeze they get no grace, because the next
// generation may run already.
func (c *container) clear(ctx context.Context, grace time.Duration) (launch.Cleared, error) {
	if c.frozen.Load() {
		grace = 0
	}
	done, err := launch.Clear(ctx, c.clearing(grace))
	if err != nil {
		return done, err
	}
	c.log.Debug("no process of the last generation is left", "phase", "clear", "ended", done.Ended,
		"killed", done.Killed, "elapsed", done.Took)
	c.sayLeftFiles()
	return done, nil
}

// clearing says which processes belong to this generation.
func (c *container) clearing(grace time.Duration) launch.Clearing {
	return launch.Clearing{
		First: c.first, Deadline: time.Now().Add(grace),
		Spared: func() []int {
			if c.server != nil {
				c.server.AwaitStarts() // a session that is starting is not noted yet
			}
			return c.people.Leaders()
		},
	}
}

// sharedDirs are where files outlive the processes that made them, and take memory or disturb the next launch.
var sharedDirs = [...]string{"/dev/shm", "/tmp"}

// listFiles notes which files were there before the first launch.
func (r *restarts) listFiles() {
	for i, dir := range sharedDirs {
		r.files[i], _ = os.ReadDir(dir) // what cannot be read is not listed later either
	}
}

// sayLeftFiles logs what the job has left in shared directories. A file system that hangs delays nothing.
func (c *container) sayLeftFiles() {
	if c.policy.Restarts == 0 { // only rank 0 knew that the job may start again
		return
	}
	listed := make(chan []any, 1)
	go func() {
		var names []string
		total := int64(0)
		for i, dir := range sharedDirs {
			for _, f := range launch.LeftFiles(os.DirFS(dir), c.restarts.files[i]) {
				names = append(names, dir+"/"+f.Name)
				total += f.Size
			}
		}
		listed <- []any{"phase", "clear", "files", strings.Join(names[:min(len(names), mostFiles)], " "),
			"count", len(names), "bytes", total}
	}()
	select {
	case found := <-listed:
		if count := found[5]; count != 0 {
			c.log.Info("files of the last generation are left", found...)
		}
	case <-time.After(listTimeout):
	}
}

const (
	mostFiles   = 8 // that the log names
	listTimeout = 100 * time.Millisecond
)

// nextGeneration begins the next generation over the same port, SSH server and connections.
func (c *container) nextGeneration() error {
	c.request.Store(nil)
	last := c.node()
	cfg := last.Following()
	order, text := c.restarts.Told()
	cfg.Timeout, cfg.Text = order.Rejoin, text
	c.reservedPort.Release()
	var err error
	if c.reservedPort, err = netif.HoldPort(mathrand.IntN); err != nil {
		c.log.Warn("no port could be reserved for the command", "phase", "clear", "err", err)
	}
	cfg.Self.Task = c.reservedPort.Number()
	c.oomKills = launch.OOMKills(os.DirFS("/")) // those of the last generation have been reported
	cfg.Kills = c.oomKills
	c.followLaunchers()
	next, err := rendezvous.Start(cfg)
	if err != nil {
		return err
	}
	c.current.Store(newGeneration(next))
	last.Succeed(next)
	c.serve.Go(func() {
		if err := last.Close(); err != nil {
			c.log.Debug("leaving the last generation", "err", err)
		}
	})
	return nil
}

// restGrace is the time from SIGTERM to SIGKILL for what a command leaves behind that has ended by itself.
func (s *settings) restGrace() time.Duration {
	if s.policy.Restarts == 0 {
		return s.grace
	}
	if d := min(s.grace, s.restartGrace); d > 0 {
		return d
	}
	return -1 // of launch.Command.RestGrace
}

// generation counts the launches of the job, from 1 on.
func (o *opened) generation() int {
	if n := o.node(); n != nil {
		return int(n.Generation())
	}
	return 1
}

// awaitEnd waits until the job has ended, in whatever generation.
func (o *opened) awaitEnd(ctx context.Context) (rendezvous.Outcome, error) {
	for n := o.node(); ; {
		outcome, err := n.Wait(ctx)
		next := o.nodeAfter(ctx, n, err)
		switch {
		case next != nil:
			n = next
		case continues(err):
			return outcome, fmt.Errorf("waiting for the next generation: %w", cmp.Or(context.Cause(ctx), err))
		default:
			return outcome, err
		}
	}
}

// nodeAfter waits for the node of the next generation. err is with what a generation has ended; nil = it was the last.
func (o *opened) nodeAfter(ctx context.Context, n *rendezvous.Node, err error) *rendezvous.Node {
	if !continues(err) {
		return nil
	}
	n.Successor(ctx) // it may be over already
	if next := o.node(); next != n {
		return next
	}
	return nil
}

// continues reports whether a job goes on, or may go on, after the end of a generation.
func continues(err error) bool {
	return errors.Is(err, rendezvous.ErrNext) || is[*rendezvous.LostError](err)
}
