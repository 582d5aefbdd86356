package launch

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Scene says where a rank's command ran.
type Scene struct {
	Rank  int
	Place string // the container, such as "worker-2 (10.0.0.7)"; "" = not worth naming, as in a job of one rank
	// Find returns the place of a host, as the launcher names it. It may be nil.
	Find func(host string) string
}

// OOM is how many processes the kernel has killed in the cgroup of a container for lack of memory.
type OOM struct {
	Place string
	Kills int
}

// Outcome describes how a rank's command ended: the first cause, and the last lines of a command that failed.
func (s Scene) Outcome(name string, r Result, ooms []OOM) Outcome {
	o := Outcome{Status: r.Status(), Reason: s.cause(name, r, ooms)}
	o.Hung = r.Hung != nil
	if o.Status != 0 || o.Hung {
		o.Stderr, o.Stdout = quoted(r.Tail), quoted(r.Stdout)
		o.Own = len(r.Tail)+len(r.Stdout) > 0 && (r.OwnTail || r.Blame.Process == "" && !programStarts(name, jobRanks))
	}
	return o
}

// cause names the process that the launcher blames, else the command.
func (s Scene) cause(name string, r Result, ooms []OOM) string {
	if r.Hung != nil {
		return s.hung(name, *r.Hung)
	}
	b, command := r.Blame, s.command(name, r)
	if r.Status() == 0 || r.Forwarded != 0 || b.Process == "" && b.Cause == "" {
		text := command
		if r.Status() != 0 {
			text += memory(ooms, s.Place, r.Signal == syscall.SIGKILL)
		}
		return text
	}
	var text string
	if b.Process == "" {
		text = b.Cause
		if b.Unnamed {
			text += "; " + command
		}
		return text + memory(ooms, "", false)
	}
	place := ""
	if b.Host != "" {
		place = " on " + s.find(b.Host)
	}
	local := ""
	if b.Local != "" {
		local = " (local rank " + b.Local + ")"
	}
	text = b.Process + local + place
	switch {
	case b.Abort != "":
		text += fmt.Sprintf(" called %s(%d)", b.Abort, b.Status)
	case b.Signal != 0:
		text += " was killed by " + SignalName(int(b.Signal))
	case b.Status != 0:
		text += " " + endedWith(b.Status)
	default:
		text += " failed"
	}
	killed := memory(ooms, strings.TrimPrefix(place, " on "), b.Signal == syscall.SIGKILL)
	text += killed
	if b.Unsure != "" && killed == "" {
		text += " (" + b.Unsure + ")"
	}
	if b.Cause != "" {
		text += ": " + b.Cause
	}
	if b.status() != r.Status() {
		text += "; " + command
	}
	return text
}

// find returns the place of a host, as the launcher names it.
func (s Scene) find(host string) string {
	if s.Find == nil {
		return host
	}
	return s.Find(host)
}

// command says how the command itself ended.
func (s Scene) command(name string, r Result) string {
	text := fmt.Sprintf("rank %d's command %s ", s.Rank, name)
	switch r.Signal {
	case 0:
		text += endedWith(r.Code)
	case r.Forwarded:
		text += "was stopped by " + SignalName(int(r.Signal))
	default:
		text += "was killed by " + SignalName(int(r.Signal))
	}
	if r.Forwarded != 0 && r.Forwarded != r.Signal {
		text += " after " + SignalName(int(r.Forwarded))
	}
	if s.Place != "" && r.Status() != 0 {
		text += " on " + s.Place
	}
	return text
}

// endedWith names the signal in a status of a shell or a launcher.
func endedWith(status int) string {
	text := fmt.Sprintf("ended with status %d", status)
	if name := unix.SignalName(syscall.Signal(status - 128)); status > 128 && name != "" {
		text += " (" + name + ")"
	}
	return text
}

// memory says in which cgroups the kernel killed processes for lack of memory. place is where the process ended.
func memory(ooms []OOM, place string, killed bool) (text string) {
	for _, o := range ooms {
		switch {
		case o.Kills <= 0:
			continue
		case text == "" && killed && (place == "" && len(ooms) == 1 || place != "" && o.Place == place):
			text = ": "
		default:
			text += "; "
		}
		text += fmt.Sprintf("out of memory, %s in ", kills(o.Kills))
		if o.Place == place {
			text += "its cgroup"
		} else {
			text += "the cgroup of " + o.Place
		}
	}
	return text
}

func kills(n int) string {
	if n == 1 {
		return "1 kill"
	}
	return fmt.Sprintf("%d kills", n)
}

// OOMKills returns a function that returns how many processes of this container's cgroup the OOM killer has killed
// since the call of OOMKills.
func OOMKills(root fs.FS) func() int {
	before := oomKills(root)
	return func() int { return oomKills(root) - before }
}

// oomKills reads memory.events of cgroup v2 or memory.oom_control of v1 (Documentation/admin-guide/cgroup-v2.rst and
// cgroup-v1/memory.rst in the kernel's sources).
func oomKills(root fs.FS) int {
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
