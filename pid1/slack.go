package pid1

import (
	"runtime"
	"syscall"
	"time"
)

// agentSlack is how much later than requested a timer of the agent may expire. After every wake-up, a thread of the Go
// runtime (sysmon in runtime/proc.go) polls every 20 microseconds until the program is idle again, which costs more
// than the agent's work. With 64 agents on two processors this slack makes the launch a third faster. No timer of the
// agent needs more precision.
const agentSlack = int(time.Millisecond)

// timerSlack returns the timer slack of the calling thread in nanoseconds; -1 if the kernel does not tell.
func timerSlack() int {
	slack, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prGetTimerslack, 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	return int(slack)
}

// withSlack calls start on a thread with this timer slack in nanoseconds, which a program started there inherits.
func withSlack(slack int, start func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := timerSlack()
	_ = prctl(prSetTimerslack, uintptr(slack))
	start()
	_ = prctl(prSetTimerslack, uintptr(before))
}
