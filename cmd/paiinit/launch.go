package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
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
	if o := c.checkLaunchers(r); o != nil {
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
func (c *container) launch(ctx context.Context, r rendezvous.Roster) rendezvous.Outcome {
	environ, err := c.launcherEnviron(r, nil)
	if err != nil {
		return rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	}
	cmd, pass, err := c.jobCommand(environ, len(r.Members))
	if err != nil {
		return rendezvous.Outcome{Status: statusBug, Reason: err.Error()}
	}
	cmd.Started = func() {
		c.node.Launched()
		c.leaveDirectory()
		c.watchOthers()
	}
	c.task.release()
	stop := launch.Stopper{
		Line: c.settings.command, Grace: c.grace, Log: c.log, Hard: pass, Soft: c.stopAllRanks,
		Launchers: func() []int { return launch.RankLaunchers(c.jobMembers()) },
	}
	c.signals.to(stop.Own)

	ctx, cancel := context.WithCancel(ctx)
	c.serve.Go(func() { c.checkWay(ctx, r) })
	s := c.supervisor(r, environ, &stop)
	watched := make(chan launch.Interruption, 1)
	go func() { watched <- s.Watch(ctx) }()
	var looking sync.WaitGroup
	looking.Go(func() { c.supervise(ctx, s) })
	if len(r.Members) > 1 {
		if c.ssh == sshImage || launch.FillNamed(cmd.Args[0]) == nil { // which tells us itself
			looking.Go(func() { c.asks.Note(ctx, cmd.Args, cmd.Dir) }) // the command need not wait for DNS
		}
		if !launch.IsLauncher(cmd.Args[0]) {
			looking.Go(func() { c.asks.Look(ctx, os.Getpid(), c.jobMembers) })
		}
	}
	c.mark("launch")
	c.log.Info("launching", "phase", "launch", "command", strings.Join(cmd.Args, " "), "hosts", len(r.Members), "elapsed", c.elapsed())
	result, err := c.runCommand(ctx, cmd)
	c.signals.to(nil) // what comes after the command's end hurries finish
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
		Absent: func(settle time.Duration) *launch.Loss { return c.absent(ctx, settle) },
	}))
	if o.Status == statusRetry {
		// A rank that is away at this moment would come to the same end by itself, so nobody waits for it.
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
func (c *container) leaveDirectory() { _ = os.Chdir("/") }

// jobCommand is the job's command as this rank runs it, and the way to send it signals.
func (c *container) jobCommand(environ []string, size int) (cmd launch.Command, pass func(os.Signal), err error) {
	path := c.command
	if here, err := launch.Look(c.settings.command[0], environ, c.dir); err == nil {
		path = here // the bin directory of the state may have one of this name
	}
	in := make(chan os.Signal, 64)
	pass = func(sig os.Signal) {
		select {
		case in <- sig:
		default: // sixty-four signals that the command has not taken say enough
		}
	}
	return launch.Command{
		Path: path, Args: expandAzureWords(c.settings.command, environ, size, c.log), Environ: environ, Dir: c.dir,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Grace: c.grace, TailLines: keptLines(),
		TailHosts: c.hostsOfLines(), Signals: in, Fork: c.agent.Fork,
		WholeGroup: c.signal == signalGroup || launch.IsLauncher(c.settings.command[0]), Processes: c.jobMembers,
	}, pass, nil
}

// hostsOfLines are the names with which a launcher may mark the lines of a host.
func (c *container) hostsOfLines() []string {
	members, names := c.named()
	all := slices.Clone(names)
	for i := range members {
		all = append(all, members[i].Alias)
	}
	return all
}

// runCommand runs the job's command to its end.
func (c *container) runCommand(ctx context.Context, cmd launch.Command) (launch.Result, error) {
	result, err := launch.Run(context.WithoutCancel(ctx), cmd)
	if result.Unread > 0 {
		c.log.Warn("standard error was not read, the last that the command wrote to it was dropped", "phase", "wait",
			"bytes", result.Unread)
	}
	return result, err
}

// launcherEnviron writes the host lists and returns the environment of the command, with what else it is given.
func (c *container) launcherEnviron(r rendezvous.Roster, more []launch.Var) ([]string, error) {
	var files sync.WaitGroup
	files.Go(c.haveSSHFiles) // beside the rest
	defer files.Wait()
	if err := c.writeHosts(r); err != nil {
		return nil, err
	}
	n := c.reachedOver(r)
	l := c.setup(n, r)
	if err := l.Check(); err != nil {
		return nil, err
	}
	environ := c.agent.Environ
	for _, v := range launch.Leftovers(environ) {
		c.log.Warn("removed a variable of another scheduler from the command's environment", "phase", "launch", "variable", v.Name, "reason", v.Reason)
	}
	environ = launch.Without(environ, launch.Leftovers(environ))
	vars := c.withoutSettled(n, r, slices.Concat(launch.Environment(l), c.fabricVars(r)), slog.LevelInfo)
	environ, kept := launch.Merge(environ, slices.Concat(c.jobVars(r), vars, more))
	for _, v := range kept {
		c.log.Info("the job's own value of a variable is kept", "phase", "launch", "variable", v.Name, "value", v.Value)
	}
	environ = c.withBin(environ, c.state.path("bin"))
	return environ, launch.CheckSizes(environ)
}

// setup is what the variables of all launchers are made of.
func (c *container) setup(n network, r rendezvous.Roster) launch.Setup {
	s := launch.Setup{
		Hostfile: c.state.path("hostfile"), CountedHostfile: c.state.path("hostfile.hydra"),
		Agent: []string{c.state.self, "rsh"}, AgentPath: c.state.path("bin/ssh"),
		Interface: n.name, Several: n.several, Network: n.common(r.Members), Root: os.Geteuid() == 0,
	}
	if !writable(c.agent.Environ) {
		s.TempDir = c.state.path("tmp")
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

// sessionVars are what a command that another rank starts here gets beyond this container's environment: all that is known
// of the job by then, except what the user has set.
func (c *container) sessionVars() []string {
	c.haveSSHFiles()
	c.mu.Lock()
	roster, known := c.roster, c.forSessions
	c.mu.Unlock()
	if known != nil {
		return known
	}
	var out []string
	n := c.reachedOver(roster)
	hints := append(c.sessionFabricVars(roster), c.sessionSockets(n)...)
	hints = c.withoutSettled(n, roster, hints, slog.LevelDebug) // rank 0 has told of its own
	for _, v := range append(c.jobVars(roster), hints...) {
		if !slices.ContainsFunc(c.agent.Environ, func(kv string) bool { return strings.HasPrefix(kv, v.Name+"=") }) {
			out = append(out, v.Name+"="+v.Value)
		}
	}
	search := lookup(c.withBin(c.agent.Environ, c.state.path("bin")), "PATH")
	if search != lookup(c.agent.Environ, "PATH") {
		out = append(out, "PATH="+search)
	}
	if len(roster.Members) > 0 {
		c.mu.Lock()
		c.forSessions = out
		c.mu.Unlock()
	}
	return out
}

// jobVars tells the command about the job. What is not known before the commit is left out then.
func (c *container) jobVars(r rendezvous.Roster) []launch.Var {
	vars := []launch.Var{
		{Name: "PAIINIT_ACTIVE", Value: "1", Reason: "a paiinit that is started inside the job just runs its command"},
		{Name: "PAIINIT_AGENT", Value: c.state.path(socketName), Reason: "how paiinit rsh finds the paiinit of this container"},
		{Name: "PAIINIT_HOSTFILE", Value: c.state.path("hostfile")},
		{Name: "AZUREML_MPI_HOSTFILE", Value: c.state.path("hostfile")},
		{Name: "AZ_BATCHAI_MPI_HOST_FILE", Value: c.state.path("hostfile")},
	}
	rank, size := c.job.Rank, c.job.Size
	if len(r.Members) > 0 {
		rank, size = c.self(r).Rank, len(r.Members)
		port := r.Members[0].Task
		if port == 0 {
			port = defaultMasterPort
		}
		vars = append(vars, masterVars(r.Members[0].Addr.Addr().String(), port)...)
	}
	vars = append(vars, identityVars(c.job, rank, size)...)
	return vars
}

// slotsOf is a rank's own word, unless the scheduler told this container alone.
func (c *container) slotsOf(m rendezvous.Member) int {
	for i := range c.job.Peers { // without copies: this is asked for every rank
		if p := &c.job.Peers[i]; p.Decided && p.Index == m.Index && p.Role == m.Role {
			return p.Slots
		}
	}
	return m.Slots
}

// hostNames are the names in the host lists. A launcher knows itself by its host name, so that is the name where every
// launcher can write it and nobody else has it; two containers on one host share theirs and go by role and index. A role's
// name may hold what no host list can: what is left then is the rank.
func hostNames(members []rendezvous.Member) []string {
	count := make(map[string]int)
	for _, m := range members {
		count[m.Host]++
		if m.Alias != m.Host {
			count[m.Alias]++
		}
	}
	names := make([]string, len(members))
	for i, m := range members {
		switch {
		case count[m.Host] == 1 && expressible(m.Host):
			names[i] = m.Host
		case expressible(m.Alias):
			names[i] = m.Alias
		default:
			names[i] = "rank-" + strconv.Itoa(m.Rank)
		}
	}
	return names
}

// named are the members of the roster, and their hostNames; none before the commit.
func (c *container) named() ([]rendezvous.Member, []string) {
	c.mu.Lock()
	members, names := c.roster.Members, c.names
	c.mu.Unlock()
	if len(members) == 0 {
		return nil, nil
	}
	return members, names()
}

// expressible names have no dot: Open MPI 4 would cut the name there.
func expressible(name string) bool {
	for _, d := range []hostfile.Dialect{hostfile.OpenMPI, hostfile.Hydra} {
		if strings.Contains(name, ".") || hostfile.Check(d, name) != nil {
			return false
		}
	}
	return true
}

// resolve finds the container that a launcher or a person calls by one of its names, or by a name in DNS.
func (c *container) resolve(ctx context.Context, host string) (rsh.Target, bool) {
	if m, ok := c.memberNamed(host); ok {
		return rsh.Target{Name: m.Alias, ID: m.ID, Addr: m.Addr}, true
	}
	members, _ := c.named()
	m, ok := memberAt(ctx, resolver{}, members, host)
	return rsh.Target{Name: m.Alias, ID: m.ID, Addr: m.Addr}, ok
}

// lookupTimeout is how long the resolver may take for a name that this job does not know.
const lookupTimeout = 5 * time.Second

// memberAt returns the only container at the addresses of a name: a host list from before has the hosts' own names,
// also where the peers are given by address.
func memberAt(
	ctx context.Context, dns envspec.Resolver, members []rendezvous.Member, host string,
) (m rendezvous.Member, ok bool) {
	if _, err := netip.ParseAddr(host); err == nil || host == "" || len(members) == 0 {
		return m, false
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := dns.LookupHost(ctx, host)
	if err != nil {
		return m, false
	}
	for i := range members {
		switch {
		case !slices.Contains(addrs, members[i].Addr.Addr()):
		case ok:
			return rendezvous.Member{}, false // two containers on one address cannot be told apart by it
		default:
			m, ok = members[i], true
		}
	}
	return m, ok
}

// memberNamed finds the container of a name or address that the job itself knows.
func (c *container) memberNamed(host string) (rendezvous.Member, bool) {
	members, names := c.named()
	if host == "localhost" || host == "127.0.0.1" || host == "::1" {
		host = c.job.Alias
	}
	for i, m := range members {
		if host == names[i] || host == m.Alias || host == m.ID {
			return m, true
		}
	}
	for _, p := range c.job.Peers {
		if slices.Contains(p.Names, host) || host == p.Host {
			for _, m := range members {
				if m.Role == p.Role && m.Index == p.Index {
					return m, true
				}
			}
		}
	}
	addr, err := netip.ParseAddr(host)
	short, _, _ := strings.Cut(host, ".")
	var found []rendezvous.Member
	for i, m := range members {
		if err == nil && m.Addr.Addr() == addr.Unmap() || err != nil && (m.Host == host || m.Host == short || names[i] == short) {
			found = append(found, m)
		}
	}
	if len(found) == 1 { // two containers on one address cannot be told apart by it
		return found[0], true
	}
	return rendezvous.Member{}, false
}

// foreign says whether a host that resolve does not know may be left to the image's own ssh. A launcher's daemon has no
// business there; an address of two ranks, and a rank that has not come yet, are this job's all the same.
func (c *container) foreign(host, command string) bool {
	if _, daemon := launch.DaemonOf(command); daemon {
		return false
	}
	members, _ := c.named()
	addr, err := netip.ParseAddr(host)
	return !slices.ContainsFunc(members, func(m rendezvous.Member) bool {
		return host == m.Host || err == nil && addr.Unmap() == m.Addr.Addr()
	}) && !slices.ContainsFunc(c.job.Peers, func(p envspec.Peer) bool {
		return host == p.Alias || host == p.Host || slices.Contains(p.Names, host)
	})
}

// namesByRank are the names of every rank.
func (c *container) namesByRank() [][]string {
	members, own := c.named()
	var hosts [][]string
	for i, name := range own {
		names := []string{name}
		if alias := members[i].Alias; alias != name {
			names = append(names, alias)
		}
		hosts = append(hosts, names)
	}
	return hosts
}
