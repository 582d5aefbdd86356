package main

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/joblog"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/ready"
)

// readyBarrier is the barrier at which the other ranks wait for a leader that is not ready. No command line can have
// this name, so no caller of `paiinit barrier` is at it.
const readyBarrier = "\x00ready"

// readyCheck reads --ready, for a rank with these words.
func (s *settings) readyCheck(w launch.Words) (ready.Check, error) {
	text, err := s.fillWords(w, []string{s.ready})
	if err != nil {
		return ready.Check{}, err
	}
	check, err := ready.Parse(text[0], s.dir)
	if err != nil {
		return ready.Check{}, cmdline.Errorf("--ready (%s) is %q: %w", cmdline.Twin("ready"), s.ready, err)
	}
	return check, nil
}

// inOrder reports whether the other ranks start COMMAND when rank 0 is ready.
func (s *argumentSettings) inOrder() bool { return s.ready != "" || s.firstLine != "" }

// awaited names what the ranks wait for.
func (s *argumentSettings) awaited() string { return cmp.Or(s.ready, "--first") }

// awaits says, for probes, why rank 0 is not ready.
func (s *argumentSettings) awaits(why string) string {
	if s.ready == "" {
		return why
	}
	return s.ready + ": " + why
}

// checkReady refuses a --ready or --first that cannot work.
func (s *settings) checkReady() error {
	for _, f := range []struct{ name, value string }{{"ready", s.ready}, {"first", s.firstLine}} {
		if f.value != "" && !s.hasLeader() {
			return cmdline.Errorf("--%s (%s) needs --exec leader", f.name, cmdline.Twin(f.name))
		}
	}
	if s.ready != "" {
		if _, err := s.readyCheck(launch.Words{}); err != nil {
			return err
		}
	}
	_, err := s.fillWords(launch.Words{}, []string{s.firstLine})
	return err
}

// watchLeader begins to watch the server of rank 0 before its start. It returns nil without --ready.
func (a *agreement) watchLeader() (*ready.Server, error) {
	if a.ready == "" {
		return nil, nil
	}
	check, err := a.readyCheck(a.words())
	if err != nil {
		return nil, err
	}
	return check.Watch(a.self().Addr.Addr()), nil
}

// awaitLeader waits until rank 0 is ready, on the other ranks of a job with --ready or --first. After an error the
// command of this rank must not start.
func (c *container) awaitLeader(ctx context.Context, a *agreement) error {
	if !a.inOrder() || a.self().Rank == 0 {
		return nil
	}
	zero := a.roster.Members[0].Display()
	c.agent.Settle()
	err := c.sayingWaiting(ctx, readyRepeat, func() {
		c.log.Info("waiting until rank 0's command is ready", "phase", "launch", "peer", zero, "ready", a.awaited(),
			"elapsed", c.elapsed(), joblog.Text(fmt.Sprintf(
				"waiting for rank 0 (%s): its command is not ready yet (%s)", zero, a.awaited())))
	}, func() error { return c.node().Barrier(ctx, readyBarrier) })
	return cmp.Or(err, ctx.Err()) // the order to end may come together with the end of the wait
}

// awaiting waits until something is ready, and calls say with each reason why it is not.
type awaiting func(ctx context.Context, say func(why string)) error

// announceReady closes a channel and tells the other ranks when rank 0 is ready, unless ctx ends before.
func (c *container) announceReady(ctx context.Context, await awaiting, isReady chan<- struct{}) {
	var reason string
	var mu sync.Mutex // of reason
	begin := time.Now()
	err := c.sayingWaiting(ctx, readyInterval, func() {
		mu.Lock()
		defer mu.Unlock()
		c.log.Info("the command is not ready yet", "phase", "launch", "ready", c.awaited(), "reason", reason,
			"elapsed", c.elapsed(), joblog.Text(fmt.Sprintf(
				"waiting until the command is ready (%s): %s", c.awaited(), reason)))
	}, func() error {
		return await(ctx, func(why string) {
			mu.Lock()
			defer mu.Unlock()
			if reason != why {
				c.node().CommandAwaits(c.awaits(why))
			}
			reason = why
		})
	})
	if err != nil {
		return
	}
	c.node().CommandAwaits("")
	close(isReady)
	took := time.Since(begin).Round(time.Millisecond)
	c.routine("the command is ready", "phase", "launch", "ready", c.awaited(), "took", took, "elapsed", c.elapsed(),
		joblog.Text(fmt.Sprintf("the command is ready after %s; the other ranks start theirs", joblog.Seconds(took))))
	_ = c.node().Barrier(ctx, readyBarrier) // it returns when all ranks have come, or the job is over
}

// When ranks log that they wait for rank 0's command, after the first time: rank 0 with the reason, the others seldom.
const (
	readyFirst    = 3 * time.Second
	readyInterval = 10 * time.Second
	readyRepeat   = time.Minute
)

// sayingWaiting calls say during a long wait: after readyFirst, then every interval.
func (c *container) sayingWaiting(ctx context.Context, interval time.Duration, say func(), wait func() error) error {
	var saying sync.WaitGroup
	defer saying.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	saying.Go(func() {
		for pause := readyFirst; ; pause = interval {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
				say()
			}
		}
	})
	return wait()
}
