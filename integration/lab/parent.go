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

// Left lists what a program with Program.Parent left behind when it ended, before the kernel removed the container.
type Left struct {
	Processes []string // process id, name and command line of each
	Sockets   []string // paths in the container's own tmpfs directories
}

// Left returns what the program left behind. It returns false if Program.Parent was not set, if the program has not
// ended, or if the whole container was killed.
func (c *Container) Left() (Left, bool) {
	select {
	case <-c.done:
		return c.left, c.leftKnown
	default:
		return Left{}, false
	}
}

// parent runs the program as a child, forwards signals to it, reaps, and exits with the child's status.
func (p plan) parent(path string) error {
	// The kernel drops signals for the first process of a PID namespace unless it catches them.
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
			_ = unix.Kill(child.Pid, s.(syscall.Signal)) // fails if the child has ended
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
	// Ignore the error: the lab may have gone.
	_ = json.NewEncoder(os.NewFile(stageLeft, "left")).Encode(Left{leftProcesses(), p.leftSockets()})
	if ws.Signaled() {
		os.Exit(128 + int(ws.Signal()))
	}
	os.Exit(ws.ExitStatus())
	return nil
}

// leftProcesses lists all processes but the first one and zombies.
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
		line := strings.Join(proc.CommandLine(fsys, pid), " ") // empty during an execve
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%d (%s) %s", pid, p.Name, line)))
	}
	slices.Sort(lines)
	return lines
}

// leftSockets lists sockets on the container's own tmpfs, but not on other file systems mounted below.
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
