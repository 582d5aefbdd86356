package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rdma"
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
	if c.rdma == "require" {
		var bad []rendezvous.Missing
		for i := range r.Members {
			m := &r.Members[i]
			if s, err := rdma.DecodeSummary(m.Fabric); err != nil || !s.Usable() {
				bad = append(bad, rendezvous.Missing{Rank: m.Rank, Name: m.Alias, Reason: s.String()})
			}
		}
		if len(bad) > 0 {
			return &rendezvous.Outcome{Status: statusUnmendable, Reason: "RDMA is required, but not usable on " + rendezvous.Fold(bad)}
		}
	}
	if c.command == "" && r.Members[0].Nonce == c.nonce {
		return &rendezvous.Outcome{Status: statusUsage, Reason: fmt.Sprintf("%s became rank 0 and has no COMMAND to run", r.Members[0].Alias)}
	}
	return nil
}

// launch runs the command on rank 0 and says how the job ended.
func (c *container) launch(ctx context.Context, r rendezvous.Roster) rendezvous.Outcome {
	environ, err := c.launcherEnviron(r)
	if err != nil {
		return rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	}
	dir, err := os.Getwd()
	if err != nil {
		return rendezvous.Outcome{Status: statusBug, Reason: fmt.Sprintf("finding the working directory: %v", err)}
	}
	cmd := launch.Command{
		Path: c.command, Args: literals(c.settings.command, environ, c.log), Environ: environ, Dir: dir,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Grace: c.grace, TailLines: keptLines(),
	}
	in := make(chan os.Signal, 64)
	cmd.Signals = in
	pass := func(sig os.Signal) {
		select {
		case in <- sig:
		default: // sixty-four signals that the command has not taken say enough
		}
	}
	c.signals.to(pass)
	defer c.signals.to(nil)

	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan interruption, 1)
	go func() { watched <- c.watch(ctx, pass) }()
	c.log.Info("launching", "phase", "launch", "command", strings.Join(cmd.Args, " "), "hosts", len(r.Members), "elapsed", c.elapsed())
	result, err := launch.Run(context.WithoutCancel(ctx), cmd)
	cancel()
	why := <-watched
	o := rendezvous.Outcome{Status: result.Status(), Reason: firstCause(cmd.Args[0], result, oomKills(os.DirFS("/"))-c.oomKills)}
	switch {
	case why.reason != "":
		o.Reason = why.reason + "; " + o.Reason
	case o.Status != 0 && err == nil && result.Forwarded == 0 && len(r.Members) > 1:
		// A launcher that failed because a host went away says so in its own words and with its own status.
		if absent := c.node.Absent(context.WithoutCancel(ctx), settle, absence); len(absent) > 0 {
			why.retry = true
			o.Reason = lossText(absent[0]) + "; " + o.Reason
		}
	}
	switch {
	case err != nil:
		o = rendezvous.Outcome{Status: statusOf(err), Reason: err.Error()}
	case why.retry:
		o.Status = statusRetry
	}
	c.log.Info("the command has ended", "phase", "wait", "command", cmd.Args[0], "status", o.Status, "elapsed", c.elapsed())
	return o
}

// onFailure hears of a command on another host that could not be started, or was lost.
func (c *container) onFailure(t rsh.Target, stage string, err error) {
	c.log.Warn("a remote command failed", "phase", "wait", "peer", t.Name, "stage", stage, "err", err)
	if stage != rsh.StageResolve { // a name that somebody mistyped
		c.noteFailure(failure{fmt.Sprintf("the remote shell to %s failed (%s)", t.Name, stage), failurePatience + c.grace})
	}
}

// onExit hears of a command on another host that has ended. MPICH's hydra never notices when one of its proxies fails, and
// then hangs for ever; every other launcher ends by itself, and a script of the user's may fail as it likes.
func (c *container) onExit(t rsh.Target, command string, s rsh.Status) {
	if s.Code != 0 && strings.Contains(command, "hydra_") {
		c.noteFailure(failure{fmt.Sprintf("the launcher's proxy on %s ended with status %d", t.Name, s.Code), failurePatience})
	}
}

// failure is why the command should end, and how long it may take to do so by itself.
type failure struct {
	reason   string
	patience time.Duration
}

func (c *container) noteFailure(f failure) {
	select {
	case c.fails <- f:
	default: // the first one decides
	}
}

// Open MPI needs up to 4 s, and its own time between SIGTERM and SIGKILL, to end after it lost a daemon; MPICH ends at once
// or never.
const failurePatience = 10 * time.Second

// interruption is why the command was stopped. retry = a rank or a daemon was lost, and the status is 75, not the command's.
type interruption struct {
	reason string
	retry  bool
}

// After the command has failed: settle is for how long a rank may still turn out to be gone, absence for how long one that is
// may take to come back.
const (
	settle  = 300 * time.Millisecond
	absence = 3 * time.Second
)

func lossText(l rendezvous.Loss) string {
	return fmt.Sprintf("rank %d (%s) was lost: %s", l.Rank, l.Name, l.Reason)
}

// watch passes on what other ranks want while the command runs. It returns the first reason why the command was stopped: a
// wish of a rank, a lost rank, or a daemon of the launcher that had failed while the launcher did not end.
func (c *container) watch(ctx context.Context, pass func(os.Signal)) (why interruption) {
	var failed failure
	var impatient <-chan time.Time
	end := func(sig int, because interruption) {
		if why.reason == "" {
			why = because
			pass(stopSignal(sig))
		}
	}
	for {
		select {
		case <-ctx.Done():
			return why
		case failed = <-c.fails:
			if impatient == nil {
				impatient = time.After(failed.patience)
			}
		case <-impatient:
			c.log.Error("the command does not end after a failure", "phase", "wait", "reason", failed.reason)
			end(0, interruption{failed.reason + ", and the command did not end by itself", true})
		case s := <-c.node.Stops():
			c.log.Warn("a rank wants the job to stop", "phase", "wait", "peer", s.Name, "reason", s.Reason)
			end(s.Signal, interruption{reason: s.Reason})
		case l := <-c.node.Losses():
			c.log.Error("a rank is lost", "phase", "wait", "peer", l.Name, "rank", l.Rank, "reason", l.Reason)
			end(0, interruption{lossText(l), true})
		}
	}
}

// launcherEnviron writes the host lists and returns the environment of the command.
func (c *container) launcherEnviron(r rendezvous.Roster) ([]string, error) {
	var hosts []hostfile.Host
	names := hostNames(r.Members)
	for i, m := range r.Members {
		if m.Slots > 0 {
			hosts = append(hosts, hostfile.Host{Name: names[i], Slots: m.Slots})
		}
	}
	if err := c.state.writeHostfiles(hosts); err != nil {
		return nil, err
	}
	l := launch.Launcher{
		Hostfile: c.state.path("hostfile"), HydraHostfile: c.state.path("hostfile.hydra"),
		Agent: []string{c.state.self, "rsh"}, AgentPath: c.state.path("bin/ssh"),
		Interface: interfaceOf(c.node.Self().Addr.Addr()), Root: os.Geteuid() == 0, Grace: c.grace,
	}
	if !writable(c.agent.Environ) {
		l.TempDir = c.state.path("tmp")
	}
	for i := range r.Members {
		s, err := rdma.DecodeSummary(r.Members[i].Fabric)
		if err != nil || !s.Usable() {
			l.Fabric = "tcp"
		}
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	environ := c.agent.Environ
	for _, v := range launch.Leftovers(environ) {
		c.log.Warn("removed a variable of another scheduler from the command's environment", "phase", "launch", "variable", v.Name, "reason", v.Reason)
	}
	environ = launch.Without(environ, launch.Leftovers(environ))
	environ, kept := launch.Merge(environ, append(c.jobVars(r), launch.Environment(l)...))
	for _, v := range kept {
		c.log.Info("the job's own value of a variable is kept", "phase", "launch", "variable", v.Name, "value", v.Value)
	}
	return environ, nil
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
	c.mu.Lock()
	roster := c.roster
	c.mu.Unlock()
	var out []string
	for _, v := range c.jobVars(roster) {
		if !slices.ContainsFunc(c.agent.Environ, func(kv string) bool { return strings.HasPrefix(kv, v.Name+"=") }) {
			out = append(out, v.Name+"="+v.Value)
		}
	}
	return out
}

// jobVars tells the command about the job. What is not known before the commit is left out then.
func (c *container) jobVars(r rendezvous.Roster) []launch.Var {
	vars := []launch.Var{
		{Name: "PAIINIT_ACTIVE", Value: "1", Reason: "a paiinit that is started inside the job just runs its command"},
		{Name: "PAIINIT_AGENT", Value: c.state.path(socketName), Reason: "how paiinit rsh finds the paiinit of this container"},
		{Name: "PAIINIT_JOB", Value: c.job.ID}, {Name: "PAIINIT_ROLE", Value: c.job.Role}, {Name: "PAIINIT_SIZE", Value: strconv.Itoa(c.job.Size)},
		{Name: "PAIINIT_HOSTFILE", Value: c.state.path("hostfile")},
		{Name: "AZUREML_MPI_HOSTFILE", Value: c.state.path("hostfile")},
	}
	if c.job.Index >= 0 {
		vars = append(vars, launch.Var{Name: "PAIINIT_INDEX", Value: strconv.Itoa(c.job.Index)})
	}
	rank := c.job.Rank
	if len(r.Members) > 0 {
		rank = c.self(r).Rank
		master := r.Members[0].Addr.Addr().String()
		vars = append(vars,
			launch.Var{Name: "PAIINIT_MASTER", Value: master},
			launch.Var{Name: "MASTER_ADDR", Value: master},
			launch.Var{Name: "MASTER_PORT", Value: "29500"}) // torchrun's own default
	}
	if rank >= 0 {
		vars = append(vars,
			launch.Var{Name: "PAIINIT_RANK", Value: strconv.Itoa(rank)},
			launch.Var{Name: "NODE_RANK", Value: strconv.Itoa(rank)})
	}
	return vars
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

// expressible names have no dot: Open MPI 4 would cut the name there.
func expressible(name string) bool {
	for _, d := range []hostfile.Dialect{hostfile.OpenMPI, hostfile.Hydra} {
		if strings.Contains(name, ".") || hostfile.Check(d, name) != nil {
			return false
		}
	}
	return true
}

// resolve finds the container that a launcher or a person calls by one of its names.
func (c *container) resolve(host string) (rsh.Target, bool) {
	c.mu.Lock()
	members := c.roster.Members
	c.mu.Unlock()
	target := func(m rendezvous.Member) (rsh.Target, bool) {
		return rsh.Target{Name: m.Alias, ID: m.ID, Addr: m.Addr}, true
	}
	if host == "localhost" || host == "127.0.0.1" || host == "::1" {
		host = c.job.Alias
	}
	names := hostNames(members)
	for i, m := range members {
		if host == names[i] || host == m.Alias || host == m.ID {
			return target(m)
		}
	}
	for _, p := range c.job.Peers {
		if slices.Contains(p.Names, host) || host == p.Host {
			for _, m := range members {
				if m.Role == p.Role && m.Index == p.Index {
					return target(m)
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
		return target(found[0])
	}
	return rsh.Target{}, false
}

func (c *container) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return hostNames(c.roster.Members)
}

// interfaceOf is the name of the network interface that has this address, "" for loopback or when there is none.
func interfaceOf(addr netip.Addr) string {
	ifs, err := net.Interfaces()
	if err != nil || addr.IsLoopback() {
		return ""
	}
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(addr.AsSlice()) {
				return i.Name
			}
		}
	}
	return ""
}
