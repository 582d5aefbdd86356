// Command paiinit starts distributed jobs: baked into every image as its ENTRYPOINT, or put in front of the job's
// command, it is the init of its container, finds its peers, and has rank 0 run the command once all ranks are there.
//
// main.go is the story of a launch; the other files of this package are its details, and the packages beside it hide
// one thing each.
//
// The Go runtime does not look for the cgroup's quota, which takes each process 0.1 ms or more, once for each host that
// a launcher starts, and does not name its memory mappings: the agent, which alone lives long enough, knows its quota
// from package envspec.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
//go:debug decoratemappings=0
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/paiinit/paiinit/cmd/paiinit/early"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/pid1"
	"github.com/paiinit/paiinit/stderrlog"
)

var version = "devel" // set by the build

func main() {
	os.Exit(start(os.Args, os.Environ()))
}

// start decides what this process is: a remote shell, a launcher that gets its hosts, one of the commands that only
// ask, or the init of a container.
func start(words, environ []string) int {
	if name := filepath.Base(words[0]); launch.FillNamed(name) != nil {
		return fill(name, words, environ)
	}
	args, environ := adopt(words, environ, func(word string) bool { return isSelf(word, environ) })
	switch command := commandOf(args); {
	case isRemoteShell(args):
		return remoteShell(args, environ)
	case command != "run":
		return ask(args, environ)
	case nested(environ) != "":
		return passThrough(args, environ)
	}
	return pid1.Main(early.Container(words, environ),
		func(agent pid1.Agent) int { return run(args, agent) })
}

// launchJob is a launch from its beginning to its end. It returns the exit status of the container.
func launchJob(ctx context.Context, s settings, agent pid1.Agent) (status int, err error) {
	c := newContainer(s, agent)
	defer c.close()

	if err := c.identify(ctx); err != nil { // who am I, who are the others, what do we share?
		return c.dismiss(ctx, err)
	}
	if err := c.findCommand(); err != nil { // a typo is found now, not after the wait
		return c.dismiss(ctx, err)
	}
	if err := c.listen(ctx); err != nil { // SSH, gossip, and the local agent of mpirun
		return 0, err
	}
	agreed, err := c.gather(ctx) // every rank is there, can be logged in to, agrees, and was checked
	if err != nil {
		return c.giveUp(err)
	}
	switch {
	case c.exec == execAll: // every rank runs the command
		return c.everywhere(ctx, agreed)
	case agreed.self().Rank != 0:
		return c.wait(ctx)
	}
	result := c.launch(ctx, agreed)
	return c.finish(ctx, result)
}

func isRemoteShell(args []string) bool {
	name := filepath.Base(args[0])
	return name == "ssh" || name == "rsh" || len(args) > 1 && args[1] == "rsh"
}

// complain writes one line to standard error, and gives up after a moment if that is not read.
func complain(format string, args ...any) {
	l := stderrlog.New(os.Stderr)
	_, _ = fmt.Fprintf(l, "paiinit: "+format+"\n", args...) // a stderrlog.Log never fails
	l.Close()
}
