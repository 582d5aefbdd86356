package main

import (
	"cmp"
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/launch"
)

// firstCommand is the command of --first while it runs on rank 0.
type firstCommand struct {
	done   chan struct{} // closed when it has ended with 0, and what it has started goes on
	over   chan struct{} // closed when nothing of it runs: it has failed, or was ended
	end    func()        // ends it, and waits for that
	result launch.Result
	err    error
}

// startsCluster reports whether COMMAND or --first starts a server or a node of a cluster. If --first does, COMMAND on
// rank 0 is a driver, and no rank of a framework either.
func (s *settings) startsCluster() bool {
	return launch.StartsCluster(s.command) || launch.LineStartsCluster(s.firstLine)
}

// firstGrace is the longest time from SIGTERM to SIGKILL for --first. The commands of all ranks had --grace before it.
const firstGrace = time.Second

// startFirst starts the command of --first as a line of a shell, with what COMMAND gets, except for standard input.
func (c *container) startFirst(ctx context.Context, a *agreement, cmd launch.Command) (*firstCommand, error) {
	line, err := a.fillWords(a.words(), []string{a.firstLine})
	if err != nil {
		return nil, err
	}
	f := &firstCommand{done: make(chan struct{}), over: make(chan struct{})}
	cmd.Path, cmd.Args = "/bin/sh", []string{"/bin/sh", "-c", line[0]}
	cmd.Stdin, cmd.Signals, cmd.Processes, cmd.Started, cmd.Hang = nil, nil, nil, nil, launch.Hang{}
	cmd.TailLines = 0 // a daemon keeps its standard error when its parent has ended
	cmd.Grace, cmd.RestGrace = min(cmd.Grace, firstGrace), 0
	cmd.WholeGroup, cmd.Stays = true, func() { close(f.done) }
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.end = func() {
		cancel()
		<-f.over
	}
	c.routine("starting the first command", "phase", "launch", "command", line[0], "elapsed", c.elapsed())
	go func() { // f.end waits for it
		defer close(f.over)
		f.result, f.err = launch.Run(running, cmd)
	}()
	return f, nil
}

// await waits until --first has ended with 0. It takes the place of --ready.
func (f *firstCommand) await(ctx context.Context, say func(why string)) error {
	say("--first has not ended")
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// runTask runs COMMAND on this rank until its end, on rank 0 with --first, and tells the others when it is ready.
// stopping ends when COMMAND must end. name is that of the command whose end this is.
func (c *container) runTask(
	ctx, stopping context.Context, a *agreement, cmd launch.Command, t task,
) (name string, result launch.Result, err error) {
	name = cmd.Args[0]
	self := a.self()
	run := func() (launch.Result, error) {
		return c.runCommand(ctx, cmd, "", "rank", self.Rank, "size", len(a.roster.Members))
	}
	if self.Rank != 0 || !a.inOrder() {
		result, err = run()
		return name, result, err
	}
	server, err := a.watchLeader()
	if err != nil {
		return name, result, err
	}
	var announcing sync.WaitGroup
	defer announcing.Wait()
	watching, cancel := context.WithCancel(stopping)
	defer cancel()
	ready := make(chan struct{})
	announce := func(await awaiting) { announcing.Go(func() { c.announceReady(watching, await, ready) }) }
	if a.firstLine == "" {
		settle := cmd.Started
		cmd.Started = func() {
			settle()
			announce(server.Await)
		}
		result, err = run()
		return name, result, err
	}
	f, err := c.startFirst(ctx, a, cmd)
	if err != nil {
		return name, result, err
	}
	if server != nil {
		announce(server.Await)
	} else {
		announce(f.await)
	}
	return c.runAfterFirst(stopping, f, ready, t, run, name)
}

// runAfterFirst runs COMMAND on rank 0 of a job with --first, when that is ready, and leaves --first to the task when
// COMMAND has ended. stopping ends when COMMAND must end. If --first fails, it is what has failed: name says so.
func (c *container) runAfterFirst(
	stopping context.Context, f *firstCommand, ready <-chan struct{}, t task,
	run func() (launch.Result, error), name string,
) (string, launch.Result, error) {
	const own = "of --first"
	select {
	case <-ready:
	case <-f.over:
		return own, f.result, f.err
	case <-stopping.Done():
		f.end()
		f.result.Forwarded = cmp.Or(f.result.Forwarded, syscall.SIGTERM) // also if only what it had started was left
		return own, f.result, f.err
	}
	ended, failed := make(chan struct{}), make(chan bool, 1)
	go func() {
		select {
		case <-f.over:
			first := stopping.Err() == nil // else it was told to end together with COMMAND
			failed <- first
			if first {
				t.pass(syscall.SIGTERM)
			}
		case <-ended:
			failed <- false
		}
	}()
	result, err := run()
	close(ended)
	if <-failed {
		return own, f.result, f.err
	}
	t.first <- f
	return name, result, err
}
