package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/paiinit/paiinit/envspec"
)

// What this file does changes no behaviour, only when the Go runtime works: docs/benchmarks.md shows what it brings
// (last host to launch; 256 containers at once).

// launchFirst delays work that the launch does not need after all ranks are present.
const launchFirst = time.Second

// lastFirst delays work that rank 0 does not need from a rank: if this container is the last to start, the job is
// launched by then.
const lastFirst = 100 * time.Millisecond

// tuneWhileGathering sets the runtime for the wait and the launch. The function that it returns ends that launchFirst
// later. serve is for its goroutine, which ends with ctx.
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
			case <-time.After(lastFirst):
			}
			select {
			case <-ctx.Done():
			case <-devices:
				runtime.GOMAXPROCS(1)
			}
		})
	}
	return func() {
		time.AfterFunc(launchFirst, func() {
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
