package pid1

import (
	"runtime"
	"syscall"
	"time"
)

// agentSlack is how much later than asked for a timer of the agent may expire. Whenever something wakes up a Go program, a thread of the
// runtime (sysmon in runtime/proc.go) looks around in steps of 20 microseconds until all is quiet again, which costs more than what there is to do, above
// all in virtual machines: where 63 agents on two processors wait for a last one, the launch comes a third earlier with this slack. The agent has no timer that is in a hurry.
const agentSlack = int(time.Millisecond)

// timerSlack is that of the calling thread, in nanoseconds; -1 if the kernel does not say.
func timerSlack() int {
	slack, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prGetTimerslack, 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	return int(slack)
}

// withSlack calls start on a thread whose timer slack, in nanoseconds, is inherited by a program that is started there.
func withSlack(slack int, start func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := timerSlack()
	_ = prctl(prSetTimerslack, uintptr(slack))
	start()
	_ = prctl(prSetTimerslack, uintptr(before))
}
