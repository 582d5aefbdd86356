package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/lab"
)

// Scripts that change the file systems of a container.
const (
	fillDisk = `for d in /dev/shm /tmp /run; do
	mount -o remount,size=2m $d && { cat /dev/zero >$d/full 2>/dev/null; cat /dev/zero >>$d/full 2>/dev/null; } || :
done`

	// A file that is open for writing keeps its mount from becoming read-only, so another mount covers it.
	readOnly = `for d in /dev/shm /tmp /job /run; do mount --rbind $d $d && mount -o remount,bind,ro $d || exit; done
mount -o remount,bind,ro /`
)

// inside runs a script in the container that the fault hits.
func (t *trial) inside(ctx context.Context, script string) error {
	_, err := t.hit.Exec(ctx, "sh", "-c", script)
	return err
}

// agentOf finds the second of paiinit's two processes.
func agentOf(c *lab.Container) (lab.Process, error) {
	return processOf(c, "paiinit", func(p lab.Process) bool { return p.Parent == c.PID() })
}

// processOf finds a process of a container by the base name of its program, or of the script that it runs.
func processOf(c *lab.Container, name string, fits func(lab.Process) bool) (lab.Process, error) {
	processes, err := c.Processes()
	if err != nil {
		return lab.Process{}, err
	}
	for _, p := range processes {
		runs := func(arg string) bool { return filepath.Base(arg) == name }
		if slices.ContainsFunc(p.Args[:min(2, len(p.Args))], runs) && (fits == nil || fits(p)) {
			return p, nil
		}
	}
	return lab.Process{}, fmt.Errorf("%s runs no %s", c.Name, name)
}

func (t *trial) signalAgent(sig syscall.Signal) error {
	agent, err := agentOf(t.hit)
	if err == nil {
		err = unix.Kill(agent.PID, sig)
	}
	return err
}

func (t *trial) killProcess(name string, fits func(lab.Process) bool) error {
	p, err := processOf(t.hit, name, fits)
	if err == nil {
		err = unix.Kill(p.PID, unix.SIGKILL)
	}
	return err
}

// ended waits for the end of the container that was killed: until then it may still take a step of the job.
func (t *trial) ended(ctx context.Context) error {
	_, err := t.hit.Wait(ctx)
	return err
}

// after does something in the background once the time has passed.
func (t *trial) after(d time.Duration, f func() error) {
	passed := make(chan struct{})
	t.passed = passed
	t.later(func(ctx context.Context) error {
		defer close(passed)
		select {
		case <-time.After(d):
			return f()
		case <-ctx.Done():
			return nil
		}
	})
}

// rename gives the hosts' names another address, or none.
func (t *trial) rename(addr func(rank int) netip.Addr) {
	for rank := range ranks {
		t.lab.Forget(hostName(rank))
		if addr != nil {
			t.lab.Name(hostName(rank), addr(rank))
		}
	}
}

// invite starts a container that claims to be the target, on another host.
func (t *trial) invite(change func(h *host)) error {
	h, err := t.copyOf(t.role.rank, "elsewhere")
	if err != nil {
		return err
	}
	if i := slices.Index(h.flags, "--preflight"); i >= 0 { // it would wait at the target's gate
		h.flags = slices.Delete(h.flags, i, i+2)
	}
	change(&h)
	t.guest, err = h.start("guest", t.command())
	return err
}

// returns starts a next container of rank 2 that is not the right one.
func (t *trial) returns(change func(h *host)) error {
	h := t.hosts[last]
	h.env, h.binds = maps.Clone(h.env), maps.Clone(h.binds)
	change(&h)
	var err error
	t.guest, err = h.start("guest", t.command())
	return err
}

// silence accepts connections and says nothing.
const silence = `
import socket
s = socket.create_server(("0.0.0.0", 12345))
print("listening", flush=True)
held = []
while True:
    held.append(s.accept())
`

// squat runs a silent program on paiinit's port of a machine.
func (t *trial) squat(m *lab.Machine) {
	c, err := m.Start(lab.Program{
		Name: "squatter", Args: []string{"/usr/bin/python3", "-c", silence}, Env: []string{"PATH=/usr/bin:/bin"},
	})
	if err == nil {
		_, err = c.WaitLine(t.ctx, "listening")
	}
	t.fail(err)
}

// readAfterEnd reads a container's standard error again when its first process has ended.
func readAfterEnd(ctx context.Context, c *lab.Container) error {
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.PID()))
		_, state, _ := strings.Cut(string(stat), ") ")
		if errors.Is(err, os.ErrNotExist) || strings.HasPrefix(state, "Z") {
			c.ReadStderr()
			return nil
		}
		select { // nothing tells the end of a process that another goroutine waits for
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
}
