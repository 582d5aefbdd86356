package launch

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tailWidth is the maximum length, in bytes, of each stderr line that a cause quotes.
const tailWidth = 300

// FirstCause describes how a rank's command ended. Every container of the job prints it at the end.
func FirstCause(rank int, name string, r Result, oomKills int) string {
	text := fmt.Sprintf("rank %d's command %s ", rank, name)
	switch r.Signal {
	case 0:
		text += fmt.Sprintf("ended with status %d", r.Code)
	case r.Forwarded:
		text += "was stopped by " + SignalName(int(r.Signal))
	default:
		text += "was killed by " + SignalName(int(r.Signal))
	}
	if r.Forwarded != 0 && r.Forwarded != r.Signal {
		text += " after " + SignalName(int(r.Forwarded))
	}
	if r.Status() == 0 {
		return text
	}
	if oomKills > 0 {
		text += fmt.Sprintf("; %s on rank %d", OOMText(oomKills), rank)
	}
	if len(r.Tail) > 0 {
		text += "; its last lines on stderr:"
		for _, l := range r.Tail {
			text += "\n" + l[:min(len(l), tailWidth)]
		}
	}
	return text
}

// OOMText says how many processes the kernel killed for lack of memory.
func OOMText(n int) string {
	if n == 1 {
		return "the kernel killed a process for lack of memory"
	}
	return fmt.Sprintf("the kernel killed %d processes for lack of memory", n)
}

// OOMKills returns how many processes of this container's cgroup the OOM killer has killed. It reads memory.events of
// cgroup v2 or memory.oom_control of v1 (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst in the
// kernel's sources).
func OOMKills(root fs.FS) int {
	for _, name := range []string{"sys/fs/cgroup/memory.events", "sys/fs/cgroup/memory/memory.oom_control"} {
		b, _ := fs.ReadFile(root, name) // only one of the two exists
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
				if n, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
					return n
				}
			}
		}
	}
	return 0
}

// SignalName returns "SIGTERM" for 15.
func SignalName(n int) string {
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", n)
}

// JobStatus returns the job's exit status for the end of a command. A launcher that was told to stop may exit with 0
// (MPICH), 1 (Open MPI, torchrun, horovodrun) or the status of a rank, so its job counts as stopped by the signal. Any
// other command may have saved its work and exited with 0.
func (r Result) JobStatus(launcher bool) int {
	if launcher && r.Forwarded != 0 {
		return 128 + int(r.Forwarded)
	}
	return r.Status()
}
