package launch

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxOpenFiles is the highest soft limit of open files for children. Open MPI 4 closes every possible descriptor before
// it executes the agent, which takes 0.2 s per host at a limit of a million.
const maxOpenFiles = 65536

// Limits sets the resource limits that all processes started later inherit: it lowers the soft limit of open files to
// 65536 if it is higher, and raises the soft limit of locked memory to the hard limit, because verbs devices need it.
// Hard limits stay. It is called once, before any process is started.
//
// A soft limit of open files below the hard limit stays as it is: the Go runtime raises it for itself to one below the
// hard limit and restores the original for children, but only as long as no code sets it (os/rlimit.go and
// syscall/rlimit.go of Go).
func Limits() error { return limits(maxOpenFiles) }

func limits(openFiles uint64) error {
	var errs []error
	var nofile syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &nofile); err != nil {
		errs = append(errs, fmt.Errorf("reading the limit of open files: %w", err))
	} else if nofile.Cur == nofile.Max && nofile.Cur > openFiles {
		nofile.Cur = openFiles
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &nofile); err != nil {
			errs = append(errs, fmt.Errorf("lowering the limit of open files: %w", err))
		}
	}
	var memlock unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &memlock); err != nil {
		errs = append(errs, fmt.Errorf("reading the limit of locked memory: %w", err))
	} else if memlock.Cur < memlock.Max {
		memlock.Cur = memlock.Max
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &memlock); err != nil {
			errs = append(errs, fmt.Errorf("raising the limit of locked memory: %w", err))
		}
	}
	return errors.Join(errs...)
}
