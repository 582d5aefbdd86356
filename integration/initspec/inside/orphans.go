package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/internal/proc"
)

// One parent leaves at most this many orphans, so that they come in bursts, as those of a shell script do.
const burst = 100

// patience is how long zombies may stay.
const patience = time.Minute

// orphans leaves n processes behind, and waits until no zombie is left in this PID namespace.
func orphans(n int) error {
	for left := n; left > 0; left -= burst {
		if err := leave(min(left, burst)); err != nil {
			return err
		}
	}
	timeout := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	zombies, err := countZombies()
	for wait := true; err == nil && zombies > 0 && wait; zombies, err = countZombies() {
		select {
		case <-tick.C:
		case <-timeout:
			wait = false
		}
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(os.Stdout, "%d orphans, %d zombies\n", n, zombies)
	return err
}

// leave forks a parent, which forks n children and ends. All of them are copies of this process in which nothing of the
// Go runtime runs any more: they may do system calls, and nothing else.
func leave(n int) error {
	parent, _, errno := fork()
	if errno != 0 {
		return fmt.Errorf("fork: %w", errno)
	}
	if parent == 0 {
		for range n {
			child, _, errno := fork()
			if errno != 0 {
				exit(1)
			}
			if child == 0 {
				exit(0)
			}
		}
		exit(0)
	}
	var how syscall.WaitStatus
	if _, err := syscall.Wait4(int(parent), &how, 0, nil); err != nil {
		return fmt.Errorf("waiting for the parent of orphans: %w", err)
	}
	if how.ExitStatus() != 0 {
		return fmt.Errorf("the parent of orphans could not fork")
	}
	return nil
}

//go:nosplit
func fork() (pid, r2 uintptr, errno syscall.Errno) {
	return syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
}

//go:nosplit
func exit(status uintptr) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, status, 0, 0)
}

// countZombies looks at all processes that /proc shows.
func countZombies() (int, error) {
	all := proc.ReadAll(os.DirFS("/proc"), os.Getpid())
	if all == nil {
		return 0, errors.New("/proc cannot be read")
	}
	zombies := 0
	for _, p := range all {
		if p.State == 'Z' {
			zombies++
		}
	}
	return zombies, nil
}
