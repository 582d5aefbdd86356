package launch

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Process is a process of the job as /proc shows it.
type Process struct {
	PID, Parent, Group int
	// State is 'Z' for a zombie, 'T' for a stopped process (proc_pid_stat(5)).
	State byte
	// Started tells two processes apart that have had the same number.
	Started time.Duration
	// Name is the kernel's name of the program: at most 15 bytes.
	Name string
	// Exit is the status of a zombie, as wait(2) gives it.
	Exit int
	// Args reads the command line, which most processes are never asked for; nil: there is none.
	Args func() []string
	// Variables reads the names in the environment with which it was started; nil: there are none.
	Variables func() map[string]bool
}

// A wrapper is a program that people put around the program that saves the job's work. Programs that become their
// command by exec, such as env, nice, nohup and stdbuf, are no wrappers: when a signal comes, they are the command.
const (
	// A shell may have a trap, so it gets the signal, and its children get it as well: without a trap it just ends.
	shell = iota + 1
	// A relay gets no signal as long as it has a child. It would send the signal a second time (tini, sudo), send it to
	// its whole group, in which the helpers of the command are (timeout, dumb-init), or die and take the exit status
	// along (time, flock).
	relay
)

// wrapper says which kind of wrapper a program is; 0: none.
func wrapper(program string) int {
	switch program {
	case "sh", "ash", "bash", "rbash", "dash", "zsh", "ksh", "ksh93", "mksh", "yash", "fish", "csh", "tcsh":
		return shell
	case "tini", "tini-static", "docker-init", "dumb-init", "catatonit", "sudo", "su", "runuser",
		"timeout", "time", "flock", "setsid", "unshare", "nsenter", "strace":
		return relay
	}
	return 0
}

// program names what a process runs: a shell for a script, the applet for busybox, without the dash of a login shell.
func (p Process) program() string {
	args := p.args()
	if len(args) > 1 && (path.Base(args[0]) == "busybox" || path.Base(args[0]) == "toybox") {
		args = args[1:]
	}
	if len(args) == 0 {
		return ""
	}
	return strings.TrimPrefix(path.Base(args[0]), "-")
}

func (p Process) args() []string {
	if p.Args == nil {
		return nil
	}
	return p.Args()
}

func (p Process) variables() map[string]bool {
	if p.Variables == nil {
		return nil
	}
	return p.Variables()
}

// family are processes of the job by number.
type family map[int]Process

func newFamily(all []Process) family {
	f := make(family, len(all))
	for _, p := range all {
		f[p.PID] = p
	}
	return f
}

// living are those of the processes that have not ended, in the order of their numbers.
func (f family) living(those func(Process) bool) (found []Process) {
	for _, pid := range slices.Sorted(maps.Keys(f)) {
		if p := f[pid]; p.State != 'Z' && those(p) {
			found = append(found, p)
		}
	}
	return found
}

// path returns the processes from the leader down to the first programs that are no wrappers, and these too: they know
// how to save the job's work, and stop their helpers, such as the loader workers of PyTorch. A shell comes before its
// children: the next command of a script must not start when the present one ends.
func (f family) path(leader int) (found []Process) {
	seen := make(map[int]bool) // numbers that are used again while /proc is read may close a circle
	var visit func(p Process)
	visit = func(p Process) {
		if seen[p.PID] {
			return
		}
		seen[p.PID] = true
		kind := wrapper(p.program())
		var children []Process
		if kind != 0 {
			children = f.living(func(child Process) bool { return child.Parent == p.PID })
		}
		if kind != relay || len(children) == 0 {
			found = append(found, p)
		}
		for _, child := range children {
			visit(child)
		}
	}
	if p, ok := f[leader]; ok && p.State != 'Z' {
		visit(p)
	}
	return found
}

// daemons are the living processes of the command that have left its process group: those below the leader, and
// orphans, which the init has adopted. What else the agent has started, such as sessions of other ranks, is not among
// them.
func (f family) daemons(leader, agent int) []Process {
	ours := func(p Process) bool {
		for range f { // no more steps than processes, if there is a circle
			if p.PID == leader {
				return true
			}
			if p.Parent == agent {
				return false
			}
			parent, ok := f[p.Parent]
			if !ok {
				return true
			}
			p = parent
		}
		return false
	}
	return f.living(func(p Process) bool { return p.Group != leader && p.PID != agent && ours(p) })
}
