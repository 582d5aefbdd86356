// Package hang shows the processes and goroutines of containers that have not ended in time, and what a process has
// open.
package hang

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
)

// traceTime bounds how long a program takes to write its stacks.
const traceTime = 2 * time.Second

// Variable in a container's environment lets its paiinit print the stacks of its goroutines (package pid1).
const Variable = "GOTRACEBACK=all"

// Container is a container by the id of its first process on this machine.
type Container struct {
	Name  string
	First int
}

// Report returns the lines of Processes, and above them one for each container that has not ended.
//
// Report then sends SIGSEGV to every other process that runs the first process's program: the agent and the remote
// shells. The Go runtime prints the stacks of their goroutines and ends them. Report waits for that, for two seconds at
// most.
func Report(containers ...Container) string {
	var b strings.Builder
	var traced []int
	for _, c := range containers {
		program := programOf(c.First)
		tree := below(c.First)
		if len(tree) > 0 {
			fmt.Fprintf(&b, "%s has not ended:\n", c.Name)
		}
		write(&b, tree)
		for _, p := range tree {
			if p.PID != c.First && program != "" && programOf(p.PID) == program {
				traced = append(traced, p.PID)
			}
		}
	}
	var dying []unix.PollFd
	for _, pid := range traced {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil { // it may have ended
			dying = append(dying, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		_ = unix.Kill(pid, unix.SIGSEGV)
		_ = unix.Kill(pid, unix.SIGCONT)
	}
	end := time.Now().Add(traceTime)
	for i, p := range dying {
		_, _ = unix.Poll(dying[i:i+1], int(max(0, time.Until(end)).Milliseconds()))
		_ = unix.Close(int(p.Fd))
	}
	return b.String()
}

// Processes returns a line for each process of the containers, by its id on this machine: its state as proc_pid_stat(5)
// has it, where it waits in the kernel, how many nanoseconds its first thread has run and has waited for a CPU, as
// Linux has them (Documentation/scheduler/sched-stats.rst; a wait that still lasts is not counted), and its command
// line. It leaves out containers that have ended, and changes nothing.
func Processes(containers ...Container) string {
	var b strings.Builder
	for _, c := range containers {
		write(&b, below(c.First))
	}
	return b.String()
}

func write(b *strings.Builder, tree []proc.Process) {
	for _, p := range tree {
		times, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", p.PID)) // it may have ended
		ran, waited := "?", "?"
		_, _ = fmt.Sscan(string(times), &ran, &waited)
		fmt.Fprintf(b, "%7d %7d %c %-20s ran %s waited %s: %s\n", p.PID, p.Parent, p.State, waitsIn(p.PID),
			ran, waited, strings.Join(proc.CommandLine(proc.System{}, p.PID), " "))
	}
}

// below returns a process and its descendants, in the order of their ids.
func below(root int) (tree []proc.Process) {
	entries, _ := os.ReadDir("/proc")
	children := make(map[int][]proc.Process)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, err := proc.Read(proc.System{}, pid); err == nil { // it may have ended
			children[p.Parent] = append(children[p.Parent], p)
			if pid == root {
				tree = append(tree, p)
			}
		}
	}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i].PID]...)
	}
	slices.SortFunc(tree, func(a, b proc.Process) int { return a.PID - b.PID })
	return tree
}

// Descriptors returns a line for each open descriptor of a process, as its link in proc_pid_fd(5) has it. A TCP socket
// has its local address, its remote one and its state too, as in proc_pid_net(5).
func Descriptors(pid int) ([]string, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sockets := make(map[string]string)
	for _, name := range []string{"tcp", "tcp6"} {
		table, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, name)) // its container may have ended
		for line := range strings.Lines(string(table)) {
			if f := strings.Fields(line); len(f) > 9 {
				sockets["socket:["+f[9]+"]"] = fmt.Sprint(" ", name, " ", strings.Join(f[1:4], " "))
			}
		}
	}
	var open []string
	for _, f := range files {
		link, err := os.Readlink(dir + "/" + f.Name())
		if err != nil { // closed since
			link = err.Error()
		}
		open = append(open, f.Name()+" "+link+sockets[link])
	}
	return open, nil
}

// programOf returns the path of a process's program, "" if it has ended.
func programOf(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return path
}

// waitsIn returns the kernel's function in which a process sleeps (proc_pid_wchan(5)), "0" if it runs.
func waitsIn(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
	return string(name)
}
