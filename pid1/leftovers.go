package pid1

import (
	"os"
	"syscall"

	"github.com/paiinit/paiinit/internal/proc"
)

// killAll sends SIGKILL to everything that the job may have left: to the whole namespace if we are PID 1, else to our
// descendants, which we find in /proc. Without /proc, or with that of another PID namespace, only PID 1 finds anything.
func (p *process) killAll() {
	if p.init {
		_ = syscall.Kill(-1, syscall.SIGKILL) // never to ourselves; ESRCH: no process left; EPERM: none we may kill
		return
	}
	for _, pid := range proc.ReadAll(os.DirFS("/proc"), os.Getpid()).Below(os.Getpid()) {
		// Nobody can have taken the number of a process that has just ended, unless it has been reaped by another
		// descendant, and then all numbers have been used once in between.
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
