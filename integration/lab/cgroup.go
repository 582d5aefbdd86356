package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// groups are the control groups of a container, made when they are needed.
type groups struct {
	mu     sync.Mutex
	made   []string
	freeze string // the file that freezes the container; "" = none
	thaw   string // what to write there to thaw it
}

// groupNumber makes the names of control groups unique in this process.
var groupNumber atomic.Int64

// hierarchy is where a controller's groups are: version 1 has a directory for each controller, version 2 one for all.
type hierarchy struct {
	dir string // the group of this process
	v2  bool
}

// findHierarchy finds a controller of version 1, or version 2.
func findHierarchy(controller string) (hierarchy, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return hierarchy{}, err
	}
	own := map[string]string{} // by controller; "" = version 2
	for line := range bytes.Lines(text) {
		parts := bytes.SplitN(bytes.TrimSpace(line), []byte(":"), 3)
		if len(parts) == 3 {
			for name := range bytes.SplitSeq(parts[1], []byte(",")) {
				own[string(name)] = string(parts[2])
			}
		}
	}
	for _, h := range []hierarchy{
		{filepath.Join("/sys/fs/cgroup", controller, own[controller]), false},
		{filepath.Join("/sys/fs/cgroup", own[""]), true},
		{filepath.Join("/sys/fs/cgroup/unified", own[""]), true},
	} {
		if _, err := os.Stat(filepath.Join(h.dir, "cgroup.procs")); err == nil {
			return h, nil
		}
	}
	return hierarchy{}, fmt.Errorf("no cgroup hierarchy with %s in /sys/fs/cgroup", controller)
}

// Cgroups returns why this host cannot freeze containers or limit their memory; nil = it can.
func Cgroups() error {
	for _, controller := range []string{"freezer", "memory"} {
		h, err := findHierarchy(controller)
		if err != nil {
			return err
		}
		dir, err := h.newGroup()
		if err != nil {
			return err
		}
		file := map[string]map[bool]string{
			"freezer": {false: "freezer.state", true: "cgroup.freeze"},
			"memory":  {false: "memory.limit_in_bytes", true: "memory.max"},
		}[controller][h.v2]
		_, err = os.Stat(filepath.Join(dir, file))
		_ = os.Remove(dir)
		if err != nil {
			return fmt.Errorf("control groups: %w", err)
		}
	}
	return nil
}

func (h hierarchy) newGroup() (string, error) {
	dir := filepath.Join(h.dir, fmt.Sprintf("paiinit-lab-%d-%d", os.Getpid(), groupNumber.Add(1)))
	return dir, os.Mkdir(dir, 0o755)
}

// enter moves all processes of the container to a new group of the hierarchy.
func (c *Container) enter(h hierarchy) (dir string, err error) {
	if dir, err = h.newGroup(); err != nil {
		return "", err
	}
	c.groups.made = append(c.groups.made, dir)
	moved := map[int]bool{} // a process may start another one meanwhile
	for {
		processes, err := c.Processes()
		if err != nil {
			return "", err
		}
		fresh := false
		for _, p := range processes {
			if moved[p.PID] {
				continue
			}
			fresh, moved[p.PID] = true, true
			err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(p.PID)), 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return "", err
			}
		}
		if !fresh {
			return dir, nil
		}
	}
}

// Freeze stops all processes of the container by the kernel's freezer, as docker pause does, until Thaw. They do not
// notice it, and the kernel still acknowledges TCP segments.
func (c *Container) Freeze() error {
	g := &c.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	h, err := findHierarchy("freezer")
	var dir string
	if err == nil {
		dir, err = c.enter(h)
	}
	if err != nil {
		return fmt.Errorf("lab: freezing container %q: %w", c.Name, err)
	}
	frozen, is, state := "FROZEN", "FROZEN", "freezer.state"
	g.freeze, g.thaw = filepath.Join(dir, "freezer.state"), "THAWED"
	if h.v2 {
		frozen, is, state = "1", "frozen 1", "cgroup.events"
		g.freeze, g.thaw = filepath.Join(dir, "cgroup.freeze"), "0"
	}
	for range 500 {
		// With version 1, a process that was about to start another one must be frozen again.
		if err := os.WriteFile(g.freeze, []byte(frozen), 0); err != nil {
			return fmt.Errorf("lab: freezing container %q: %w", c.Name, err)
		}
		if text, _ := os.ReadFile(filepath.Join(dir, state)); bytes.Contains(text, []byte(is)) {
			return nil
		}
		<-time.After(10 * time.Millisecond)
	}
	return fmt.Errorf("lab: container %q does not freeze", c.Name)
}

// Thaw continues a frozen container.
func (c *Container) Thaw() error {
	g := &c.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.freeze == "" {
		return nil
	}
	file := g.freeze
	g.freeze = ""
	return os.WriteFile(file, []byte(g.thaw), 0)
}

// LimitMemory bounds the memory of the container. What its processes have used before does not count with version 1 of
// control groups.
func (c *Container) LimitMemory(bytes int) error {
	c.groups.mu.Lock()
	defer c.groups.mu.Unlock()
	h, err := findHierarchy("memory")
	var dir string
	if err == nil {
		dir, err = c.enter(h)
	}
	if err == nil {
		name := "memory.limit_in_bytes"
		if h.v2 {
			name = "memory.max"
		}
		err = os.WriteFile(filepath.Join(dir, name), []byte(strconv.Itoa(bytes)), 0)
	}
	if err != nil {
		return fmt.Errorf("lab: limiting the memory of container %q: %w", c.Name, err)
	}
	return nil
}

// remove removes the groups, whose processes have ended.
func (g *groups) remove() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, dir := range g.made {
		_ = os.Remove(dir)
	}
}
