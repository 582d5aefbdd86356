package initspec

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/sample"
	"github.com/paiinit/paiinit/integration/screens"
)

// soon bounds an end that waits for nothing, on a slow machine and with Docker. It is shorter than longGrace, the grace
// in the rows that use it, so that waiting for the grace fails.
const (
	soon      = 40 * time.Second
	longGrace = "--grace=1m"
)

// files are in the directory /files of every container.
var files = map[string]string{
	"script":         "echo \"$0 $*\"\nexit 5\n", // no "#!" line
	"garbage":        "no-such-command-at-all\n",
	"no-interpreter": "#!/no/such/interpreter\n",
	"plain":          "#!/bin/sh\n",
	"foreign":        "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 57),
}

// rows is the specification.
var rows = []struct {
	name string
	on   func(driver) bool // nil = on all drivers
	test func(*testing.T, driver)
}{
	{"the status of the command is the container's", nil, statuses},
	{"a command that signal n ends gives 128+n", nil, deaths},
	{"a command that cannot run gives 126 or 127", nil, cannotRun},
	{"a script without a #! line runs in a shell", nil, plainScript},
	{"every signal reaches the command, in order", nil, signals},
	{"SIGTERM ends the command, 143", nil, terminate},
	{"SIGTERM reaches the commands of a shell", nil, terminateShell},
	{"the status after SIGTERM is the command's own", nil, statusAfterStop},
	{"a command can save its work with its workers after SIGTERM", nil, saveWithWorkers},
	{"a background job can save its work after SIGTERM", nil, saveInBackground},
	{"a group that is stopped can end", nil, stoppedGroup},
	{"a command that ignores SIGTERM is killed after the grace", nil, grace},
	{"without a grace it is killed at once", nil, noGrace},
	{"repeated signals reach the command and do not shorten the grace", nil, repeated},
	{"a second SIGINT within two seconds ends it at once", nil, hurry},
	{"a stopped command has not ended", nil, stopped},
	{"SIGTERM while waiting for others ends it at once, 143", nil, terminateEarly},
	{"SIGTERM soon after the start is not lost, and is 143", isNamespace, terminateSoon},
	{"SIGTERM at the very start ends it, or is dropped", isNamespace, terminateEarliest},
	{"orphans are reaped while the command runs", nil, orphans},
	{"orphans are reaped while waiting for others", nil, orphansWhileWaiting},
	{"commands of SSH clients keep their status", nil, ownCommands},
	{"no daemon survives", nil, daemons},
	{"daemons delay the stop only by a part of the grace", nil, daemonsAtStop},
	{"daemons get SIGTERM first", nil, daemonsAreAsked},
	{"the command inherits the limits and settings of the container", nil, inherited},
	{"ignored signals stay ignored", nil, ignored},
	{"the environment reaches the command", nil, environment},
	{"standard input passes through", nil, standardInput},
	{"only the command writes to standard output", nil, standardOutput},
	{"closed standard files do no harm", nil, closedFiles},
	{"no other file is open in the command", nil, openFiles},
	{"the command controls the terminal", nil, terminal},
	{"Ctrl-C on a terminal reaches the command once", nil, controlC},
	{"a terminal's new size reaches the command", nil, windowSize},
	{"the terminal does not stop the log", nil, terminalStops},
	{"a shell on a terminal has job control", nil, jobControl},
	{"behind another init it does the same", nil, behind},
	{"a broken standard error does not end it", isNamespace, brokenError},
	{"a standard error that is not read does not delay the end", isNamespace, unreadError},
	{"signals of faults reach the command", nil, faults},
	{"a user without a passwd entry is enough", nil, noPasswd},
	{"without a writable directory it fails and says so", nil, nowhere},
	{"it works without /proc", isNamespace, noProc},
	{"a killed agent is reported, and gives 70", nil, killedAgent},
}

func isNamespace(d driver) bool {
	_, ok := d.(namespaces)
	return ok
}

func isDocker(d driver) bool {
	_, ok := d.(docker)
	return ok
}

func TestSpecification(t *testing.T) {
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			need(t, d.missing())
			for _, row := range rows {
				if row.on != nil && !row.on(d.driver) {
					continue
				}
				t.Run(strings.ReplaceAll(row.name, "/", ""), func(t *testing.T) {
					sample.OneIn(t, 4)
					t.Parallel()
					row.test(t, d.driver)
				})
			}
		})
	}
}

// TestAllStatuses runs on one driver, because it would take too long on all of them.
func TestAllStatuses(t *testing.T) {
	t.Parallel()
	d := namespaces{user: os.Geteuid() != 0}
	need(t, d.missing())
	for status := range 256 {
		c := start(t, d, script(fmt.Sprintf("exit %d", status), "--log-level=error"))
		require.Equal(t, status, c.wait())
	}
}

// TestOwnCommands runs on one driver, because it would take too long on all of them.
func TestOwnCommands(t *testing.T) {
	t.Parallel()
	d := namespaces{user: os.Geteuid() != 0}
	need(t, d.missing())
	c := start(t, d, program{command: []string{"/bin/inside", "commands", "2000"}})
	assert.Equal(t, 0, c.wait())
	assert.Equal(t, "2000 commands, 0 wrong\n", c.stdout.String())
}

// TestOutOfMemory needs a container with a memory limit.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	d := docker{options: []string{"--memory=64m"}}
	need(t, d.missing())
	out, err := exec.Command("docker", "info", "--format", "{{.MemoryLimit}}").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "true" {
		need(t, fmt.Sprintf("the Docker engine cannot limit memory: %s", out))
	}
	c := start(t, d, script("busybox dd if=/dev/zero of=/dev/null bs=512M count=1; exit $?",
		"--log-format=text", "--log-level=info"))
	assert.Equal(t, 137, c.wait())
	assert.Contains(t, c.stderr.String(), "out of memory, 1 kill in its cgroup")
	require.NoError(t, screens.Check("../../docs/troubleshooting.md", "out-of-memory", c.stderr.String()))
}

// TestDockerStop runs docker stop with its default timeout of 10 s and paiinit's default grace.
func TestDockerStop(t *testing.T) {
	d := docker{}
	for name, command := range map[string]struct {
		script string
		status int
		tries  int
	}{
		"that ends": {"echo ready; sleep 1000", 143, 1},
		// The grace ends so shortly before Docker's timeout that Docker may be first on a slow machine.
		"that ignores TERM": {"trap '' TERM; while :; do sleep 1000 & echo ready; wait $!; done", 137, 3},
		"in the background": {"(trap '' TERM; setsid sleep 1000) & echo ready; wait", 143, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			need(t, d.missing())
			ended := false
			for try := 0; try < command.tries && !ended; try++ {
				c := start(t, d, script(command.script))
				c.line("ready")
				begin := time.Now()
				out, err := exec.Command("docker", "stop", c.name).CombinedOutput()
				took := time.Since(begin)
				require.NoError(t, err, "%s", out)
				assert.Equal(t, command.status, c.wait())
				ended = c.stderr.saidBy(c, "the job has ended") // Docker's SIGKILL after 10 s prevents this line
				t.Logf("docker stop: %v", took)
			}
			assert.True(t, ended, "Docker killed the container first")
		})
	}
}

func statuses(t *testing.T, d driver) {
	for _, status := range []int{0, 1, 63, 64, 70, 125, 126, 127, 128, 143, 255} {
		if isDocker(d) && status != 0 && status != 63 && status != 255 {
			continue
		}
		assert.Equal(t, status, start(t, d, script(fmt.Sprintf("exit %d", status))).wait())
	}
}

func deaths(t *testing.T, d driver) {
	for _, sig := range []syscall.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGSEGV, unix.SIGABRT, unix.SIGINT} {
		if isDocker(d) && sig != unix.SIGKILL && sig != unix.SIGSEGV {
			continue
		}
		assert.Equal(t, 128+int(sig), start(t, d, script(fmt.Sprintf("kill -%d $$", sig))).wait())
	}
}

func cannotRun(t *testing.T, d driver) {
	for _, row := range []struct {
		command []string
		status  int
		quick   bool // skipped with Docker
	}{
		{[]string{"/nope"}, 127, false},
		{[]string{"nope"}, 127, false},
		{[]string{"/files/nope/nope"}, 127, true},
		{[]string{"/files/plain/nope"}, 127, true},
		{[]string{"/files"}, 126, false},
		{[]string{"/files/plain"}, 126, false},
		{[]string{"/files/garbage"}, 127, false},
		{[]string{"/files/no-interpreter"}, 127, false},
		{[]string{"/files/foreign"}, 126, false},
		{[]string{""}, 127, true},
	} {
		if isDocker(d) && row.quick {
			continue
		}
		c := start(t, d, program{command: row.command})
		if assert.Equal(t, row.status, c.wait(), "%q", row.command) && row.command[0] != "/files/garbage" {
			assert.Contains(t, c.stderr.String(), fmt.Sprintf(`running \"%s\"`, row.command[0]),
				"the reason names the command")
		}
		assert.Empty(t, c.stdout.String())
	}
}

func plainScript(t *testing.T, d driver) {
	for _, name := range []string{"/files/script", "./script", "script"} {
		c := start(t, d, program{
			before: "cd /files", command: []string{name, "a", "b c"},
			env: []string{"PATH=/no/such/directory:/files:/bin:/sbin"},
		})
		assert.Equal(t, 5, c.wait(), name)
		assert.Equal(t, "/files/script a b c\n", c.stdout.String())
	}
}

// signals sends the signals to end last, because they start the grace.
func signals(t *testing.T, d driver) {
	c := start(t, d, program{flags: []string{longGrace}, command: []string{"/bin/inside", "signals"}})
	c.line("ready")
	sent := []syscall.Signal{64, 37, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT, unix.SIGALRM,
		unix.SIGXCPU, unix.SIGPWR, 35, unix.SIGHUP, unix.SIGQUIT, unix.SIGINT}
	for n := syscall.Signal(38); n < 64 && isNamespace(d); n++ {
		sent = append([]syscall.Signal{n}, sent...)
	}
	for _, sig := range sent {
		c.signal(sig)
		c.line(fmt.Sprintf("signal %d\n", sig))
	}
	expected := "ready\n"
	for _, sig := range sent {
		expected += fmt.Sprintf("signal %d\n", sig)
	}
	assert.Equal(t, expected, c.stdout.String(), "each signal arrives once")
	c.signal(unix.SIGKILL)
	assert.Equal(t, 137, c.wait())
}

func terminate(t *testing.T, d driver) {
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, 35} {
		if isDocker(d) && sig != unix.SIGTERM && sig != 35 {
			continue
		}
		// Not a shell, because busybox's ignores SIGQUIT.
		c := start(t, d, program{flags: []string{longGrace}, command: []string{"sleep", "1000"}})
		c.says("msg=launching")
		begin := time.Now()
		c.signal(sig)
		assert.Equal(t, 128+int(sig), c.wait())
		assert.Less(t, time.Since(begin), soon)
	}
}

func terminateShell(t *testing.T, d driver) {
	c := start(t, d, script("echo ready; sleep 1000 && echo going on", longGrace))
	c.line("ready")
	begin := time.Now()
	c.signal(unix.SIGTERM)
	assert.Equal(t, 143, c.wait())
	assert.Less(t, time.Since(begin), soon)
	assert.Equal(t, "ready\n", c.stdout.String())
}

func statusAfterStop(t *testing.T, d driver) {
	for _, own := range []int{0, 9} {
		silent, w, err := os.Pipe()
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = silent.Close(), w.Close() })
		p := script(fmt.Sprintf("trap 'exit %d' TERM; echo ready; while :; do read -r line; done", own), longGrace)
		p.stdin = silent
		c := start(t, d, p)
		c.line("ready")
		begin := time.Now()
		c.signal(unix.SIGTERM)
		assert.Equal(t, own, c.wait())
		assert.Less(t, time.Since(begin), soon)
	}
}

func saveWithWorkers(t *testing.T, d driver) {
	for name, test := range map[string]struct {
		program program
		want    string
		status  int
	}{
		"alone":        {program{command: []string{"/bin/inside", "trainer"}}, "saved", 0},
		"in a shell":   {script("/bin/inside trainer; echo never"), "saved", 143},
		"under a trap": {script("trap 'wait; exit 4' TERM; /bin/inside trainer & wait"), "saved", 4},
		"group": {
			program{flags: []string{"--signal=group"}, command: []string{"/bin/inside", "trainer"}}, "lost", 0,
		},
	} {
		if isDocker(d) && name != "in a shell" {
			continue
		}
		test.program.flags = append(test.program.flags, longGrace)
		c := start(t, d, test.program)
		c.line("ready")
		begin := time.Now()
		c.signal(unix.SIGTERM)
		assert.Equal(t, test.status, c.wait(), name)
		assert.Less(t, time.Since(begin), soon, name)
		assert.Equal(t, "ready\n"+test.want+"\n", c.stdout.String(), name)
	}
}

func saveInBackground(t *testing.T, d driver) {
	c := start(t, d, script(
		`(trap 'sleep 1; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done) & exec sleep 1000`,
		longGrace))
	c.line("ready")
	c.signal(unix.SIGTERM)
	assert.Equal(t, 143, c.wait())
	assert.Equal(t, "ready\nsaved\n", c.stdout.String())
}

// stoppedGroup stops the command's process group, like Ctrl-Z.
func stoppedGroup(t *testing.T, d driver) {
	c := start(t, d, script(
		`trap 'echo saved; exit 5' TERM; sleep 1000 & echo "group $$ job $! ready"; wait`, longGrace))
	c.line("ready")
	var group, job int
	_, err := fmt.Sscanf(c.stdout.String(), "group %d job %d", &group, &job)
	require.NoError(t, err)
	out, err := d.enter(c, "/bin/sh", "-c", fmt.Sprintf(`kill -STOP -%d; `+
		`for p in %d %d; do until grep -q '^State:.T' /proc/$p/status; do sleep 0.01; done; done`,
		group, group, job)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	begin := time.Now()
	c.signal(unix.SIGTERM)
	assert.Equal(t, 5, c.wait())
	assert.Less(t, time.Since(begin), soon)
	c.line("saved")
}

func grace(t *testing.T, d driver) {
	c := start(t, d, script("trap '' TERM; while :; do sleep 1000 & echo ready; wait $!; done", "--grace=500ms"))
	c.line("ready")
	begin := time.Now()
	c.signal(unix.SIGTERM)
	assert.Equal(t, 137, c.wait())
	took := time.Since(begin)
	assert.GreaterOrEqual(t, took, 500*time.Millisecond)
	assert.Less(t, took, soon)
}

func noGrace(t *testing.T, d driver) {
	const ignores = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
	stop := func(p program) time.Duration {
		c := start(t, d, p)
		c.line("ready")
		begin := time.Now()
		c.signal(unix.SIGTERM)
		assert.Equal(t, 137, c.wait())
		return time.Since(begin)
	}
	flag, env := script(ignores, "--grace=0"), script(ignores)
	flag.env = []string{"PAIINIT_GRACE=1m"} // the flag counts
	assert.Less(t, stop(flag), soon)
	env.env = []string{"PAIINIT_GRACE=0"}
	const limit = 7 * time.Second // the default is 8 s
	took := stop(env)
	for try := 1; try < 3 && took >= limit; try++ { // a slow machine may need longer for one of them
		took = stop(env)
	}
	assert.Less(t, took, limit)
}

func repeated(t *testing.T, d driver) {
	c := start(t, d, program{flags: []string{longGrace}, command: []string{"/bin/inside", "signals"}})
	c.line("ready")
	expected := "ready\n"
	for i, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGTERM, unix.SIGQUIT, unix.SIGTERM, 40} {
		if isDocker(d) && i > 2 {
			break
		}
		c.signal(sig)
		expected += fmt.Sprintf("signal %d\n", sig)
		c.stdout.has(c, expected)
	}
	c.signal(unix.SIGUSR1)
	c.line("signal 10\n") // the command still runs
	c.signal(unix.SIGKILL)
	assert.Equal(t, 137, c.wait())
}

func hurry(t *testing.T, d driver) {
	c := start(t, d, script(`trap 'echo first' INT; while :; do sleep 1000 & echo ready; wait $!; done`, longGrace))
	c.line("ready")
	c.signal(unix.SIGINT)
	c.line("first")
	begin := time.Now()
	var sent sync.WaitGroup
	defer sent.Wait()
	// Repeat it, because on a slow machine the first one may be more than two seconds old. The sends do not wait for
	// each other, because docker kill may take that long.
	for ended := false; !ended; {
		require.Less(t, time.Since(begin), waitTimeout)
		sent.Go(func() { _ = d.signal(c, unix.SIGINT) }) // fails if the container has ended
		select {
		case <-c.ended:
			ended = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	assert.Equal(t, 137, c.wait())
	assert.Less(t, time.Since(begin), soon)
}

func stopped(t *testing.T, d driver) {
	c := start(t, d, script(
		`(until grep -q '^State:.T' /proc/$$/status; do :; done; echo stopped) & kill -STOP $$; exit 3`))
	c.line("stopped")
	c.signal(unix.SIGCONT)
	assert.Equal(t, 3, c.wait())
}

// pair returns one of two containers; the other one never starts.
func pair(rank int) program {
	p := script("echo not alone", fmt.Sprintf("--rank=%d", rank), "--size=2",
		"--peers=127.0.0.1:12345,192.0.2.1:12345", "--log-level=debug")
	p.env = []string{"PAIINIT_SECRET=correct horse battery staple"}
	return p
}

func terminateEarly(t *testing.T, d driver) {
	for rank, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT} {
		c := start(t, d, pair(rank))
		c.says("listening")
		for _, nothing := range []syscall.Signal{unix.SIGUSR1, unix.SIGWINCH, unix.SIGCONT, unix.SIGHUP, 40} {
			c.signal(nothing)
		}
		begin := time.Now()
		c.signal(sig)
		assert.Equal(t, 128+int(sig), c.wait())
		assert.Less(t, time.Since(begin), soon)
		assert.Empty(t, c.stdout.String())
	}
}

// terminateAtOnce sends SIGTERM a moment after PID 1 has started the agent. From then on SIGTERM must not be lost.
func terminateAtOnce(t *testing.T, c *container, delay time.Duration) {
	for started := false; !started; time.Sleep(100 * time.Microsecond) { // poll: /proc has no event for this
		children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.cmd.Process.Pid))
		require.NoError(t, err)
		for _, file := range children {
			pids, _ := os.ReadFile(file)
			started = started || len(pids) > 0
		}
		select {
		case <-c.ended:
			require.FailNow(t, "the container ended by itself")
		default:
		}
	}
	time.Sleep(delay)
	begin := time.Now()
	c.signal(unix.SIGTERM)
	assert.Equal(t, 143, c.wait(), "after %v", delay)
	assert.Less(t, time.Since(begin), soon, "after %v", delay)
}

func terminateSoon(t *testing.T, d driver) {
	for _, delay := range []time.Duration{0, 0, 0, 500, 1000, 2000, 3000, 4000, 5000, 6000, 8000, 10000, 20000} {
		c := start(t, d, program{flags: []string{longGrace}, command: []string{"/bin/sleep", "1000"}})
		terminateAtOnce(t, c, delay*time.Microsecond)
	}
}

// terminateEarliest sends SIGTERM a few microseconds after the exec. Until the Go runtime installs its handlers, the
// kernel drops the signal, as for every PID 1. In the 2 ms from then to main, the runtime exits with status 2, because
// the kernel does not let it kill PID 1 with the signal. No other result is allowed. A Go program cannot do better: our
// code does not run before main, and a smaller program that executes this one would have the same gap.
func terminateEarliest(t *testing.T, d driver) {
	for _, delay := range []time.Duration{0, 100, 200, 400, 600, 1000, 1500, 2000} {
		c := start(t, d, program{command: []string{"/bin/sleep", "1000"}})
		_, err := c.executed.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		time.Sleep(delay * time.Microsecond)
		c.signal(unix.SIGTERM)
		dropped := 128 + int(unix.SIGUSR1) // if the command runs, another signal must end it
		if c.stderr.saidBy(c, "msg=launching") {
			c.signal(unix.SIGUSR1)
		}
		assert.Contains(t, []int{143, 2, dropped}, c.wait(), "after %v", delay*time.Microsecond)
	}
}

func orphans(t *testing.T, d driver) {
	c := start(t, d, program{command: []string{"/bin/inside", "orphans", "10000"}})
	assert.Equal(t, 0, c.wait())
	assert.Equal(t, "10000 orphans, 0 zombies\n", c.stdout.String())
}

func orphansWhileWaiting(t *testing.T, d driver) {
	c := start(t, d, pair(0))
	c.says("listening")
	out, err := d.enter(c, "/bin/inside", "orphans", "1000").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "1000 orphans, 0 zombies\n", string(out))
	c.signal(unix.SIGTERM)
	assert.Equal(t, 143, c.wait())
}

func ownCommands(t *testing.T, d driver) {
	c := start(t, d, program{command: []string{"/bin/inside", "commands", "50"}})
	assert.Equal(t, 0, c.wait())
	assert.Equal(t, "50 commands, 0 wrong\n", c.stdout.String())
}

// daemon returns a shell command that starts a process in a session of its own, which ignores SIGTERM and has no open
// files. Its argument, mark, is unique on this host.
func daemon(t *testing.T) (command, mark string) {
	mark = fmt.Sprintf("%d.%06d", 1000000+os.Getpid(), containers.Add(1))
	return fmt.Sprintf("(trap '' TERM HUP INT; setsid sleep %s </dev/null >/dev/null 2>&1 &)", mark), mark
}

// running counts the processes of this host with mark as their last argument.
func running(t *testing.T, mark string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	count := 0
	for _, file := range files {
		args, err := os.ReadFile(file)
		if err == nil && bytes.HasSuffix(args, []byte("\x00"+mark+"\x00")) {
			count++
		}
	}
	return count
}

func daemons(t *testing.T, d driver) {
	command, mark := daemon(t)
	begin := time.Now()
	c := start(t, d, script(command+"; exit 4", longGrace))
	assert.Equal(t, 4, c.wait())
	assert.Less(t, time.Since(begin), soon)
	assert.Equal(t, 0, running(t, mark))
}

func daemonsAtStop(t *testing.T, d driver) {
	command, mark := daemon(t)
	c := start(t, d, script(command+"; echo ready; exec sleep 1000", longGrace))
	c.line("ready")
	begin := time.Now()
	c.signal(unix.SIGTERM)
	assert.Equal(t, 143, c.wait())
	assert.Less(t, time.Since(begin), soon)
	assert.Equal(t, 0, running(t, mark))
}

// daemonsAreAsked tries it again, because a daemon has 2 s whatever the grace is, which a slow machine may exceed.
func daemonsAreAsked(t *testing.T, d driver) {
	const saved = "ready\ndaemon saved\n"
	got := ""
	for try := 0; try < 5 && got != saved; try++ {
		c := start(t, d, script(`(setsid sh -c 'trap "echo daemon saved; exit" TERM; echo ready; `+
			`while :; do sleep 0.1; done' &); exec sleep 1000`, longGrace))
		c.line("ready")
		c.signal(unix.SIGTERM)
		assert.Equal(t, 143, c.wait())
		got = c.stdout.String()
	}
	assert.Equal(t, saved, got)
}

// state is a shell command that prints what a process inherits, except the limit of locked memory, because paiinit may
// raise its soft limit to the hard one. It ends with true, because the last command of busybox's shell inherits the
// shell's ignored SIGQUIT.
const state = `umask; pwd; cat /proc/self/oom_score_adj; cut -d: -f3 /proc/self/cgroup;` +
	` grep -v 'Max locked memory' /proc/self/limits;` +
	` grep -E '^(Uid|Gid|Groups|SigBlk|SigIgn|Cap...|NoNewPrivs|Seccomp|Cpus_allowed_list):' /proc/self/status; true`

func inherited(t *testing.T, d driver) {
	p := script("echo after; " + state)
	p.before = "umask 027; ulimit -S -n 512; ulimit -c 0; ulimit -s 4096; cd /files; echo before; " + state
	c := start(t, d, p)
	require.Equal(t, 0, c.wait())
	before, after, found := strings.Cut(strings.TrimPrefix(c.stdout.String(), "before\n"), "after\n")
	require.True(t, found)
	assert.Contains(t, before, "0027\n/files\n")
	assert.Equal(t, before, after)
}

func ignored(t *testing.T, d driver) {
	const show = `grep SigIgn /proc/self/status; true`
	p := script(show)
	p.before = "trap '' HUP INT TSTP TTIN TTOU CONT; " + show
	c := start(t, d, p)
	require.Equal(t, 0, c.wait())
	lines := strings.Split(c.stdout.String(), "\n")
	require.Len(t, lines, 3)
	assert.NotContains(t, lines[0], "0000000000000000")
	assert.Equal(t, lines[0], lines[1])
}

func environment(t *testing.T, d driver) {
	p := script("env")
	p.env = []string{"PAIINIT_SECRET=correct horse battery staple", "HOME=/files", "A=1 = 2", "EMPTY=",
		"GOMAXPROCS=3", "GOGC=77"}
	c := start(t, d, p)
	require.Equal(t, 0, c.wait())
	lines := strings.Split(c.stdout.String(), "\n")
	for _, entry := range p.env[1:] {
		assert.Contains(t, lines, entry)
	}
	assert.Regexp(t, `(?m)^PATH=(/[^:]*/bin:)?/bin:/sbin$`, c.stdout.String(),
		"PATH may only gain the directory of paiinit's ssh")
	for _, text := range []string{"PAIINIT_PID1", "PAIINIT_SECRET", "correct horse", "GODEBUG", "GOMEMLIMIT"} {
		assert.NotContains(t, c.stdout.String(), text)
	}
	assert.NotContains(t, c.stderr.String(), "correct horse")
}

func standardInput(t *testing.T, d driver) {
	text := strings.Repeat("all of it\n", 20000)
	p := program{command: []string{"/bin/cat"}, stdin: strings.NewReader(text)}
	c := start(t, d, p)
	require.Equal(t, 0, c.wait())
	assert.True(t, text == c.stdout.String(), "%d of %d bytes", len(c.stdout.String()), len(text))
}

func standardOutput(t *testing.T, d driver) {
	c := start(t, d, script("echo out; echo err >&2", "--log-level=debug"))
	require.Equal(t, 0, c.wait())
	assert.Equal(t, "out\n", c.stdout.String())
	assert.Contains(t, c.stderr.String(), "err\n")
}

func closedFiles(t *testing.T, d driver) {
	p := script("echo out; echo err >&2; cat; exit 6")
	for _, closed := range []string{"exec <&-", "exec <&- >&- 2>&-"} {
		p.before = closed
		c := start(t, d, p)
		assert.Equal(t, 6, c.wait(), closed)
	}
}

func openFiles(t *testing.T, d driver) {
	const list = "for fd in 3 4 5 6 7 8 9 10 11 12 13 14 15; do test ! -e /proc/$$/fd/$fd || echo $fd; done; echo end"
	p := script(list)
	p.before = list // the test's own process may have passed on open files
	c := start(t, d, p)
	require.Equal(t, 0, c.wait())
	before, after, _ := strings.Cut(c.stdout.String(), "end\n")
	assert.Equal(t, before+"end\n", after)
}

// quiet keeps the log off the terminal, because it quotes the command.
const quiet = "--log-level=error"

// sized waits until the command has printed the terminal's size. The docker command forwards the size a moment after
// the start; if that was too early, only SIGWINCH makes it forward the size again.
func sized(d driver, c *container, text string) {
	c.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(waitTimeout)
	for isDocker(d) && !strings.Contains(c.stdout.String(), text) {
		require.NoError(c.t, c.cmd.Process.Signal(unix.SIGWINCH))
		select {
		case <-tick.C:
		case <-c.ended:
			require.FailNow(c.t, "the container ended without this output", "%q", text)
		case <-timeout:
			require.FailNow(c.t, "timeout: the container does not write this", "%q", text)
		}
	}
	c.line(text)
}

func terminal(t *testing.T, d driver) {
	p := script(`set -- $(cat /proc/self/stat); echo "group $5 foreground $8"; `+
		`until test "$(stty size 2>/dev/null)" = "24 80"; do sleep 0.01; done; echo "24 80"; `+
		`read -r line </dev/tty; echo "read $line"; exit 8`, quiet)
	p.tty = true
	c := start(t, d, p)
	c.line("foreground")
	sized(d, c, "24 80\r\n")
	_, err := c.tty.WriteString("a word\n")
	require.NoError(t, err)
	assert.Equal(t, 8, c.wait())
	_, line, _ := strings.Cut(c.stdout.String(), "group ")
	var group, foreground int
	_, err = fmt.Sscanf(line, "%d foreground %d", &group, &foreground)
	require.NoError(t, err)
	assert.Equal(t, group, foreground)
	assert.NotEqual(t, 1, group)
	c.line("read a word\r\n")
}

func controlC(t *testing.T, d driver) {
	p := script(`trap 'echo caught' INT; while :; do sleep 1000 & echo ready; wait $!; done`, longGrace, quiet)
	p.tty = true
	c := start(t, d, p)
	c.line("ready")
	_, err := c.tty.WriteString("\x03")
	require.NoError(t, err)
	c.line("caught")
	_, err = c.tty.WriteString("\x1a") // Ctrl-Z must not stop PID 1
	require.NoError(t, err)
	c.signal(unix.SIGCONT)
	c.signal(unix.SIGTERM)
	c.wait()
	assert.Equal(t, 1, strings.Count(c.stdout.String(), "caught"))
}

func windowSize(t *testing.T, d driver) {
	p := script(`trap 'stty size' WINCH; while :; do sleep 1000 & echo ready; wait $!; done`, quiet)
	p.tty = true
	c := start(t, d, p)
	c.line("ready")
	require.NoError(t, pty.Setsize(c.tty, &pty.Winsize{Rows: 33, Cols: 111}))
	sized(d, c, "33 111\r\n")
	c.signal(unix.SIGTERM)
	assert.Equal(t, 143, c.wait())
}

// terminalStops logs to a terminal that stops background processes when they write (stty tostop).
func terminalStops(t *testing.T, d driver) {
	p := script("stty tostop; exit 7", "--log-level=debug")
	p.tty = true
	c := start(t, d, p)
	assert.Equal(t, 7, c.wait())
	assert.Contains(t, c.stdout.String(), "the job has ended")
}

func jobControl(t *testing.T, d driver) {
	p := program{flags: []string{quiet}, command: []string{"/bin/sh", "-i"}, tty: true}
	c := start(t, d, p)
	_, err := c.tty.WriteString("sleep 1000 & kill -9 %1; echo its $((4 + 5)); exit 9\n")
	require.NoError(t, err)
	c.line("its 9")
	assert.Equal(t, 9, c.wait())
	assert.NotContains(t, c.stdout.String(), "job control")
}

// behind runs paiinit below a shell as PID 1, which does none of an init's work.
func behind(t *testing.T, d driver) {
	command, mark := daemon(t)
	p := program{
		behind: fmt.Sprintf(`/sbin/paiinit %s -- /bin/sh -c "%s; echo last words >&2; exit 4"; echo "status $?"; `+
			`echo "left $(ps -o args | grep -c '^sleep %s')"; cat /dev/shm/message`, longGrace, command, mark),
		env: []string{"PAIINIT_TERMINATION_LOG=/dev/shm/message"},
	}
	c := start(t, d, p)
	require.Equal(t, 0, c.wait())
	const message = "status 4\nleft 0\npaiinit: JOB FAILED, status 4, after [0-9.]+ m?s\n" +
		"  rank 0's command /bin/sh ended with status 4\n  last lines of its stderr:\n    last words\n"
	assert.Regexp(t, "^"+message+"(  next: .*\n)?$", c.stdout.String())
	assert.NotContains(t, c.stderr.String(), "subreaper")
}

func brokenError(t *testing.T, d driver) {
	p := script("echo lost >&2; echo lost too >&2; echo kept; exit 11", "--log-level=debug")
	p.deaf = true
	c := start(t, d, p)
	assert.Equal(t, 11, c.wait())
	assert.Equal(t, "kept\n", c.stdout.String())
}

// unreadError sends the log and the command's standard error to a full pipe.
func unreadError(t *testing.T, d driver) {
	p := script("echo never read >&2; echo out; exit 11", "--log-level=debug")
	p.unread = true
	begin := time.Now()
	c := start(t, d, p)
	assert.Equal(t, 11, c.wait())
	assert.Equal(t, "out\n", c.stdout.String())
	p = program{
		flags: []string{longGrace, "--log-level=debug"}, command: []string{"/bin/inside", "signals"}, unread: true,
	}
	c = start(t, d, p)
	c.line("ready")
	c.signal(unix.SIGUSR1)
	c.line("signal 10")
	c.signal(unix.SIGKILL)
	p = pair(1)
	p.unread = true
	p.flags = append(p.flags, "--timeout=500ms")
	assert.Equal(t, 75, start(t, d, p).wait(), "a worker")
	assert.Less(t, time.Since(begin), soon)
}

// faults checks that paiinit forwards these signals, like SIGABRT, if a process sends them. They are faults only if the
// kernel sends them.
func faults(t *testing.T, d driver) {
	c := start(t, d, program{flags: []string{longGrace}, command: []string{"/bin/inside", "signals"}})
	c.line("ready")
	for _, sig := range []syscall.Signal{
		unix.SIGSEGV, unix.SIGBUS, unix.SIGILL, unix.SIGFPE, unix.SIGTRAP, unix.SIGSYS, unix.SIGSTKFLT,
	} {
		if isDocker(d) && sig != unix.SIGSEGV {
			continue
		}
		c.signal(sig)
		c.line(fmt.Sprintf("signal %d\n", sig))
	}
	c.signal(unix.SIGKILL)
	assert.Equal(t, 137, c.wait())
	assert.NotContains(t, c.stderr.String(), "goroutine")

	c = start(t, d, program{command: []string{"/bin/sleep", "1000"}})
	c.says("msg=launching")
	c.signal(unix.SIGSEGV)
	assert.Equal(t, 128+int(unix.SIGSEGV), c.wait())
}

func noPasswd(t *testing.T, d driver) {
	p := script(`id -u; test ! -e /etc/passwd; echo $?; echo "$HOME"`)
	c := start(t, d, p)
	require.Equal(t, 0, c.wait())
	assert.Regexp(t, `^(0|12345)\n0\n.*\n$`, c.stdout.String())
}

func nowhere(t *testing.T, d driver) {
	p := script("echo never")
	p.bare = true
	c := start(t, d, p)
	assert.Equal(t, 69, c.wait())
	assert.Contains(t, c.stderr.String(), "--state-dir")
	assert.Contains(t, c.stderr.String(), "/run/paiinit")
	assert.Empty(t, c.stdout.String())
}

func noProc(t *testing.T, d driver) {
	p := script("echo out; exit 12")
	p.noProc = true
	c := start(t, d, p)
	assert.Equal(t, 12, c.wait())
	assert.Equal(t, "out\n", c.stdout.String())
}

func killedAgent(t *testing.T, d driver) {
	command, mark := daemon(t)
	c := start(t, d, script(command+"; kill -KILL $PPID; sleep 1000"))
	assert.Equal(t, 70, c.wait())
	assert.Contains(t, c.stderr.String(), "the agent ended without a result: killed (signal 9)")
	assert.Equal(t, 0, running(t, mark))
}
