package main

import (
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/launch"
)

// jobProcesses finds the processes of the job in this container: those below the first process, without this one.
// Where the first process is gone, those below this one.
func (c *container) jobProcesses() (fsys fs.FS, all proc.Table, job []int) {
	fsys = os.DirFS("/proc")
	all = proc.ReadAll(fsys, os.Getpid())
	root := c.first
	if os.Getppid() != root {
		root = os.Getpid()
	}
	return fsys, all, slices.DeleteFunc(all.Below(root), func(pid int) bool { return pid == os.Getpid() })
}

// jobMembers are the processes of the job as package launch wants them.
func (c *container) jobMembers() []launch.Process {
	fsys, all, job := c.jobProcesses()
	members := make([]launch.Process, len(job))
	for i, pid := range job {
		p := all[pid]
		members[i] = launch.Process{
			PID: pid, Parent: p.Parent, Group: p.Group, State: p.State, Started: p.Started,
			Args: func() []string { return proc.CommandLine(fsys, pid) },
		}
	}
	return members
}

// variables are the names in the environment with which a process was started; none where it cannot be read.
func variables(fsys fs.FS, pid int) map[string]bool {
	names := make(map[string]bool)
	for _, kv := range proc.Environ(fsys, pid) {
		name, _, _ := strings.Cut(kv, "=")
		names[name] = true
	}
	return names
}
