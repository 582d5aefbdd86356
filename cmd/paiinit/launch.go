package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/inspect"
	"github.com/paiinit/paiinit/joblog"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/restart"
	"github.com/paiinit/paiinit/signals"
	"github.com/paiinit/paiinit/statedir"
)

// check returns the outcome of a job that rank 0 refuses to launch with this complete roster, else nil.
func (c *container) check(r rendezvous.Roster) *rendezvous.Outcome {
	first := r.Members[0]
	for _, m := range r.Members {
		if m.Version != version {
			return &rendezvous.Outcome{Status: statusUnmendable, Reason: fmt.Sprintf(
				"the ranks run different versions of paiinit: %s has %s, %s has %s",
				first.Display(), first.Version, m.Display(), m.Version)}
		}
	}
	for _, refuse := range []func(rendezvous.Roster) *rendezvous.Outcome{
		c.checkExec, c.checkLaunchers, c.checkFabric, c.refuseChecked,
	} {
		if o := refuse(r); o != nil {
			return o
		}
	}
	if c.command == "" && first.Nonce == c.nonce {
		reason := first.Display() + " became rank 0 and has no COMMAND to run"
		return &rendezvous.Outcome{Status: statusUsage, Reason: reason}
	}
	return nil
}

// launch runs the command on rank 0 and returns how this generation of the job ended.
func (c *container) launch(ctx context.Context, a *agreement) ending {
	cmd, pass, err := a.jobCommand(nil)
	if err != nil {
		return c.refusal(err)
	}
	cmd.Started = func() {
		c.node().Launched()
		c.node().CommandRuns()
		c.agent.Settle()
		c.watchOthers()
	}
	c.reservedPort.Release()
	stop := launch.Stopper{
		Line: c.settings.command, Grace: c.grace, Log: c.log, Hard: pass,
		Soft: func(sig os.Signal) { // signals the launcher's ranks on all hosts
			n := sig.(syscall.Signal) // package os has no other implementation
			c.node().Order(int(n), "the ranks are told to end")
			c.stopRanks(n)
		},
		Launchers: func() []int { return launch.RankLaunchers(c.jobMembers()) },
	}
	c.signals.To(stop.Own)
	cmd.Hang.Found = func() bool { return stop.AbortFirst(syscall.SIGTERM) }

	ctx, cancel := context.WithCancel(ctx)
	s := c.supervisor(a, cmd.Environ, &stop)
	c.serve.Go(func() { a.checkWay(ctx, s.Blocked) })
	watched := make(chan launch.Interruption, 1)
	go func() { watched <- s.Watch(ctx) }()
	var looking sync.WaitGroup
	looking.Go(func() { c.supervise(ctx, s) })
	if len(a.roster.Members) > 1 {
		if c.ssh == sshImage || launch.FillNamed(cmd.Args[0]) == nil { // else our program in bin/ reports the hosts
			looking.Go(func() { c.asks().Note(ctx, cmd.Args, cmd.Dir) }) // resolves names while it runs
		}
		if !launch.IsLauncher(cmd.Args[0]) {
			looking.Go(func() { c.asks().Look(ctx, os.Getpid(), c.jobMembers) })
		}
	}
	where, note := []any{"hosts", len(a.roster.Members)}, ""
	if len(a.roster.Members) > 1 && inspect.RunsArguments(os.DirFS("/"), cmd.Path) {
		// As an ENTRYPOINT, this script would run in every container.
		where, note = append(where, "script", cmd.Args[0]), "; "+cmd.Args[0]+" runs on rank 0 alone"
	}
	result, err := c.runCommand(ctx, cmd, note, where...)
	c.node().CommandEnded()
	c.signals.To(nil) // a signal after the command's end shortens finish
	cancel()
	why := <-watched
	looking.Wait()
	launcher := launch.Spawns(c.settings.command)
	var ooms []launch.OOM
	if stop.End() {
		launcher = true // the command, or a process that it started
		result.Forwarded = cmp.Or(result.Forwarded, syscall.SIGTERM)
	}
	o := rendezvous.Outcome(s.Judge(launch.Ending{
		Result: result, Why: why, Launcher: launcher,
		OOMs: func() []launch.OOM {
			ooms = a.ooms(ctx, c.node(), c.oomKills())
			return ooms
		},
		Absent: func(settle time.Duration) *launch.Loss {
			for _, l := range c.node().Absent(context.WithoutCancel(ctx), settle, reconnectTimeout) {
				lost := launch.Loss(l)
				return &lost
			}
			return nil
		},
	}))
	var lost []rendezvous.Loss
	if o.Status == statusRetry {
		lost = c.node().Absent(context.WithoutCancel(ctx), 0, 0)
		for _, l := range lost { // it also exits with this status, so rank 0 does not wait for it
			c.node().GiveUp(l.Rank)
		}
	}
	o.Next = c.nextAfter(o, ooms, lost...)
	e := ending{Outcome: o, kind: restart.Failed, rank: restart.NoRank}
	switch {
	case o.Hung:
		e.own, e.kind, e.rank, e.name = true, restart.Hung, a.self().Rank, c.display()
	case (o.Status == statusRetry || o.Status == statusUnmendable) && o.Status != result.JobStatus(launcher):
		e.own, e.kind = true, restart.Lost
		if len(lost) > 0 {
			e.rank, e.name = lost[0].Rank, lost[0].Name
		}
	}
	if err != nil {
		e = c.refusal(err)
	}
	c.log.Debug("the command has ended", "phase", "wait",
		"command", cmd.Args[0], "status", e.Status, "elapsed", c.elapsed())
	return e
}

// refusal returns how a generation ended whose command could not be started.
func (id *identity) refusal(err error) ending {
	return ending{Outcome: id.failure(err), own: true, kind: restart.Failed, rank: restart.NoRank}
}

// jobCommand returns the job's command as this rank runs it, with more added to its environment, and a function that
// sends it signals. It writes the host lists.
func (a *agreement) jobCommand(more []launch.Var) (cmd launch.Command, pass func(os.Signal), err error) {
	environ, err := a.launcherEnviron(more)
	if err != nil {
		return cmd, nil, err
	}
	environ, _ = launch.Merge(launch.Without(environ, a.restarted), a.restarted)
	if a.job.ServerPort && a.exec == execAll {
		environ = a.job.WithServerPorts(environ, a.roster.TaskPort)
	}
	path := a.command
	if here, err := launch.Look(a.settings.command[0], environ, a.dir); err == nil {
		path = here // the bin directory of the state may have a program of this name
	}
	in := make(signals.Queue, 64)
	args, err := a.commandLine(environ)
	if err != nil {
		return cmd, nil, err
	}
	return launch.Command{
		Path: path, Args: args, Environ: environ, Dir: a.dir,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Grace: a.grace, TailLines: keptLines(),
		TailHosts: slices.Concat(a.book().Both()...), Signals: in, Fork: a.agent.StartWithSlack,
		WholeGroup: a.signal == signalGroup || launch.IsLauncher(a.settings.command[0]), Processes: a.jobMembers,
		RestGrace: a.restGrace(), Hang: a.watching(),
	}, in.Put, nil
}

// runCommand runs the job's command to its end. where says in the log on which ranks, and note the same to people.
func (c *container) runCommand(
	ctx context.Context, cmd launch.Command, note string, where ...any,
) (launch.Result, error) {
	c.mark("launch")
	line := strings.Join(cmd.Args, " ")
	c.routine("launching", slices.Concat([]any{"phase", "launch", "command", line}, where,
		[]any{"elapsed", c.elapsed(), joblog.Text("launching " + line + note)})...)
	result, err := launch.Run(context.WithoutCancel(ctx), cmd)
	if result.Unread > 0 {
		c.log.Warn("dropped the end of the command's standard error, because it was not read", "phase", "wait",
			"bytes", result.Unread)
	}
	return result, err
}

// launcherEnviron writes the host lists and returns the environment of the command, with more added.
func (a *agreement) launcherEnviron(more []launch.Var) ([]string, error) {
	var files sync.WaitGroup
	files.Go(a.writeSSHFiles) // concurrently: it derives a host key for each rank
	defer files.Wait()
	if err := a.writeHosts(); err != nil {
		return nil, fmt.Errorf("%s: %w", a.display(), err)
	}
	n := a.reachedOver()
	l := a.setup(n)
	if err := l.Check(); err != nil {
		return nil, err
	}
	vars := a.withoutSettled(n, slices.Concat(launch.Environment(l), a.fabricVars()))
	vars = slices.Concat(a.position().Variables(), vars, more)
	return launch.CommandEnvironment(a.agent.Environ, vars, a.ownBin(), a.log)
}

// setup returns the values for the variables of all launchers.
func (a *agreement) setup(n netif.Network) launch.Setup {
	return launch.Setup{
		Hostfile: a.state.File(statedir.Hostfile), CountedHostfile: a.state.File(statedir.CountedHostfile),
		Agent: []string{a.state.Program, "rsh"}, AgentPath: a.state.File("bin/ssh"),
		Interface: n.Name, Several: n.Several, Network: n.Common(endpoints(a.roster.Members)),
		TempDir: launch.TempDir(a.agent.Environ, a.state.File(statedir.Temp)), Root: os.Geteuid() == 0,
	}
}

// ownBin returns the state directory's bin, which has links to this program and belongs first in PATH. Its ssh is for
// programs such as horovodrun, pdsh and git, which find their remote shell only in PATH. Its horovodrun adds the job's
// hosts. With --ssh image the PATH stays unchanged.
func (a *agreement) ownBin() string {
	if a.ssh == sshImage {
		return ""
	}
	return a.state.File(statedir.Bin)
}

// varsOfSessions returns the variables that a session from another rank gets in addition to this container's
// environment: all variables about the job that the user has not set.
func (a *agreement) varsOfSessions() []string {
	a.writeSSHFiles()
	n := a.reachedOver()
	hints := a.fabric.Vars()
	if n.Several { // the network may have another name in other containers
		hints = append(hints, launch.OwnVariables(n.Name)...)
	}
	hints = a.withoutSettled(n, hints)
	vars := launch.Additions(a.agent.Environ, append(a.position().Variables(), hints...), a.ownBin())
	for _, v := range a.restarted {
		vars = append(vars, v.Name+"="+v.Value)
	}
	return vars
}

// position returns this container's place in the job. Before the commit it leaves out what depends on the roster.
func (a *agreement) position() launch.Position {
	p := positionOf(a.job)
	p.Agent, p.Hostfile = a.state.File(statedir.AgentSocket), a.state.File(statedir.Hostfile)
	if members := a.roster.Members; len(members) > 0 {
		p.Rank, p.Size = a.self().Rank, len(members)
		p.Master, p.MasterPort = members[0].Addr.Addr().String(), members[0].Task
	}
	return p
}

func positionOf(job envspec.Job) launch.Position {
	return launch.Position{Job: job.ID, Role: job.Role, Index: job.Index, Rank: job.Rank, Size: job.Size}
}
