package pid1

import (
	"os"
	"syscall"

	"github.com/paiinit/paiinit/internal/proc"
)

// killAll sends SIGKILL to everything that the job may have left: if we are PID 1 to the whole namespace, else to our
// descendants in /proc. If /proc is missing or belongs to another PID namespace, only PID 1 can kill anything.
func (p *process) killAll() {
	if p.init {
		// The kernel skips this process. ESRCH: no process is left. EPERM: none that we may kill.
		_ = syscall.Kill(-1, syscall.SIGKILL)
		return
	}
	for _, pid := range proc.ReadAll(os.DirFS("/proc"), os.Getpid()).Below(os.Getpid()) {
		// The number may belong to a new process only if another descendant reaped the old one and all other numbers
		// were used meanwhile.
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
