package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// Who runs the command (--exec).
const (
	execRank0 = "rank0"
	execAll   = "all"
)

// everywhere is the launch where every rank runs the command: each tells rank 0 how its own ended, and rank 0 decides.
func (c *container) everywhere(ctx context.Context, r rendezvous.Roster) (int, error) {
	t := c.startTask(ctx, r)
	if t.rank != 0 {
		return c.obey(ctx, t)
	}
	return c.finish(ctx, c.conduct(ctx, t, r))
}

// task is the command of this rank while it runs.
type task struct {
	rank int
	pass func(os.Signal)
	end  <-chan rendezvous.End // one, how it ended
}

func (c *container) startTask(ctx context.Context, r rendezvous.Roster) task {
	began := time.Now()
	self := c.self(r)
	end := make(chan rendezvous.End, 1)
	t := task{rank: self.Rank, pass: func(os.Signal) {}, end: end}
	failed := func(err error) {
		o := rendezvous.Outcome{Status: statusOf(err), Reason: fmt.Sprintf("rank %d's command: %v", t.rank, err)}
		end <- rendezvous.End{Rank: t.rank, Name: self.Alias, Outcome: o, After: time.Since(began)}
	}
	environ, err := c.launcherEnviron(r, launch.TaskEnvironment(c.tasks(r)))
	if err != nil {
		failed(err)
		return t
	}
	cmd, pass, err := c.jobCommand(environ, len(r.Members))
	if err != nil {
		failed(err)
		return t
	}
	t.pass = pass
	c.task.release()
	c.log.Info("launching", "phase", "launch", "command", strings.Join(cmd.Args, " "), "rank", t.rank, "size", len(r.Members), "elapsed", c.elapsed())
	go func() {
		c.mark("launch")
		result, err := launch.Run(context.WithoutCancel(ctx), cmd)
		c.log.Info("the command has ended", "phase", "wait", "command", cmd.Args[0], "status", result.Status(), "elapsed", c.elapsed())
		if err != nil {
			failed(err)
			return
		}
		end <- rendezvous.End{
			Rank: t.rank, Name: self.Alias, After: result.At.Sub(began), Stopped: result.Forwarded != 0,
			Outcome: rendezvous.Outcome{Status: result.Status(), Reason: firstCause(t.rank, cmd.Args[0], result, oomKills(os.DirFS("/"))-c.oomKills)},
		}
	}()
	return t
}

// tasks is what the frameworks without a launcher need to know of the ranks.
func (c *container) tasks(r rendezvous.Roster) launch.Tasks {
	t := launch.Tasks{Job: c.job.ID, Self: c.self(r).Rank, Spawns: launch.Spawns(c.settings.command)}
	for _, m := range r.Members {
		t.Ranks = append(t.Ranks, launch.Task{Role: m.Role, Index: m.Index, Addr: m.Addr.Addr().String(), Port: m.Task, Slots: m.Slots})
	}
	return t
}

// obey is the part of every rank but 0: its command ends by itself, or when rank 0 says so.
func (c *container) obey(ctx context.Context, t task) (int, error) {
	c.signals.to(func(sig os.Signal) {
		if n := terminating(sig); n > 0 {
			err := &stoppedError{signal: n, name: c.job.Alias}
			if c.node.RequestStop(n, err.Error()) && c.signals.first() {
				return // it comes back as rank 0's order, to everybody
			}
		}
		t.pass(sig)
	})
	defer c.signals.to(nil)
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
		case s := <-c.node.Stops():
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

// conduct is rank 0's part: the first failure, loss or wish to stop ends all commands, and is the outcome of the job.
func (c *container) conduct(ctx context.Context, t task, r rendezvous.Roster) rendezvous.Outcome {
	asked := make(chan os.Signal, 16)
	c.signals.to(func(sig os.Signal) {
		if terminating(sig) == 0 {
			t.pass(sig)
			return
		}
		select {
		case asked <- sig:
		default: // sixteen that nobody has looked at say enough
		}
	})
	defer c.signals.to(nil)
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	running := make(map[int]string, len(r.Members))
	for _, m := range r.Members {
		running[m.Rank] = m.Alias
	}
	var (
		j        judgement
		absent   = make(chan []rendezvous.Loss, 1)
		overtime <-chan time.Time
	)
	order := func(sig int, reason string) {
		if overtime == nil {
			overtime = time.After(c.grace + overtimeAfter)
			c.log.Info("ending the command of every rank", "phase", "wait", "reason", firstLine(reason))
			c.node.Order(sig, reason)
			t.pass(stopSignal(sig))
		}
	}
	lost := func(l rendezvous.Loss) {
		if _, ok := running[l.Rank]; ok {
			c.log.Error("a rank is lost", "phase", "wait", "peer", l.Name, "rank", l.Rank, "reason", l.Reason)
			delete(running, l.Rank)
			j.lost = append(j.lost, l)
			order(0, lossText(l))
		}
	}
	ended := func(e rendezvous.End) {
		delete(running, e.Rank)
		j.ends = append(j.ends, e)
		if e.Outcome.Status != 0 && overtime == nil {
			order(0, e.Outcome.Reason)
			// A container that was killed takes its command, and so the others', with it.
			asking.Go(func() { absent <- c.node.Absent(ctx, settle, absence) })
		}
	}
	for len(running) > 0 {
		select {
		case sig := <-asked:
			first := c.signals.first()
			if overtime != nil {
				if !first { // who ends a whole job tells every container: the first one here says no more than the order
					t.pass(sig)
				}
				continue
			}
			n := terminating(sig)
			j.stop = &rendezvous.Stop{Name: c.job.Alias, Signal: n, Reason: (&stoppedError{n, c.job.Alias}).Error()}
			order(n, j.stop.Reason)
		case s := <-c.node.Stops():
			c.log.Warn("a rank wants the job to stop", "phase", "wait", "peer", s.Name, "reason", s.Reason)
			if overtime == nil {
				j.stop = &s
			}
			order(s.Signal, s.Reason)
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
			c.log.Error("ranks do not say that their command has ended", "phase", "wait", "ranks", strings.Join(slices.Sorted(maps.Values(running)), ","))
			clear(running)
		}
	}
	return j.outcome()
}

// overtimeAfter is how long after the grace a rank may still take to say that its command has ended.
const overtimeAfter = 3 * time.Second

// judgement is what rank 0 has heard of all commands.
type judgement struct {
	ends []rendezvous.End
	lost []rendezvous.Loss
	stop *rendezvous.Stop // the wish of a rank, if it was the reason to end
}

// outcome names the first cause: a wish to stop or a lost rank, if they came first, else the command that failed first by
// the clock of its own rank; those that only followed the order to end are not asked.
func (j judgement) outcome() rendezvous.Outcome {
	byRank := slices.SortedFunc(slices.Values(j.ends), func(a, b rendezvous.End) int { return a.Rank - b.Rank })
	if j.stop != nil {
		o := rendezvous.Outcome{Status: 128 + int(unix.SIGTERM), Reason: j.stop.Reason}
		if j.stop.Signal > 0 {
			o.Status = 128 + j.stop.Signal
		}
		for _, e := range byRank { // commands may answer a signal with a status of their own
			if e.Stopped && e.Outcome.Status != 0 {
				o.Status = e.Outcome.Status
				o.Reason += "; " + e.Outcome.Reason
				break
			}
		}
		return o
	}
	var first *rendezvous.End
	for i, e := range byRank {
		if e.Outcome.Status != 0 && !e.Stopped && (first == nil || e.After < first.After) {
			first = &byRank[i]
		}
	}
	switch {
	case len(j.lost) > 0:
		o := rendezvous.Outcome{Status: statusRetry, Reason: lossText(j.lost[0])}
		if first != nil {
			o.Reason += "; " + first.Outcome.Reason
		}
		return o
	case first != nil:
		return first.Outcome
	}
	return rendezvous.Outcome{Reason: fmt.Sprintf("the commands of all %d ranks ended with status 0", len(j.ends))}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// withdraw is the way out of a rank that cannot run what it was told to: rank 0 ends the job for all if it comes soon.
func (c *container) withdraw(ctx context.Context, err error) (int, error) {
	if lerr := c.listen(ctx); lerr != nil {
		return 0, errors.Join(err, lerr)
	}
	ctx, end := c.untilStopped(ctx)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, dismissal)
	defer cancel()
	_, gerr := c.node.Gather(ctx)
	if ended := (*rendezvous.EndedError)(nil); !errors.As(gerr, &ended) {
		c.log.Warn("rank 0 was not told", "phase", "exit", "err", gerr)
	}
	// Where ranks are agreed, this one may be the first, and the one to tell.
	if ferr := c.node.Finish(context.WithoutCancel(ctx), *c.unfit, 0); ferr != nil {
		c.log.Warn("not every rank was told", "phase", "exit", "err", ferr)
	}
	return c.unfit.Status, err
}

// checkExec refuses ranks that were told different things about who runs the command.
func checkExec(r rendezvous.Roster) *rendezvous.Outcome {
	for _, m := range r.Members {
		if first := r.Members[0]; m.Exec != first.Exec {
			return &rendezvous.Outcome{Status: statusConfig, Reason: fmt.Sprintf(
				"the ranks were told different things about who runs the command: %s has --exec %s, %s has --exec %s", first.Alias, first.Exec, m.Alias, m.Exec)}
		}
	}
	return nil
}

// heldPort is a TCP port that nobody else can bind while it is held. Nobody can connect to it either. A nil *heldPort holds none.
type heldPort struct {
	fd, number int
}

// holdPort takes a port below the ones that Linux gives out by itself, where a connection could take it between release
// and use (ip_local_port_range, Documentation/networking/ip-sysctl.rst of the kernel).
func holdPort(random func(n int) int, log *slog.Logger) *heldPort {
	const low, count, tries = 20000, 10000, 64
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	wildcard := func(port int) unix.Sockaddr { return &unix.SockaddrInet6{Port: port} }
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	} else { // a kernel without IPv6
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		wildcard = func(port int) unix.Sockaddr { return &unix.SockaddrInet4{Port: port} }
	}
	for range tries {
		port := low + random(count)
		if err == nil {
			err = unix.Bind(fd, wildcard(port))
		}
		if err == nil {
			return &heldPort{fd, port}
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		err = nil
	}
	log.Warn("no port could be kept free for the job", "phase", "listen", "err", err)
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	return nil
}

func (p *heldPort) port() int {
	if p == nil {
		return 0
	}
	return p.number
}

// release gives the port to whoever binds it next; once.
func (p *heldPort) release() {
	if p != nil && p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}
