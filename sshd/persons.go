package sshd

import (
	"io/fs"
	"slices"
	"sync"

	"github.com/paiinit/paiinit/internal/proc"
)

// PersonSessions remembers the sessions of persons while their commands run. Its Note is a Config.OnCommand.
type PersonSessions struct {
	mu      sync.Mutex
	leaders map[int]string // the person of a session, by the process that leads it
}

// Note takes the start and the end of a command.
func (p *PersonSessions) Note(e CommandEvent) {
	if e.Person == "" || e.PID == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Done {
		delete(p.leaders, e.PID)
		return
	}
	if p.leaders == nil {
		p.leaders = make(map[int]string)
	}
	p.leaders[e.PID] = e.Person
}

// Behind returns the person in whose session a process runs, or one of its ancestors; "" = none. A process that has
// left the session, and whose parents have ended, counts as the job's. fsys is /proc.
func (p *PersonSessions) Behind(fsys fs.FS, pid int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.leaders) == 0 {
		return ""
	}
	own, _ := proc.Read(fsys, pid)
	for _, leader := range slices.AppendSeq([]int{pid, own.Session}, proc.Ancestors(fsys, pid)) {
		if name := p.leaders[leader]; name != "" {
			return name
		}
	}
	return ""
}
