package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/internal/proc"
)

// burst is the number of orphans that one parent leaves, so that they end in bursts, like those of a shell script.
const burst = 100

// zombieTimeout is how long zombies may remain.
const zombieTimeout = time.Minute

// orphans leaves n processes behind, and waits until no zombie is left in this PID namespace.
func orphans(n int) error {
	for left := n; left > 0; left -= burst {
		if err := leave(min(left, burst)); err != nil {
			return err
		}
	}
	timeout := time.After(zombieTimeout)
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

// leave forks a parent, which forks n children and ends. The Go runtime does not work in these copies of this process,
// so they may only make system calls.
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

// countZombies counts the zombies in /proc.
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
