// Package signals passes each signal of a container to the phase of the launch that is responsible for signals at the
// moment. Between two phases it keeps a signal that asks to end for the next phase. It hides how a person cuts the
// grace period short: by a second Ctrl-C.
package signals

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Switch hands every signal to the function that is responsible for it at the moment.
type Switch struct {
	terminal bool

	set   chan func(os.Signal)
	done  chan struct{}
	loop  sync.WaitGroup
	seen  atomic.Bool
	asked atomic.Bool
}

// Watch begins to take signals from in. At a terminal a person may press Ctrl-C.
func Watch(in <-chan os.Signal, terminal bool) *Switch {
	s := &Switch{terminal: terminal, set: make(chan func(os.Signal)), done: make(chan struct{})}
	s.loop.Go(func() { s.run(in) })
	return s
}

// hurry is the longest time between two SIGINT with which a person asks not to wait for the grace period. Two SIGTERM
// do not ask for that: kubelet, preStop hooks and supervisors repeat them.
const hurry = 2 * time.Second

// run keeps a signal that asks to end and comes while no function is responsible: between two phases none may be lost.
// After a person's second SIGINT it adds SIGKILL.
func (s *Switch) run(in <-chan os.Signal) {
	var handle func(os.Signal)
	var kept []os.Signal
	var interrupted time.Time
	take := func(sig os.Signal) {
		if Terminating(sig) > 0 {
			s.asked.Store(true)
		}
		switch {
		case handle != nil:
			handle(sig)
		case Terminating(sig) > 0:
			kept = append(kept, sig)
		}
	}
	for {
		select {
		case <-s.done:
			return
		case f := <-s.set:
			handle = f
			if handle != nil {
				for _, sig := range kept {
					handle(sig)
				}
				kept = nil
			}
		case sig := <-in:
			take(sig)
			if sig == syscall.SIGINT {
				if !interrupted.IsZero() && (s.terminal || time.Since(interrupted) <= hurry) {
					take(syscall.SIGKILL)
				}
				interrupted = time.Now()
			}
		}
	}
}

// To makes f responsible; nil = none is. When To returns, the former function is not running any more.
func (s *Switch) To(f func(os.Signal)) { s.set <- f }

// First reports whether this is its first call.
func (s *Switch) First() bool { return !s.seen.Swap(true) }

// Asked reports whether a signal has asked to end.
func (s *Switch) Asked() bool { return s.asked.Load() }

// Close ends the Switch.
func (s *Switch) Close() {
	close(s.done)
	s.loop.Wait()
}

// Terminating returns the number of a signal that asks to end, else 0. SIGHUP does not: it may mean "read your
// configuration again".
func Terminating(sig os.Signal) int {
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL:
		return int(sig.(syscall.Signal))
	}
	return 0
}

// Context returns a context that ends with the first terminating signal for which stop returns an error, its cause. The
// function that it returns must be called at the end: from then on no function is responsible for signals.
func (s *Switch) Context(
	ctx context.Context, stop func(sig os.Signal) error,
) (stoppable context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.To(func(sig os.Signal) {
		if Terminating(sig) > 0 {
			if err := stop(sig); err != nil {
				cancel(err)
			}
		}
	})
	return ctx, func() {
		s.To(nil)
		cancel(nil)
	}
}

// Queue keeps signals for a receiver that is busy. Its capacity bounds their number.
type Queue chan os.Signal

// Put adds a signal, unless the queue is full.
func (q Queue) Put(sig os.Signal) {
	select {
	case q <- sig:
	default:
	}
}
