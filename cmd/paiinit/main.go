// Command paiinit starts distributed jobs. It is the ENTRYPOINT of every image, or the job's command begins with it. It
// runs as the init of its container, finds its peers, and runs the command on rank 0 once all ranks are present.
//
// main.go shows the steps of a launch. The other files of this package have the details of each step. Each package
// beside it solves one problem.
//
// We disable the runtime's cgroup lookup, which costs 0.1 ms per process, and a launcher starts a process for each
// host; envspec reads the quota for the agent. We also disable the names of memory mappings.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
//go:debug decoratemappings=0
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/internal/buildversion"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/pid1"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/stderrlog"
)

var version = buildversion.Unset // set by the build

func main() {
	version = buildversion.Of(version, debug.ReadBuildInfo)
	os.Exit(start(os.Args, os.Environ()))
}

// start runs this process as what its command line asks for: a launcher that gets its hosts, a remote shell, a command
// such as status, or the init of a container.
func start(words, environ []string) int {
	if name := filepath.Base(words[0]); launch.FillNamed(name) != nil {
		return fill(name, words, environ)
	}
	args, environ := adopt(words, environ, func(word string) bool { return launch.NamesSelf(word, environ) })
	switch command := early.CommandOf(args); {
	case isRemoteShell(args):
		return remoteShell(args, environ)
	case command != "run":
		return ask(args, environ)
	case envspec.Nested(environ) != "":
		return passThrough(args, environ)
	}
	return pid1.Main(environ, []string{secretVariable}, func(agent pid1.Agent) int { return run(args, agent) })
}

// launchJob runs a launch from beginning to end and returns the exit status of the container.
func launchJob(ctx context.Context, c *container) (status int, err error) {
	defer c.close()
	defer answers{c}.leaveReport()

	if err := c.identify(ctx); err != nil { // who am I, who are the others, what do we share?
		return c.dismiss(ctx, err)
	}
	if err := c.findCommand(); err != nil { // detects a typo before waiting
		return c.dismiss(ctx, err)
	}
	if err := c.listen(ctx); err != nil { // SSH, gossip, and the local agent of mpirun
		return 0, err
	}
	for {
		c.pulse = startPulse(ctx)
		agreed, err := c.gather(ctx) // every rank is present, accepts logins, agrees, and has passed the checks
		if err != nil {
			c.pulse.end()
			return c.giveUp(err)
		}
		status, err := c.runGeneration(ctx, agreed)
		if !errors.Is(err, rendezvous.ErrNext) {
			return status, err
		}
		if stopped := c.stopped.Load(); c.leaves(stopped) {
			return c.leave(stopped), nil
		}
		if err := c.nextGeneration(); err != nil { // it has failed, no process is left, and it starts again
			return 0, err
		}
	}
}

// runGeneration runs the command once, on rank 0 or on all ranks, and returns the exit status of the container, or
// rendezvous.ErrNext if the job starts again.
func (c *container) runGeneration(ctx context.Context, agreed *agreement) (int, error) {
	end, err := c.guard(ctx)
	defer end()
	switch {
	case err != nil: // this rank runs nothing, and waits for the end
		return c.wait(ctx)
	case c.exec == execAll: // every rank runs the command
		return c.everywhere(ctx, agreed)
	case agreed.self().Rank != 0:
		return c.wait(ctx)
	}
	return c.conclude(ctx, c.launch(ctx, agreed))
}

func isRemoteShell(args []string) bool {
	name := filepath.Base(args[0])
	return name == "ssh" || name == "rsh" || len(args) > 1 && args[1] == "rsh"
}

// complain writes one line to standard error. It gives up after a moment if standard error is a pipe that is not read.
func complain(format string, args ...any) {
	l := stderrlog.New(os.Stderr)
	_, _ = fmt.Fprintf(l, "paiinit: "+format+"\n", args...) // a stderrlog.Log never fails
	l.Close()
}

// complainOf writes an error of a command of this program, and what to do about it.
func complainOf(err error, asked string, command []string) {
	text, advice := err.Error(), hint(err, asked, command)
	if v, ok := errors.AsType[*envspec.VarError](err); ok {
		problem := *v
		problem.Advice = ""
		text, advice = problem.Error(), v.Advice
	}
	text = strings.ReplaceAll(text, "\n", "\npaiinit: ")
	if advice != "" {
		text += "\nhint: " + advice
	}
	complain("%s", text)
}
