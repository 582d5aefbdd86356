package pid1

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"unsafe"
)

// ending and others are the signals that the agent gets: all that ask a process to do something. They are listed
// because signal.Notify of all signals includes SIGURG, which the Go runtime sends to itself to preempt goroutines
// (golang/go#37942). Missing are SIGCHLD, which the first process handles; SIGPIPE and SIGXFSZ, which its own writes
// may cause; SIGPROF, which the runtime keeps. Signals of faults are included: the runtime passes on a signal that
// kill(2) sends, and a fault of this program still crashes it.
//
// The first process catches ending before it starts the agent, and others while the agent starts: each signal costs the
// Go runtime two thread switches, 1 to 3 ms for all.
var ending = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}

// others returns the rest. Real-time signals begin at 35: 32 to 34 belong to the C library.
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

// faults are the signals that the kernel sends for a fault. If a process sends one and it is not caught, the Go runtime
// crashes.
var faults = []os.Signal{
	syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGTRAP, syscall.SIGSYS, syscall.SIGSTKFLT,
}

// deadly are the signals that would end or stop the agent if a process sends them to it, or the terminal sends them to
// the process group. The Go runtime ignores the others (runtime/sigtab_linux_generic.go). SIGPIPE is included because
// the agent must survive the end of the process that reads its standard error.
var deadly = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGPIPE,
	syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
}

// notify catches the signals, except ignored ones: our parent ignored them on purpose (nohup), and children
// must inherit that.
func notify(c chan<- os.Signal, signals []os.Signal) {
	caught := make([]os.Signal, 0, len(signals))
	for _, sig := range signals {
		if !ignored(sig.(syscall.Signal)) {
			caught = append(caught, sig)
		}
	}
	if len(caught) > 0 { // without signals, Notify would catch all
		signal.Notify(c, caught...)
	}
}

// stop lets the signal take its default action, so that the shell that started us sees a stopped job. It does not use
// SIGSTOP: in an orphaned process group, where no shell could continue us, the kernel ignores the other signals.
// signal.Reset does not help, because the runtime's handler stays installed.
func stop(sig syscall.Signal) {
	// The calling thread handles the signal before the call returns, and so before it is caught again.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var caught sigaction
	if changeAction(sig, new(sigaction), &caught) != nil {
		return
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(sig))
	_ = changeAction(sig, &caught, nil)
}

// ignored asks the kernel whether a signal is ignored: signal.Ignored knows only SIGHUP and SIGINT. It is false for
// signals that the Go runtime catches at its start.
func ignored(sig syscall.Signal) bool {
	const sigIgn = 1
	var action sigaction
	return changeAction(sig, nil, &action) == nil && action[0] == sigIgn
}

// sigaction is the kernel's struct sigaction, 32 bytes (include/linux/signal_types.h), with the handler first. The zero
// value is the default action.
type sigaction [4]uint64

// changeAction calls rt_sigaction(2). Either action may be nil.
func changeAction(sig syscall.Signal, action, old *sigaction) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig),
		uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(old)), 8 /* bytes of the signal set */, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
