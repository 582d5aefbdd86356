package sshd

import (
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/paiinit/paiinit/internal/proc"
)

// PersonSessions remembers which person started a session while its command runs. Pass Note as Config.OnCommand.
type PersonSessions struct {
	mu      sync.Mutex
	leaders map[int]string // person by session leader
}

// Note records the start and the end of a command.
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

// Leaders returns the session leaders of the people who are logged in.
func (p *PersonSessions) Leaders() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.leaders))
}

// Behind returns the person in whose session a process or one of its ancestors runs; "" = none. A process that left the
// session and whose parents have ended counts as the job's. fsys is /proc.
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
