// Package tuning keeps the Go runtime from its own work during the launch of a job. docs/benchmarks.md shows the gain
// (last host to launch; 256 containers at once).
package tuning

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// Gathering describes a process that waits for the other ranks of a job.
type Gathering struct {
	Size, Rank int             // of the job and of this process; negative = unknown
	Devices    <-chan struct{} // closed when the search for devices has ended
	// A rank works with all processors for Busy at least. Start's restore takes effect after Launch.
	Busy, Launch time.Duration
}

// Start tunes the runtime for the wait and the launch. The function that it returns restores the settings after
// g.Launch. serve is for its goroutine, which ends with ctx.
func (g Gathering) Start(ctx context.Context, serve *sync.WaitGroup) (restore func()) {
	// A collection of a few MB of garbage would often coincide with the launch, above all on rank 0.
	percent := debug.SetGCPercent(gcPercent(g.Size))
	limit := debug.SetMemoryLimit(memoryLimit(g.Size))
	most := 0
	if g.Rank > 0 {
		// A waiting rank wakes up for little work. Go would wake threads on other processors to look for more, which
		// costs several times as much where containers share processors and all wake up at once. The search for
		// devices is real work.
		most = runtime.GOMAXPROCS(0)
		serve.Go(func() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(g.Busy):
			}
			select {
			case <-ctx.Done():
			case <-g.Devices:
				runtime.GOMAXPROCS(1)
			}
		})
	}
	return func() {
		time.AfterFunc(g.Launch, func() {
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
