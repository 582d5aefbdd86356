package main

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/sshd"
)

// Values of --people.
const (
	peopleJob   = "job"
	peopleLocal = "local"
)

// people remembers the sessions of persons while their commands run.
type people struct {
	mu      sync.Mutex
	leaders map[int]string // the person of a session, by the process that leads it
}

func (p *people) onCommand(e sshd.CommandEvent) {
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

// behind returns the person in whose session a process runs, or one of its ancestors; "" = none. A process that has
// left the session, and whose parents have ended, is not told from the job's.
func (p *people) behind(fsys fs.FS, pid int) string {
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

// personBehind decides whether a process may use the other ranks.
func (c *container) personBehind(pid int) (string, error) {
	if c.server != nil { // otherwise no person can log in
		c.server.AwaitStarts()
	}
	name := c.people.behind(os.DirFS("/proc"), pid)
	if name != "" && c.settings.people == peopleLocal {
		return "", fmt.Errorf("%s may run commands in this container only (--people local)", name)
	}
	return name, nil
}
