package main

import (
	"bytes"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paiinit/paiinit/launch"
)

// process is what /proc/PID/stat says of a process (proc_pid_stat(5)).
type process struct {
	pid, parent, group, session int

	name    string        // comm: at most 15 bytes
	state   byte          // 'Z' is a zombie, 'T' is stopped
	started time.Duration // since the machine's boot
	exit    int           // of a zombie, as wait(2) gives it
}

// processes are the processes of a PID namespace by number.
type processes map[int]process

// readProcesses reads /proc once; self is the number of this process. It returns none where /proc belongs to another
// PID namespace, whose numbers would name other processes here. A process that ends meanwhile is left out.
func readProcesses(proc fs.FS, self int) processes {
	own, err := fs.ReadFile(proc, "self/stat")
	if p, ok := parseStat(own); err != nil || !ok || p.pid != self {
		return nil
	}
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil
	}
	all := make(processes, len(entries))
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		stat, err := fs.ReadFile(proc, e.Name()+"/stat")
		if err != nil {
			continue
		}
		if p, ok := parseStat(stat); ok {
			all[p.pid] = p
		}
	}
	return all
}

// parseStat reads "PID (NAME) STATE PARENT GROUP SESSION ...", where NAME may contain anything. Kernels before 3.5 have
// no exit status there.
func parseStat(stat []byte) (p process, ok bool) {
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return p, false
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(stat[:open])))
	fields := strings.Fields(string(stat[end+1:]))
	if err != nil || len(fields) < 20 || len(fields[0]) != 1 {
		return p, false
	}
	p = process{pid: pid, name: string(stat[open+1 : end]), state: fields[0][0]}
	for i, n := range []*int{&p.parent, &p.group, &p.session} {
		if *n, err = strconv.Atoi(fields[1+i]); err != nil {
			return p, false
		}
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return p, false
	}
	p.started = time.Duration(ticks) * 10 * time.Millisecond // Linux shows 100 ticks a second on every machine
	if len(fields) > 49 {
		p.exit, _ = strconv.Atoi(fields[49]) // 0 where the kernel hides it
	}
	return p, true
}

// children are the processes that a process has started, or adopted, in the order of their numbers.
func (all processes) children(pid int) (found []int) {
	for _, p := range all {
		if p.parent == pid && p.pid != pid {
			found = append(found, p.pid)
		}
	}
	slices.Sort(found)
	return found
}

// below are the children of root, their children, and so on, each after its parent. The first process of a container
// adopts orphans, so every process of the job is below it, whatever environment a launcher has given it.
func (all processes) below(root int) []int {
	children := make(map[int][]int)
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p.pid)
	}
	for _, c := range children {
		slices.Sort(c)
	}
	seen := map[int]bool{root: true} // numbers that are used again while /proc is read may close a circle
	found := []int{root}
	for i := 0; i < len(found); i++ {
		for _, pid := range children[found[i]] {
			if !seen[pid] {
				seen[pid] = true
				found = append(found, pid)
			}
		}
	}
	return found[1:]
}

// jobProcesses finds the processes of the job in this container: those below the first process, without this one.
// Where the first process is gone, those below this one.
func (c *container) jobProcesses() (proc fs.FS, all processes, job []int) {
	proc = os.DirFS("/proc")
	all = readProcesses(proc, os.Getpid())
	root := c.first
	if os.Getppid() != root {
		root = os.Getpid()
	}
	return proc, all, slices.DeleteFunc(all.below(root), func(pid int) bool { return pid == os.Getpid() })
}

// jobMembers are the processes of the job as package launch wants them.
func (c *container) jobMembers() []launch.Process {
	return launchProcesses(c.jobProcesses())
}

func launchProcesses(proc fs.FS, all processes, job []int) []launch.Process {
	found := make([]launch.Process, len(job))
	for i, pid := range job {
		p := all[pid]
		found[i] = launch.Process{
			PID: pid, Parent: p.parent, Group: p.group, State: p.state, Started: p.started,
			Name: p.name, Exit: p.exit,
			Args:      func() []string { return commandLine(proc, pid) },
			Variables: func() map[string]bool { return variables(proc, pid) },
		}
	}
	return found
}

// variables are the names in the environment with which a process was started; none where it cannot be read.
func variables(proc fs.FS, pid int) map[string]bool {
	environ, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/environ")
	if err != nil {
		return nil
	}
	names := make(map[string]bool)
	for kv := range bytes.SplitSeq(environ, []byte{0}) {
		name, _, _ := bytes.Cut(kv, []byte("="))
		names[string(name)] = true
	}
	return names
}

// commandLine are the words with which a process was started; none where they cannot be read.
func commandLine(proc fs.FS, pid int) []string {
	line, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/cmdline")
	if err != nil || len(line) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
}

// runsSelf says whether a process executes this program.
func runsSelf(proc fs.FS, pid int) bool {
	theirs, err := fs.Stat(proc, strconv.Itoa(pid)+"/exe")
	own, errOwn := fs.Stat(proc, "self/exe")
	return err == nil && errOwn == nil && os.SameFile(theirs, own)
}
