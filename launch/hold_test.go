package launch

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
)

// TestHold: Hold stops all processes of the job, new and continued ones too, and Release continues them.
func TestHold(t *testing.T) {
	if !insidePlaces(t, rootPlace, subreaperPlace) {
		return
	}
	running := startJob(t, 2, script("(setsid sh -c 'up; while :; do sleep 0.001; done' &); up; exec sleep 1000"))
	stopped := startJob(t, 1, script("up; exec sleep 1000"))
	goesOn := startJob(t, 1, script("up; exec sleep 1000"))
	isStopped := func(p proc.Process) bool { return p.State == 'T' }
	for _, pid := range []int{stopped.Process.Pid, goesOn.Process.Pid} {
		require.NoError(t, unix.Kill(pid, unix.SIGSTOP))
		awaitState(t, pid, isStopped)
	}
	c := Clearing{First: os.Getppid()}
	ctx, cancel := context.WithCancel(t.Context())
	held := make(chan *Held, 1)
	go func() {
		h, err := Hold(ctx, c)
		if err != nil {
			t.Error(err)
		}
		held <- h
	}()
	job := func() []proc.Process {
		found, err := newClear(c).look(time.Now().Add(time.Minute))
		require.NoError(t, err)
		return found.job
	}
	allStopped := func() bool {
		for _, p := range job() {
			// A shell that waits in vfork(2) for a stopped child is uninterruptible, and as good as stopped.
			if !isStopped(p) && p.State != 'D' {
				return false
			}
		}
		return true
	}
	require.Eventually(t, allStopped, long, time.Millisecond)
	require.NoError(t, unix.Kill(goesOn.Process.Pid, unix.SIGCONT)) // as the end of a freeze does
	awaitState(t, goesOn.Process.Pid, isStopped)
	require.Eventually(t, allStopped, long, time.Millisecond)
	cancel()
	(<-held).Release()
	for _, pid := range []int{running.Process.Pid, goesOn.Process.Pid} {
		awaitState(t, pid, func(p proc.Process) bool { return !isStopped(p) })
	}
	still := 0
	for _, p := range job() {
		if isStopped(p) {
			require.Equal(t, stopped.Process.Pid, p.PID)
			still++
		}
	}
	require.Equal(t, 1, still, "it was stopped before")
	clearAll(t, 0)
}

// TestHoldSparesHandlers: what catches SIGCONT is neither stopped nor gets it, but the processes that it starts are
// stopped.
func TestHoldSparesHandlers(t *testing.T) {
	if !insidePlaces(t, rootPlace, subreaperPlace) {
		return
	}
	handler := startJob(t, 1, script("trap 'exit 9' CONT; up; sleep 1000 & wait; exit 3"))
	plain := startJob(t, 1, script("up; exec sleep 1000"))
	ctx, cancel := context.WithCancel(t.Context())
	held := make(chan *Held, 1)
	go func() {
		h, err := Hold(ctx, Clearing{First: os.Getppid()})
		if err != nil {
			t.Error(err)
		}
		held <- h
	}()
	isStopped := func(p proc.Process) bool { return p.State == 'T' }
	awaitState(t, plain.Process.Pid, isStopped)
	fsys, child := os.DirFS("/proc"), 0
	require.Eventually(t, func() bool {
		for _, pid := range proc.ReadAll(fsys, os.Getpid()).Below(handler.Process.Pid) {
			if p, err := proc.Read(fsys, pid); err == nil && p.Name == "sleep" && isStopped(p) {
				child = pid
			}
		}
		return child != 0
	}, long, time.Millisecond)
	p, err := proc.Read(fsys, handler.Process.Pid)
	require.NoError(t, err)
	require.False(t, isStopped(p))
	cancel()
	(<-held).Release()
	awaitState(t, plain.Process.Pid, func(p proc.Process) bool { return !isStopped(p) })
	require.NoError(t, unix.Kill(child, unix.SIGKILL))
	var exit *exec.ExitError
	require.ErrorAs(t, handler.Wait(), &exit)
	require.Equal(t, 3, exit.ExitCode(), "it has got no SIGCONT")
	clearAll(t, 0)
}
