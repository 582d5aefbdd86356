package pid1

import (
	"os"
	"strconv"
	"syscall"
)

// killAll sends SIGKILL to everything that the job may have left: if we are PID 1 to the whole namespace, else to our
// descendants in /proc. If /proc is missing or belongs to another PID namespace, only PID 1 can kill anything.
func (p *process) killAll() {
	if p.init {
		_ = syscall.Kill(
			-1,
			syscall.SIGKILL,
		) // never to ourselves; ESRCH: no process is left; EPERM: none that we may kill
		return
	}
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return
	}
	for _, pid := range descendants(parents(), os.Getpid()) {
		// The number may belong to a new process only if another descendant reaped the old one and all other numbers
		// were used meanwhile.
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// parents reads each process's parent from /proc.
func parents() map[int]int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = proc.Close() }()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil
	}
	parent := make(map[int]int, len(names))
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has ended
		}
		if pid, ppid, ok := parseStat(stat); ok {
			parent[pid] = ppid
		}
	}
	return parent
}

// parseStat reads process id and parent from /proc/PID/stat (proc_pid_stat(5)): "PID (NAME) STATE PARENT ...", where
// NAME may contain anything.
func parseStat(stat []byte) (pid, ppid int, ok bool) {
	number, rest, _ := cut(stat, ' ')
	end := len(rest) - 1
	for end >= 0 && rest[end] != ')' {
		end--
	}
	fields := split(string(rest[end+1:]), ' ') // an empty one comes first
	if end < 0 || rest[0] != '(' || len(fields) < 3 {
		return 0, 0, false
	}
	pid, err1 := strconv.Atoi(string(number))
	ppid, err2 := strconv.Atoi(fields[2])
	return pid, ppid, err1 == nil && err2 == nil
}

// descendants returns the children of root, their children, and so on, each after its parent.
func descendants(parent map[int]int, root int) []int {
	children := make(map[int][]int)
	for pid, ppid := range parent {
		children[ppid] = append(children[ppid], pid)
	}
	found := children[root]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}
