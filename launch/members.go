package launch

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paiinit/paiinit/internal/proc"
)

// Process is a process of the job, with the values of /proc.
type Process struct {
	PID, Parent, Group int

	State   byte          // 'Z' for a zombie, 'T' for a stopped process (proc_pid_stat(5))
	Started time.Duration // distinguishes processes that had the same number
	Name    string        // the program's name in the kernel, at most 15 bytes
	Exit    int           // the wait status of a zombie (wait(2))

	// Args and Variables read /proc on demand, because most processes never need them; nil means that there are none.
	Args      func() []string        // the command line
	Variables func() map[string]bool // the names of the variables in its initial environment
}

// ReadProcesses returns the job's processes in this container: all descendants of process first except this one. If
// first is gone, it returns the descendants of this process.
func ReadProcesses(first int) []Process {
	self := os.Getpid()
	if os.Getppid() != first {
		first = self
	}
	all := processesBelow(proc.System{}, self, first)
	return slices.DeleteFunc(all, func(p Process) bool { return p.PID == self })
}

// processesBelow returns the descendants of process root in fsys, the /proc of process self.
func processesBelow(fsys fs.FS, self, root int) (found []Process) {
	all := proc.ReadAll(fsys, self)
	for _, pid := range all.Below(root) {
		p := all[pid]
		found = append(found, Process{
			PID: pid, Parent: p.Parent, Group: p.Group, State: p.State, Started: p.Started,
			Name: p.Name, Exit: p.Exit,
			Args:      func() []string { return proc.CommandLine(fsys, pid) },
			Variables: func() map[string]bool { return variableNames(proc.Environ(fsys, pid)) },
		})
	}
	return found
}

func variableNames(environ []string) map[string]bool {
	names := make(map[string]bool)
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		names[name] = true
	}
	return names
}

// RunsSelf reports whether a process executes this program.
func RunsSelf(pid int) bool { return IsSelf("/proc/" + strconv.Itoa(pid) + "/exe") }

// IsSelf reports whether a file is that of this program.
func IsSelf(file string) bool {
	other, err := os.Stat(file)
	own, errOwn := os.Stat("/proc/self/exe")
	return err == nil && errOwn == nil && os.SameFile(other, own)
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

// program returns what a process runs: the shell for a script, the applet for busybox, a login shell without its dash.
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
