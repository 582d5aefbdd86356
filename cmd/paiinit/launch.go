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

// check returns the outcome of a job that rank 0 refuses to launch with this complete roster, else nil.
func (c *container) check(r rendezvous.Roster) *rendezvous.Outcome {
	for i := range r.Members {
		if m := &r.Members[i]; m.Version != version {
			return &rendezvous.Outcome{Status: statusUnmendable, Reason: fmt.Sprintf(
				"the ranks run different versions of paiinit: %s has %s, %s has %s",
				r.Members[0].Alias, r.Members[0].Version, m.Alias, m.Version)}
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
		reason := r.Members[0].Alias + " became rank 0 and has no COMMAND to run"
		return &rendezvous.Outcome{Status: statusUsage, Reason: reason}
	}
	return nil
}

// launch runs the command on rank 0 and returns how the job ended.
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
	c.reservedPort.Release()
	stop := launch.Stopper{
		Line: c.settings.command, Grace: c.grace, Log: c.log, Hard: pass,
		Soft: func(sig os.Signal) { // signals the launcher's ranks on all hosts
			n := sig.(syscall.Signal) // package os has no other implementation
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
		if c.ssh == sshImage || launch.FillNamed(cmd.Args[0]) == nil { // else our program in bin/ reports the hosts
			looking.Go(func() { c.launching.asks.Note(ctx, cmd.Args, cmd.Dir) }) // resolves names while it runs
		}
		if !launch.IsLauncher(cmd.Args[0]) {
			looking.Go(func() { c.launching.asks.Look(ctx, os.Getpid(), c.jobMembers) })
		}
	}
	c.mark("launch")
	c.log.Info("launching", "phase", "launch", "command", strings.Join(cmd.Args, " "),
		"hosts", len(a.roster.Members), "elapsed", c.elapsed())
	result, err := c.runCommand(ctx, cmd)
	c.signals.To(nil) // a signal after the command's end shortens finish
	cancel()
	why := <-watched
	looking.Wait()
	launcher := launch.Spawns(c.settings.command)
	if stop.End() {
		launcher = true // the command, or a process that it started
		result.Forwarded = cmp.Or(result.Forwarded, syscall.SIGTERM)
	}
	o := rendezvous.Outcome(s.Judge(launch.Ending{
		Result: result, Why: why, Launcher: launcher, OOMKills: oomKills(os.DirFS("/")) - c.oomKills,
		Absent: func(settle time.Duration) *launch.Loss {
			for _, l := range c.node.Absent(context.WithoutCancel(ctx), settle, reconnectTimeout) {
				lost := launch.Loss(l)
				return &lost
			}
			return nil
		},
	}))
	if o.Status == statusRetry {
		// A rank without a connection to rank 0 also exits with this status, so rank 0 does not wait for it.
		for _, l := range c.node.Absent(context.WithoutCancel(ctx), 0, 0) {
			c.node.GiveUp(l.Rank)
		}
	}
	if err != nil {
		o = rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	}
	c.log.Info("the command has ended", "phase", "wait",
		"command", cmd.Args[0], "status", o.Status, "elapsed", c.elapsed())
	return o
}

// leaveDirectory changes to /, as the first process does, so that the first working directory can be unmounted. COMMAND
// keeps that directory as its own.
func leaveDirectory() { _ = os.Chdir("/") }

// jobCommand returns the job's command as this rank runs it, and a function that sends it signals.
func (a *agreement) jobCommand(environ []string) (cmd launch.Command, pass func(os.Signal), err error) {
	path := a.command
	if here, err := launch.Look(a.settings.command[0], environ, a.dir); err == nil {
		path = here // the bin directory of the state may have a program of this name
	}
	in := make(chan os.Signal, 64)
	pass = func(sig os.Signal) {
		select {
		case in <- sig:
		default: // 64 signals are pending already
		}
	}
	args, replaced := launch.ExpandAzureWords(a.settings.command, environ, len(a.roster.Members))
	for _, v := range replaced {
		a.log.Info("replaced a word of the Azure ML job specification with its value",
			"phase", "launch", "word", v.Name, "value", v.Value)
	}
	return launch.Command{
		Path: path, Args: args, Environ: environ, Dir: a.dir,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Grace: a.grace, TailLines: keptLines(),
		TailHosts: a.hostsOfLines(), Signals: in, Fork: a.agent.StartWithSlack,
		WholeGroup: a.signal == signalGroup || launch.IsLauncher(a.settings.command[0]), Processes: a.jobMembers,
	}, pass, nil
}

// hostsOfLines returns the host names with which a launcher may prefix lines of output.
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
		id.log.Warn("dropped the end of the command's standard error, because it was not read", "phase", "wait",
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
		return nil, err
	}
	n := a.reachedOver()
	l := a.setup(n)
	if err := l.Check(); err != nil {
		return nil, err
	}
	environ := a.agent.Environ
	for _, v := range launch.Leftovers(environ) {
		a.log.Warn("removed a variable of another scheduler from the command's environment", "phase", "launch",
			"variable", v.Name, "reason", v.Reason)
	}
	environ = launch.Without(environ, launch.Leftovers(environ))
	vars := a.withoutSettled(n, slices.Concat(launch.Environment(l), a.fabricVars()), slog.LevelInfo)
	environ, kept := launch.Merge(environ, slices.Concat(a.jobVars(), vars, more))
	for _, v := range kept {
		a.log.Info("kept the job's own value of a variable", "phase", "launch", "variable", v.Name, "value", v.Value)
	}
	environ = a.withBin(environ, a.state.File(statedir.Bin))
	return environ, launch.CheckSizes(environ)
}

// setup returns the values for the variables of all launchers.
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

// writable reports whether the directory for temporary files can be written, unlike on a read-only root file system.
func writable(environ []string) bool {
	dir := lookup(environ, "TMPDIR")
	if dir == "" {
		dir = "/tmp"
	}
	return unix.Access(dir, unix.W_OK|unix.X_OK) == nil
}

// forSession returns the variables that a session from another rank gets in addition to this container's environment:
// all variables about the job that the user has not set.
func (a *agreement) forSession() []string {
	a.writeSSHFiles()
	return a.sessionVars()
}

// varsOfSessions computes forSession.
func (a *agreement) varsOfSessions() []string {
	var out []string
	n := a.reachedOver()
	hints := append(everyFabricVar(a.fabric), a.sessionSockets(n)...)
	hints = a.withoutSettled(n, hints, slog.LevelDebug) // rank 0 has logged its own at level info
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

// jobVars returns the variables about the job. Before the commit it leaves out variables that depend on the roster.
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
