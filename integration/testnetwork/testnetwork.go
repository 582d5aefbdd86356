// Package testnetwork gives a test program a network of its own, so that other programs of this host cannot use the
// fixed ports of its tests. The package has no initialisers, because one test counts what a program initialises at its
// start.
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

// stageVar tells this program which step comes next after Own has executed it again.
const stageVar = "PAIINIT_TEST_NETWORK"

// Own executes this program again in a network namespace that has only the loopback interface. For an ordinary user the
// program runs as a child of this process, in a user namespace that keeps the user's ids. If neither is allowed, or
// `ip` is missing, Own does nothing. A TestMain calls it first.
func Own() {
	stage := os.Getenv(stageVar)
	_ = os.Unsetenv(stageVar)
	if _, err := exec.LookPath("ip"); stage == "ready" || err != nil {
		return
	}
	var err error
	switch {
	case stage == "loopback":
		// The parent-death signal belongs to a thread, and exec keeps only the thread that calls it: set the signal on
		// the thread that will call exec.
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

// unshareNetwork executes this program again in a new network namespace. It returns nil where that is not permitted.
func unshareNetwork() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil //nolint:nilerr // the program stays in this network
	}
	return executeWithLoopback()
}

// cloneNetwork runs this program in new user and network namespaces, and exits with its status. It returns nil where
// that is not permitted.
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
		return nil //nolint:nilerr // the program stays in this network
	}
	os.Exit(status)
	return nil
}

// executeWithLoopback brings the loopback interface up and executes this program again, without the capability that an
// ordinary user needed for it.
func executeWithLoopback() error {
	runtime.LockOSThread() // capabilities and namespaces belong to a thread
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("bringing the loopback interface up: %w: %s", err, bytes.TrimSpace(out))
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), stageVar+"=ready"))
	return fmt.Errorf("executing this program again: %w", err)
}

// RunAgain runs a command with this process's standard streams and returns its exit status. The command dies with this
// process.
func RunAgain(cmd *exec.Cmd) (int, error) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	runtime.LockOSThread() // Pdeathsig watches this thread
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
