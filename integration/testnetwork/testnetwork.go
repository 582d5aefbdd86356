// Package testnetwork gives the program of a test a network of its own, so that the fixed ports of its tests are free,
// whatever else runs on this host. It initializes nothing: a test looks at what a program initializes at its start.
package testnetwork

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageVar says what this program has still to do when Own has executed it again.
const stageVar = "PAIINIT_TEST_NETWORK"

// Own moves this process to a network namespace in which only the loopback interface is: it executes the program again
// there. An ordinary user's program runs below this process instead, in a user namespace in which the user keeps their
// ids. Where neither is allowed, or `ip` is missing, Own does nothing. A TestMain calls it first.
func Own() {
	stage := os.Getenv(stageVar)
	_ = os.Unsetenv(stageVar)
	if _, err := exec.LookPath("ip"); stage == "ready" || err != nil {
		return
	}
	var err error
	switch {
	case stage == "loopback":
		// The death of cloneNetwork's process kills the thread that was cloned, and the tests are whichever thread
		// executes the program.
		runtime.LockOSThread()
		err = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
		if err == nil {
			err = executeWithLoopback()
		}
	case os.Geteuid() == 0:
		err = unshareNetwork()
	default:
		err = cloneNetwork()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testnetwork:", err)
		os.Exit(1)
	}
}

// unshareNetwork moves this thread into a new network namespace, and the process with it. It returns if it may not.
func unshareNetwork() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil //nolint:nilerr // the program does without
	}
	return executeWithLoopback()
}

// cloneNetwork runs this program in new user and network namespaces, and exits with its status. It returns if it may
// not.
func cloneNetwork() error {
	uid, gid := os.Getuid(), os.Getgid()
	status, err := RunAgain(&exec.Cmd{
		Path: "/proc/self/exe", Args: os.Args, Env: append(os.Environ(), stageVar+"=loopback"),
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
			AmbientCaps: []uintptr{unix.CAP_NET_ADMIN}, // for the loopback interface
		},
	})
	if err != nil {
		return nil //nolint:nilerr // the program does without
	}
	os.Exit(status)
	return nil
}

// executeWithLoopback brings the loopback interface up and executes this program again, without the capability that
// this has taken an ordinary user.
func executeWithLoopback() error {
	runtime.LockOSThread() // capabilities and namespaces are those of a thread
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("bringing the loopback interface up: %w: %s", err, bytes.TrimSpace(out))
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), stageVar+"=ready"))
	return fmt.Errorf("executing this program again: %w", err)
}

// RunAgain runs a command in place of this process, whose death ends it, and returns its exit status.
func RunAgain(cmd *exec.Cmd) (int, error) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	runtime.LockOSThread() // Pdeathsig speaks of this thread
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}
