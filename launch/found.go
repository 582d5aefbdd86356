package launch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/paiinit/paiinit/internal/proc"
)

// found is what one look at /proc shows.
type found struct {
	job    []proc.Process // living processes, in the order of their numbers
	shared map[int]bool   // the process groups of all other processes
}

// look finds the living processes of the job. It finds none only if there is none: it reads /proc until that lists no
// process that it has not read.
func (c *clearing) look(limit time.Time) (found, error) {
	named := c.named()
	all := proc.ReadAll(c.fsys, c.self)
	if all == nil {
		return found{}, errors.New("/proc is missing or belongs to another PID namespace; restarts need it")
	}
	if parent := all[c.self].Parent; parent != c.First {
		return found{}, fmt.Errorf("process %d is not the parent of this process: that is %d", c.First, parent)
	}
	for {
		named = append(named, c.named()...)
		c.mend(all)
		if f := c.classify(all, named); len(f.job) > 0 {
			return f, nil
		}
		switch more, err := all.Add(c.fsys); {
		case err != nil:
			return found{}, err
		case !more:
			return found{}, nil
		case time.Now().After(limit):
			return found{}, errors.New("/proc shows new processes whenever it is read")
		}
	}
}

func (c *clearing) named() []int {
	if c.Spared == nil {
		return nil
	}
	return c.Spared()
}

// mend corrects the parents of processes that became orphans while /proc was read. The number of such a parent may even
// belong to a new process, which is younger than the child.
func (c *clearing) mend(all proc.Table) {
	wrong := func(p proc.Process) bool {
		parent, ok := all[p.Parent]
		return p.Parent != 0 && (!ok || p.Started < parent.Started)
	}
	for pid, p := range all {
		if !wrong(p) {
			continue
		}
		if now, err := proc.Read(c.fsys, pid); err == nil && now.Started == p.Started {
			p = now
		}
		if wrong(p) {
			p.Parent = -1 // unknown, or hidden from this user
		}
		all[pid] = p
	}
}

// classify separates the processes of the job from the others; named has the results of Spared.
func (c *clearing) classify(all proc.Table, named []int) (f found) {
	init := c.First == 1
	spared := make(map[int]bool)
	spare := func(pid int) {
		spared[pid] = true
		for _, pid := range all.Below(pid) {
			spared[pid] = true
		}
	}
	for pid, p := range all {
		switch {
		case pid == c.First || pid == c.self:
		case p.Parent == c.self && slices.Contains(named, pid), init && p.Parent == 0, c.spared[identityOf(p)]:
			spare(pid)
		}
	}
	// Orphans that are spared may have children in sessions of their own, which may leave orphans again.
	for before := -1; before != len(spared); {
		before = len(spared)
		sessions := make(map[int]bool)
		for pid := range spared {
			sessions[all[pid].Session] = true
		}
		delete(sessions, 0) // outside the namespace
		delete(sessions, all[c.First].Session)
		delete(sessions, all[c.self].Session)
		for pid, p := range all {
			if p.Parent == c.First && pid != c.self && !spared[pid] && sessions[p.Session] {
				spare(pid)
			}
		}
	}
	for pid := range spared {
		c.spared[identityOf(all[pid])] = true
	}
	spared[c.First], spared[c.self] = true, true

	job := make(map[int]bool)
	if init {
		for pid := range all {
			job[pid] = !spared[pid]
		}
	} else {
		for _, pid := range all.Below(c.First) {
			job[pid] = !spared[pid]
		}
	}
	f.shared = make(map[int]bool)
	for pid, p := range all {
		switch {
		case p.Ended():
		case job[pid]:
			f.job = append(f.job, p)
		default:
			f.shared[p.Group] = true
		}
	}
	slices.SortFunc(f.job, func(a, b proc.Process) int { return cmp.Compare(a.PID, b.PID) })
	return f
}
