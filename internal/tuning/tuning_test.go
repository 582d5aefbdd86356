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
	restore := Gathering{Size: 128, Rank: 1, Devices: devices}.Start(t.Context(), &serve)
	require.Equal(t, []int64{200, memoryLimit(128), 2}, settings(), "the search for devices still runs")
	close(devices)
	serve.Wait()
	require.Equal(t, []int64{200, memoryLimit(128), 1}, settings())
	restore()
	require.Eventually(t, func() bool { return runtime.GOMAXPROCS(0) == 2 }, time.Minute, time.Millisecond)
	require.Equal(t, []int64{100, limit, 2}, settings())

	over, end := context.WithCancel(t.Context())
	end()
	_ = Gathering{Size: 128, Rank: 1, Devices: make(chan struct{}), Busy: time.Hour}.Start(over, &serve)
	serve.Wait()
	require.Equal(t, []int64{200, memoryLimit(128), 2}, settings())
	debug.SetMemoryLimit(limit)
}
