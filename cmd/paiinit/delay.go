package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// processorDelay is how long the threads of this process that still run have been runnable and had no processor
// (Documentation/scheduler/sched-stats.rst of the kernel, /proc/PID/schedstat); 0 where the kernel does not count it.
func processorDelay() (sum time.Duration) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	for _, t := range threads {
		text, err := os.ReadFile("/proc/self/task/" + t.Name() + "/schedstat")
		if err != nil {
			continue // it has ended
		}
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}
