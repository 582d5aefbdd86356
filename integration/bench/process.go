package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a running init.
type process struct {
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr *bufio.Reader
}

// launch starts the init, with a command, as PID 1 of a PID namespace.
func (c *contestant) launch(ctx context.Context, command ...string) (*process, error) {
	cmd := exec.CommandContext(ctx, c.args[0], append(c.args[1:len(c.args):len(c.args)], command...)...)
	cmd.Env = append(os.Environ(), c.env...)
	// Unshare makes mounts private, unlike Cloneflags.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	p := &process{cmd: cmd}
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	p.stdout, p.stderr = bufio.NewReader(stdout), bufio.NewReader(stderr)
	return p, cmd.Start()
}

// line reads the next line of the init's standard output. If it cannot, it kills the init.
func (p *process) line() (string, error) {
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		messages, _ := io.ReadAll(p.stderr)
		return "", errors.Join(fmt.Errorf("reading the output of %v: %w: %s", p.cmd, err, messages), p.kill())
	}
	return strings.TrimSpace(line), nil
}

// says waits until the init prints text on its standard error.
func (p *process) says(text string) error {
	var seen strings.Builder
	for {
		line, err := p.stderr.ReadString('\n')
		seen.WriteString(line)
		if strings.Contains(line, text) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%v did not say %q: %w: %s", p.cmd, text, err, seen.String())
		}
	}
}

// end waits until the init exits, and checks its status.
func (p *process) end(status int) error {
	messages, err := io.ReadAll(p.stderr)
	if exit := (*exec.ExitError)(nil); err == nil {
		if err = p.cmd.Wait(); errors.As(err, &exit) {
			err = nil
		}
	}
	if got := p.cmd.ProcessState.ExitCode(); err == nil && got != status {
		err = fmt.Errorf("%v ended with status %d, not %d: %s", p.cmd, got, status, messages)
	}
	return err
}

// terminate sends SIGTERM and waits until the init exits.
func (p *process) terminate() error {
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	return p.end(128 + int(unix.SIGTERM))
}

// kill ends the init after a measurement failed.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	_ = p.cmd.Wait() // reports the SIGKILL
	return err
}

// memory returns the proportional set size, in kB, of PID 1 and of its child that runs the same program (0 without
// one).
func (p *process) memory() (first, agent float64, err error) {
	pid := p.cmd.Process.Pid
	if err := settle(pid); err != nil {
		return 0, 0, err
	}
	if first, err = pss(pid); err != nil {
		return 0, 0, err
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return 0, 0, err
	}
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0, 0, err
	}
	for _, list := range lists {
		children, err := os.ReadFile(list)
		if err != nil {
			return 0, 0, err
		}
		for _, child := range strings.Fields(string(children)) {
			if exe, err := os.Readlink("/proc/" + child + "/exe"); err != nil || exe != own {
				continue
			}
			number, err := strconv.Atoi(child)
			if err != nil {
				return 0, 0, err
			}
			more, err := pss(number)
			if err != nil {
				return 0, 0, err
			}
			agent += more
		}
	}
	return first, agent, nil
}

// settle waits until the memory of the process has not changed for half a second.
func settle(pid int) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last, same := -1.0, 0
	for range 50 {
		now, err := pss(pid)
		if err != nil {
			return err
		}
		if same++; now != last {
			same = 0
		}
		if same == 5 {
			return nil
		}
		last = now
		<-tick.C
	}
	return nil // still changing after 5 s: measure it anyway
}

// pss returns the proportional set size of a process in kB.
func pss(pid int) (float64, error) {
	name := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		var kB float64
		if n, _ := fmt.Sscanf(string(line), "Pss: %f kB", &kB); n == 1 {
			return kB, nil
		}
	}
	return 0, fmt.Errorf("%s: no Pss", name)
}

// cpu returns the processor time of all threads of PID 1, without its children.
func (p *process) cpu() (time.Duration, error) { return cpuTime(p.cmd.Process.Pid) }

func cpuTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		var ns int64 // the first number (Documentation/scheduler/sched-stats.rst)
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// voluntary counts the voluntary context switches of a process's threads.
func voluntary(pid int) (float64, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		for line := range bytes.Lines(text) {
			var n float64
			if found, _ := fmt.Sscanf(string(line), "voluntary_ctxt_switches: %f", &n); found == 1 {
				sum += n
			}
		}
	}
	return sum, nil
}
