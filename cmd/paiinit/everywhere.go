package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/signals"
)

// The ranks that run the command (--exec).
const (
	execRank0 = "rank0"
	execAll   = "all"
)

// everywhere runs the command on every rank. Each rank reports to rank 0 how its command ended, and rank 0 decides.
func (c *container) everywhere(ctx context.Context, a *agreement) (int, error) {
	t := c.startTask(ctx, a)
	if t.rank != 0 {
		return c.obey(ctx, t)
	}
	return c.finish(ctx, c.conduct(ctx, t, a))
}

// task is the command of this rank while it runs.
type task struct {
	rank int
	pass func(os.Signal)
	end  <-chan rendezvous.End // receives one value: how the command ended
}

func (c *container) startTask(ctx context.Context, a *agreement) task {
	self := a.self()
	end := make(chan rendezvous.End, 1)
	t := task{rank: self.Rank, pass: func(os.Signal) {}, end: end}
	failed := func(err error) {
		o := rendezvous.Outcome{Status: statusOf(err), Reason: fmt.Sprintf("rank %d's command: %v", t.rank, err)}
		end <- rendezvous.End{Rank: t.rank, Name: self.Alias, Outcome: o, At: time.Now()}
	}
	environ, err := a.launcherEnviron(launch.TaskEnvironment(a.tasks()))
	if err != nil {
		failed(err)
		return t
	}
	if c.job.ServerPort {
		environ = c.job.WithServerPorts(environ, taskPorts(a.roster.Members))
	}
	cmd, pass, err := a.jobCommand(environ)
	if err != nil {
		failed(err)
		return t
	}
	t.pass = pass
	cmd.Started = leaveDirectory
	c.reservedPort.Release()
	c.log.Info("launching", "phase", "launch", "command", strings.Join(cmd.Args, " "),
		"rank", t.rank, "size", len(a.roster.Members), "elapsed", c.elapsed())
	go func() {
		c.mark("launch")
		result, err := c.runCommand(ctx, cmd)
		status := result.JobStatus(launch.Spawns(cmd.Args))
		c.log.Info("the command has ended", "phase", "wait",
			"command", cmd.Args[0], "status", status, "elapsed", c.elapsed())
		if err != nil {
			failed(err)
			return
		}
		cause := launch.FirstCause(t.rank, cmd.Args[0], result, oomKills(os.DirFS("/"))-c.oomKills)
		end <- rendezvous.End{
			Rank: t.rank, Name: self.Alias, At: result.At, Stopped: result.Forwarded != 0,
			Outcome: rendezvous.Outcome{Status: status, Reason: cause},
		}
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

// taskPorts returns a function that finds the port that a member reserves for its command, 0 if it reserves none.
func taskPorts(members []rendezvous.Member) func(role string, index int) int {
	return func(role string, index int) int {
		for i := range members {
			if m := &members[i]; m.Role == role && m.Index == index {
				return m.Task
			}
		}
		return 0
	}
}

// tasks returns the ranks as frameworks without a launcher need them.
func (a *agreement) tasks() launch.Tasks {
	t := launch.Tasks{Job: a.job.ID, Self: a.self().Rank, Spawns: launch.Spawns(a.settings.command)}
	for _, m := range a.roster.Members {
		t.Ranks = append(t.Ranks, launch.Task{
			Role: m.Role, Index: m.Index, Addr: m.Addr.Addr().String(), Port: m.Task, Slots: m.Slots,
		})
	}
	return t
}

// obey waits on a rank other than 0 until its command has ended and rank 0 has ended the job. It stops the command when
// rank 0 orders it.
func (c *container) obey(ctx context.Context, t task) (int, error) {
	c.signals.To(func(sig os.Signal) {
		if n := signals.Terminating(sig); n > 0 {
			err := &stoppedError{signal: n, name: c.job.Alias}
			if sig != syscall.SIGKILL && c.node.RequestStop(n, err.Error()) && c.signals.First() {
				return // rank 0 orders all ranks to stop, this one too
			}
		}
		t.pass(sig)
	})
	defer c.signals.To(nil)
	type waited struct {
		outcome rendezvous.Outcome
		err     error
	}
	over := make(chan waited, 1)
	go func() {
		o, err := c.node.Wait(ctx)
		over <- waited{o, err}
	}()
	var w waited
	for running, waiting := true, true; running || waiting; {
		select {
		case s := <-c.node.Orders():
			c.log.Info("rank 0 ends the job", "phase", "wait", "reason", firstLine(s.Reason))
			t.pass(stopSignal(s.Signal))
		case e := <-t.end:
			running = false
			c.node.Report(e)
		case w = <-over:
			waiting = false
			t.pass(stopSignal(0)) // without an order: rank 0 is gone
		}
	}
	if w.err != nil {
		return statusOf(w.err), w.err
	}
	c.sayEnd(w.outcome)
	return w.outcome.Status, nil
}

// conduct runs the job on rank 0 to its end. The first failure, loss or request to stop ends all commands and is the
// outcome of the job. When the commands of all ranks that --until waits for have ended with 0, rank 0 stops the
// commands that still run. Package launch decides; conduct feeds it with events, and logs and sends its orders.
func (c *container) conduct(ctx context.Context, t task, a *agreement) rendezvous.Outcome {
	asked := make(chan os.Signal, 16)
	c.signals.To(func(sig os.Signal) {
		if signals.Terminating(sig) == 0 {
			t.pass(sig)
			return
		}
		select {
		case asked <- sig:
		default: // 16 signals are pending already
		}
	})
	defer c.signals.To(nil)
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var (
		v        = launch.Verdict{Ranks: a.ranksToJudge(), LostStatus: statusRetry}
		ends     []rendezvous.End
		absent   = make(chan []rendezvous.Loss, 1)
		overtime <-chan time.Time
	)
	give := func(order *launch.Stop) {
		if order != nil {
			overtime = time.After(c.grace + overtimeAfter)
			c.log.Info("ending the command of every rank", "phase", "wait", "reason", firstLine(order.Reason))
			c.node.Order(order.Signal, order.Reason)
			t.pass(stopSignal(order.Signal))
		}
	}
	lost := func(l rendezvous.Loss) {
		order, news := v.Lost(launch.Loss(l), time.Now())
		if news {
			c.log.Error("a rank is lost", "phase", "wait", "peer", l.Name, "rank", l.Rank, "reason", l.Reason)
		}
		give(order)
	}
	ended := func(e rendezvous.End) {
		ends = append(ends, e)
		order := v.Ended(launch.End{
			Rank: e.Rank, Name: e.Name, At: e.At, Error: e.Error, Stopped: e.Stopped,
			Outcome: launch.Outcome(e.Outcome),
		}, time.Now())
		give(order)
		if order != nil && e.Outcome.Status != 0 {
			// The command may have failed because another container was killed: ask which ranks are gone.
			asking.Go(func() { absent <- c.node.Absent(ctx, launch.SettleTime, reconnectTimeout) })
		}
	}
	for timedOut := false; !timedOut && len(v.Running()) > 0; {
		select {
		case sig := <-asked:
			if sig == syscall.SIGKILL { // from a second SIGINT; the first one has requested the stop
				c.node.Order(int(syscall.SIGKILL), "killing the job")
				t.pass(sig)
				continue
			}
			first := c.signals.First()
			if v.Ordered() {
				// A scheduler that ends the job signals every container, so the first signal repeats the order.
				if !first {
					t.pass(sig)
				}
				continue
			}
			n := signals.Terminating(sig)
			reason := (&stoppedError{n, c.job.Alias}).Error()
			give(v.Stop(launch.Stop{Name: c.job.Alias, Signal: n, Reason: reason}, time.Now()))
		case s := <-c.node.Stops():
			c.log.Warn("a rank wants the job to stop", "phase", "wait", "peer", s.Name, "reason", s.Reason)
			give(v.Stop(launch.Stop(s), time.Now()))
		case e := <-t.end:
			ended(e)
		case e := <-c.node.Ends():
			ended(e)
		case l := <-c.node.Losses():
			lost(l)
		case all := <-absent:
			for _, l := range all {
				lost(l)
			}
		case <-overtime:
			c.log.Error("ranks did not report the end of their command", "phase", "wait",
				"ranks", strings.Join(slices.Sorted(slices.Values(v.Running())), ","))
			timedOut = true
		}
	}
	align(ctx, c.node, &v, ends)
	return rendezvous.Outcome(v.Outcome())
}

// align compares the clocks of the ranks for which the verdict depends on the time at which their command ended.
func align(ctx context.Context, node *rendezvous.Node, v *launch.Verdict, ends []rendezvous.End) {
	ctx, cancel := context.WithTimeout(ctx, alignTime)
	defer cancel()
	unclear := v.Unclear()
	var compared []*rendezvous.End
	for i := range ends {
		if slices.Contains(unclear, ends[i].Rank) {
			compared = append(compared, &ends[i])
		}
	}
	node.Align(ctx, compared...)
	for _, e := range compared {
		v.Align(e.Rank, e.At, e.Error)
	}
}

// ranksToJudge returns the ranks of the job, and whether --until waits for their commands.
func (a *agreement) ranksToJudge() []launch.Rank {
	members := a.roster.Members
	needed := launch.Needed(rolesOf(members), a.until)
	ranks := make([]launch.Rank, len(members))
	for i := range members {
		m := &members[i]
		ranks[i] = launch.Rank{Rank: m.Rank, Role: m.Role, Name: m.Alias, Needed: needed[i]}
	}
	return ranks
}

const (
	// alignTime bounds the comparison of clocks.
	alignTime = time.Second
	// overtimeAfter is how long after the grace rank 0 waits for a rank to report the end of its command.
	overtimeAfter = 3 * time.Second
)

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// withdraw tells rank 0 that this rank cannot take part, and rank 0 ends the job. If the environment of this rank
// contradicts itself, rank 0 may have failed for the same reason, so withdraw waits for at most notifyTimeout.
func (c *container) withdraw(ctx context.Context, err error) (int, error) {
	if lerr := c.listen(ctx); lerr != nil {
		return 0, errors.Join(err, lerr)
	}
	ctx, end := c.untilStopped(ctx)
	defer end()
	c.log.Error(err.Error(), "phase", "identify", "status", statusOf(err), "hint", hint(err, c.settings.command))
	if contradiction := (*envspec.VarError)(nil); errors.As(err, &contradiction) {
		leaving, cancel := context.WithTimeout(ctx, notifyTimeout)
		c.node.Withdraw(leaving, *c.unfit) // rank 0, or ranks that will tell it
		cancel()
	} else {
		_, gerr := c.node.Gather(ctx)
		if ended := (*rendezvous.EndedError)(nil); !errors.As(gerr, &ended) {
			c.log.Warn("rank 0 did not get the reason of this failure", "phase", "exit", "err", gerr)
		}
	}
	// If the ranks are agreed and not given, this rank may have become rank 0, which tells the others.
	if ferr := c.node.Finish(context.WithoutCancel(ctx), *c.unfit, 0); ferr != nil {
		c.log.Warn("not every rank got the outcome", "phase", "exit", "err", ferr)
	}
	return c.unfit.Status, err
}

// checkExec refuses ranks with different values of --exec or --until.
func checkExec(r rendezvous.Roster) *rendezvous.Outcome {
	for _, m := range r.Members {
		if first := r.Members[0]; m.Exec != first.Exec {
			return &rendezvous.Outcome{Status: statusConfig, Reason: fmt.Sprintf(
				"the ranks disagree on which of them run the command: %s has --exec %s, %s has --exec %s",
				first.Alias, first.Exec, m.Alias, m.Exec)}
		}
	}
	return nil
}
