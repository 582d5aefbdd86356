package main

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

const (
	tailLines = 20 // of a failed command's stderr, which every container logs

	// Kubernetes truncates a termination message to this many bytes (core/v1, Container.terminationMessagePath).
	maxTermination = 4096
)

// keptLines returns how many lines of the command's stderr to keep. It keeps none of a terminal: a pipe in its place
// would change how the command behaves.
func keptLines() int {
	if isTerminal(os.Stderr) {
		return 0
	}
	return tailLines
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// oomKills returns how many processes of this container's cgroup the OOM killer has killed. It reads memory.events of
// cgroup v2 or memory.oom_control of v1 (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst in the
// kernel's sources).
func oomKills(root fs.FS) int {
	for _, name := range []string{"sys/fs/cgroup/memory.events", "sys/fs/cgroup/memory/memory.oom_control"} {
		b, err := fs.ReadFile(root, name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
				n, err := strconv.Atoi(strings.TrimSpace(v))
				if err == nil {
					return n
				}
			}
		}
	}
	return 0
}

// sayEnd writes the termination message and the last log line of this container.
func (c *container) sayEnd(o rendezvous.Outcome) {
	level := slog.LevelInfo
	line := []any{"phase", "exit", "status", o.Status, "reason", o.Reason, "elapsed", c.elapsed()}
	if o.Status != 0 {
		level = slog.LevelError
		if n := oomKills(os.DirFS("/")) - c.oomKills; n > 0 {
			line = append(line, "memory", launch.OOMText(n)+" in this container")
			o.Reason += "; " + launch.OOMText(n) + " in " + c.job.Alias
		}
	}
	c.writeTermination(c.agent.Environ, c.log, o)
	c.stderr.Ending()
	c.log.Log(context.Background(), level, "the job has ended", line...)
}

// writeTermination writes the reason of a failure to the file that Kubernetes reads, if that file exists or
// PAIINIT_TERMINATION_LOG names it.
func (s *settings) writeTermination(environ []string, log *slog.Logger, o rendezvous.Outcome) {
	name := s.absolute(lookup(environ, "PAIINIT_TERMINATION_LOG"))
	asked := name != ""
	if !asked {
		name = "/dev/termination-log"
	}
	if o.Status == 0 {
		return
	}
	text := fmt.Sprintf("paiinit: the job ended with status %d: %s\n", o.Status, o.Reason)
	if len(text) > maxTermination {
		text = text[:maxTermination-1] + "\n"
	}
	flags := os.O_WRONLY | os.O_TRUNC
	if asked {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(name, flags, 0o644)
	if err == nil {
		_, err = f.WriteString(text)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil && asked {
		log.Warn("the termination message cannot be written", "phase", "exit", "err", err)
	}
}
