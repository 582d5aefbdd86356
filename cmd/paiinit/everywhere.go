package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/restart"
	"github.com/paiinit/paiinit/signals"
)

// The ranks that run the command (--exec).
const (
	execRank0  = "rank0"
	execAll    = "all"
	execLeader = "leader" // all, until rank 0's command has ended
)

// everywhere runs the command on every rank. Each rank reports to rank 0 how its command ended, and rank 0 decides.
func (c *container) everywhere(ctx context.Context, a *agreement) (int, error) {
	t := c.startTask(ctx, a)
	if a.self().Rank != 0 {
		return c.obey(ctx, t)
	}
	e := c.conduct(ctx, t, a)
	t.endFirst() // after the commands of all ranks, which use what it has started
	return c.conclude(ctx, e)
}

// task is the command of this rank while it runs.
type task struct {
	pass func(os.Signal)
	end  <-chan rendezvous.End // receives one value: how the command ended
	// first receives the command of --first before end receives, if it still runs then.
	first chan *firstCommand
}

func (t task) endFirst() {
	select {
	case f := <-t.first:
		f.end()
	default:
	}
}

func (c *container) startTask(ctx context.Context, a *agreement) task {
	self := a.self()
	end := make(chan rendezvous.End, 1)
	t := task{pass: func(os.Signal) {}, end: end, first: make(chan *firstCommand, 1)}
	failed := func(err error) {
		o := c.failure(err)
		o.Verdict = true
		o.Reason = fmt.Sprintf("rank %d's command: %v", self.Rank, err)
		end <- rendezvous.End{Rank: self.Rank, Name: self.Display(), Outcome: o, At: time.Now()}
	}
	cmd, pass, err := a.jobCommand(launch.TaskEnvironment(a.tasks()))
	if err != nil {
		failed(err)
		return t
	}
	starting, cancel := context.WithCancel(ctx) // ends when the command must end, or has ended
	t.pass = func(sig os.Signal) {
		if signals.Terminating(sig) > 0 {
			cancel()
		}
		pass(sig)
	}
	cmd.Started = func() {
		c.agent.Settle()
		c.node().Launched()
		c.node().CommandRuns()
	}
	if self.Rank == 0 && a.inOrder() {
		c.node().CommandAwaits(c.awaits("not started yet"))
	}
	cmd.Hang.Found = func() bool {
		t.pass(syscall.SIGTERM)
		return true
	}
	go func() {
		defer cancel()
		if err := c.awaitLeader(starting, a); err != nil {
			o := rendezvous.Outcome{Reason: fmt.Sprintf("rank %d's command was not started", self.Rank)}
			end <- rendezvous.End{Rank: self.Rank, Name: self.Display(), Outcome: o, At: time.Now(), Stopped: true}
			return
		}
		c.reservedPort.Release()
		name, result, err := c.runTask(ctx, starting, a, cmd, t)
		c.node().CommandEnded()
		status := result.JobStatus(launch.Spawns(cmd.Args))
		c.log.Debug("the command has ended", "phase", "wait",
			"command", name, "status", status, "elapsed", c.elapsed())
		if err != nil {
			failed(err)
			return
		}
		var ooms []launch.OOM
		scene := a.scene()
		if n := c.oomKills(); n > 0 {
			ooms = []launch.OOM{{Place: scene.Place, Kills: n}}
		}
		o := rendezvous.Outcome(scene.Outcome(name, result, ooms))
		e := rendezvous.End{Rank: self.Rank, Name: self.Display(), At: result.At, Stopped: result.Forwarded != 0}
		o.Status = status
		if o.Hung { // no other cause has ended this command
			o.Status, e.At, e.Stopped = statusRetry, result.Hung.At, false
		}
		o.Next = c.nextAfter(o, ooms)
		e.Outcome = o
		end <- e
	}()
	return t
}

// warnServerPort warns that a server of the command cannot use the port that its scheduler assigned to it.
func (id *identity) warnServerPort() {
	if id.job.ServerPort && id.exec == execAll && !id.isAlone() {
		id.log.Warn("paiinit listens on the http port of this task, which the command cannot bind", "phase", "identify",
			"port", id.job.Port, "reason", "OpenPAI before 0.11 gives the other tasks only this port",
			"hint", "TF_CONFIG and the PAI_..._HOST_LIST variables of the command name another port of each task; "+
				"put arguments with these variables into sh -c '...', which paiinit starts")
	}
}

// tasks returns the ranks as frameworks without a launcher need them.
func (a *agreement) tasks() launch.Tasks {
	t := launch.Tasks{
		Job: a.job.ID, Self: a.self().Rank,
		Spawns: launch.Spawns(a.settings.command), Cluster: a.startsCluster(),
	}
	for _, m := range a.roster.Members {
		task := launch.Task{Role: m.Role, Addr: m.Addr.Addr().String(), Port: m.Task, Slots: m.Slots}
		t.Ranks = append(t.Ranks, task)
	}
	return t
}

// obey waits on a rank other than 0 until its command has ended and rank 0 has ended the job. It stops the command when
// rank 0 orders it.
func (c *container) obey(ctx context.Context, t task) (int, error) {
	c.signals.To(func(sig os.Signal) {
		if n := signals.Terminating(sig); n > 0 {
			err := &stoppedError{signal: n, name: c.display()}
			if sig != syscall.SIGKILL && c.requestStop(err) && c.signals.First() {
				return // rank 0 orders all ranks to stop, this one too
			}
		}
		t.pass(sig)
	})
	defer c.signals.To(nil)
	var o rendezvous.Outcome
	var err error
	again, outlived := false, make(chan error, 1)
	over := make(chan struct{})
	clearing, cancel := context.WithCancel(ctx)
	var clearer sync.WaitGroup
	clearer.Go(func() { c.clearOnOrder(clearing) })
	defer clearer.Wait()
	defer cancel()
	go func() {
		defer close(over)
		o, err = c.node().Wait(ctx)
	}()
	for running, waiting := true, over; running || waiting != nil; {
		select {
		case s := <-c.node().Orders():
			c.tuneRuntime(ctx)
			reason, _, _ := strings.Cut(s.Reason, "\n")
			c.log.Info("ending the command of this rank", "phase", "wait", "reason", reason)
			t.pass(launch.EndSignal(s.Signal))
		case e := <-t.end:
			running = false
			c.node().Report(e)
		case <-waiting:
			waiting = nil
			if again = c.mayOutlive(err); again {
				clearer.Go(func() { outlived <- c.outlive(ctx) }) // it ends the command
			} else {
				t.pass(syscall.SIGTERM) // without an order: rank 0 is gone
			}
		}
	}
	if again {
		err = <-outlived
	}
	if err != nil {
		return statusOf(err), err
	}
	c.sayEnd(o)
	return o.Status, nil
}

// conduct runs the job on rank 0 to its end. The first failure, loss or request to stop ends all commands and is the
// outcome of the job. When the commands of all ranks that --until waits for have ended with 0, rank 0 stops the
// commands that still run. Package launch decides; conduct feeds it with events.
func (c *container) conduct(ctx context.Context, t task, a *agreement) ending {
	asked := make(signals.Queue, 16)
	c.signals.To(func(sig os.Signal) {
		if signals.Terminating(sig) > 0 {
			asked.Put(sig)
		} else {
			t.pass(sig)
		}
	})
	defer c.signals.To(nil)
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	job := launch.Conductor{
		Verdict: launch.Verdict{Ranks: a.ranksToJudge(), Leader: a.hasLeader(), LostStatus: statusRetry},
		Grace:   c.grace, Log: c.log, Order: c.node().Order, Pass: t.pass, First: c.signals.First,
	}
	if c.restarts.Left(c.policy) {
		job.RestartGrace = max(c.restartGrace, time.Nanosecond)
	}
	ends := make(map[int]*rendezvous.End)
	absent := make(chan []rendezvous.Loss, 1)
	ended := func(e rendezvous.End) {
		ends[e.Rank] = &e
		end := launch.End{Rank: e.Rank, Name: e.Name, At: e.At, Error: e.Error, Stopped: e.Stopped}
		end.Outcome = launch.Outcome(e.Outcome)
		if job.Ended(end) {
			asking.Go(func() { absent <- c.node().Absent(ctx, launch.SettleTime, reconnectTimeout) })
		}
	}
	for len(job.Verdict.Running()) > 0 {
		select {
		case sig := <-asked:
			stopped := stoppedError{signals.Terminating(sig), c.display()}
			job.Signal(launch.Stop{Name: stopped.name, Signal: stopped.signal, Reason: stopped.Error()})
		case s := <-c.node().Stops():
			c.noteRequest(s)
			job.Stop(launch.Stop(s))
		case e := <-t.end:
			ended(e)
		case e := <-c.node().Ends():
			ended(e)
		case l := <-c.node().Losses():
			job.Lost(launch.Loss(l))
		case all := <-absent:
			for _, l := range all {
				job.Lost(launch.Loss(l))
			}
		case <-job.Kill:
			job.KillAll()
		case <-job.Overtime:
			job.GiveUp()
		}
	}
	align(ctx, c.node(), &job.Verdict, ends)
	o := rendezvous.Outcome(job.Verdict.Outcome())
	if o.Next == "" { // the rank that failed is lost
		var lost []rendezvous.Loss
		if o.Status == statusRetry {
			lost = c.node().Absent(context.WithoutCancel(ctx), 0, 0)
		}
		o.Next = c.nextAfter(o, nil, lost...)
	}
	e := ending{Outcome: o, own: o.Verdict, kind: restart.Failed, rank: restart.NoRank}
	if blamed, lost := job.Verdict.Blamed(); blamed >= 0 {
		e.rank, e.name = blamed, a.roster.Members[blamed].Display()
		switch {
		case lost:
			e.own, e.kind = true, restart.Lost
		case o.Hung:
			e.own, e.kind = true, restart.Hung
		}
	}
	return e
}

// align compares the clocks of the ranks for which the verdict depends on the time at which their command ended.
func align(ctx context.Context, node *rendezvous.Node, v *launch.Verdict, ends map[int]*rendezvous.End) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var compared []*rendezvous.End
	for _, rank := range v.Unclear() {
		compared = append(compared, ends[rank])
	}
	node.Align(ctx, compared...)
	for _, e := range compared {
		v.Align(e.Rank, e.At, e.Error)
	}
}

// ranksToJudge returns the ranks of the job, and whether --until waits for their commands.
func (a *agreement) ranksToJudge() (ranks []launch.Rank) {
	needed := launch.Needed(a.roster.Roles(), a.until)
	for i, m := range a.roster.Members {
		ranks = append(ranks, launch.Rank{Rank: m.Rank, Role: m.Role, Name: m.Display(), Needed: needed[i]})
	}
	return ranks
}

// withdraw tells rank 0 that this rank cannot take part, and rank 0 ends the job. If the environment or the flags of
// this rank are wrong, rank 0 may have failed for the same reason, so withdraw waits for at most notifyTimeout.
func (c *container) withdraw(ctx context.Context, err error) (int, error) {
	if lerr := c.listen(ctx); lerr != nil {
		return 0, errors.Join(err, lerr)
	}
	ctx, end := c.untilStopped(ctx)
	defer end()
	c.log.Debug(err.Error(), "phase", "identify", "status", c.unfit.Status, "hint", c.unfit.Next)
	flags := is[*usageError](err) && len(c.settings.command) > 0 // only this rank may have no COMMAND
	if is[*envspec.VarError](err) || flags {
		leaving, cancel := context.WithTimeout(ctx, notifyTimeout)
		c.node().Withdraw(leaving, *c.unfit) // rank 0, or ranks that will tell it
		cancel()
	} else if gerr := c.awaitRankZero(ctx, err); !is[*rendezvous.EndedError](gerr) {
		c.log.Warn("rank 0 did not get the reason of this failure", "phase", "exit", "err", gerr)
	}
	// If the ranks are agreed and not given, this rank may have become rank 0, which tells the others.
	if ferr := c.node().Finish(context.WithoutCancel(ctx), *c.unfit, 0); ferr != nil {
		c.log.Warn("not every rank got the outcome", "phase", "exit", "err", ferr)
	}
	return c.unfit.Status, err
}

// awaitRankZero registers with rank 0, which then ends the job because of cause. If rank 0 does not come soon, it logs
// the cause, which would otherwise be in the log only at the end.
func (c *container) awaitRankZero(ctx context.Context, cause error) error {
	over := make(chan struct{})
	var logging sync.WaitGroup
	defer logging.Wait()
	defer close(over)
	logging.Go(func() {
		select {
		case <-over:
		case <-time.After(notifyTimeout):
			c.log.Warn("this rank cannot run its command and waits for rank 0, to end the job", "phase", "gather",
				"err", cause)
		}
	})
	_, err := c.node().Gather(ctx)
	return err
}

// checkExec refuses ranks with different values of --exec or --until, and roles in --until that no rank has.
func (s *settings) checkExec(r rendezvous.Roster) *rendezvous.Outcome {
	for _, m := range r.Members {
		if first := r.Members[0]; m.Exec != first.Exec {
			return &rendezvous.Outcome{Status: statusConfig, Reason: fmt.Sprintf(
				"the ranks disagree on which of them run the command: %s has --exec %s, %s has --exec %s",
				first.Display(), first.Exec, m.Display(), m.Exec)}
		}
	}
	if err := s.checkUntil(r.Roles()); err != nil {
		return &rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	}
	return nil
}
