package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/lab"
	"github.com/paiinit/paiinit/integration/testsignals"
)

func TestMain(m *testing.M) {
	lab.Main()
	if helper := os.Getenv("LAB_TEST_HELPER"); helper != "" {
		if err := helpers[helper](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testsignals.Default()
	goleak.VerifyTestMain(m)
}

// waitTimeout is the timeout of one wait, long enough on a busy machine.
const waitTimeout = 3 * time.Minute

const shPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	return configuredLab(t, lab.Config{})
}

func configuredLab(t *testing.T, cfg lab.Config) *lab.Lab {
	t.Helper()
	if missing := lab.Missing(); len(missing) > 0 {
		why := strings.Join(missing, "; ")
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	cfg.OnLine = func(l lab.Line) { t.Logf("%s: %s", l.Container, l.Text) }
	l, err := lab.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func newMachine(t *testing.T, l *lab.Lab, name string) *lab.Machine {
	t.Helper()
	m, err := l.Machine(name)
	require.NoError(t, err)
	return m
}

func start(t *testing.T, m *lab.Machine, p lab.Program) *lab.Container {
	t.Helper()
	c, err := m.Start(p)
	require.NoError(t, err)
	return c
}

func sh(script string) lab.Program {
	return lab.Program{Args: []string{"/bin/sh", "-c", script}, Env: []string{shPath}}
}

// helper runs a function of helpers in this test program, mounted below /run/bin because the tmpfs on /tmp hides it.
func helper(t *testing.T, name string, args ...string) lab.Program {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	return lab.Program{
		Args:  append([]string{"/run/bin/helper"}, args...),
		Env:   []string{shPath, "LAB_TEST_HELPER=" + name, "GORACE=atexit_sleep_ms=0"},
		Binds: map[string]string{"/run/bin/helper": exe},
	}
}

func wait(t *testing.T, c *lab.Container) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	status, err := c.Wait(ctx)
	require.NoError(t, err)
	cancel()
	for range 20 { // an end is never taken for the end of ctx
		again, err := c.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, status, again)
	}
	return status
}

func waitLine(t *testing.T, c *lab.Container, text string) lab.Line {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	line, err := c.WaitLine(ctx, text)
	require.NoError(t, err)
	return line
}

func TestWhatAContainerSees(t *testing.T) {
	l := newLab(t)
	m := newMachine(t, l, "alpha")
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("bound\n"), 0o600))
	p := sh(`echo "pid $$"
		hostname
		tr '\0' '\n' </proc/$$/environ
		grep -v ^fe80 /etc/hosts
		cat /etc/resolv.conf
		ls -A /tmp
		cat /run/a/b/secret
		ls /sys/class/net | tr '\n' ' '; echo
		set -- /proc/[0-9]*; echo "$#"
		test -x /usr/bin/env || echo hidden
		pwd
		echo to-stderr >&2
		touch /tmp/mine /run/mine /dev/shm/mine /srv/mine /opt/mine && cmp /opt/no/such/file /run/a/b/secret`)
	p.Env = append(p.Env, "A=1", "B=two words")
	p.Dir = "/usr"
	p.Tmpfs = []string{"/srv"}
	p.Overlay = []string{"/opt"}
	p.Binds = map[string]string{"/run/a/b/secret": secret, "/opt/no/such/file": secret}
	p.Hosts = map[string]netip.Addr{"beta": netip.MustParseAddr("10.77.0.99")}
	p.Hide = []string{"/usr/bin/env", "/usr/bin/no-such-program"}
	c := start(t, m, p)
	require.Zero(t, wait(t, c))
	require.Equal(t, `pid 1
alpha
`+shPath+`
A=1
B=two words
127.0.0.1	localhost
::1	localhost ip6-localhost
10.77.0.10	alpha
10.77.0.99	beta
nameserver 10.77.0.1
options ndots:0
bound
eth0 lo 
1
hidden
/usr
`, strings.ReplaceAll(c.Output(), "to-stderr\n", ""))
	for _, line := range c.Lines() {
		require.Equal(t, line.Text == "to-stderr", line.Stderr)
		require.WithinDuration(t, time.Now(), line.Time, time.Minute)
	}
	for _, path := range []string{
		"/tmp/mine", "/run/mine", "/dev/shm/mine", "/srv/mine", "/opt/mine", "/opt/no/such/file",
	} {
		require.NoFileExists(t, path)
	}
}

func TestStatus(t *testing.T) {
	m := newMachine(t, newLab(t), "alpha")
	for script, status := range map[string]int{
		"exit 0":            0,
		"exit 3":            3,
		"exit 255":          255,
		"kill -KILL $$":     0, // PID 1 ignores signals from its own namespace
		"kill -TERM $$":     0,
		"sleep 60 & exit 7": 7,
	} {
		require.Equal(t, status, wait(t, start(t, m, sh(script))), script)
	}
}

func TestSignals(t *testing.T) {
	m := newMachine(t, newLab(t), "alpha")

	c := start(t, m, sh("trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"))
	waitLine(t, c, "ready")
	require.NoError(t, c.Signal(syscall.SIGTERM))
	require.Equal(t, 5, wait(t, c))
	require.Error(t, c.Signal(syscall.SIGTERM))

	c = start(t, m, sh("sleep 1000 & echo ready; wait"))
	waitLine(t, c, "ready")
	processes, err := c.Processes()
	require.NoError(t, err)
	require.Len(t, processes, 2)
	c.Kill()
	require.Equal(t, 128+9, wait(t, c))
	for _, p := range processes {
		require.ErrorIs(t, syscall.Kill(p.PID, 0), syscall.ESRCH)
	}
	processes, err = c.Processes()
	require.NoError(t, err)
	require.Empty(t, processes)
}

func TestParent(t *testing.T) {
	m := newMachine(t, newLab(t), "alpha")
	child := func(script string) lab.Program {
		p := sh(script)
		p.Parent = true
		return p
	}
	for script, status := range map[string]int{
		"exit 7":     7,
		"kill -9 $$": 128 + 9,
		"trap 'exit 5' TERM; sleep 1000 & echo ready; wait; exit 6": 5,
	} {
		c := start(t, m, child(script))
		if status == 5 {
			waitLine(t, c, "ready")
			require.NoError(t, c.Signal(syscall.SIGTERM))
		}
		require.Equal(t, status, wait(t, c))
		left, known := c.Left()
		require.True(t, known)
		if status == 5 {
			require.Len(t, left.Processes, 1) // the sleep, or the shell that is about to execute it
		} else {
			require.Empty(t, left.Processes)
		}
	}
	killed := start(t, m, child("sleep 1000"))
	killed.Kill()
	require.Equal(t, 128+9, wait(t, killed))
	_, known := killed.Left()
	require.False(t, known)
	_, err := m.Start(lab.Program{Args: []string{"/nowhere"}, Env: []string{shPath}, Parent: true})
	require.ErrorContains(t, err, "no such file")

	p := helper(t, "socket", "/run/left.sock")
	p.Parent = true
	c := start(t, m, p)
	require.Equal(t, 0, wait(t, c))
	left, _ := c.Left()
	require.Equal(t, []string{"/run/left.sock"}, left.Sockets)
}

func TestWaitLineOfAContainerThatEnds(t *testing.T) {
	m := newMachine(t, newLab(t), "alpha")
	c := start(t, m, sh("echo one; printf two; exit 4"))
	waitLine(t, c, "two")
	_, err := c.WaitLine(t.Context(), "three")
	require.ErrorContains(t, err, `container "alpha" ended with status 4 and never wrote "three"`)

	c = start(t, m, sh("sleep 1000"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = c.WaitLine(ctx, "anything")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = c.Wait(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestProgramsThatCannotStart(t *testing.T) {
	l := newLab(t)
	m := newMachine(t, l, "alpha")
	for _, c := range []struct {
		p    lab.Program
		want string
	}{
		{lab.Program{}, `starting container "alpha": no program`},
		{lab.Program{Args: []string{"no-such-program"}, Env: []string{shPath}},
			"look up no-such-program: file does not exist"},
		{lab.Program{Args: []string{"sh"}}, "look up sh: file does not exist"},
		{lab.Program{Args: []string{"/etc/passwd"}}, "exec /etc/passwd: permission denied"},
		{lab.Program{Args: []string{"/bin/true"}, Dir: "/no/such/dir"}, "chdir /no/such/dir: no such file"},
		{lab.Program{Args: []string{"/bin/true"}, Binds: map[string]string{"/run/x": "/no/such/file"}},
			"open /no/such/file"},
		{lab.Program{Args: []string{"/bin/true"}, Binds: map[string]string{"/usr/no-such-file": "/etc/passwd"}},
			"/usr/no-such-file does not exist"},
		{lab.Program{Args: []string{"/bin/true"}, Tmpfs: []string{"/no/such/dir"}},
			"making a mount point: mkdir /no/such/dir: no such file"},
	} {
		_, err := m.Start(c.p)
		require.ErrorContains(t, err, c.want)
	}
	require.Empty(t, l.Containers())
	require.NoError(t, l.Close())
	_, err := l.Machine("late")
	require.ErrorIs(t, err, lab.ErrClosed)
	_, err = m.Start(sh("true"))
	require.ErrorIs(t, err, lab.ErrClosed)
}

// counting is a container of two processes that write without end.
func counting(t *testing.T, m *lab.Machine) *lab.Container {
	t.Helper()
	c := start(t, m, sh("(while :; do sleep 0.02; echo child; done) & while :; do sleep 0.02; echo parent; done"))
	waitLine(t, c, "child")
	waitLine(t, c, "parent")
	return c
}

// requireStill requires that a container of counting writes nothing from stop until resume.
func requireStill(t *testing.T, c *lab.Container, stop, resume func() error) {
	t.Helper()
	require.NoError(t, stop())
	time.Sleep(100 * time.Millisecond) // earlier output must arrive first
	before := len(c.Lines())
	time.Sleep(200 * time.Millisecond)
	require.Len(t, c.Lines(), before)
	require.NoError(t, resume())
	require.Eventually(t, func() bool { return len(c.Lines()) > before+2 }, waitTimeout, 10*time.Millisecond)
}

func TestPause(t *testing.T) {
	c := counting(t, newMachine(t, newLab(t), "alpha"))
	requireStill(t, c, c.Pause, c.Resume)
}

// TestRunning: what has not ended is shown, also where it is frozen.
func TestRunning(t *testing.T) {
	l := newLab(t)
	m := newMachine(t, l, "alpha")
	ended := start(t, m, sh("exit 0"))
	require.Equal(t, 0, wait(t, ended))
	require.Empty(t, l.Running())
	c := counting(t, m)
	require.NoError(t, c.Freeze())
	require.Regexp(t, `^alpha has not ended:\n( +\d+ +\d+ \w .*\n){2,}$`, l.Running())
	before := len(c.Lines())
	require.Eventually(t, func() bool { return len(c.Lines()) > before+2 }, waitTimeout, 10*time.Millisecond)
}

// TestFreeze: a frozen container writes nothing, and can be killed.
func TestFreeze(t *testing.T) {
	l := newLab(t)
	requireCgroups(t)
	c := counting(t, newMachine(t, l, "alpha"))
	for range 2 {
		requireStill(t, c, c.Freeze, c.Thaw)
	}
	require.NoError(t, c.Freeze()) // Close ends it nevertheless
}

// TestLimitMemory: the kernel kills the process that takes too much. As long as that process's memory is not free, what
// else allocates in the container may be killed too: head rather than the shell, by its oom_score_adj.
func TestLimitMemory(t *testing.T) {
	l := newLab(t)
	requireCgroups(t)
	c := start(t, newMachine(t, l, "alpha"), sh(`echo up; until [ -e /tmp/go ]; do sleep 0.01; done
		(echo 1000 >/proc/self/oom_score_adj; head -c 200000000 /dev/zero | tail >/dev/null); echo ended with $?`))
	waitLine(t, c, "up")
	require.NoError(t, c.LimitMemory(20<<20))
	_, err := c.Exec(t.Context(), "sh", "-c", "echo >/tmp/go")
	require.NoError(t, err)
	waitLine(t, c, "ended with 137")
}

func requireCgroups(t *testing.T) {
	t.Helper()
	if err := lab.Cgroups(); err != nil {
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// TestBlockStderr: while nothing reads the standard error, what writes to it blocks, and nothing is lost.
func TestBlockStderr(t *testing.T) {
	m := newMachine(t, newLab(t), "alpha")
	c := start(t, m, sh(`echo first >&2; echo up; until [ -e /tmp/go ]; do sleep 0.01; done
		(echo second >&2; echo written) & sleep 0.3; echo slept; wait; exit 4`))
	waitLine(t, c, "first")
	waitLine(t, c, "up")
	require.NoError(t, c.BlockStderr())
	_, err := c.Exec(t.Context(), "sh", "-c", "echo >/tmp/go")
	require.NoError(t, err)
	waitLine(t, c, "slept")
	require.NotContains(t, c.Output(), "written")
	c.ReadStderr()
	status, err := c.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, 4, status)
	var log []string
	for _, l := range c.Lines() {
		if l.Stderr {
			log = append(log, l.Text)
		}
	}
	require.Equal(t, []string{"first", "second"}, log)
	require.Contains(t, c.Output(), "written")
}

func TestExec(t *testing.T) {
	m := newMachine(t, newLab(t), "alpha")
	p := sh("sleep 1000 & wait")
	p.Env = append(p.Env, "COLOUR=red")
	c := start(t, m, p)
	out, err := c.Exec(t.Context(), "sh", "-c",
		"hostname; echo $COLOUR; ls /proc/1/exe; ps -o args= -p 1; cat /proc/net/dev | grep -c eth0")
	require.NoError(t, err)
	require.Equal(t, "alpha\nred\n/proc/1/exe\n/bin/sh -c sleep 1000 & wait\n1\n", string(out))
	_, err = c.Exec(t.Context(), "sh", "-c", "echo wrong >&2; exit 9")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 9, exit.ExitCode())
	require.ErrorContains(t, err, "wrong")
}

func TestTwoContainersOnOneMachine(t *testing.T) {
	m := newMachine(t, newLab(t), "alpha")
	server := helper(t, "echo", "7000")
	server.Name, server.Hostname = "one", "one"
	one := start(t, m, server)
	waitLine(t, one, "listening")
	client := helper(t, "ping", "127.0.0.1:7000", "1", "1")
	client.Name = "two"
	two := start(t, m, client)
	require.Zero(t, wait(t, two))

	clash := start(t, m, helper(t, "echo", "7000"))
	require.Equal(t, 1, wait(t, clash))
	require.Contains(t, clash.Output(), "address already in use")

	out, err := one.Exec(t.Context(), "hostname")
	require.NoError(t, err)
	require.Equal(t, "one\n", string(out))
	processes, err := one.Processes()
	require.NoError(t, err)
	require.Len(t, processes, 1)
	require.Equal(t, []string{"/run/bin/helper", "7000"}, processes[0].Args)
	require.Contains(t, processes[0].Environ, "LAB_TEST_HELPER=echo")
}

func TestCutOff(t *testing.T) {
	l := newLab(t)
	alpha, beta := newMachine(t, l, "alpha"), newMachine(t, l, "beta")
	waitLine(t, start(t, alpha, helper(t, "echo", "7000")), "listening")
	target := alpha.Addr.String() + ":7000"
	require.Zero(t, wait(t, start(t, beta, helper(t, "ping", target, "1", "1"))))
	require.NoError(t, alpha.CutOff())
	require.Zero(t, wait(t, start(t, beta, helper(t, "silent", target))))
	require.NoError(t, alpha.Reconnect())
	require.Zero(t, wait(t, start(t, beta, helper(t, "ping", target, "1", "1"))))

	refused := start(t, beta, helper(t, "ping", alpha.Addr.String()+":7001", "1", "1"))
	require.Equal(t, 1, wait(t, refused))
	require.Contains(t, refused.Output(), "connection refused")
}

// The switch and the machines never ask for each other's hardware addresses: the kernel counts no permanent entry
// against the size of its neighbour table.
func TestFixedNeighbours(t *testing.T) {
	l := configuredLab(t, lab.Config{FixedNeighbours: true})
	alpha, beta := newMachine(t, l, "alpha"), newMachine(t, l, "beta")
	deaf := start(t, alpha, sh("echo 8 >/proc/sys/net/ipv4/conf/eth0/arp_ignore && echo deaf; sleep 1000"))
	waitLine(t, deaf, "deaf") // to the switch's questions
	server := helper(t, "echo", "7000")
	server.Name = "server"
	waitLine(t, start(t, alpha, server), "listening")
	require.Zero(t, wait(t, start(t, beta, helper(t, "ping", alpha.Addr.String()+":7000", "1", "1"))))
	out, err := deaf.Exec(t.Context(), "cat", "/proc/net/arp")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, 2, "a header and the switch")
	const completePermanent = "0x6" // ATF_COM and ATF_PERM of arp(7)
	require.Equal(t, []string{"10.77.0.1", "0x1", completePermanent}, strings.Fields(lines[1])[:3])
}

func TestSlow(t *testing.T) {
	l := newLab(t)
	alpha, beta := newMachine(t, l, "alpha"), newMachine(t, l, "beta")
	waitLine(t, start(t, alpha, helper(t, "echo", "7000")), "listening")
	ping := func(rounds, bytes string) (shortest, median time.Duration) {
		c := start(t, beta, helper(t, "ping", alpha.Addr.String()+":7000", rounds, bytes))
		require.Zero(t, wait(t, c))
		times := strings.Fields(c.Output())
		require.Len(t, times, 2)
		shortest, err := time.ParseDuration(times[0])
		require.NoError(t, err)
		median, err = time.ParseDuration(times[1])
		require.NoError(t, err)
		return shortest, median
	}
	ping("1", "1")
	require.Error(t, alpha.Slow(-1, 0))
	require.Error(t, alpha.Slow(0, 1.5))
	require.NoError(t, alpha.Slow(20*time.Millisecond, 0))
	shortest, median := ping("20", "1")
	require.GreaterOrEqual(t, shortest, 40*time.Millisecond)
	require.Less(t, median, 200*time.Millisecond)
	ping("1", "3000000") // many frames larger than the MTU, with checksums left to the hardware

	require.NoError(t, alpha.Slow(time.Millisecond, 1))
	require.Zero(t, wait(t, start(t, beta, helper(t, "silent", alpha.Addr.String()+":7000"))))
	require.NoError(t, alpha.CutOff()) // must not end the delay line
	require.NoError(t, alpha.Reconnect())
	require.NoError(t, alpha.Slow(0, 0))
	ping("5", "1")
}

func TestNames(t *testing.T) {
	l := newLab(t)
	var machines []*lab.Machine
	for i := range 4 {
		m := newMachine(t, l, fmt.Sprintf("m%d", i))
		machines = append(machines, m)
		l.Name("worker", m.Addr)
		l.Reverse(m.Addr, fmt.Sprintf("app-worker-%d.app_default.", 4-i))
	}
	c := start(t, machines[2], helper(t, "lookup", "worker", machines[1].Addr.String(), "nobody"))
	require.Zero(t, wait(t, c))
	require.Equal(t, `[10.77.0.10 10.77.0.11 10.77.0.12 10.77.0.13]
[app-worker-3.app_default.]
lookup nobody on 10.77.0.1:53: no such host
`, c.Output())
	c = start(t, machines[0], sh(`getent ahostsv4 worker | grep -c STREAM
		getent ahostsv4 m0 | grep -c STREAM
		getent hosts 10.77.0.12`))
	require.Zero(t, wait(t, c))
	require.Equal(t, "4\n1\n10.77.0.12      app-worker-2.app_default\n", c.Output())
	l.Forget("worker")
	c = start(t, machines[0], sh("getent ahostsv4 worker; echo $?; getent ahostsv4 m0 | grep -c STREAM"))
	require.Zero(t, wait(t, c))
	require.Equal(t, "2\n1\n", c.Output())
}

// TestMuteNames: a muted name server knows no name, until it answers again.
func TestMuteNames(t *testing.T) {
	l := newLab(t)
	m := newMachine(t, l, "alpha")
	l.Name("worker", m.Addr)
	l.MuteNames(true)
	c := start(t, m, sh("export RES_OPTIONS='timeout:1 attempts:1'; getent ahostsv4 worker; echo $?"))
	require.Zero(t, wait(t, c))
	require.Equal(t, "2\n", c.Output())
	l.MuteNames(false)
	c = start(t, m, sh("getent ahostsv4 worker | grep -c STREAM"))
	require.Zero(t, wait(t, c))
	require.Equal(t, "1\n", c.Output())
}

func TestCloseLeavesNothing(t *testing.T) {
	newLab(t) // skips the test if the host lacks a program
	before, goroutines := ownNetworks(t), goleak.IgnoreCurrent()
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	var pids []int
	for i := range 3 {
		m, err := l.Machine(fmt.Sprintf("m%d", i))
		require.NoError(t, err)
		require.NoError(t, m.Slow(0, 0))
		for j := range 2 {
			p := sh("sleep 1000 & trap '' TERM INT HUP; setsid sleep 1000 & echo started; wait")
			p.Name = fmt.Sprintf("m%d-%d", i, j)
			c := start(t, m, p)
			waitLine(t, c, "started")
			processes, err := c.Processes()
			require.NoError(t, err)
			for _, p := range processes {
				pids = append(pids, p.PID)
			}
		}
	}
	require.GreaterOrEqual(t, len(pids), 3*2*2)
	require.Greater(t, len(ownNetworks(t)), len(before))
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	for _, pid := range pids {
		require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
	}
	// Without open files and processes, the kernel removes the namespaces and their interfaces.
	require.Equal(t, before, ownNetworks(t))
	goleak.VerifyNone(t, goroutines)
}

func TestDeathOfTheMakerLeavesNothing(t *testing.T) {
	newLab(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	maker := exec.Command(exe)
	maker.Env = append(os.Environ(), "LAB_TEST_HELPER=maker")
	maker.Stderr = os.Stderr
	out, err := maker.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, maker.Start())
	var pids [2]int
	_, err = fmt.Fscan(out, &pids[0], &pids[1])
	require.NoError(t, err)
	// Adopt the orphans, so that this process reaps them and the kernel does not reuse their PIDs before.
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer func() { require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) }()
	var ends []unix.PollFd
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		require.NoError(t, err)
		defer func() { require.NoError(t, unix.Close(fd)) }()
		ends = append(ends, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	require.NoError(t, maker.Process.Kill())
	_ = maker.Wait()
	n, err := unix.Poll(ends[:1], int(waitTimeout.Milliseconds()))
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(ends[:1], int(waitTimeout.Milliseconds()))
	}
	require.NoError(t, err)
	require.Equal(t, 1, n, "the container still runs")
	// The maker, which waits for its container, may have reaped it before it died itself.
	if _, err = unix.Wait4(pids[0], nil, 0, nil); !errors.Is(err, unix.ECHILD) {
		require.NoError(t, err)
	}
	for i, end := range ends {
		require.ErrorIs(t, unix.PidfdSendSignal(int(end.Fd), 0, nil, 0), unix.ESRCH, "process %d of the container", i)
	}
}

// TestOrdinaryUser runs other tests as user nobody, which Main makes root of a user namespace.
func TestOrdinaryUser(t *testing.T) {
	newLab(t)
	if os.Getuid() != 0 {
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal("only root can start tests as another user")
		}
		t.Skip("this process already runs as an ordinary user")
	}
	exe, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	dir := t.TempDir()
	for d := dir; d != "/" && d != "/tmp"; d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	program := filepath.Join(dir, "lab.test")
	require.NoError(t, os.WriteFile(program, exe, 0o755))
	cmd := exec.Command(program, "-test.run", "^(TestStatus|TestSlow|TestNames)$", "-test.v")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	refused := bytes.Contains(out, []byte("user namespaces for ordinary users, which this kernel refuses"))
	if refused && os.Getenv("PAIINIT_TEST_REQUIRE") == "" {
		t.Skip("this kernel has no user namespaces for ordinary users")
	}
	require.NoError(t, err, string(out))
	require.NotContains(t, string(out), "--- SKIP")
}

func TestMissing(t *testing.T) {
	newLab(t)
	missing := lab.Missing(
		lab.Need{Try: []string{"/bin/true"}, Package: "coreutils"},
		lab.Need{Try: []string{"no-such-mpirun"}, Package: "openmpi-bin"},
		lab.Need{Try: []string{"/bin/sh", "-c", "echo first; echo no module; exit 3"}, Package: "python3-mpi4py"})
	require.Equal(t, []string{
		"no-such-mpirun: not found; on Debian or Ubuntu: apt-get install openmpi-bin",
		"/bin/sh: `/bin/sh -c echo first; echo no module; exit 3` fails (exit status 3: no module); " +
			"on Debian or Ubuntu: apt-get install python3-mpi4py",
	}, missing)
}

// ownNetworks lists the network namespaces of this process's threads and open files.
func ownNetworks(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/self/task/*/ns/net")
	require.NoError(t, err)
	found := map[string]bool{}
	for _, link := range links {
		if ns, err := os.Readlink(link); err == nil { // fails if the thread has ended
			found["in "+ns] = true
		}
	}
	links, err = filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, link := range links {
		if ns, err := os.Readlink(link); err == nil && strings.HasPrefix(ns, "net:") {
			found["open "+link+" "+ns] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

var helpers = map[string]func(args []string) error{
	// socket PATH creates a socket and leaves it behind.
	"socket": func(args []string) error {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: args[0], Net: "unix"})
		if err == nil {
			ln.SetUnlinkOnClose(false)
			err = ln.Close()
		}
		return err
	},
	// echo PORT sends back what it receives.
	"echo": func(args []string) error {
		ln, err := net.Listen("tcp", ":"+args[0])
		if err != nil {
			return err
		}
		fmt.Println("listening")
		for {
			conn, err := ln.Accept()
			if err != nil {
				return err
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	},
	// silent ADDR succeeds where nothing answers for some seconds.
	"silent": func(args []string) error {
		conn, err := net.DialTimeout("tcp", args[0], 6*time.Second)
		if err == nil {
			_ = conn.Close()
			return fmt.Errorf("%s answers", args[0])
		}
		if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() {
			return nil
		}
		return err
	},
	// ping ADDR ROUNDS BYTES prints the shortest and the median time of a round.
	"ping": func(args []string) error {
		rounds, _ := strconv.Atoi(args[1])
		size, _ := strconv.Atoi(args[2])
		conn, err := net.Dial("tcp", args[0])
		if err != nil {
			return err
		}
		sent := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		var times []time.Duration
		for range rounds {
			begin := time.Now()
			got := make([]byte, size)
			go func() { _, _ = conn.Write(sent) }()
			if _, err := io.ReadFull(conn, got); err != nil {
				return err
			}
			if !bytes.Equal(sent, got) {
				return fmt.Errorf("the echo differs")
			}
			times = append(times, time.Since(begin))
		}
		slices.Sort(times)
		fmt.Println(times[0], times[len(times)/2])
		return nil
	},
	// lookup NAME ADDR UNKNOWN asks the name server.
	"lookup": func(args []string) error {
		orders := map[string]bool{}
		var addrs []string
		var err error
		for len(orders) < 5 { // the random order must show five of its permutations
			if addrs, err = net.LookupHost(args[0]); err != nil {
				return err
			}
			orders[fmt.Sprint(addrs)] = true
		}
		slices.Sort(addrs)
		fmt.Println(addrs)
		names, err := net.LookupAddr(args[1])
		if err != nil {
			return err
		}
		fmt.Println(names)
		_, err = net.LookupHost(args[2])
		fmt.Println(err)
		return nil
	},
	// maker creates a lab, prints the PIDs of a container in it, and waits until it is killed.
	"maker": func([]string) error {
		l, err := lab.New(lab.Config{})
		if err != nil {
			return err
		}
		m, err := l.Machine("alpha")
		if err != nil {
			return err
		}
		c, err := m.Start(sh("sleep 1000 & echo started; wait"))
		if err != nil {
			return err
		}
		if _, err := c.WaitLine(context.Background(), "started"); err != nil {
			return err
		}
		processes, err := c.Processes()
		if err != nil {
			return err
		}
		fmt.Println(processes[0].PID, processes[1].PID)
		select {}
	},
}
