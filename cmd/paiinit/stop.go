package main

import (
	"context"
	"sync"
	"syscall"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// The processes that get a signal for the command (--signal).
const (
	signalLeader = "leader" // COMMAND, through shells
	signalGroup  = "group"  // its whole process group
)

// stopRanks signals the ranks that a launcher of this job has started in this container.
func (id *identity) stopRanks(sig syscall.Signal) {
	for _, r := range launch.Ranks(id.jobMembers(), id.agent.Environ) {
		_ = syscall.Kill(r, sig) // it may have ended meanwhile
	}
}

// awaitEnd waits on a rank other than 0 until the job has ended. When rank 0 orders it, awaitEnd stops the launcher's
// ranks in this container.
func (c *container) awaitEnd(ctx context.Context) (rendezvous.Outcome, error) {
	if err := c.agreed().writeHosts(); err != nil {
		c.log.Warn("this rank has no host list", "phase", "wait", "err", err)
	}
	done := make(chan struct{})
	var told sync.WaitGroup
	defer told.Wait()
	defer close(done)
	told.Go(func() {
		for {
			select {
			case <-done:
				return
			case s := <-c.node.Orders():
				c.log.Info("stopping the ranks in this container", "phase", "wait",
					"signal", launch.SignalName(s.Signal))
				c.stopRanks(syscall.Signal(s.Signal))
			}
		}
	})
	return c.node.Wait(ctx)
}
