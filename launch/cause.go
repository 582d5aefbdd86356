package launch

import (
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tailWidth is the maximum length, in bytes, of each stderr line that a cause quotes.
const tailWidth = 300

// FirstCause describes how a rank's command ended, in the one paragraph that every container of the job prints at the
// end.
func FirstCause(rank int, name string, r Result, oomKills int) string {
	var b strings.Builder
	after := r.Forwarded
	switch {
	case r.Signal != 0 && r.Signal == r.Forwarded:
		fmt.Fprintf(&b, "rank %d's command %s was stopped by %s", rank, name, SignalName(int(r.Signal)))
		after = 0
	case r.Signal != 0:
		fmt.Fprintf(&b, "rank %d's command %s was killed by %s", rank, name, SignalName(int(r.Signal)))
	default:
		fmt.Fprintf(&b, "rank %d's command %s ended with status %d", rank, name, r.Code)
	}
	if after != 0 {
		fmt.Fprintf(&b, " after %s", SignalName(int(after)))
	}
	if r.Status() == 0 {
		return b.String()
	}
	if oomKills > 0 {
		fmt.Fprintf(&b, "; %s on rank %d", OOMText(oomKills), rank)
	}
	if len(r.Tail) > 0 {
		b.WriteString("; its last lines on stderr:")
		for _, l := range r.Tail {
			b.WriteString("\n" + l[:min(len(l), tailWidth)])
		}
	}
	return b.String()
}

// OOMText says how many processes the kernel killed for lack of memory.
func OOMText(n int) string {
	if n == 1 {
		return "the kernel killed a process for lack of memory"
	}
	return fmt.Sprintf("the kernel killed %d processes for lack of memory", n)
}

// SignalName returns the name of a signal, such as SIGTERM.
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
