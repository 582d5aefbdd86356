package lab

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
)

// Left is what a program under a parent had left behind when it ended, before the kernel swept it away with the container.
type Left struct {
	Processes []string // process id, name and command line of each
	Sockets   []string // in the directories that the container has to itself
}

// Left returns what the program left behind. It is false where the program had no parent (Program.Parent), has not ended, or was
// killed together with it.
func (c *Container) Left() (Left, bool) {
	select {
	case <-c.done:
		return c.left, c.leftKnown
	default:
		return Left{}, false
	}
}

// parent runs the program as a child, hands signals on to it, reaps, and ends as it has ended.
func (p plan) parent(path string) error {
	// What is sent to the first process of a PID namespace is lost unless it is caught.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	child, err := os.StartProcess(path, p.Args, &os.ProcAttr{
		Env: p.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return err
	}
	_ = unix.Close(stageFailure)
	go func() {
		for s := range signals {
			_ = unix.Kill(child.Pid, s.(syscall.Signal)) // it may have ended
		}
	}()
	var ws unix.WaitStatus
	for {
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if pid == child.Pid {
			break
		}
	}
	// Nobody may be left to read it.
	_ = json.NewEncoder(os.NewFile(stageLeft, "left")).Encode(Left{leftProcesses(), p.leftSockets()})
	if ws.Signaled() {
		os.Exit(128 + int(ws.Signal()))
	}
	os.Exit(ws.ExitStatus())
	return nil
}

// leftProcesses finds whoever runs beside the first process.
func leftProcesses() (lines []string) {
	fsys := os.DirFS("/proc")
	all := proc.ReadAll(fsys, os.Getpid())
	if all == nil {
		return []string{"/proc cannot be read"}
	}
	for pid, p := range all {
		if pid == 1 || p.Ended() {
			continue
		}
		line := strings.Join(proc.CommandLine(fsys, pid), " ") // empty in the middle of an execve
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%d (%s) %s", pid, p.Name, line)))
	}
	slices.Sort(lines)
	return lines
}

// leftSockets finds sockets on the container's own file systems, not on what is mounted there.
func (p plan) leftSockets() (found []string) {
	for _, dir := range p.Tmpfs {
		var top unix.Stat_t
		if unix.Stat(dir, &top) != nil {
			continue
		}
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			var st unix.Stat_t
			switch {
			case err != nil:
			case e.IsDir() && unix.Lstat(path, &st) == nil && st.Dev != top.Dev:
				return fs.SkipDir
			case e.Type()&fs.ModeSocket != 0:
				found = append(found, path)
			}
			return nil
		})
	}
	return found
}
