package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// A command that is no launcher may start some: a script does, or a login shell. What they were asked to do is read
// from /proc while they run, so that their hosts can be checked at the end like those of a launcher that is the command
// itself.

const (
	firstLook    = 250 * time.Millisecond // launchers in Python import Python packages for longer than this
	longestLook  = 30 * time.Second
	mostSeen     = 64      // launchers remembered
	mostWords    = 1 << 16 // bytes of a command line remembered
	hostfileHint = "--hostfile $PAIINIT_HOSTFILE names the hosts of this job"
)

// seenLaunchers are the launchers that the command has started, each command line once.
type seenLaunchers struct {
	mu    sync.Mutex
	known map[string]bool // by working directory and command line
	asks  []asked
}

// asked is what a launcher was asked for: how many hosts at least, and among which, by alias.
type asked struct {
	name  string
	hosts int
	among []string
	hint  string // why it may have used fewer
}

// lookForLaunchers looks at the processes below the command, soon after its start and then less and less often, until
// ctx ends.
func (c *container) lookForLaunchers(ctx context.Context) {
	proc := os.DirFS("/proc")
	for pause := firstLook; ; pause = min(2*pause, longestLook) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		all := readProcesses(proc, os.Getpid())
		for _, pid := range launchersBelow(proc, all, os.Getpid()) {
			// This is "" where the process has ended: then only absolute paths are read.
			dir, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
			c.noteLauncher(ctx, commandLine(proc, pid), dir)
		}
	}
}

// launchersBelow finds the launchers that the command has started, the topmost in each branch: those below a launcher
// are its own, or its ranks'. Commands that came by ssh are none of the command's, and our horovodrun is about to be
// another.
func launchersBelow(proc fs.FS, all processes, self int) (found []int) {
	open := slices.DeleteFunc(all.children(self), func(pid int) bool { return variables(proc, pid)["SSH_CONNECTION"] })
	for seen := make(map[int]bool); len(open) > 0; {
		pid := open[0]
		open = open[1:]
		if seen[pid] { // numbers that are used again while /proc is read may close a circle
			continue
		}
		seen[pid] = true
		switch name, _ := launch.Called(commandLine(proc, pid)); {
		case name == "":
			open = append(open, all.children(pid)...)
		case !runsSelf(proc, pid):
			found = append(found, pid)
		}
	}
	return found
}

// runsSelf says whether a process executes this program.
func runsSelf(proc fs.FS, pid int) bool {
	theirs, err := fs.Stat(proc, strconv.Itoa(pid)+"/exe")
	own, errOwn := fs.Stat(proc, "self/exe")
	return err == nil && errOwn == nil && os.SameFile(theirs, own)
}

// noteLauncher remembers what a launcher on rank 0 was asked for, and says so at once where it can find no hosts. dir
// is its working directory.
func (c *container) noteLauncher(ctx context.Context, line []string, dir string) {
	name, _ := launch.Called(line)
	if name == "" {
		return
	}
	key := dir + "\x00" + strings.Join(line, "\x00")
	c.seen.mu.Lock()
	known := c.seen.known[key] || len(c.seen.known) >= mostSeen || len(key) > mostWords
	if !known {
		if c.seen.known == nil {
			c.seen.known = make(map[string]bool)
		}
		c.seen.known[key] = true
	}
	c.seen.mu.Unlock()
	if known {
		return
	}
	c.log.Debug("the command has started a launcher", "phase", "wait", "command", brief(line))
	a := asked{name: name, hint: c.withoutHosts(line)}
	if a.hint != "" {
		c.log.Warn("a launcher has no host list and starts on this host only", "phase", "wait", "command", brief(line),
			"reason", a.hint, "hint", hostfileHint)
	}
	request, ok := launch.Asked(line)
	if !ok {
		return
	}
	if strings.HasPrefix(request.Hostfile, "-") {
		c.log.Warn("a launcher takes an option for its host list", "phase", "wait", "command", brief(line),
			"reason", "the variable before "+request.Hostfile+" was empty when a shell put its value there",
			"hint", "write AZUREML_MPI_HOSTFILE without $: paiinit replaces it")
	}
	if request.Hostfile != "" && !filepath.IsAbs(request.Hostfile) {
		request.Hostfile = filepath.Join(dir, request.Hostfile)
	}
	if err := c.fewestHosts(context.WithoutCancel(ctx), request, &a); err != nil {
		c.log.Debug("the hosts that a launcher was asked for are not known", "phase", "wait", "err", err)
		return
	}
	c.seen.mu.Lock()
	defer c.seen.mu.Unlock()
	c.seen.asks = append(c.seen.asks, a)
}

// withoutHosts says why a launcher can know no hosts that only takes them from its command line, or from one file.
func (c *container) withoutHosts(line []string) string {
	name, args := launch.Called(line)
	if how := launch.FillNamed(name); how != nil {
		if h := how.Read(args); h.Launches && h.Given == "" {
			return fmt.Sprintf("a login shell, an absolute path, another PATH or python -m has gone around %s, "+
				"which adds the hosts", c.state.path("bin/"+name))
		}
	} else if r, ok := launch.Asked(line); ok && r.HostfileOptional {
		if _, err := os.Stat(r.Hostfile); err != nil {
			return name + " looks for its hosts in " + r.Hostfile + ", which is not there"
		}
	}
	return ""
}

// brief is the beginning of a command line.
func brief(line []string) string {
	const most = 200
	text := strings.Join(line, " ")
	return text[:min(len(text), most)]
}

// fewestHosts finds out how many hosts a launcher needs at least, and among which.
func (c *container) fewestHosts(ctx context.Context, request launch.Request, a *asked) error {
	slots, err := c.slotsAsked(ctx, request)
	if err != nil {
		return err
	}
	var counts []int
	for alias, n := range slots {
		if n > 0 {
			a.among = append(a.among, alias)
			counts = append(counts, n)
		}
	}
	a.hosts = request.FewestHosts(counts)
	return nil
}

// launchersStarted returns the launchers that the command has started.
func (c *container) launchersStarted() []asked {
	c.seen.mu.Lock()
	defer c.seen.mu.Unlock()
	return slices.Clone(c.seen.asks)
}

// checkReached compares the hosts on which a launcher has started processes with the hosts that it was asked for. The
// launcher is the command itself, or a process that the command has started.
func (c *container) checkReached(r rendezvous.Roster, environ []string) *rendezvous.Outcome {
	if len(r.Members) == 1 || c.allowPartial {
		return nil
	}
	command := c.settings.command
	_, _, reached := c.daemons.now()
	hosts, tree := c.daemons.told()
	used := c.daemons.usedHosts()
	asks := c.launchersStarted()
	for _, a := range asks {
		var on []string
		for _, alias := range a.among {
			if alias == c.job.Alias || used[alias] { // a launcher needs no session to its own host
				on = append(on, alias)
			}
		}
		slices.Sort(on)
		// The launcher's daemons may reach the other hosts; where one cannot, the launcher ends with an error.
		have := max(len(on), hosts)
		if have >= a.hosts || tree {
			continue
		}
		cause := a.hint
		if cause == "" {
			cause = c.likelyCause(environ)
		} else {
			cause += "; " + hostfileHint
		}
		return &rendezvous.Outcome{Status: statusUnmendable, Reason: fmt.Sprintf(
			"%s ended with status 0, but did not use the hosts of this job: "+
				"it asked for %d at least and can have started on %d (%s). %s --allow-partial accepts it",
			a.name, a.hosts, have, strings.Join(on, ","), sentence(cause))}
	}
	if len(reached) == 0 && len(asks) == 0 {
		hint := "with --exec all every rank runs the command"
		if launch.ReachesHosts(command) || c.launcherSeen() {
			hint = hostfileHint
		}
		c.log.Warn("the command has used no other host of this job", "phase", "wait", "command", command[0],
			"hosts", len(r.Members), "hint", hint)
	}
	return nil
}

// launcherSeen says whether the command has started a launcher, understood or not.
func (c *container) launcherSeen() bool {
	c.seen.mu.Lock()
	defer c.seen.mu.Unlock()
	return len(c.seen.known) > 0
}

// sentence ends a text with a full stop.
func sentence(s string) string { return strings.TrimSuffix(s, ".") + "." }
