package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

// check is what rank 0 asks of a complete roster before anything is launched.
func (c *container) check(r rendezvous.Roster) *rendezvous.Outcome {
	for i := range r.Members {
		if m := &r.Members[i]; m.Version != version {
			return &rendezvous.Outcome{Status: statusUnmendable, Reason: fmt.Sprintf(
				"the ranks run different versions of paiinit: %s has %s, %s has %s", r.Members[0].Alias, r.Members[0].Version, m.Alias, m.Version)}
		}
	}
	if o := checkExec(r); o != nil {
		return o
	}
	if err := c.checkUntil(rolesOf(r.Members)); err != nil {
		return &rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	}
	if o := c.launcher.check(&c.identity, r); o != nil {
		return o
	}
	if o := c.checkFabric(r); o != nil {
		return o
	}
	if c.command == "" && r.Members[0].Nonce == c.nonce {
		return &rendezvous.Outcome{Status: statusUsage, Reason: fmt.Sprintf("%s became rank 0 and has no COMMAND to run", r.Members[0].Alias)}
	}
	return nil
}

// launch runs the command on rank 0 and says how the job ended.
func (c *container) launch(ctx context.Context, a *agreement) rendezvous.Outcome {
	environ, err := a.launcherEnviron(nil)
	if err != nil {
		return rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	}
	cmd, pass, err := a.jobCommand(environ)
	if err != nil {
		return rendezvous.Outcome{Status: statusBug, Reason: err.Error()}
	}
	cmd.Started = func() {
		c.node.Launched()
		leaveDirectory()
		c.watchOthers()
	}
	c.task.Release()
	stop := launch.Stopper{
		Line: c.settings.command, Grace: c.grace, Log: c.log, Hard: pass, Soft: func(sig os.Signal) { // the ranks of the launcher, on all hosts
			n := sig.(syscall.Signal) // as all that the kernel knows
			c.node.Order(int(n), "the ranks are told to end")
			c.stopRanks(n)
		},
		Launchers: func() []int { return launch.RankLaunchers(c.jobMembers()) },
	}
	c.signals.To(stop.Own)

	ctx, cancel := context.WithCancel(ctx)
	c.serve.Go(func() { a.checkWay(ctx) })
	s := c.launching.supervisor(a.roster, environ, &stop)
	watched := make(chan launch.Interruption, 1)
	go func() { watched <- s.Watch(ctx) }()
	var looking sync.WaitGroup
	looking.Go(func() { c.supervise(ctx, s) })
	if len(a.roster.Members) > 1 {
		if c.ssh == sshImage || launch.FillNamed(cmd.Args[0]) == nil { // which tells us itself
			looking.Go(func() { c.launching.asks.Note(ctx, cmd.Args, cmd.Dir) }) // the command need not wait for DNS
		}
		if !launch.IsLauncher(cmd.Args[0]) {
			looking.Go(func() { c.launching.asks.Look(ctx, os.Getpid(), c.jobMembers) })
		}
	}
	c.mark("launch")
	c.log.Info("launching", "phase", "launch", "command", strings.Join(cmd.Args, " "), "hosts", len(a.roster.Members), "elapsed", c.elapsed())
	result, err := c.runCommand(ctx, cmd)
	c.signals.To(nil) // what comes after the command's end hurries finish
	cancel()
	why := <-watched
	looking.Wait()
	launcher := launch.Spawns(c.settings.command)
	if stop.End() {
		launcher = true // itself, or below the command
		result.Forwarded = cmp.Or(result.Forwarded, syscall.SIGTERM)
	}
	o := rendezvous.Outcome(s.Judge(launch.Ending{
		Result: result, Why: why, Launcher: launcher, OOMKills: oomKills(os.DirFS("/")) - c.oomKills,
		Absent: func(settle time.Duration) *launch.Loss {
			for _, l := range c.node.Absent(context.WithoutCancel(ctx), settle, absence) {
				lost := launch.Loss(l)
				return &lost
			}
			return nil
		},
	}))
	if o.Status == statusRetry {
		// A rank that is away at this moment would come to the same end by itself, so rank 0 does not wait for it.
		for _, l := range c.node.Absent(context.WithoutCancel(ctx), 0, 0) {
			c.node.GiveUp(l.Rank)
		}
	}
	if err != nil {
		o = rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	}
	c.log.Info("the command has ended", "phase", "wait", "command", cmd.Args[0], "status", o.Status, "elapsed", c.elapsed())
	return o
}

// leaveDirectory goes to /, as the first process does: the directory in which the job was started can be unmounted
// then. COMMAND has it itself if it needs it.
func leaveDirectory() { _ = os.Chdir("/") }

// jobCommand is the job's command as this rank runs it, and the way to send it signals.
func (a *agreement) jobCommand(environ []string) (cmd launch.Command, pass func(os.Signal), err error) {
	path := a.command
	if here, err := launch.Look(a.settings.command[0], environ, a.dir); err == nil {
		path = here // the bin directory of the state may have one of this name
	}
	in := make(chan os.Signal, 64)
	pass = func(sig os.Signal) {
		select {
		case in <- sig:
		default: // sixty-four signals that the command has not taken say enough
		}
	}
	args, replaced := launch.ExpandAzureWords(a.settings.command, environ, len(a.roster.Members))
	for _, v := range replaced {
		a.log.Info("a literal word of the Azure ML job specification stands for its value",
			"phase", "launch", "word", v.Name, "value", v.Value)
	}
	return launch.Command{
		Path: path, Args: args, Environ: environ, Dir: a.dir,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Grace: a.grace, TailLines: keptLines(),
		TailHosts: a.hostsOfLines(), Signals: in, Fork: a.agent.StartWithSlack,
		WholeGroup: a.signal == signalGroup || launch.IsLauncher(a.settings.command[0]), Processes: a.jobMembers,
	}, pass, nil
}

// hostsOfLines are the names with which a launcher may mark the lines of a host.
func (a *agreement) hostsOfLines() []string {
	members, names := a.named()
	all := slices.Clone(names)
	for i := range members {
		all = append(all, members[i].Alias)
	}
	return all
}

// runCommand runs the job's command to its end.
func (id *identity) runCommand(ctx context.Context, cmd launch.Command) (launch.Result, error) {
	result, err := launch.Run(context.WithoutCancel(ctx), cmd)
	if result.Unread > 0 {
		id.log.Warn("standard error was not read, the last that the command wrote to it was dropped", "phase", "wait",
			"bytes", result.Unread)
	}
	return result, err
}

// launcherEnviron writes the host lists and returns the environment of the command, with what else it is given.
func (a *agreement) launcherEnviron(more []launch.Var) ([]string, error) {
	var files sync.WaitGroup
	files.Go(a.writeSSHFiles) // beside the rest
	defer files.Wait()
	if err := a.writeHosts(); err != nil {
		return nil, err
	}
	n := a.reachedOver()
	l := a.setup(n)
	if err := l.Check(); err != nil {
		return nil, err
	}
	environ := a.agent.Environ
	for _, v := range launch.Leftovers(environ) {
		a.log.Warn("removed a variable of another scheduler from the command's environment", "phase", "launch", "variable", v.Name, "reason", v.Reason)
	}
	environ = launch.Without(environ, launch.Leftovers(environ))
	vars := a.withoutSettled(n, slices.Concat(launch.Environment(l), a.fabricVars()), slog.LevelInfo)
	environ, kept := launch.Merge(environ, slices.Concat(a.jobVars(), vars, more))
	for _, v := range kept {
		a.log.Info("the job's own value of a variable is kept", "phase", "launch", "variable", v.Name, "value", v.Value)
	}
	environ = a.withBin(environ, a.state.File(statedir.Bin))
	return environ, launch.CheckSizes(environ)
}

// setup is what the variables of all launchers are made of.
func (a *agreement) setup(n netif.Network) launch.Setup {
	s := launch.Setup{
		Hostfile: a.state.File(statedir.Hostfile), CountedHostfile: a.state.File(statedir.CountedHostfile),
		Agent: []string{a.state.Program, "rsh"}, AgentPath: a.state.File("bin/ssh"),
		Interface: n.Name, Several: n.Several, Network: n.Common(addrsOf(a.roster.Members)), Root: os.Geteuid() == 0,
	}
	if !writable(a.agent.Environ) {
		s.TempDir = a.state.File(statedir.Temp)
	}
	return s
}

// writable says whether there is a directory for temporary files, on a read-only root file system for example.
func writable(environ []string) bool {
	dir := lookup(environ, "TMPDIR")
	if dir == "" {
		dir = "/tmp"
	}
	return unix.Access(dir, unix.W_OK|unix.X_OK) == nil
}

// forSession returns the variables that a command of another rank gets here in addition to this container's environment:
// everything about the job except what the user has set.
func (a *agreement) forSession() []string {
	a.writeSSHFiles()
	return a.sessionVars()
}

// varsOfSessions computes forSession.
func (a *agreement) varsOfSessions() []string {
	var out []string
	n := a.reachedOver()
	hints := append(everyFabricVar(a.fabric), a.sessionSockets(n)...)
	hints = a.withoutSettled(n, hints, slog.LevelDebug) // rank 0 has told of its own
	for _, v := range append(a.jobVars(), hints...) {
		set := func(kv string) bool { return strings.HasPrefix(kv, v.Name+"=") }
		if !slices.ContainsFunc(a.agent.Environ, set) {
			out = append(out, v.Name+"="+v.Value)
		}
	}
	search := lookup(a.withBin(a.agent.Environ, a.state.File(statedir.Bin)), "PATH")
	if search != lookup(a.agent.Environ, "PATH") {
		out = append(out, "PATH="+search)
	}
	return out
}

// jobVars tells the command about the job. What is not known before the commit is left out then.
func (a *agreement) jobVars() []launch.Var {
	vars := []launch.Var{
		{Name: "PAIINIT_ACTIVE", Value: "1", Reason: "a paiinit that is started inside the job just runs its command"},
		{Name: "PAIINIT_AGENT", Value: a.state.File(statedir.AgentSocket),
			Reason: "how paiinit rsh finds the paiinit of this container"},
		{Name: "PAIINIT_HOSTFILE", Value: a.state.File(statedir.Hostfile)},
		{Name: "AZUREML_MPI_HOSTFILE", Value: a.state.File(statedir.Hostfile)},
		{Name: "AZ_BATCHAI_MPI_HOST_FILE", Value: a.state.File(statedir.Hostfile)},
	}
	rank, size := a.job.Rank, a.job.Size
	if len(a.roster.Members) > 0 {
		rank, size = a.self().Rank, len(a.roster.Members)
		port := a.roster.Members[0].Task
		if port == 0 {
			port = defaultMasterPort
		}
		vars = append(vars, masterVars(a.roster.Members[0].Addr.Addr().String(), port)...)
	}
	vars = append(vars, identityVars(a.job, rank, size)...)
	return vars
}
