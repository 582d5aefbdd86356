package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/paiinit/paiinit/envspec"
)

// This file changes only when the Go runtime does its work. docs/benchmarks.md shows the gain (last host to launch; 256
// containers at once).

// postLaunchDelay is how long work that the launch does not need waits after all ranks are present.
const postLaunchDelay = time.Second

// deferUntilLaunched is how long a rank delays work that rank 0 does not need. By then the job is launched, if this
// container was the last to start.
const deferUntilLaunched = 100 * time.Millisecond

// tuneWhileGathering tunes the runtime for the wait and the launch. The function that it returns restores the settings
// after postLaunchDelay. serve is for its goroutine, which ends with ctx.
func tuneWhileGathering(
	ctx context.Context, job envspec.Job, devices <-chan struct{}, serve *sync.WaitGroup,
) (restore func()) {
	// A collection of a few MB of garbage would often coincide with the launch, above all on rank 0.
	percent := debug.SetGCPercent(gcPercent(job.Size))
	limit := debug.SetMemoryLimit(memoryLimit(job.Size))
	most := 0
	if job.Rank > 0 {
		// A waiting rank wakes up for little work. Go would wake threads on other processors to look for more, which
		// costs several times as much where containers share processors and all wake up at once. The search for
		// devices is real work.
		most = runtime.GOMAXPROCS(0)
		serve.Go(func() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(deferUntilLaunched):
			}
			select {
			case <-ctx.Done():
			case <-devices:
				runtime.GOMAXPROCS(1)
			}
		})
	}
	return func() {
		time.AfterFunc(postLaunchDelay, func() {
			debug.SetGCPercent(percent)
			debug.SetMemoryLimit(limit)
			if most > 0 {
				runtime.GOMAXPROCS(most)
			}
		})
	}
}

// gcPercent returns how much garbage the heap may hold until the launch, in percent of the memory in use
// (runtime/debug.SetGCPercent): the runtime's default of 100 for a large job, whose heap is large.
func gcPercent(size int) int {
	return max(100, min(400, 100*256/max(size, 1)))
}

// memoryLimit returns how many bytes the process may use until the launch before the garbage collector runs regardless
// of gcPercent (runtime/debug.SetMemoryLimit). A launch of size ranks stays below it; a flood of connections does not.
func memoryLimit(size int) int64 {
	return 96<<20 + int64(max(size, 0))*256<<10
}
