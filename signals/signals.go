// Package signals hands the signals that a container gets to the part of its story that is responsible for them at the
// moment. Between two parts it keeps a signal that asks to end, so that the next part gets it. It hides how a person
// says that the container must not wait for the end of the grace: by a second Ctrl-C.
package signals

import (
	"os"
	"syscall"
	"time"
)

// Switch hands every signal to the function that is responsible for it at the moment.
type Switch struct {
	terminal bool

	set  chan func(os.Signal)
	done chan struct{}
	end  chan struct{}
	seen chan bool
}

// Watch begins to take signals from in. At a terminal a person may press Ctrl-C.
func Watch(in <-chan os.Signal, terminal bool) *Switch {
	s := &Switch{
		terminal: terminal, set: make(chan func(os.Signal)), done: make(chan struct{}),
		end: make(chan struct{}), seen: make(chan bool, 1),
	}
	s.seen <- false
	go s.loop(in)
	return s
}

// hurry is how soon after each other two SIGINT come from a person who does not want to wait for the end of the grace.
// Two SIGTERM do not: kubelet, preStop hooks and supervisors repeat them.
const hurry = 2 * time.Second

// loop keeps a terminating signal that comes while no function is responsible: between two phases none may be lost. A
// person's second SIGINT brings SIGKILL with it.
func (s *Switch) loop(in <-chan os.Signal) {
	defer close(s.end)
	var handle func(os.Signal)
	var kept []os.Signal
	var interrupted time.Time
	take := func(sig os.Signal) {
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

// To makes f responsible; nil = no function is. When To returns, the former function is not running any more.
func (s *Switch) To(f func(os.Signal)) { s.set <- f }

// First reports whether this is its first call.
func (s *Switch) First() bool {
	seen := <-s.seen
	s.seen <- true
	return !seen
}

// Close ends the Switch.
func (s *Switch) Close() {
	close(s.done)
	<-s.end
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
