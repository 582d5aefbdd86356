package launch

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxOpenFiles is the greatest soft limit of open files that children get. Open MPI 4 closes every possible descriptor,
// one by one, before it executes the agent: 0.2 s of CPU per host at a limit of a million.
const maxOpenFiles = 65536

// Limits sets the resource limits that everything started from here on inherits: the soft limit of open files comes
// down to 65536 if it is higher, and the soft limit of locked memory goes up to the hard one, which verbs devices need.
// Hard limits stay. It is called once, before anything is started.
//
// A soft limit of open files that was below its hard limit when this process began is left alone: the Go runtime raises
// it for itself to one below the hard limit and gives children the original back, but only as long as nobody sets it
// (os/rlimit.go and syscall/rlimit.go of Go).
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
