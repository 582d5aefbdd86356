package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
)

// commands has paiinit run n commands for SSH clients, eight at a time. Each leaves an orphan, and its client must
// return its status.
func commands(n int) error {
	var next, wrong atomic.Int64
	var first sync.Once
	var reason error
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				want := int(i % 250) // the client uses 255 for its own failures
				cmd := exec.Command("/sbin/paiinit", "rsh", "localhost", fmt.Sprintf("(: &); exit %d", want))
				out, err := cmd.CombinedOutput()
				if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
					err = nil
				}
				if got := cmd.ProcessState.ExitCode(); err != nil || got != want {
					wrong.Add(1)
					first.Do(func() {
						reason = fmt.Errorf("command %d ended with %d, not %d: %s: %w", i, got, want, out, err)
					})
				}
			}
		})
	}
	clients.Wait()
	if _, err := fmt.Fprintf(os.Stdout, "%d commands, %d wrong\n", n, wrong.Load()); err != nil {
		return err
	}
	return reason
}
