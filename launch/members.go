package launch

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Process is a process of the job, with the values of /proc.
type Process struct {
	PID, Parent, Group int
	// State is 'Z' for a zombie, 'T' for a stopped process (proc_pid_stat(5)).
	State byte
	// Started is its start time, which distinguishes processes that had the same number.
	Started time.Duration
	// Name is the program's name in the kernel, at most 15 bytes.
	Name string
	// Exit is the wait status of a zombie (wait(2)).
	Exit int
	// Args reads the command line, on demand because most processes never need it; nil if there is none.
	Args func() []string
	// Variables reads the names of the variables in its initial environment; nil if there are none.
	Variables func() map[string]bool
}

// A wrapper is a program that runs around the program that saves the job's work. Programs that become their command by
// exec, such as env, nice, nohup and stdbuf, are no wrappers: when a signal arrives, they already are the command.
const (
	// A shell gets the signal, because it may have a trap, and so do its children. Without a trap it just ends.
	shell = iota + 1
	// A relay gets no signal as long as it has a child. It would send the signal again (tini, sudo), send it to its
	// whole group with the command's helpers (timeout, dumb-init), or die and lose the exit status (time, flock).
	relay
)

// wrapper returns the kind of a wrapper; 0 for other programs.
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

// program returns the name of what a process runs: the shell for a script, the applet for busybox, and a login shell
// without its dash.
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

// family holds the processes of the job by number.
type family map[int]Process

func newFamily(all []Process) family {
	f := make(family, len(all))
	for _, p := range all {
		f[p.PID] = p
	}
	return f
}

// living returns the processes that have not ended and match, in the order of their numbers.
func (f family) living(those func(Process) bool) (found []Process) {
	for _, pid := range slices.Sorted(maps.Keys(f)) {
		if p := f[pid]; p.State != 'Z' && those(p) {
			found = append(found, p)
		}
	}
	return found
}

// path returns the processes from the leader down to the first programs that are no wrappers, with these programs: they
// know how to save the job's work, and stop their helpers, such as PyTorch's loader workers. A shell comes before its
// children, so that a script does not start its next command when the present one ends.
func (f family) path(leader int) (found []Process) {
	seen := make(map[int]bool) // a number that is reused while /proc is read may close a circle
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

// daemons returns the living processes of the command that have left its process group: those below the leader, and
// orphans, which the init has adopted. It leaves out other processes of the agent, such as sessions of other ranks.
func (f family) daemons(leader, agent int) []Process {
	ours := func(p Process) bool {
		for range f { // at most one step per process, in case of a circle
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
