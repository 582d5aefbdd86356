package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/testsignals"
)

// helperEnv is the variable that makes the test binary one of the small programs of helper.
const helperEnv = "PAIINIT_LAUNCH_TEST"

// reapedEnv is the variable that marks the process that runs the tests, below the process that reaps.
const reapedEnv = "PAIINIT_LAUNCH_TEST_REAPED"

func TestMain(m *testing.M) {
	if mode := os.Getenv(helperEnv); mode != "" {
		os.Exit(helper(mode, os.Args[1:]))
	}
	if os.Getenv(reapedEnv) == "" {
		if os.Getenv(placeEnv) != "" && os.Getpid() == 1 {
			mountProc()
		}
		os.Exit(reap())
	}
	testsignals.Default()
	goleak.VerifyTestMain(m)
}

// reap reaps orphans at once, as the init does for the agent. Without it the machine decides which process reaps them,
// and when.
func reap() int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	tests, err := os.StartProcess(os.Args[0], os.Args, &os.ProcAttr{
		Env:   append(os.Environ(), reapedEnv+"=1"),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err != nil && !errors.Is(err, syscall.EINTR):
			fmt.Fprintln(os.Stderr, err)
			return 1
		case err == nil && pid == tests.Pid && ws.Exited():
			return ws.ExitStatus()
		case err == nil && pid == tests.Pid:
			return 128 + int(ws.Signal())
		}
	}
}

// helperEnviron returns the environment that makes this binary a helper. It keeps a binary with the race detector from
// sleeping for a second before its exit.
func helperEnviron(mode string) []string {
	return []string{helperEnv + "=" + mode, "GORACE=atexit_sleep_ms=0"}
}

func helper(mode string, args []string) int {
	switch mode {
	case "hydra": // like mpiexec.hydra on SIGTERM, it cleans up and exits with 0
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP)
		fmt.Println("ready")
		<-c
		return 0
	case "child": // reports SIGTERM and ends; a shell could lose the signal between fork and exec
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		<-c
		fmt.Println("child")
		return 0
	case "patient": // runs a little longer than its siblings
		fmt.Println("patient")
		time.Sleep(200 * time.Millisecond)
		n, _ := strconv.Atoi(args[0])
		return n
	case "signals": // prints every signal it gets, ends with status 7 on SIGUSR2
		c := make(chan os.Signal, 64)
		signal.Notify(c, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
			syscall.SIGALRM, syscall.SIGTERM, syscall.SIGWINCH, syscall.SIGCONT)
		fmt.Println("ready")
		for s := range c {
			fmt.Println(s)
			if s == syscall.SIGUSR2 {
				return 7
			}
		}
	case "limits": // sets the limits and shows what a child gets
		openFiles, _ := strconv.ParseUint(args[0], 10, 64)
		if err := limits(openFiles); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		r, err := Run(context.Background(), Command{
			Path: "/bin/sh", Args: []string{"sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -Sl; ulimit -Hl"},
			Stdout: os.Stdout, Stderr: os.Stderr,
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return r.Status()
	case "tty": // on a terminal of its own: runs foreground, then prints which process group holds the terminal
		r, err := Run(context.Background(), Command{
			Path: os.Args[0], Environ: helperEnviron("foreground"),
			Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		})
		fmt.Println("parent", ownForeground(0), r.Status(), err)
		return 0
	case "foreground":
		fmt.Println("child", ownForeground(0), os.Getpid() == unix.Getpgrp())
		return 0
	case "ps": // prints its process group and whether it leads it
		fmt.Println(os.Getpid() == unix.Getpgrp())
		return 0
	case "exit":
		n, _ := strconv.Atoi(args[0])
		return n
	case "leaderless": // its first thread ends, another one stays
		leaveMainThread()
	case "bomb": // HOW
		startBomb(args[0])
	case "clear": // clears the descendants of its parent
		c := newClear(Clearing{First: os.Getppid()})
		c.timeout = 100 * time.Millisecond
		_, err := c.run(context.Background())
		fmt.Println(err)
		return 0
	}
	return 99
}

// self returns a command that is this binary as a helper.
func self(mode string, args ...string) Command {
	return Command{Path: os.Args[0], Args: append([]string{"helper"}, args...), Environ: helperEnviron(mode)}
}

// sh returns a command that runs a shell script.
func sh(script string, args ...string) Command {
	return Command{
		Path: "/bin/sh", Args: append([]string{"sh", "-c", script, "sh"}, args...),
		Environ: []string{"PATH=" + defaultPath},
	}
}

// started is a command that runs in the background of a test.
type started struct {
	t       *testing.T
	out     *bufio.Reader
	signals chan os.Signal
	cancel  context.CancelFunc
	done    chan struct{}
	result  Result
	err     error
	began   time.Time
}

// begin runs a command with enough Grace, among the processes of this machine.
func begin(t *testing.T, c Command) *started {
	t.Helper()
	if c.Grace == 0 {
		c.Grace = time.Minute
	}
	if c.Processes == nil {
		c.Processes = processesHere
	}
	return beginAsIs(t, c)
}

func beginAsIs(t *testing.T, c Command) *started {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	s := &started{
		t: t, out: bufio.NewReader(r), signals: make(chan os.Signal, 16),
		cancel: cancel, done: make(chan struct{}), began: time.Now(),
	}
	c.Stdout, c.Signals = w, s.signals
	go func() {
		defer close(s.done)
		s.result, s.err = Run(ctx, c)
		_ = w.Close()
	}()
	t.Cleanup(func() {
		cancel()
		<-s.done
		_ = r.Close()
	})
	return s
}

// line waits for the next line of stdout.
func (s *started) line() string {
	s.t.Helper()
	l, err := s.out.ReadString('\n')
	require.NoError(s.t, err)
	return strings.TrimSuffix(l, "\n")
}

func (s *started) wait() Result {
	s.t.Helper()
	<-s.done
	require.NoError(s.t, s.err)
	return timeless(s.t, s.result)
}

// timeless returns a result without its time, after checking that every command that was started has one.
func timeless(t *testing.T, r Result) Result {
	t.Helper()
	require.False(t, r.At.IsZero())
	r.At = time.Time{}
	return r
}

func run(t *testing.T, c Command) Result {
	t.Helper()
	r, err := Run(t.Context(), c)
	require.NoError(t, err)
	return timeless(t, r)
}

func TestEveryStatus(t *testing.T) {
	for n := range 256 {
		r := run(t, sh("exit "+strconv.Itoa(n)))
		require.Equal(t, Result{Code: n}, r)
		require.Equal(t, n, r.Status())
	}
}

func TestEverySignal(t *testing.T) {
	for n := 1; n <= 31; n++ {
		sig := syscall.Signal(n)
		switch sig {
		case syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH,
			syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
			continue // these do not end a process
		}
		c := sh("ulimit -c 0; kill -" + strconv.Itoa(n) + " $$; sleep 60")
		c.Dir = t.TempDir()
		r := run(t, c)
		require.Equal(t, Result{Signal: sig}, r, "%v", sig)
		require.Equal(t, 128+n, r.Status())
	}
}

func TestStatusOfForwarded(t *testing.T) {
	for _, tt := range []struct {
		r    Result
		want int
	}{
		{Result{}, 0},
		{Result{Forwarded: syscall.SIGTERM}, 0},
		{Result{Code: 3, Forwarded: syscall.SIGTERM}, 3},
		{Result{Signal: syscall.SIGKILL, Forwarded: syscall.SIGTERM}, 137},
	} {
		require.Equal(t, tt.want, tt.r.Status(), "%+v", tt.r)
	}
}

func TestEnvironmentArgumentsDirectory(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	c := sh(`printf '%s|' "$0" "$@" "$A" "$PWD"; env`, "one word", "", "*")
	c.Environ = append(c.Environ, "A=1", "A=2")
	c.Dir = dir
	s := begin(t, c)
	require.Equal(t, 0, s.wait().Status())
	out, err := io.ReadAll(s.out)
	require.NoError(t, err)
	require.Contains(t, string(out), "sh|one word||*|")
	require.Contains(t, string(out), "|"+dir+"|")
	require.NotContains(t, string(out), "GOROOT")

	// The environment is passed on byte by byte, with duplicate names and odd entries.
	s = begin(t, Command{
		Path: "/bin/cat", Args: []string{"cat", "/proc/self/environ"},
		Environ: []string{"A=1", "A=2", "odd", "a.b=c"},
	})
	require.Equal(t, 0, s.wait().Status())
	out, err = io.ReadAll(s.out)
	require.NoError(t, err)
	require.Equal(t, "A=1\x00A=2\x00odd\x00a.b=c\x00", string(out))

	s = begin(t, Command{Path: "/bin/cat", Args: []string{"cat", "/proc/self/environ"}})
	require.Equal(t, 0, s.wait().Status())
	out, err = io.ReadAll(s.out)
	require.NoError(t, err)
	require.Empty(t, out, "no environment means none, not this process's")
}

func TestUserVariableWins(t *testing.T) {
	environ, kept := Merge([]string{"OMPI_MCA_plm_rsh_agent=mine"}, Environment(everything))
	require.Len(t, kept, 1)
	c := Command{Path: "/usr/bin/env", Environ: environ}
	s := begin(t, c)
	require.Equal(t, 0, s.wait().Status())
	out, err := io.ReadAll(s.out)
	require.NoError(t, err)
	require.Contains(t, string(out), "OMPI_MCA_plm_rsh_agent=mine\n")
	require.Contains(t, string(out), "PRTE_MCA_plm_ssh_agent=/usr/bin/paiinit rsh\n")
}

func TestStdinPassesThrough(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	c := Command{Path: "/bin/cat", Stdin: r}
	s := begin(t, c)
	_, err = w.WriteString("hello\n")
	require.NoError(t, err)
	require.Equal(t, "hello", s.line())
	require.NoError(t, w.Close())
	require.Equal(t, 0, s.wait().Status())
	require.NoError(t, r.Close(), "Run does not close what it was given")
}

func TestNilFilesAreNull(t *testing.T) {
	require.Equal(t, Result{}, run(t, sh(`read x && exit 1; echo out; echo err >&2
		for f in 0 1 2; do [ "$(readlink /proc/$$/fd/$f)" = /dev/null ] || exit 2; done`)))
}

func TestOwnProcessGroup(t *testing.T) {
	s := begin(t, self("ps"))
	require.Equal(t, "true", s.line())
	require.Equal(t, 0, s.wait().Status())
}

func TestSignalsAreForwardedInOrder(t *testing.T) {
	s := begin(t, self("signals"))
	require.Equal(t, "ready", s.line())
	// A process takes pending signals in any order: wait for each before the next.
	for _, sig := range []syscall.Signal{
		syscall.SIGUSR1, syscall.SIGHUP, syscall.SIGWINCH, syscall.SIGALRM, syscall.SIGCONT,
		syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		s.signals <- sig
		require.Equal(t, sig.String(), s.line())
	}
	require.Equal(t, Result{Code: 7, Forwarded: syscall.SIGTERM}, s.wait(), "SIGHUP is no reason")
}

func TestClosedSignalsAndOddSignals(t *testing.T) {
	s := begin(t, sh("echo ready; read x; exit 4"))
	require.Equal(t, "ready", s.line())
	s.signals <- oddSignal{}
	close(s.signals)
	require.Equal(t, 4, s.wait().Status())
}

type oddSignal struct{}

func (oddSignal) String() string { return "odd" }
func (oddSignal) Signal()        {}

func TestSuccessAfterSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT} {
		s := begin(t, self("hydra"))
		require.Equal(t, "ready", s.line())
		s.signals <- sig
		r := s.wait()
		require.Equal(t, Result{Forwarded: sig}, r)
		require.Equal(t, 0, r.Status())
	}
	s := begin(t, self("hydra"))
	require.Equal(t, "ready", s.line())
	s.cancel()
	require.Equal(t, Result{Forwarded: syscall.SIGTERM}, s.wait(), "the end of the context counts as SIGTERM")
}

// SIGHUP may mean "read your configuration again", so it is not the reason why a command ends.
func TestHangupIsNoReason(t *testing.T) {
	s := begin(t, self("hydra"))
	require.Equal(t, "ready", s.line())
	s.signals <- syscall.SIGHUP
	require.Equal(t, Result{}, s.wait())

	s = begin(t, self("signals"))
	require.Equal(t, "ready", s.line())
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGUSR2} {
		s.signals <- sig
		require.Equal(t, sig.String(), s.line())
	}
	require.Equal(t, Result{Code: 7, Forwarded: syscall.SIGTERM}, s.wait(), "SIGTERM is a reason, also after SIGHUP")
}

// stubborn ignores every signal that can be ignored.
const stubborn = `trap '' TERM INT QUIT HUP; echo ready; while :; do sleep 60; done`

func TestHungCommandIsKilledAfterGrace(t *testing.T) {
	for name, end := range map[string]func(*started){
		"signal":  func(s *started) { s.signals <- syscall.SIGTERM },
		"quit":    func(s *started) { s.signals <- syscall.SIGQUIT },
		"context": func(s *started) { s.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			c := sh(stubborn)
			c.Grace = 300 * time.Millisecond
			var took time.Duration
			for range attempts {
				s := begin(t, c)
				require.Equal(t, "ready", s.line())
				asked := time.Now()
				end(s)
				r := s.wait()
				took = time.Since(asked)
				require.Equal(t, syscall.SIGKILL, r.Signal)
				require.Equal(t, 137, r.Status())
				require.GreaterOrEqual(t, took, c.Grace)
				if took < c.Grace+5*time.Second {
					break
				}
			}
			require.Less(t, took, c.Grace+5*time.Second)
		})
	}
}

// TestKillComesWithTheEndOfGrace: neither before nor after it, where nothing else takes time.
func TestKillComesWithTheEndOfGrace(t *testing.T) {
	for name, end := range map[string]func(chan<- os.Signal, context.CancelFunc){
		"signal":  func(signals chan<- os.Signal, _ context.CancelFunc) { signals <- syscall.SIGTERM },
		"quit":    func(signals chan<- os.Signal, _ context.CancelFunc) { signals <- syscall.SIGQUIT },
		"context": func(_ chan<- os.Signal, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const grace = 8 * time.Second
				began, killed := time.Now(), time.Duration(0)
				signals := make(chan os.Signal, 1)
				g := &group{pgid: 7, grace: grace, restGrace: time.Hour, signals: signals}
				g.kill = func(_ int, sig syscall.Signal) error {
					if sig == syscall.SIGKILL {
						killed = time.Since(began)
					}
					return nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				end(signals, cancel)
				for killed == 0 && time.Since(began) < 2*grace {
					g.step(ctx, nil)
				}
				require.Equal(t, grace, killed)
			})
		})
	}
}

func TestRepeatedSignalsDoNotHurry(t *testing.T) {
	c := self("signals")
	c.Grace = time.Hour
	s := begin(t, c)
	require.Equal(t, "ready", s.line())
	for _, sig := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR2,
	} {
		s.signals <- sig
		require.Equal(t, sig.String(), s.line())
	}
	require.Equal(t, Result{Code: 7, Forwarded: syscall.SIGINT}, s.wait())
}

// A repeated signal does not move the end of Grace either.
func TestRepeatedSignalsKeepTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []syscall.Signal
		signals := make(chan os.Signal, 1)
		g := &group{pgid: 7, grace: 8 * time.Second, restGrace: 8 * time.Second, signals: signals}
		g.kill = func(pid int, sig syscall.Signal) error {
			sent = append(sent, sig)
			return nil
		}
		began := time.Now()
		for _, after := range []time.Duration{0, 3 * time.Second, time.Second} {
			time.Sleep(after)
			signals <- syscall.SIGTERM
			g.step(t.Context(), nil)
		}
		g.step(t.Context(), nil) // the rest of the group
		require.Equal(t, 6*time.Second, time.Since(began))
		require.NotContains(t, sent, syscall.SIGKILL)
		g.step(t.Context(), nil)
		require.Equal(t, 8*time.Second, time.Since(began))
		require.Equal(t, syscall.SIGKILL, sent[len(sent)-1])
	})
}

// A signal that arrives at any moment after the command's end is not the reason for it.
func TestHasEnded(t *testing.T) {
	cmd := exec.Command("/bin/cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	pid := cmd.Process.Pid
	require.False(t, hasEnded(pid))
	stat, err := os.Open(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	defer func() { _ = stat.Close() }()
	require.NoError(t, in.Close())
	require.NoError(t, unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	require.True(t, hasEnded(pid), "not reaped yet")
	require.NoError(t, cmd.Wait())
	require.True(t, hasEnded(pid), "reaped")
	require.True(t, exiting(io.ReadAll(stat)), "reaped between open and read")
}

func TestKillEndsAtOnce(t *testing.T) {
	c := sh(`trap 'echo term' TERM; echo ready; while :; do sleep 60 & wait; done`)
	c.Grace = time.Hour
	s := begin(t, c)
	require.Equal(t, "ready", s.line())
	s.signals <- syscall.SIGTERM
	require.Equal(t, "term", s.line())
	s.signals <- syscall.SIGKILL
	require.Equal(t, Result{Signal: syscall.SIGKILL, Forwarded: syscall.SIGTERM}, s.wait())
}

func TestNoGrace(t *testing.T) {
	var r Result
	var took time.Duration
	for range attempts {
		s := beginAsIs(t, sh(stubborn))
		require.Equal(t, "ready", s.line())
		asked := time.Now()
		s.signals <- syscall.SIGTERM
		r, took = s.wait(), time.Since(asked)
		require.Equal(t, syscall.SIGKILL, r.Signal)
		// Forwarded is 0 if the kernel takes more than a second to end the command.
		if r.Forwarded != 0 && took < 7*time.Second {
			break
		}
	}
	require.Equal(t, Result{Signal: syscall.SIGKILL, Forwarded: syscall.SIGTERM}, r)
	require.Less(t, took, 7*time.Second, "the default of --grace is 8 s")
}

func TestHangupDoesNotStartGrace(t *testing.T) {
	c := sh(`trap 'echo hup' HUP; echo ready; while [ ! -e done ]; do sleep 0.01; done; exit 5`)
	c.Grace, c.Dir = 50*time.Millisecond, t.TempDir()
	s := begin(t, c)
	require.Equal(t, "ready", s.line())
	for range 3 {
		s.signals <- syscall.SIGHUP
		require.Equal(t, "hup", s.line())
	}
	time.Sleep(2 * c.Grace)
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "done"), nil, 0o644))
	require.Equal(t, 5, s.wait().Code)
}

func TestStoppedCommandCanEnd(t *testing.T) {
	c := sh(`trap 'exit 6' TERM
		(until grep -q 'State:.T' /proc/$$/status; do sleep 0.01; done; echo ready) &
		kill -STOP $$; while :; do sleep 60 & wait; done`)
	c.Grace = time.Minute
	s := begin(t, c)
	require.Equal(t, "ready", s.line())
	s.cancel()
	r := s.wait()
	require.Equal(t, Result{Code: 6, Forwarded: syscall.SIGTERM}, r)
}

func TestWholeGroupIsSignalled(t *testing.T) {
	// The child reports the signal, although the shell ends without passing it on.
	c := sh(`trap 'exit 3' TERM; "$1" & wait; wait; exit 3`, os.Args[0])
	c.Environ = append(c.Environ, helperEnviron("child")...)
	s := begin(t, c)
	require.Equal(t, "ready", s.line())
	s.signals <- syscall.SIGTERM
	require.Equal(t, 3, s.wait().Code)
	require.Equal(t, "child", s.line())
}

func TestLeftoversAreTerminated(t *testing.T) {
	c := sh(`"$1" & read x <ready; exit 0`, os.Args[0])
	c.Environ = append(c.Environ, helperEnviron("child")...)
	c.Dir = t.TempDir()
	c.Grace = time.Hour // never reached, because the processes end by themselves
	require.NoError(t, unix.Mkfifo(filepath.Join(c.Dir, "ready"), 0o644))
	s := begin(t, c)
	require.Equal(t, "ready", s.line())
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "ready"), []byte("x\n"), 0o644))
	require.Equal(t, Result{}, s.wait(), "what happens to leftovers does not change the status")
	require.Equal(t, "child", s.line())
}

// A child of a shell loses a signal that arrives before its exec. Here the trap itself executes, which makes the same
// sequence slow enough to test.
func TestSignalThatIsLostInAnExecIsRepeated(t *testing.T) {
	c := sh(`trap 'exit 3' TERM; (trap 'exec "$1"' TERM; echo ready; while :; do wait; done) & while :; do wait; done`,
		os.Args[0])
	c.Environ = append(c.Environ, helperEnviron("child")...)
	c.Grace = time.Hour // never reached
	s := begin(t, c)
	require.Equal(t, "ready", s.line())
	s.signals <- syscall.SIGTERM
	require.Equal(t, Result{Code: 3, Forwarded: syscall.SIGTERM}, s.wait())
}

// A program that the command's own trap executes is meant to go on, so the signal is not repeated.
func TestExecInTrapIsLeftAlone(t *testing.T) {
	c := sh(`trap 'exec "$1" "$2"' TERM; echo ready; while :; do sleep 60 & wait; done`, os.Args[0], "5")
	c.Environ = append(c.Environ, helperEnviron("patient")...)
	s := begin(t, c)
	require.Equal(t, "ready", s.line())
	s.signals <- syscall.SIGTERM
	require.Equal(t, "patient", s.line())
	require.Equal(t, Result{Code: 5, Forwarded: syscall.SIGTERM}, s.wait())
}

func TestStubbornLeftoversAreKilled(t *testing.T) {
	c := sh(`(` + stubborn + `) & echo $!; read x <ready; exit 9`)
	c.Dir = t.TempDir()
	c.Grace = 200 * time.Millisecond
	require.NoError(t, unix.Mkfifo(filepath.Join(c.Dir, "ready"), 0o644))
	s := begin(t, c)
	lines := []string{s.line(), s.line()}
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "ready"), []byte("x\n"), 0o644))
	require.Equal(t, Result{Code: 9}, s.wait())
	for _, l := range lines {
		if pid, err := strconv.Atoi(l); err == nil {
			require.True(t, gone(pid), "process %d is still there", pid)
		}
	}
}

// gone reports whether a process has ended; a zombie has.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z ")) || bytes.Contains(stat, []byte(") X "))
}

func TestLeftoversGetOneGraceInAll(t *testing.T) {
	c := sh(`trap 'exit 1' TERM; (` + stubborn + `) & while :; do wait; done`)
	c.Grace = 5 * time.Second
	var r Result
	var took time.Duration
	for range attempts {
		s := begin(t, c)
		require.Equal(t, "ready", s.line())
		asked := time.Now()
		s.signals <- syscall.SIGTERM
		r, took = s.wait(), time.Since(asked)
		require.GreaterOrEqual(t, took, c.Grace)
		if r.Forwarded != 0 && took < 2*c.Grace {
			break
		}
	}
	require.Equal(t, Result{Code: 1, Forwarded: syscall.SIGTERM}, r)
	require.Less(t, took, 2*c.Grace)
}

func TestKillReachesLeftovers(t *testing.T) {
	c := sh(`trap 'exit 1' TERM; (` + stubborn + `) & echo ready; while :; do wait; done`)
	c.Grace = time.Hour
	s := begin(t, c)
	require.Equal(t, []string{"ready", "ready"}, []string{s.line(), s.line()})
	s.signals <- syscall.SIGTERM
	s.signals <- syscall.SIGKILL
	s.wait()
}

func TestContextEndedBefore(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("rank 2 was lost")
	cancel(cause)
	_, err := Run(ctx, sh("exit 1"))
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, `not starting "/bin/sh": rank 2 was lost`)
}

func TestScriptWithoutInterpreterLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "train.sh")
	require.NoError(t, os.WriteFile(file, []byte("echo \"$0 $*\"\nexit 12\n"), 0o755))
	s := begin(t, Command{Path: file, Args: []string{"./train.sh", "a", "b"}, Environ: []string{}})
	require.Equal(t, 12, s.wait().Status())
	require.Equal(t, file+" a b", s.line())

	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o755))
	require.Equal(t, Result{}, run(t, Command{Path: empty}))
}

func TestCannotStart(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(content), mode))
		return file
	}
	for name, tt := range map[string]struct {
		command Command
		status  int
		want    string
	}{
		"not there":      {Command{Path: dir + "/nope"}, 127, "no such file or directory"},
		"not executable": {Command{Path: write("data", "x", 0o644)}, 126, "permission denied"},
		"directory":      {Command{Path: dir}, 126, "permission denied"},
		"interpreter": {
			Command{Path: write("script", "#!/no/such/python\n", 0o755)},
			127, "the interpreter or loader that the file asks for is missing",
		},
		"other machine": {
			Command{Path: write("elf", "\x7fELF\x02\x01\x01", 0o755)},
			126, "exec format error: built for another machine",
		},
		"working directory": {Command{Path: "/bin/true", Dir: dir + "/nope"}, 126, "no such file or directory"},
		"with a tail":       {Command{Path: dir + "/nope", TailLines: 3}, 127, "no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.command.Args = []string{"the-command"}
			r, err := Run(t.Context(), tt.command)
			var le *LookError
			require.ErrorAs(t, err, &le)
			require.Equal(t, tt.status, le.Status)
			require.Equal(t, Result{Code: tt.status}, r)
			require.Equal(t, tt.status, r.Status())
			require.ErrorContains(t, err, `running "the-command": `)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// collect returns a file, and a function that closes it and returns its content.
func collect(t *testing.T) (*os.File, func() string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	return f, func() string {
		require.NoError(t, f.Close())
		data, err := os.ReadFile(f.Name())
		require.NoError(t, err)
		return string(data)
	}
}

func TestTail(t *testing.T) {
	for name, tt := range map[string]struct {
		script string
		lines  int
		want   []string
	}{
		"nothing":         {"", 3, nil},
		"fewer":           {`printf 'a\nb\n' >&2`, 3, []string{"a", "b"}},
		"more":            {`printf 'a\nb\nc\nd\ne\n' >&2`, 3, []string{"c", "d", "e"}},
		"one":             {`printf 'a\nb\n' >&2`, 1, []string{"b"}},
		"unfinished line": {`printf 'a\nb\nlast' >&2`, 2, []string{"b", "last"}},
		"empty lines":     {`printf 'a\n\n\n' >&2`, 2, nil},
		"CRLF":            {`printf 'a\r\n' >&2`, 2, []string{"a"}},
		"not UTF-8":       {`printf 'a\377b\n' >&2`, 2, []string{"a\ufffdb"}},
		"long line": {
			`head -c 10000 /dev/zero | tr '\0' x >&2; echo >&2; echo end >&2`,
			2, []string{strings.Repeat("x", maxLine), "end"},
		},
		"stdout is not": {`echo out; echo err >&2`, 5, []string{"err"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := sh(tt.script)
			var content func() string
			c.Stderr, content = collect(t)
			c.TailLines = tt.lines
			r := run(t, c)
			require.Equal(t, tt.want, r.Tail)
			direct := sh(tt.script)
			var plain func() string
			direct.Stderr, plain = collect(t)
			require.Nil(t, run(t, direct).Tail)
			require.Equal(t, plain(), content(), "every byte is passed on")
		})
	}
}

func TestTailLosesNothing(t *testing.T) {
	c := sh(`i=0; while [ $i -lt 20000 ]; do echo "line $i" >&2; i=$((i+1)); done`)
	var content func() string
	c.Stderr, content = collect(t)
	c.TailLines = 2
	require.Equal(t, []string{"line 19998", "line 19999"}, run(t, c).Tail)
	var want strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	require.Equal(t, want.String(), content())
}

// The report of a launcher that failed inside a command that ends with 0 is a part of its output.
func TestReportsAreReadAfterAFailure(t *testing.T) {
	rule := strings.Repeat("-", 74)
	report := []string{rule, "mpirun noticed that process rank 1 with PID 0 on node w exited on signal 9.", rule}
	for status, tail := range map[int][]string{0: append([]string{"before"}, report...), 3: {"before"}} {
		c := sh(fmt.Sprintf("echo before >&2; echo '%s' >&2; exit %d", strings.Join(report, "\n"), status))
		c.Stderr, _ = collect(t)
		c.TailLines = 5
		r := run(t, c)
		require.Equal(t, tail, r.Tail, status)
		require.Equal(t, status != 0, r.Blame.Rank == "1", status)
		require.Equal(t, status == 0, r.Blame == Blame{}, status)
	}
}

func TestTailDoesNotDelay(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = r.Close() }()
	c := sh(`printf prompt: >&2; read x <go; exit 0`)
	c.Dir, c.Stderr, c.TailLines = t.TempDir(), w, 5
	require.NoError(t, unix.Mkfifo(filepath.Join(c.Dir, "go"), 0o644))
	s := begin(t, c)
	got := make([]byte, len("prompt:"))
	_, err = io.ReadFull(r, got) // while the command still runs
	require.NoError(t, err)
	require.Equal(t, "prompt:", string(got))
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "go"), []byte("x\n"), 0o644))
	require.Equal(t, []string{"prompt:"}, s.wait().Tail)
	require.NoError(t, w.Close())
}

func TestTailWithBackgroundChildThatHoldsStderr(t *testing.T) {
	// With setsid it is outside the group, so Run does not end it; it holds the pipe until the test ends.
	c := sh(`setsid sh -c 'echo $$; exec sleep 3600' & read x <go; echo last words >&2; exit 2`)
	var content func() string
	c.Stderr, content = collect(t)
	c.TailLines, c.Dir = 5, t.TempDir()
	require.NoError(t, unix.Mkfifo(filepath.Join(c.Dir, "go"), 0o644))
	s := begin(t, c)
	pid, err := strconv.Atoi(s.line())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "go"), []byte("x\n"), 0o644))
	r := s.wait()
	r.Stdout = nil
	require.Equal(t, Result{Code: 2, Tail: []string{"last words"}}, r)
	require.Equal(t, "last words\n", content())
	require.False(t, gone(pid), "it left the group and is not ours")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

func TestTailWithBackgroundChildThatKeepsWriting(t *testing.T) {
	c := sh(`setsid sh -c 'echo $$; while echo noise >&2; do :; done' & read x <go; exit 0`)
	var content func() string
	c.Stderr, content = collect(t)
	c.TailLines, c.Dir = 5, t.TempDir()
	require.NoError(t, unix.Mkfifo(filepath.Join(c.Dir, "go"), 0o644))
	s := begin(t, c)
	pid, err := strconv.Atoi(s.line())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "go"), []byte("x\n"), 0o644))
	require.Equal(t, 0, s.wait().Code)
	_ = content()
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

func TestTailGoesOnWhenStderrIsBroken(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { _ = full.Close() }()
	c := sh(`i=0; while [ $i -lt 5000 ]; do echo 0123456789012345678901234567890123456789 >&2; i=$((i+1)); done
		echo end >&2; exit 8`)
	c.Stderr, c.TailLines = full, 1
	require.Equal(t, Result{Code: 8, Tail: []string{"end"}}, run(t, c))
}

// fullPipe returns a full pipe as a stderr that nothing reads.
func fullPipe(t *testing.T) (r, w *os.File, held int) {
	t.Helper()
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	require.NoError(t, unix.SetNonblock(fds[1], true))
	for {
		n, err := unix.Write(fds[1], []byte("full\n"))
		if err != nil {
			break
		}
		held += n
	}
	require.NoError(t, unix.SetNonblock(fds[1], false)) // like that of a container runtime
	r, w = os.NewFile(uintptr(fds[0]), "read"), os.NewFile(uintptr(fds[1]), "write")
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w, held
}

func TestUnreadStderrDoesNotHoldUpTheEnd(t *testing.T) {
	for name, script := range map[string]string{
		"line by line": `i=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo $i >&2; done; exit 3`,
		"at once":      `seq 1000 >&2; exit 3`, // read by paiinit before it can pass on anything
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, _ := fullPipe(t)
			c := sh(script)
			c.Stderr, c.TailLines = w, 2
			began := time.Now()
			got := run(t, c)
			unread := len("1\n")*9 + len("10\n")*90 + len("100\n")*900 + len("1000\n")
			require.Equal(t, Result{Code: 3, Tail: []string{"999", "1000"}, Unread: unread}, got)
			require.GreaterOrEqual(t, time.Since(began), unreadTimeout)
			require.Less(t, time.Since(began), unreadTimeout+20*time.Second)
			require.NoError(t, r.Close()) // ends the blocked write
		})
	}
}

// No byte is dropped as long as stderr is read, however slowly.
func TestSlowlyReadStderrIsComplete(t *testing.T) {
	r, w, held := fullPipe(t)
	c := sh(`i=0; while [ $i -lt 3000 ]; do echo "line $i" >&2; i=$((i+1)); done; echo written; read x`)
	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = in.Close() }()
	c.Stdin, c.Stderr, c.TailLines = in, w, 2
	s := begin(t, c)
	require.Equal(t, "written", s.line()) // the rest is in the pipes now
	require.NoError(t, out.Close())
	var want strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	got := make([]byte, held+want.Len())
	for n := 0; n < len(got); {
		m, err := r.Read(got[n:min(n+4096, len(got))])
		require.NoError(t, err)
		n += m
		time.Sleep(20 * time.Millisecond) // a slow reader
	}
	require.Equal(t, Result{Code: 1, Tail: []string{"line 2998", "line 2999"}, Stdout: []string{"written"}}, s.wait())
	require.Equal(t, want.String(), string(got[held:]))
}

func TestForegroundOfTerminal(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = helperEnviron("tty")
	f, err := pty.Start(cmd) // a new session with the terminal as its controlling one
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	out := bufio.NewReader(f)
	for _, want := range []string{"child true true\r\n", "parent true 0 <nil>\r\n"} {
		got, err := out.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.NoError(t, cmd.Wait())
}

func TestTerminalOfSomebodyElse(t *testing.T) {
	p, tty, err := pty.Open()
	require.NoError(t, err)
	defer func() { _, _ = p.Close(), tty.Close() }()
	require.False(t, ownForeground(int(tty.Fd())))
	c := sh("exit 5")
	c.Stdin = tty
	require.Equal(t, 5, run(t, c).Code)
}

func TestLimits(t *testing.T) {
	const openFiles = "1500"
	for name, tt := range map[string]struct {
		set  string // the commands of the shell before it starts the helper
		want string // soft and hard nofile, soft and hard memlock (KiB)
	}{
		"high, soft is hard":    {"ulimit -n 2000 && ulimit -l 64", "1500 2000 64 64"},
		"at the cap":            {"ulimit -n 1500 && ulimit -l 64", "1500 1500 64 64"},
		"low, soft is hard":     {"ulimit -n 1400 && ulimit -l 64", "1400 1400 64 64"},
		"soft below hard stays": {"ulimit -n 4000 && ulimit -Sn 1024 && ulimit -l 64", "1024 4000 64 64"},
		"memlock is raised":     {"ulimit -n 1024 && ulimit -Sl 0 && ulimit -Hl 48", "1024 1024 48 48"},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := exec.Command("/bin/sh", "-c", tt.set).CombinedOutput(); err != nil {
				missing(t, "cannot set the limits of this test: "+strings.TrimSpace(string(out)))
			}
			cmd := exec.Command("/bin/sh", "-c", tt.set+" && exec \"$0\" "+openFiles, os.Args[0])
			cmd.Env = helperEnviron("limits")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, tt.want, strings.Join(strings.Fields(string(out)), " "))
		})
	}
}

// missing skips a test that this machine cannot run, and fails it if skipping is not allowed.
func missing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// What a command leaves behind that has ended with 0 may stay until the end of the context.
func TestRunStays(t *testing.T) {
	for _, tt := range []struct {
		code  int
		stays bool
	}{{0, true}, {3, false}} {
		pid := filepath.Join(t.TempDir(), "pid")
		ctx, cancel := context.WithCancel(t.Context())
		stays := false
		result, err := Run(ctx, Command{
			Path: "/bin/sh", Args: []string{"sh", "-c", fmt.Sprintf("sleep 1000 & echo $! >%s; exit %d", pid, tt.code)},
			Environ: os.Environ(), Grace: time.Minute, WholeGroup: true,
			Stays: func() {
				stays = true
				require.NoError(t, syscall.Kill(numberIn(t, pid), 0))
				cancel()
			},
		})
		cancel()
		require.NoError(t, err)
		require.Equal(t, tt.code, result.Code)
		require.Equal(t, tt.stays, stays)
		require.Zero(t, result.Forwarded)
		require.ErrorIs(t, syscall.Kill(numberIn(t, pid), 0), syscall.ESRCH)
	}
}

func numberIn(t *testing.T, name string) int {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	return n
}
