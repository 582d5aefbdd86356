package pid1

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"unsafe"
)

// ending and others are the signals that are handed on to the agent: all that ask a process to do something. It is a
// list, since signal.Notify of everything would also bring SIGURG, which the Go runtime sends to itself to preempt
// goroutines (golang/go#37942). Not in it: SIGCHLD, which is the first process's own business; SIGPIPE and SIGXFSZ,
// which the first process may cause by its own writing; SIGPROF, which the runtime keeps. The signals of faults are in
// it: the runtime hands on a signal that a process has sent by kill(2), and a fault of this program still crashes it.
//
// Those that ask for the end are caught before the agent is started, the others while it starts: the Go runtime catches each with two
// switches of threads, which makes 1 to 3 ms for all of them.
var ending = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}

// others has the real-time signals from 35 on; 32 to 34 belong to the C library.
func others() []os.Signal {
	signals := []os.Signal{
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGTTIN,
		syscall.SIGTTOU, syscall.SIGALRM, syscall.SIGABRT, syscall.SIGPWR, syscall.SIGXCPU, syscall.SIGVTALRM,
		syscall.SIGIO,
	}
	signals = append(signals, faults...)
	for n := 35; n <= 64; n++ {
		signals = append(signals, syscall.Signal(n))
	}
	return signals
}

// faults are the signals that the kernel sends for a fault. Sent by a process, they would crash the Go runtime if they
// were not caught.
var faults = []os.Signal{
	syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGTRAP, syscall.SIGSYS, syscall.SIGSTKFLT,
}

// deadly lists the signals that would end or stop the agent when somebody sends them to it directly, or the terminal
// sends them to the whole process group. The Go runtime itself swallows the others (runtime/sigtab_linux_generic.go).
// SIGPIPE is here so that a reader of standard error that goes away does not end the agent.
var deadly = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGPIPE,
	syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
}

// notify catches the signals, except those that are ignored: whoever started us did that on purpose (nohup), and
// children have to inherit it.
func notify(c chan<- os.Signal, signals []os.Signal) {
	caught := make([]os.Signal, 0, len(signals))
	for _, sig := range signals {
		if !ignored(sig.(syscall.Signal)) {
			caught = append(caught, sig)
		}
	}
	if len(caught) > 0 { // with none Notify means all
		signal.Notify(c, caught...)
	}
}

// stop does what the signal does to a program that does not catch it, so that the shell that started us sees a stopped
// job. It is not SIGSTOP: where nobody could ever continue us (an orphaned process group), the kernel ignores the
// signal. signal.Reset does not help: the runtime leaves its handler installed.
func stop(sig syscall.Signal) {
	// A signal to the calling thread is taken before the call returns, hence before it is caught again.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var caught sigaction
	if changeAction(sig, new(sigaction), &caught) != nil {
		return
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(sig))
	_ = changeAction(sig, &caught, nil)
}

// ignored asks the kernel, since signal.Ignored knows only of SIGHUP and SIGINT. For signals that the Go runtime has
// taken at its start, it is false.
func ignored(sig syscall.Signal) bool {
	const sigIgn = 1
	var action sigaction
	return changeAction(sig, nil, &action) == nil && action[0] == sigIgn
}

// sigaction is the kernel's struct sigaction, 32 bytes (include/linux/signal_types.h). The handler comes first. The zero
// value is the default action.
type sigaction [4]uint64

// changeAction is rt_sigaction(2). Either action may be nil.
func changeAction(sig syscall.Signal, action, old *sigaction) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig),
		uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(old)), 8 /* bytes of the signal set */, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
