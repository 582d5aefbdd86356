package tuning

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGarbageOfSmallJobs(t *testing.T) {
	for size, want := range map[int]int{-1: 400, 1: 400, 64: 400, 128: 200, 256: 100, 4000: 100} {
		require.Equal(t, want, gcPercent(size), "%d ranks", size)
	}
}

func TestStart(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer debug.SetGCPercent(percent)
	most := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(most)
	settings := func() []int64 {
		percent := debug.SetGCPercent(100)
		debug.SetGCPercent(percent)
		return []int64{int64(percent), debug.SetMemoryLimit(-1), int64(runtime.GOMAXPROCS(0))}
	}
	devices := make(chan struct{})
	var serve sync.WaitGroup
	var r Runtime
	restore := r.Start(t.Context(), &serve, Gathering{Size: 128, Rank: 1, Devices: devices})
	require.Equal(t, []int64{200, memoryLimit(128), 2}, settings(), "the search for devices still runs")
	close(devices)
	serve.Wait()
	require.Equal(t, []int64{200, memoryLimit(128), 1}, settings())
	restore()
	require.Eventually(t, func() bool { return runtime.GOMAXPROCS(0) == 2 }, time.Minute, time.Millisecond)
	require.Equal(t, []int64{100, limit, 2}, settings())

	over, end := context.WithCancel(t.Context())
	end()
	_ = r.Start(over, &serve, Gathering{Size: 128, Rank: 1, Devices: make(chan struct{}), Busy: time.Hour})
	serve.Wait()
	require.Equal(t, []int64{200, memoryLimit(128), 2}, settings())
	debug.SetMemoryLimit(limit)
}

// TestSlowDevices: a search for devices that ends after the launch changes nothing more.
func TestSlowDevices(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer debug.SetGCPercent(percent)
	most := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(most)
	devices := make(chan struct{})
	var serve sync.WaitGroup
	var r Runtime
	r.Start(t.Context(), &serve, Gathering{Size: 64, Rank: 1, Devices: devices})()
	require.Eventually(t, func() bool { return debug.SetMemoryLimit(-1) == limit }, time.Minute, time.Millisecond)
	close(devices)
	serve.Wait()
	require.Equal(t, 2, runtime.GOMAXPROCS(0))
}

// TestStartAgain: a launch that begins before the settings were restored leaves the usual ones behind.
func TestStartAgain(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer debug.SetGCPercent(percent)
	most := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(most)
	none := make(chan struct{})
	close(none)
	var r Runtime
	var serve sync.WaitGroup
	for range 3 {
		restore := r.Start(t.Context(), &serve, Gathering{Size: 64, Rank: 1, Devices: none, Launch: time.Hour})
		serve.Wait()
		restore()
	}
	require.Equal(t, 1, runtime.GOMAXPROCS(0))
	r.Start(t.Context(), &serve, Gathering{Size: 64, Rank: 1, Devices: none})()
	require.Eventually(t, func() bool { return runtime.GOMAXPROCS(0) == 2 }, time.Minute, time.Millisecond)
	require.Equal(t, 100, debug.SetGCPercent(100))
	require.Equal(t, limit, debug.SetMemoryLimit(-1))
}
