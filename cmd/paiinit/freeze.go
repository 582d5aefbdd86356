package main

import (
	"context"
	"sync"
	"time"

	"github.com/paiinit/paiinit/launch"
)

// A container that was frozen, alone or with its machine, runs no timer meanwhile. If rank 0 has taken it for dead, the
// job may run again elsewhere, and the command must not go on here. So after a freeze the command stays stopped until
// rank 0 confirms that this generation goes on; on rank 0, until all other ranks do.

// freezeTime is the shortest freeze that is certain to be noticed. A shorter one only delays the steps that the fence
// of package rendezvous counts on, and these rarely take their longest times.
const freezeTime = 4 * time.Second

// pulse notices freezes: then a tick comes late.
type pulse struct {
	end   func()
	mu    sync.Mutex
	last  time.Duration // tick, since the boot: that clock goes on while the machine sleeps
	froze time.Duration // for how long, until it is taken
	taken chan struct{} // capacity 1: froze was set
}

// startPulse ticks until end is called.
func startPulse(ctx context.Context) *pulse {
	ctx, cancel := context.WithCancel(ctx)
	p := &pulse{last: launch.SinceBoot(), taken: make(chan struct{}, 1)}
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				p.beat(launch.SinceBoot())
			}
		}
	})
	p.end = func() {
		cancel()
		work.Wait()
	}
	return p
}

// beat notes that this process runs at that time.
func (p *pulse) beat(now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if gap := now - p.last; gap >= freezeTime {
		p.froze = gap
		select {
		case p.taken <- struct{}{}:
		default:
		}
	}
	p.last = now
}

// take returns how long this process was frozen since the last call.
func (p *pulse) take(now time.Duration) time.Duration {
	p.beat(now) // after a freeze this goroutine may run before the ticking goroutine
	p.mu.Lock()
	defer p.mu.Unlock()
	froze := p.froze
	p.froze = 0
	return froze
}

// guard confirms this generation whenever this container was frozen, from now until end is called. An error says that
// the generation ends: the command must not be started.
func (c *container) guard(ctx context.Context) (end func(), err error) {
	rank := c.agreed().self().Rank
	_, told := c.restarts.Told()
	if len(c.agreed().roster.Members) == 1 || rank == 0 && c.policy.Restarts == 0 || rank > 0 && told == nil {
		c.pulse.end() // the job cannot run again elsewhere
		return func() {}, nil
	}
	c.frozen.Store(false)
	if c.pulse.take(launch.SinceBoot()) > 0 && rank > 0 { // rank 0's order to launch may be old
		waiting, stop := c.stoppable(ctx, false)
		err = c.node().Confirm(waiting)
		stop()
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.pulse.taken:
				if froze := c.pulse.take(launch.SinceBoot()); froze > 0 {
					c.thaw(ctx, froze)
				}
			}
		}
	})
	return func() {
		cancel()
		work.Wait()
		c.pulse.end()
	}, err
}

// thaw lets the command go on after a freeze if the generation is confirmed, and else ends it.
func (c *container) thaw(ctx context.Context, froze time.Duration) {
	begin := time.Now()
	c.frozen.Store(true)
	holding, release := context.WithCancel(ctx)
	var held *launch.Held
	var work sync.WaitGroup
	work.Go(func() {
		var err error
		if held, err = launch.Hold(holding, c.clearing(0)); err != nil {
			c.log.Warn("the command could not be stopped after a freeze", "phase", "wait", "err", err)
		}
	})
	c.log.Warn("this container was frozen: its command is stopped until the job is known to go on", "phase", "wait",
		"frozen", froze.Round(time.Millisecond))
	err := c.node().Confirm(ctx)
	release()
	work.Wait()
	if err == nil {
		c.frozen.Store(false)
		held.Release()
		c.log.Info("the command goes on after a freeze", "phase", "wait",
			"stopped", time.Since(begin).Round(time.Millisecond))
		return
	}
	c.log.Warn("ending the command after a freeze", "phase", "wait", "reason", err.Error())
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), proveTimeout)
	defer cancel()
	if _, err := c.clear(ending, 0); err != nil {
		c.log.Warn("processes of the command are left after a freeze", "phase", "wait", "err", err)
	}
}
