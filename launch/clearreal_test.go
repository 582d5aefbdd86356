package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
)

// placeEnv is the variable that marks a place: the tests run this binary again as the first process of a PID namespace,
// or as a child subreaper, so that they clear nothing else. That process starts the tests, which are the agent.
const placeEnv = "PAIINIT_LAUNCH_TEST_PLACE"

// mountProc mounts the namespace's own /proc.
func mountProc() {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("proc", "/proc", "proc", 0, "")
	}
	if err != nil {
		panic(err)
	}
}

// place is where Clear runs.
type place struct {
	name  string
	flags uintptr // of clone(2)
}

const namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS

var (
	rootPlace      = place{"PID 1, root", namespaces}
	subreaperPlace = place{"subreaper", 0}
	places         = []place{rootPlace, {"PID 1, user namespace", namespaces | unix.CLONE_NEWUSER}, subreaperPlace}
)

// command returns this binary as the first process of the place, whose agent runs one test.
func (p place) command(t *testing.T, test string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	t.Cleanup(cancel)
	cmd := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
		attr := &syscall.SysProcAttr{Cloneflags: p.flags, Setpgid: true}
		if p.flags&unix.CLONE_NEWUSER != 0 {
			attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
		}
		cmd.SysProcAttr = attr
		cmd.WaitDelay = time.Minute
		return cmd
	}
	if p.flags != 0 {
		probe := cmd()
		probe.Env = helperEnviron("ps")
		if err := probe.Run(); err != nil {
			missing(t, fmt.Sprintf("%s: no namespaces here: %v", p.name, err))
		}
	}
	c := cmd("-test.run=^"+test+"$", "-test.timeout=5m", "-test.v")
	reaped := func(kv string) bool { return strings.HasPrefix(kv, reapedEnv+"=") } // that process reaps, too
	c.Env = append(slices.DeleteFunc(os.Environ(), reaped), placeEnv+"="+p.name, "GORACE=atexit_sleep_ms=0")
	return c
}

// insidePlaces runs a test in all places. It returns true inside of one, where the test does its work.
func insidePlaces(t *testing.T, places ...place) bool {
	t.Helper()
	if os.Getenv(placeEnv) != "" {
		return true
	}
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			out, err := p.command(t, t.Name()[:strings.Index(t.Name(), "/")]).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "\nPASS\n")
			require.NotContains(t, string(out), "SKIP")
		})
	}
	return false
}

// startJob starts a command and waits until it and its children have written n lines.
func startJob(t *testing.T, n int, c *exec.Cmd) *exec.Cmd {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	c.Stdout, c.Stderr = w, os.Stderr
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	require.NoError(t, c.Start())
	_ = w.Close()
	lines := bufio.NewReader(r)
	for range n {
		_, err := lines.ReadString('\n')
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		_ = r.Close()
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c
}

// script returns a command, in which "up" stands for telling startJob that a process runs.
func script(text string) *exec.Cmd {
	c := exec.Command("/bin/sh", "-c", strings.ReplaceAll(text, "up", "echo"))
	c.Env = []string{"PATH=" + defaultPath}
	return c
}

func helperCommand(mode string, args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Env = helperEnviron(mode)
	return c
}

// clearAll runs Clear, and checks that it has left no process of the job.
func clearAll(t *testing.T, grace time.Duration, spared ...int) Cleared {
	t.Helper()
	c := newClear(Clearing{
		First: os.Getppid(), Deadline: time.Now().Add(grace), Spared: func() []int { return spared },
	})
	return runClear(t, c)
}

func runClear(t *testing.T, c *clearing) Cleared {
	t.Helper()
	done, err := c.run(t.Context())
	require.NoError(t, err)
	found, err := newClear(c.Clearing).look(time.Now().Add(time.Minute))
	require.NoError(t, err)
	require.Empty(t, found.job)
	return done
}

const long = 30 * time.Second

func TestClear(t *testing.T) {
	if !insidePlaces(t, places...) {
		return
	}
	require.Zero(t, clearAll(t, long).Ended, "nothing runs yet")

	t.Run("one process", func(t *testing.T) {
		startJob(t, 1, script("up; exec sleep 1000"))
		done := clearAll(t, long)
		require.Equal(t, 1, done.Ended)
		require.Zero(t, done.Killed)
		require.Less(t, done.Took, long)
	})

	t.Run("SIGKILL at once", func(t *testing.T) {
		startJob(t, 1, script("trap 'sleep 1000' TERM; up; while :; do sleep 1000; done"))
		done := clearAll(t, 0)
		require.Equal(t, done.Ended, done.Killed)
	})

	t.Run("all that leave the tree", func(t *testing.T) {
		c := startJob(t, 4, script(`
			setsid sh -c 'up; exec sleep 1000' &
			(setsid sh -c 'up; exec sleep 1000' & )
			env -i /bin/sh -c '(up; exec sleep 1000) & '
			up; exit 0`))
		require.NoError(t, c.Wait())
		done := clearAll(t, long)
		require.Equal(t, 3, done.Ended)
		require.Zero(t, done.Killed)
	})

	t.Run("a process that ignores SIGTERM", func(t *testing.T) {
		startJob(t, 1, script("trap '' TERM; up; exec sleep 1000"))
		done := clearAll(t, 50*time.Millisecond)
		require.Equal(t, 1, done.Ended)
		require.Equal(t, 1, done.Killed)
		require.GreaterOrEqual(t, done.Took, 50*time.Millisecond)
	})

	t.Run("a stopped process", func(t *testing.T) {
		c := startJob(t, 1, script("up; exec sleep 1000"))
		require.NoError(t, c.Process.Signal(unix.SIGSTOP))
		awaitState(t, c.Process.Pid, func(p proc.Process) bool { return p.State == 'T' })
		done := clearAll(t, long)
		require.Equal(t, 1, done.Ended)
		require.Zero(t, done.Killed)
		require.Less(t, done.Took, long)
	})

	t.Run("a process that saves its work by another one", func(t *testing.T) {
		saved := filepath.Join(t.TempDir(), "saved")
		startJob(t, 1, script(`
			trap 'sleep 0.1; echo >`+saved+`; exit' TERM
			sleep 1000 & up; wait`))
		done := clearAll(t, long)
		require.FileExists(t, saved)
		require.Zero(t, done.Killed)
	})

	t.Run("one that starts another one all the time", func(t *testing.T) {
		startJob(t, 1, script("trap '' TERM; up; while :; do sleep 0.001; done"))
		done := clearAll(t, 50*time.Millisecond)
		require.Positive(t, done.Killed)
	})

	t.Run("a zombie whose parent lives", func(t *testing.T) {
		c := script("exit 0")
		require.NoError(t, c.Start())
		defer func() { _ = c.Wait() }()
		awaitState(t, c.Process.Pid, proc.Process.Ended)
		require.Zero(t, clearAll(t, 0).Ended)
		p, err := proc.Read(os.DirFS("/proc"), c.Process.Pid)
		require.NoError(t, err)
		require.Equal(t, byte('Z'), p.State)
	})

	t.Run("a process whose first thread has ended", func(t *testing.T) {
		for _, grace := range []time.Duration{0, long} {
			c := startJob(t, 1, helperCommand("leaderless"))
			awaitState(t, c.Process.Pid, func(p proc.Process) bool { return p.State == 'Z' })
			done := clearAll(t, grace)
			require.Equal(t, 1, done.Ended)
			require.Less(t, done.Took, long)
			p, err := proc.Read(os.DirFS("/proc"), c.Process.Pid)
			require.NoError(t, err)
			require.LessOrEqual(t, p.Threads, 1)
		}
	})

	t.Run("without pidfds", func(t *testing.T) {
		for _, grace := range []time.Duration{0, long} {
			startJob(t, 2, script("up; (up; exec sleep 1000) & exec sleep 1000"))
			c := newClear(Clearing{First: os.Getppid(), Deadline: time.Now().Add(grace)})
			c.open = func(int, int) (int, error) { return -1, unix.ENOSYS }
			done := runClear(t, c)
			require.Equal(t, 2, done.Ended)
			require.Less(t, done.Took, long)

			startJob(t, 1, script("up; exec sleep 1000"))
			c = newClear(Clearing{First: os.Getppid(), Deadline: time.Now().Add(grace)})
			c.signal = func(int, unix.Signal, *unix.Siginfo, int) error { return unix.EPERM } // by seccomp
			done = runClear(t, c)
			require.Equal(t, 1, done.Ended)
			require.Less(t, done.Took, long)
		}
	})

	t.Run("people and helpers", func(t *testing.T) {
		session := script(`
			sh -c 'up; exec sleep 1000' &
			setsid sh -c 'up; exec sleep 1000' &
			(sh -c 'up; exec sleep 1000' & )
			up; wait`)
		session.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		startJob(t, 4, session)
		helper := startJob(t, 1, script("up; exec sleep 1000"))
		startJob(t, 2, script("(up; exec sleep 1000) & up; exec sleep 1000"))
		done := clearAll(t, long, session.Process.Pid, helper.Process.Pid)
		require.Equal(t, 2, done.Ended)
		require.Equal(t, 5, clearAll(t, long).Ended, "those that were spared")
	})

	t.Run("many", func(t *testing.T) {
		const n = 100 // more than await takes at once
		startJob(t, 1, script("for i in $(seq "+strconv.Itoa(n)+"); do sleep 1000 & done; up; wait"))
		done := clearAll(t, long)
		require.Equal(t, n+1, done.Ended)
		require.Zero(t, done.Killed)
	})

	t.Run("the context ends", func(t *testing.T) {
		startJob(t, 1, script("trap '' TERM; up; exec sleep 1000"))
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { cancel(errors.New("stopped")) })
		began := time.Now()
		_, err := Clear(ctx, Clearing{First: os.Getppid(), Deadline: began.Add(long)})
		require.ErrorContains(t, err, "ending the processes of the job: stopped; 1 left: ")
		require.Less(t, time.Since(began), long)
		clearAll(t, 0)
	})
}

// Processes that start processes faster than they can be found: as many as their limit allows, each in the group of the
// first one, or each in a session of its own, so that one that is killed is replaced at once; or always one, which
// starts the next one and ends.
func TestClearEndsForkBombs(t *testing.T) {
	if os.Getuid() != 0 {
		missing(t, "only root can start processes of another user, which have a limit")
	}
	if !insidePlaces(t, rootPlace, subreaperPlace) {
		return
	}
	for _, how := range []string{"tree", "sessions", "chain"} {
		for _, grace := range []time.Duration{0, 20 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s, grace %s", how, grace), func(t *testing.T) {
				startJob(t, 20, helperCommand("bomb", how))
				done := clearAll(t, grace)
				t.Logf("%+v", done)
				require.Positive(t, done.Ended)
				require.Less(t, done.Took, bombTime/2)
			})
		}
	}
}

const (
	bombSize = 30          // processes
	bombTime = time.Minute // after which a bomb ends by itself
)

// startBomb limits the processes of this process, which runs as a user that has no other ones.
func startBomb(how string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	must(unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: bombSize, Max: bombSize}))
	must(syscall.Setuid(1<<20 + os.Getpid()))
	var now unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	bomb(how == "chain", how == "sessions", now.Sec+int64(bombTime/time.Second))
}

// bomb writes a line and starts copies of itself, which do the same. It makes only raw system calls, because the Go
// runtime does not survive fork(2).
//
//go:norace
//go:nosplit
func bomb(chain, sessions bool, end int64) {
	line := [1]byte{'\n'}
	_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, 1, uintptr(unsafe.Pointer(&line)), 1)
	for {
		var now unix.Timespec
		_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&now)), 0)
		if now.Sec >= end {
			_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		switch {
		case errno != 0:
			_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
			continue
		case pid == 0 && sessions:
			_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		case pid != 0 && chain:
			_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, 1, uintptr(unsafe.Pointer(&line)), 1)
	}
}

// A process that was started by kubectl exec has no parent in the namespace.
func TestClearSparesExecs(t *testing.T) {
	if os.Getuid() != 0 {
		missing(t, "only root can enter a PID namespace")
	}
	if os.Getenv(placeEnv) != "" {
		fmt.Println("exec")
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		require.NoError(t, err)
		startJob(t, 1, script("up; exec sleep 1000"))
		require.Equal(t, 1, clearAll(t, long).Ended)
		return
	}
	first := rootPlace.command(t, t.Name())
	stdin, err := first.StdinPipe()
	require.NoError(t, err)
	stdout, err := first.StdoutPipe()
	require.NoError(t, err)
	first.Stderr = os.Stderr
	require.NoError(t, first.Start())
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		if line == "exec\n" {
			break
		}
	}

	session := script(`
		sh -c 'up; exec sleep 1000' &
		(sh -c 'up; exec sleep 1000' & )
		up; wait`)
	session.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", first.Process.Pid))
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	entered, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		err := unix.Setns(int(file.Fd()), unix.CLONE_NEWPID)
		if err == nil {
			startJob(t, 3, session)
		}
		entered <- err
	}()
	require.NoError(t, <-entered)
	go func() { ended <- session.Wait() }() // the namespace ends only when its zombies are reaped
	_, err = io.WriteString(stdin, "\n")
	require.NoError(t, err)
	out, err := io.ReadAll(lines)
	require.NoError(t, err)
	require.NoError(t, first.Wait(), "%s", out)
	require.Contains(t, string(out), "PASS\n")
	require.Error(t, <-ended, "it was killed with the namespace")
}

// A process of another user cannot be ended.
func TestClearNamesProcessesOfOtherUsers(t *testing.T) {
	if os.Getuid() != 0 {
		missing(t, "only root can start processes of other users")
	}
	if !insidePlaces(t, subreaperPlace) {
		return
	}
	foreign := startJob(t, 1, script("up; exec sleep 1000"))
	awaitState(t, foreign.Process.Pid, func(p proc.Process) bool { return p.Name == "sleep" && p.State == 'S' })
	c := helperCommand("clear")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `^ending the processes of the job: after [\d.]+m?s: 1 left: `+strconv.Itoa(foreign.Process.Pid)+
		` \(sleep, state S\): it belongs to another user: operation not permitted\n$`, string(out))
	clearAll(t, 0)
}

// leaveMainThread ends the first thread of this process, but not the process.
func leaveMainThread() {
	for {
		go func() {
			runtime.LockOSThread()
			if unix.Gettid() == os.Getpid() {
				fmt.Println("ready")
				_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
			}
			select {}
		}()
		time.Sleep(time.Millisecond)
	}
}

// awaitState waits until a process is in a state.
func awaitState(t *testing.T, pid int, in func(proc.Process) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		p, err := proc.Read(os.DirFS("/proc"), pid)
		return err == nil && in(p)
	}, time.Minute, time.Millisecond)
}
