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

// Runtime has the settings of this process's runtime outside of a launch. The zero value is ready for use. A job that
// starts again may wait for its ranks before the settings of the last launch were restored.
type Runtime struct {
	mu             sync.Mutex
	launches       int // the usual settings are known from the first one on
	restored       int // the last launch whose settings are gone
	percent, procs int
	limit          int64
}

// Start tunes the runtime for the wait and the launch. The function that it returns restores the usual settings after
// g.Launch. serve is for its goroutine, which ends with ctx.
func (r *Runtime) Start(ctx context.Context, serve *sync.WaitGroup, g Gathering) (restore func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.launches++
	launch := r.launches
	// A collection of a few MB of garbage would often coincide with the launch, above all on rank 0.
	percent, limit := debug.SetGCPercent(gcPercent(g.Size)), debug.SetMemoryLimit(memoryLimit(g.Size))
	if launch == 1 {
		r.percent, r.limit, r.procs = percent, limit, runtime.GOMAXPROCS(0)
	}
	if g.Rank > 0 {
		// A waiting rank wakes up for little work. Go would wake threads on other processors to look for more, which
		// costs several times as much where containers share processors and all wake up at once. The search for
		// devices is real work.
		serve.Go(func() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(g.Busy):
			}
			select {
			case <-ctx.Done():
			case <-g.Devices:
				r.useOneProcessor(launch)
			}
		})
	}
	return func() { time.AfterFunc(g.Launch, func() { r.restore(launch) }) }
}

// useOneProcessor has no effect after the launch: a search for devices may last longer.
func (r *Runtime) useOneProcessor(launch int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.restored < launch {
		runtime.GOMAXPROCS(1)
	}
}

// restore restores the usual settings, unless another launch has begun since.
func (r *Runtime) restore(launch int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.launches != launch {
		return
	}
	r.restored = launch
	debug.SetGCPercent(r.percent)
	debug.SetMemoryLimit(r.limit)
	runtime.GOMAXPROCS(r.procs)
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
