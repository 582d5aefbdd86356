// Package proc reads the processes of a PID namespace from /proc, or from a file system that looks like it.
//
// The first process of a container and the early remote shell import this package, so it has no variables to initialise
// and does not use bytes or strings: both import unicode, whose tables would be initialised in every process.
package proc

import (
	"errors"
	"io/fs"
	"iter"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Process has what /proc/PID/stat says about a process (proc_pid_stat(5)).
type Process struct {
	PID, Parent, Group, Session int

	Name    string        // comm: at most 15 bytes
	State   byte          // 'Z' is a zombie, 'T' is stopped
	Exiting bool          // its exit has begun: the connections are closed, but it may not be a zombie yet
	Started time.Duration // since the machine's boot
	Threads int           // a zombie with more than one is a process whose first thread has ended, but not the others
	Exit    int           // the wait(2) status of a zombie; 0 if the kernel hides it
}

// Ended reports whether the process is dead: a zombie, or about to disappear.
func (p Process) Ended() bool { return p.State == 'Z' && p.Threads <= 1 || p.State == 'X' }

// The fields of a line that Parse reads, counted from the state.
const (
	fieldState   = 0
	fieldParent  = 1
	fieldGroup   = 2
	fieldSession = 3
	fieldFlags   = 6
	fieldThreads = 17
	fieldStarted = 19
	fieldExit    = 49 // kernels before 3.5 have no such field
)

// Parse reads "PID (NAME) STATE PARENT GROUP SESSION ...", where NAME may contain anything. It returns false for a line
// that is cut before the end of the start time.
func Parse(stat []byte) (p Process, ok bool) {
	open, end := slices.Index(stat, '('), len(stat)-1
	for end > open && stat[end] != ')' {
		end--
	}
	if open < 0 || end <= open {
		return Process{}, false
	}
	first, more := nextField(stat[:open])
	pid, err := strconv.Atoi(string(first))
	if err != nil || pid <= 0 || len(more) > 1 {
		return Process{}, false
	}
	var fields [fieldExit + 1][]byte
	rest := stat[end+1:]
	for i := range fields {
		fields[i], rest = nextField(rest)
		if i == fieldStarted && len(rest) == 0 { // the number may be cut
			return Process{}, false
		}
	}
	ok = len(fields[fieldState]) == 1
	number := func(field int) int {
		n, err := strconv.Atoi(string(fields[field]))
		ok = ok && err == nil
		return n
	}
	const (
		exiting = 0x4                   // PF_EXITING of the kernel's include/linux/sched.h
		tick    = 10 * time.Millisecond // on every machine
	)
	p = Process{
		PID: pid, Name: string(stat[open+1 : end]), State: fields[fieldState][0],
		Parent: number(fieldParent), Group: number(fieldGroup), Session: number(fieldSession),
		Exiting: number(fieldFlags)&exiting != 0,
		Started: time.Duration(number(fieldStarted)) * tick,
		Threads: number(fieldThreads),
	}
	if !ok {
		return Process{}, false
	}
	p.Exit, _ = strconv.Atoi(string(fields[fieldExit]))
	return p, true
}

// nextField cuts off the first field.
func nextField(b []byte) (field, rest []byte) {
	begin := 0
	for begin < len(b) && isSpace(b[begin]) {
		begin++
	}
	end := begin
	for end < len(b) && !isSpace(b[end]) {
		end++
	}
	return b[begin:end], b[end:]
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' }

// Read reads the entry of one process. The error wraps fs.ErrNotExist or syscall.ESRCH if the process is gone.
func Read(proc fs.FS, pid int) (Process, error) {
	return read(proc, strconv.Itoa(pid))
}

func read(proc fs.FS, name string) (Process, error) {
	stat, err := fs.ReadFile(proc, name+"/stat")
	if err != nil {
		return Process{}, err
	}
	p, ok := Parse(stat)
	if !ok {
		return Process{}, &fs.PathError{Op: "read", Path: name + "/stat", Err: errors.New("not the line of a process")}
	}
	return p, nil
}

// Table has the processes of a PID namespace by number.
type Table map[int]Process

// ReadAll reads the processes once; self is the PID of this process. It returns nil if proc belongs to another PID
// namespace, whose PIDs would name other processes here. It omits processes that end meanwhile.
func ReadAll(proc fs.FS, self int) Table {
	if own, err := read(proc, "self"); err != nil || own.PID != self {
		return nil
	}
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil
	}
	all := make(Table, len(entries))
	for _, e := range entries {
		if name := e.Name(); name[0] < '1' || name[0] > '9' {
			continue
		}
		if p, err := read(proc, e.Name()); err == nil {
			all[p.PID] = p
		}
	}
	return all
}

// Add reads the processes that the table lacks: those that were started while it was read, and those that ended before
// they were read, which may have left children. It reports whether proc lists any: if not, every process that lives now
// was read before, however fast processes start processes. It leaves out what this user may not read.
func (all Table) Add(proc fs.FS) (more bool, err error) {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if _, known := all[pid]; known || err != nil {
			continue
		}
		p, err := read(proc, e.Name())
		switch {
		case errors.Is(err, fs.ErrPermission):
			continue
		case err == nil:
			all[p.PID] = p
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH):
			return false, err
		}
		more = true
	}
	return more, nil
}

// Below returns the children of root, their children, and so on, each after its parent. The first process of a
// container adopts orphans, so every process of the job is below it, whatever environment a launcher has given it.
func (all Table) Below(root int) []int {
	children := make(map[int][]int)
	for _, p := range all {
		children[p.Parent] = append(children[p.Parent], p.PID)
	}
	for _, c := range children {
		slices.Sort(c)
	}
	seen := map[int]bool{root: true} // PIDs that the kernel reuses while we read proc may form a cycle
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

// Ancestors yields the parent of a process, the parent's parent, and so on, as far as proc shows them.
func Ancestors(proc fs.FS, pid int) iter.Seq[int] {
	return func(yield func(int) bool) {
		seen := []int{}
		for {
			p, err := Read(proc, pid)
			if err != nil || p.Parent <= 0 || slices.Contains(seen, p.Parent) || !yield(p.Parent) {
				return
			}
			pid = p.Parent
			seen = append(seen, pid)
		}
	}
}

// Generations returns how many generations above a process its paiinit is, of which agent is the second process: 0 =
// the process is the agent, -1 = the agent belongs to no ancestor. An orphan, such as a launcher's daemon, is a child
// of the first of paiinit's two processes, which is the parent of the agent and has its name.
func Generations(proc fs.FS, pid, agent int) int {
	chain := []int{pid}
	if pid == agent {
		return 0
	}
	for ancestor := range Ancestors(proc, pid) {
		if ancestor == agent {
			return len(chain)
		}
		chain = append(chain, ancestor)
	}
	own, err := Read(proc, agent)
	if err != nil {
		return -1
	}
	first, err := Read(proc, own.Parent)
	if err != nil || first.Name != own.Name {
		return -1
	}
	return slices.Index(chain, first.PID)
}

// CommandLine returns the arguments of a process; none if they cannot be read.
func CommandLine(proc fs.FS, pid int) []string {
	return readWords(proc, pid, "cmdline")
}

// Environ returns the environment with which a process was started; none if it cannot be read.
func Environ(proc fs.FS, pid int) []string {
	return readWords(proc, pid, "environ")
}

// Catches reports whether a process has a handler for a signal (SigCgt in /proc/PID/status, proc_pid_status(5)).
func Catches(proc fs.FS, pid int, signal syscall.Signal) bool {
	b, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/status")
	if err != nil {
		return false
	}
	const field = "SigCgt:\t"
	for len(b) > 0 {
		end := slices.Index(b, '\n')
		if end < 0 {
			end = len(b) - 1
		}
		if line := string(b[:end]); len(line) > len(field) && line[:len(field)] == field {
			mask, err := strconv.ParseUint(line[len(field):], 16, 64)
			return err == nil && signal > 0 && mask>>(signal-1)&1 == 1
		}
		b = b[end+1:]
	}
	return false
}

// readWords reads a file in which a NUL ends each word.
func readWords(proc fs.FS, pid int, file string) (words []string) {
	b, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/"+file)
	if err != nil {
		return nil
	}
	text, begin := string(b), 0
	for i, c := range b {
		if c == 0 {
			words = append(words, text[begin:i])
			begin = i + 1
		}
	}
	if begin < len(text) { // a process may have written its title there, without a NUL
		words = append(words, text[begin:])
	}
	return words
}

// RunDelay returns how long the living threads of this process have waited for a processor
// (Documentation/scheduler/sched-stats.rst of the kernel, /proc/PID/schedstat); 0 if the kernel does not count it.
func RunDelay(proc fs.FS) (sum time.Duration) {
	threads, err := fs.ReadDir(proc, "self/task")
	if err != nil {
		return 0
	}
	for _, t := range threads {
		text, err := fs.ReadFile(proc, "self/task/"+t.Name()+"/schedstat")
		if err != nil {
			continue // the thread has ended
		}
		_, rest := nextField(text)
		field, _ := nextField(rest)
		ns, _ := strconv.Atoi(string(field))
		sum += time.Duration(ns)
	}
	return sum
}
