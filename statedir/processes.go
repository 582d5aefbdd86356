package statedir

import (
	"bytes"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// process is what /proc/PID/stat says of a process (proc_pid_stat(5)).
type process struct {
	parent int
	name   string // comm: at most 15 bytes
}

// ancestors lists the parent of a process, the parent's parent, and so on, as far as proc, which is /proc, shows them.
func ancestors(proc fs.FS, pid int) (chain []int) {
	for {
		p, ok := readProcess(proc, pid)
		if !ok || p.parent <= 0 || slices.Contains(chain, p.parent) {
			return chain
		}
		pid = p.parent
		chain = append(chain, pid)
	}
}

// readProcess reads "PID (NAME) STATE PARENT ...", where NAME may contain anything.
func readProcess(proc fs.FS, pid int) (p process, ok bool) {
	stat, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/stat")
	if err != nil {
		return p, false
	}
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return p, false
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 2 {
		return p, false
	}
	parent, err := strconv.Atoi(fields[1])
	return process{parent: parent, name: string(stat[open+1 : end])}, err == nil
}
