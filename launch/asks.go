package launch

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A command may start launchers instead of being one, as a script does. Their command lines are read from /proc while
// they run, so that paiinit can check at the end whether they used the hosts that they were asked to use.

const (
	firstLook    = 250 * time.Millisecond // shorter than a launcher in Python needs to import its packages
	longestLook  = 30 * time.Second
	mostSeen     = 64      // launchers remembered
	mostWords    = 1 << 16 // bytes of a command line remembered
	hostfileHint = "--hostfile $PAIINIT_HOSTFILE names the hosts of this job"
)

// Asks remembers what the launchers of a command were asked for, each command line once.
type Asks struct {
	Log  *slog.Logger       // receives what is wrong with a command line
	Bin  string             // the job's bin directory
	Ours func(pid int) bool // reports whether a process runs this program
	// Slots returns the slots of the hosts that a launcher may use, by host name.
	Slots func(ctx context.Context, r Request) (map[string]int, error)

	mu    sync.Mutex
	known map[string]bool // by working directory and command line
	asks  []asked
}

// asked is what a launcher was asked for: the smallest number of hosts, and the hosts that it may use.
type asked struct {
	name  string
	hosts int
	among []string
	hint  string // why it may have used fewer
}

// Look finds launchers among the processes below self until ctx ends: soon after the start of the command, and then at
// growing intervals.
func (a *Asks) Look(ctx context.Context, self int, processes func() []Process) {
	for pause := firstLook; ; pause = min(2*pause, longestLook) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		for _, p := range a.launchersBelow(processes(), self) {
			dir, _ := os.Readlink("/proc/" + strconv.Itoa(p.PID) + "/cwd") // else Note reads only absolute paths
			a.Note(ctx, p.args(), dir)
		}
	}
}

// launchersBelow finds the topmost launchers of each branch below the command: others belong to them or to their ranks.
// It leaves out commands that another rank started here by ssh, and our own program before it executes a launcher.
func (a *Asks) launchersBelow(all []Process, self int) (found []*Process) {
	children := make(map[int][]*Process)
	for i := range all {
		p := &all[i]
		if p.PID != p.Parent && (p.Parent != self || !p.variables()["SSH_CONNECTION"]) {
			children[p.Parent] = append(children[p.Parent], p)
		}
	}
	open := children[self]
	for seen := make(map[int]bool); len(open) > 0; {
		p := open[0]
		open = open[1:]
		if seen[p.PID] { // a number that is reused while /proc is read may close a circle
			continue
		}
		seen[p.PID] = true
		switch name, _ := Called(p.args()); {
		case name == "":
			open = append(open, children[p.PID]...)
		case !a.Ours(p.PID):
			found = append(found, p)
		}
	}
	return found
}

// Note remembers what a launcher on rank 0 was asked for, and warns at once if it cannot find its hosts. dir is its
// working directory.
func (a *Asks) Note(ctx context.Context, line []string, dir string) {
	name, _ := Called(line)
	if name == "" || !a.isNews(dir+"\x00"+strings.Join(line, "\x00")) {
		return
	}
	const longestLogged = 200
	command := strings.Join(line, " ")
	log := a.Log.With("phase", "wait", "command", command[:min(len(command), longestLogged)])
	log.Debug("the command has started a launcher")
	ask := asked{name: name, hint: a.withoutHosts(line)}
	if ask.hint != "" {
		log.Warn("a launcher has no host list and starts on this host only", "reason", ask.hint, "hint", hostfileHint)
	}
	request, ok := Asked(line)
	if !ok {
		return
	}
	if strings.HasPrefix(request.Hostfile, "-") {
		log.Warn("a launcher reads an option as its host list",
			"reason", "the variable before "+request.Hostfile+" was empty when a shell expanded it",
			"hint", "write AZUREML_MPI_HOSTFILE without $: paiinit replaces it")
	}
	if request.Hostfile != "" && !filepath.IsAbs(request.Hostfile) {
		request.Hostfile = filepath.Join(dir, request.Hostfile)
	}
	slots, err := a.Slots(context.WithoutCancel(ctx), request)
	if err != nil {
		a.Log.Debug("cannot tell which hosts a launcher was asked for", "phase", "wait", "err", err)
		return
	}
	maps.DeleteFunc(slots, func(_ string, n int) bool { return n < 1 })
	ask.among = slices.Collect(maps.Keys(slots))
	ask.hosts = request.FewestHosts(slices.Collect(maps.Values(slots)))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asks = append(a.asks, ask)
}

// isNews reports whether this is the first call for a command line, and remembers it.
func (a *Asks) isNews(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known[key] || len(a.known) >= mostSeen || len(key) > mostWords {
		return false
	}
	if a.known == nil {
		a.known = make(map[string]bool)
	}
	a.known[key] = true
	return true
}

// withoutHosts returns why a launcher that reads its hosts only from its command line or one file cannot know them.
func (a *Asks) withoutHosts(line []string) string {
	name, args := Called(line)
	if how := FillNamed(name); how != nil {
		if h := how.Read(args); h.Launches && h.Given == "" {
			return fmt.Sprintf("a login shell, an absolute path, another PATH or python -m bypassed %s, "+
				"which adds the hosts", a.Bin+"/"+name)
		}
	} else if r, ok := Asked(line); ok && r.HostfileOptional {
		if _, err := os.Stat(r.Hostfile); err != nil {
			return name + " looks for its hosts in " + r.Hostfile + ", which does not exist"
		}
	}
	return ""
}

// started returns what the launchers with an understood command line were asked for; some: there were launchers.
func (a *Asks) started() (asks []asked, some bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asks), len(a.known) > 0
}

// Reached compares the hosts on which launchers started processes with the hosts that they were asked to use. The
// result is the outcome of the job if a launcher used too few, else nil.
func (s *Supervisor) Reached() *Outcome {
	if s.Hosts == 1 || s.AllowPartial {
		return nil
	}
	now := s.Sessions.now()
	asks, some := s.Asks.started()
	for _, a := range asks {
		var on []string
		for _, host := range a.among {
			if host == s.Self || now.reached[host] { // a launcher needs no session to its own host
				on = append(on, host)
			}
		}
		slices.Sort(on)
		// The launcher's daemons may reach the other hosts; if one cannot, the launcher itself fails.
		have := max(len(on), now.hosts)
		if have >= a.hosts || now.tree {
			continue
		}
		cause := a.hint + "; " + hostfileHint
		if a.hint == "" {
			cause = likelyCause(s.Own, s.Environ)
		}
		return &Outcome{Status: s.Sessions.statuses.Unused, Reason: fmt.Sprintf(
			"%s ended with status 0, but did not use the hosts of this job: "+
				"it asked for at least %d and started on at most %d (%s). %s --allow-partial accepts it",
			a.name, a.hosts, have, strings.Join(on, ","), strings.TrimSuffix(cause, ".")+".")}
	}
	if len(now.reached) == 0 && len(asks) == 0 {
		hint := "with --exec all every rank runs the command"
		if ReachesHosts(s.Line) || some {
			hint = hostfileHint
		}
		s.Log.Warn("the command has used no other host of this job", "phase", "wait", "command", s.Line[0],
			"hosts", s.Hosts, "hint", hint)
	}
	return nil
}

// likelyCause returns what probably kept a launcher from the other hosts. own is the job's own environment, given that
// of the command.
func likelyCause(own, given []string) string {
	var wins []string
	sample := Setup{Hostfile: "/x", CountedHostfile: "/x", Agent: []string{"/x"}, AgentPath: "/x"}
	for _, v := range Environment(sample) {
		value := Value(given, v.Name)
		users, set := lookupEnv(own, v.Name)
		if value == "" && set || value != "" && users == value {
			wins = append(wins, v.Name+"="+value)
		}
	}
	if len(wins) > 0 {
		return "The job's own environment has " + strings.Join(wins, " ") +
			", which overrides what the launcher needs here."
	}
	return "The launcher did not read the host list in its environment: " +
		"an option or a configuration file of its own may have taken its place."
}
