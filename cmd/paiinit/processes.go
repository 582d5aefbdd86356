package main

import (
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/launch"
)

// jobProcesses returns the job's processes in this container: all descendants of the first process except this one. If
// the first process is gone, it returns the descendants of this one.
func (id *identity) jobProcesses() (fsys fs.FS, all proc.Table, job []int) {
	fsys = os.DirFS("/proc")
	all = proc.ReadAll(fsys, os.Getpid())
	root := id.first
	if os.Getppid() != root {
		root = os.Getpid()
	}
	return fsys, all, slices.DeleteFunc(all.Below(root), func(pid int) bool { return pid == os.Getpid() })
}

// jobMembers returns the processes of the job in this container, as package launch needs them.
func (id *identity) jobMembers() []launch.Process {
	return launchProcesses(id.jobProcesses())
}

func launchProcesses(fsys fs.FS, all proc.Table, job []int) []launch.Process {
	found := make([]launch.Process, len(job))
	for i, pid := range job {
		p := all[pid]
		found[i] = launch.Process{
			PID: pid, Parent: p.Parent, Group: p.Group, State: p.State, Started: p.Started,
			Name: p.Name, Exit: p.Exit,
			Args:      func() []string { return proc.CommandLine(fsys, pid) },
			Variables: func() map[string]bool { return variables(fsys, pid) },
		}
	}
	return found
}

// runsSelf reports whether a process executes this program.
func runsSelf(fsys fs.FS, pid int) bool {
	theirs, err := fs.Stat(fsys, strconv.Itoa(pid)+"/exe")
	own, errOwn := fs.Stat(fsys, "self/exe")
	return err == nil && errOwn == nil && os.SameFile(theirs, own)
}

// variables returns the names in a process's initial environment, none if the environment cannot be read.
func variables(fsys fs.FS, pid int) map[string]bool {
	names := make(map[string]bool)
	for _, kv := range proc.Environ(fsys, pid) {
		name, _, _ := strings.Cut(kv, "=")
		names[name] = true
	}
	return names
}
