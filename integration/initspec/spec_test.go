package initspec

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// soon is what ends without waiting for anything takes at most on a slow machine, and with Docker. It is below every
// waiting time of the rows that use it.
const soon = 6 * time.Second

// files are in the directory /work of every container.
var files = map[string]string{
	"script":         "echo \"$0 $*\"\nexit 5\n", // no first line that says who runs it
	"garbage":        "no-such-command-at-all\n",
	"no-interpreter": "#!/no/such/interpreter\n",
	"plain":          "#!/bin/sh\n",
	"foreign":        "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 57),
}

// rows are the specification.
var rows = []struct {
	name string
	on   func(driver) bool // nil: on all drivers
	test func(*testing.T, driver)
}{
	{"the status of the command is the container's", nil, statuses},
	{"a command that is ended by signal n gives 128+n", nil, deaths},
	{"a command that cannot run gives 126 or 127", nil, cannotRun},
	{"a script without a first line runs in a shell", nil, plainScript},
	{"every signal reaches the command, in order", nil, signals},
	{"SIGTERM ends the command, 143", nil, terminate},
	{"SIGTERM reaches the commands of a shell", nil, terminateShell},
	{"success after SIGTERM is 143", nil, successAfterStop},
	{"a command that ignores SIGTERM is killed after the grace", nil, grace},
	{"a second SIGTERM ends it at once", nil, twice},
	{"a stopped command is not at its end", nil, stopped},
	{"SIGTERM while waiting for others ends it at once, 143", nil, terminateEarly},
	{"SIGTERM soon after the start is not lost, and is 143", isNamespace, terminateSoon},
	{"SIGTERM before the start ends it, or is dropped", isNamespace, terminateEarliest},
	{"orphans are reaped while the command runs", nil, orphans},
	{"orphans are reaped while waiting for others", nil, orphansWhileWaiting},
	{"nothing is left of daemons", nil, daemons},
	{"daemons do not delay the stop", nil, daemonsAtStop},
	{"the command gets what the container was started with", nil, inherited},
	{"ignored signals stay ignored", nil, ignored},
	{"the environment is the command's own", nil, environment},
	{"standard input passes through", nil, standardInput},
	{"standard output is the command's own", nil, standardOutput},
	{"closed standard files do no harm", nil, closedFiles},
	{"no other file is open in the command", nil, openFiles},
	{"a terminal is the command's", nil, terminal},
	{"Ctrl-C on a terminal reaches the command once", nil, controlC},
	{"a terminal's new size reaches the command", nil, windowSize},
	{"a user without a passwd entry is enough", nil, noPasswd},
	{"nowhere to write is said", nil, nowhere},
	{"no /proc is no reason to fail", isNamespace, noProc},
	{"a killed agent is told, and gives 70", nil, killedAgent},
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
					t.Parallel()
					row.test(t, d.driver)
				})
			}
		})
	}
}

// TestAllStatuses does what is too much for every driver.
func TestAllStatuses(t *testing.T) {
	t.Parallel()
	d := namespaces{user: os.Geteuid() != 0}
	need(t, d.missing())
	for status := range 256 {
		c := start(t, d, script(fmt.Sprintf("exit %d", status), "--log-level=error"))
		require.Equal(t, status, c.wait())
	}
}

// TestDockerStop measures the command that people use, with its own limit of 10 s and paiinit's default grace.
func TestDockerStop(t *testing.T) {
	d := docker{}
	for name, command := range map[string]struct {
		script string
		status int
		under  time.Duration
	}{
		"that ends":         {"echo ready; sleep 1000", 143, soon},
		"that ignores TERM": {"trap '' TERM; echo ready; while :; do sleep 1000 & wait $!; done", 137, 9800 * time.Millisecond},
		"in the background": {"(trap '' TERM; setsid sleep 1000) & echo ready; wait", 143, soon},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			need(t, d.missing())
			c := start(t, d, script(command.script))
			c.line("ready")
			begin := time.Now()
			out, err := exec.Command("docker", "stop", c.name).CombinedOutput()
			took := time.Since(begin)
			require.NoError(t, err, "%s", out)
			assert.Equal(t, command.status, c.wait())
			assert.Less(t, took, command.under)
			c.says("the job has ended") // by paiinit, not by Docker's own SIGKILL
			t.Logf("docker stop: %v", took)
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
		quick   bool // not for Docker
	}{
		{[]string{"/nope"}, 127, false},
		{[]string{"nope"}, 127, false},
		{[]string{"/work/nope/nope"}, 127, true},
		{[]string{"/work/plain/nope"}, 127, true},
		{[]string{"/work"}, 126, false},
		{[]string{"/work/plain"}, 126, false},
		{[]string{"/work/garbage"}, 127, false},
		{[]string{"/work/no-interpreter"}, 127, false},
		{[]string{"/work/foreign"}, 126, false},
		{[]string{""}, 127, true},
	} {
		if isDocker(d) && row.quick {
			continue
		}
		c := start(t, d, program{command: row.command})
		if assert.Equal(t, row.status, c.wait(), "%q", row.command) && row.command[0] != "/work/garbage" {
			assert.Contains(t, c.stderr.String(), fmt.Sprintf(`running \"%s\"`, row.command[0]), "the reason names it")
		}
		assert.Empty(t, c.stdout.String())
	}
}

func plainScript(t *testing.T, d driver) {
	c := start(t, d, program{command: []string{"/work/script", "a", "b c"}})
	assert.Equal(t, 5, c.wait())
	assert.Equal(t, "/work/script a b c\n", c.stdout.String())
}

// signals sends those that ask the command to end last: they start the grace.
func signals(t *testing.T, d driver) {
	c := start(t, d, program{flags: []string{"--grace=50s"}, command: []string{"/bin/inside", "signals"}})
	c.line("ready")
	sent := []syscall.Signal{64, 37, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT, unix.SIGALRM, unix.SIGXCPU, unix.SIGPWR, 35, unix.SIGHUP, unix.SIGQUIT, unix.SIGINT}
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
	assert.Equal(t, expected, c.stdout.String(), "none came twice")
	c.signal(unix.SIGKILL)
	assert.Equal(t, 137, c.wait())
}

func terminate(t *testing.T, d driver) {
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, 35} {
		if isDocker(d) && sig != unix.SIGTERM && sig != 35 {
			continue
		}
		c := start(t, d, program{command: []string{"sleep", "1000"}}) // busybox's shell ignores SIGQUIT
		c.says("msg=launching")
		begin := time.Now()
		c.signal(sig)
		assert.Equal(t, 128+int(sig), c.wait())
		assert.Less(t, time.Since(begin), soon)
	}
}

func terminateShell(t *testing.T, d driver) {
	c := start(t, d, script("echo ready; sleep 1000 && echo going on"))
	c.line("ready")
	begin := time.Now()
	c.signal(unix.SIGTERM)
	assert.Equal(t, 143, c.wait())
	assert.Less(t, time.Since(begin), soon)
	assert.Equal(t, "ready\n", c.stdout.String())
}

func successAfterStop(t *testing.T, d driver) {
	c := start(t, d, script("trap 'exit 0' TERM; echo ready; while :; do sleep 1000 & wait $!; done"))
	c.line("ready")
	c.signal(unix.SIGTERM)
	assert.Equal(t, 143, c.wait())

	c = start(t, d, script("trap 'exit 9' TERM; echo ready; while :; do sleep 1000 & wait $!; done"))
	c.line("ready")
	c.signal(unix.SIGTERM)
	assert.Equal(t, 9, c.wait(), "a failure of its own counts more")
}

func grace(t *testing.T, d driver) {
	c := start(t, d, script("trap '' TERM; echo ready; while :; do sleep 1000 & wait $!; done", "--grace=500ms"))
	c.line("ready")
	begin := time.Now()
	c.signal(unix.SIGTERM)
	assert.Equal(t, 137, c.wait())
	took := time.Since(begin)
	assert.GreaterOrEqual(t, took, 500*time.Millisecond)
	assert.Less(t, took, soon)
}

func twice(t *testing.T, d driver) {
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT} {
		c := start(t, d, script(`trap 'echo first' TERM INT; echo ready; while :; do sleep 1000 & wait $!; done`, "--grace=50s"))
		c.line("ready")
		c.signal(sig)
		c.line("first")
		begin := time.Now()
		c.signal(sig)
		assert.Equal(t, 137, c.wait())
		assert.Less(t, time.Since(begin), soon)
	}
}

func stopped(t *testing.T, d driver) {
	c := start(t, d, script(`(until grep -q '^State:.T' /proc/$$/status; do :; done; echo stopped) & kill -STOP $$; exit 3`))
	c.line("stopped")
	c.signal(unix.SIGCONT)
	assert.Equal(t, 3, c.wait())
}

// pair is one of two containers; the other one never comes.
func pair(rank int) program {
	p := script("echo not alone", fmt.Sprintf("--rank=%d", rank), "--size=2", "--peers=127.0.0.1:12345,192.0.2.1:12345", "--log-level=debug")
	p.env = []string{"PAIINIT_SECRET=correct horse battery staple"}
	return p
}

func terminateEarly(t *testing.T, d driver) {
	for rank, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT} {
		c := start(t, d, pair(rank))
		c.says("listening")
		for _, nothing := range []syscall.Signal{unix.SIGUSR1, unix.SIGWINCH, unix.SIGCONT, 40} {
			c.signal(nothing)
		}
		begin := time.Now()
		c.signal(sig)
		assert.Equal(t, 128+int(sig), c.wait())
		assert.Less(t, time.Since(begin), soon)
		assert.Empty(t, c.stdout.String())
	}
}

// terminateAtOnce sends SIGTERM a moment after the first process has started the agent, from when on it must be taken.
func terminateAtOnce(t *testing.T, c *container, delay time.Duration) {
	for started := false; !started; {
		children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.cmd.Process.Pid)) // of each thread
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
		terminateAtOnce(t, start(t, d, program{command: []string{"/bin/sleep", "1000"}}), delay*time.Microsecond)
	}
}

// terminateEarliest sends SIGTERM so many microseconds after the exec. What comes before the Go runtime has its handlers, the
// kernel drops; what comes before main, the runtime answers with status 2. Nothing else may happen.
func terminateEarliest(t *testing.T, d driver) {
	for _, delay := range []time.Duration{0, 100, 200, 400, 600, 1000, 1500, 2000} {
		c := start(t, d, program{command: []string{"/bin/sleep", "1000"}})
		_, err := c.executed.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		time.Sleep(delay * time.Microsecond)
		c.signal(unix.SIGTERM)
		select {
		case <-c.ended:
			assert.Contains(t, []int{143, 2}, c.status, "after %v", delay*time.Microsecond)
		case <-time.After(300 * time.Millisecond):
			c.says("msg=launching")
			c.signal(unix.SIGTERM)
			assert.Equal(t, 143, c.wait(), "after %v", delay*time.Microsecond)
		}
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

// daemon is a shell command that starts a process that leaves its session, ignores SIGTERM and closes its files. It
// sleeps for a time that no other process sleeps, which is returned.
func daemon(t *testing.T) (command, mark string) {
	mark = fmt.Sprintf("%d.%06d", 1000000+os.Getpid(), containers.Add(1))
	return fmt.Sprintf("(trap '' TERM HUP INT; setsid sleep %s </dev/null >/dev/null 2>&1 &)", mark), mark
}

// running counts processes of this host that have that argument.
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
	c := start(t, d, script(command+"; exit 4"))
	assert.Equal(t, 4, c.wait())
	assert.Less(t, time.Since(begin), soon)
	assert.Equal(t, 0, running(t, mark))
}

func daemonsAtStop(t *testing.T, d driver) {
	command, mark := daemon(t)
	c := start(t, d, script(command+"; echo ready; exec sleep 1000"))
	c.line("ready")
	begin := time.Now()
	c.signal(unix.SIGTERM)
	assert.Equal(t, 143, c.wait())
	assert.Less(t, time.Since(begin), soon)
	assert.Equal(t, 0, running(t, mark))
}

// state is a shell command that prints what a process inherits. The limit of locked memory may be raised (the soft to the
// hard one). The last command of busybox's shell would inherit its own ignoring of SIGQUIT.
const state = `umask; pwd; cat /proc/self/oom_score_adj; cut -d: -f3 /proc/self/cgroup;` +
	` grep -v 'Max locked memory' /proc/self/limits;` +
	` grep -E '^(Uid|Gid|Groups|SigBlk|SigIgn|Cap...|NoNewPrivs|Seccomp|Cpus_allowed_list):' /proc/self/status; true`

func inherited(t *testing.T, d driver) {
	p := script("echo after; " + state)
	p.before = "umask 027; ulimit -S -n 512; ulimit -c 0; ulimit -s 4096; cd /work; echo before; " + state
	c := start(t, d, p)
	require.Equal(t, 0, c.wait())
	before, after, found := strings.Cut(strings.TrimPrefix(c.stdout.String(), "before\n"), "after\n")
	require.True(t, found)
	assert.Contains(t, before, "0027\n/work\n")
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
	p.env = []string{"PAIINIT_SECRET=correct horse battery staple", "HOME=/work", "A=1 = 2", "EMPTY=", "GOMAXPROCS=3", "GOGC=77"}
	c := start(t, d, p)
	require.Equal(t, 0, c.wait())
	lines := strings.Split(c.stdout.String(), "\n")
	for _, entry := range append([]string{"PATH=/bin:/sbin"}, p.env[1:]...) {
		assert.Contains(t, lines, entry)
	}
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
	c := start(t, d, script("for fd in 3 4 5 6 7 8 9; do test ! -e /proc/$$/fd/$fd || echo $fd; done"))
	require.Equal(t, 0, c.wait())
	assert.Empty(t, c.stdout.String())
}

// quiet keeps the log, which quotes the command, off the terminal.
const quiet = "--log-level=error"

// sized waits until the terminal's size was printed. The docker command hands a size on a moment after the start, and when it
// was too early for that, not before it is told of another change.
func sized(d driver, c *container, text string) {
	c.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for isDocker(d) && !strings.Contains(c.stdout.String(), text) {
		require.NoError(c.t, c.cmd.Process.Signal(unix.SIGWINCH))
		select {
		case <-tick.C:
		case <-c.ended:
			require.FailNow(c.t, "the container ended without saying it", "%q", text)
		}
	}
	c.line(text)
}

func terminal(t *testing.T, d driver) {
	p := script(`set -- $(cat /proc/self/stat); echo "group $5 foreground $8"; until stty size 2>/dev/null; do sleep 0.01; done; read -r line </dev/tty; echo "read $line"; exit 8`, quiet)
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
	p := script(`trap 'echo caught' INT; echo ready; while :; do sleep 1000 & wait $!; done`, "--grace=50s", quiet)
	p.tty = true
	c := start(t, d, p)
	c.line("ready")
	_, err := c.tty.WriteString("\x03")
	require.NoError(t, err)
	c.line("caught")
	_, err = c.tty.WriteString("\x1a") // Ctrl-Z: the first process must survive it, too
	require.NoError(t, err)
	c.signal(unix.SIGCONT)
	c.signal(unix.SIGTERM)
	c.wait()
	assert.Equal(t, 1, strings.Count(c.stdout.String(), "caught"))
}

func windowSize(t *testing.T, d driver) {
	p := script(`trap 'stty size' WINCH; echo ready; while :; do sleep 1000 & wait $!; done`, quiet)
	p.tty = true
	c := start(t, d, p)
	c.line("ready")
	require.NoError(t, pty.Setsize(c.tty, &pty.Winsize{Rows: 33, Cols: 111}))
	sized(d, c, "33 111\r\n")
	c.signal(unix.SIGTERM)
	assert.Equal(t, 143, c.wait())
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
