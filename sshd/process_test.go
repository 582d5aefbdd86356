package sshd

import (
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

func TestMembers(t *testing.T) {
	root := t.TempDir()
	write := func(pid, stat string) {
		require.NoError(t, os.MkdirAll(filepath.Join(root, pid), 0o755))
		rest := " 4194560 1 1 1 1 1 1 1 1 20 0 1 0 150\n"
		require.NoError(t, os.WriteFile(filepath.Join(root, pid, "stat"), []byte(stat+rest), 0o600))
	}
	_, ok := members(root, 100)
	require.False(t, ok, "no proc")
	write("1", "1 (init) S 0 1 1 0 -1")
	require.NoError(t, os.Symlink("1", filepath.Join(root, "self")))
	_, ok = members(root, 100)
	require.False(t, ok, "of another namespace")
	require.NoError(t, os.Remove(filepath.Join(root, "self")))
	require.NoError(t, os.Symlink(strconv.Itoa(os.Getpid()), filepath.Join(root, "self")))
	write(strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getpid())+" (sshd.test) S 1 1 1 0 -1")
	write("100", "100 (sh) S 1 100 100 0 -1")
	write("101", "101 (a) S (b) R 100 101 100 0 -1")
	write("102", "102 (zombie) Z 100 100 100 0 -1")
	write("103", "103 (other) S 100 103 103 0 -1")
	write("104", "104 (short) S 1")
	write("105", "")
	require.NoError(t, os.Mkdir(filepath.Join(root, "106"), 0o755))
	write("net", "100 (no) S 1 100 100")
	list, ok := members(root, 100)
	require.True(t, ok)
	require.ElementsMatch(t, []member{{100, 100}, {101, 101}}, list)
}

func started(t *testing.T, script string) *process {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p, err := startProcess(
		&exec.Cmd{
			Path:        "/bin/sh",
			Args:        []string{"sh", "-c", script},
			Stdout:      w,
			SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		},
		func(start func() error) error { return start() },
	)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	var group sync.WaitGroup
	group.Go(p.watch)
	t.Cleanup(func() { group.Wait(); _ = r.Close() })
	var ready [2]byte
	_, err = io.ReadFull(r, ready[:])
	require.NoError(t, err)
	return p
}

func TestEndWithoutProcReachesTheGroup(t *testing.T) {
	p := started(t, "trap '' HUP TERM; sleep 1011 & echo x; while :; do sleep 0.01; done")
	p.proc = t.TempDir()
	begin := time.Now()
	p.end(50*time.Millisecond, nil)
	require.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond, "HUP and TERM had their time")
	status, err := p.reap()
	require.NoError(t, err)
	require.Equal(t, syscall.SIGKILL, status.Signal())
	require.ErrorIs(t, p.signal(syscall.SIGTERM), os.ErrProcessDone, "the number may belong to another process now")
	require.Eventually(t, func() bool { return syscall.Kill(-p.pid, 0) == syscall.ESRCH || onlyZombies(p.pid) },
		time.Minute, time.Millisecond)
}

func onlyZombies(sid int) bool {
	list, ok := members("/proc", sid)
	return ok && len(list) == 0
}

func TestEndInAHurryKillsAtOnce(t *testing.T) {
	p := started(t, "trap '' HUP TERM; echo x; while :; do sleep 0.01; done")
	hurry := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(hurry) })
	begin := time.Now()
	p.end(time.Minute, hurry)
	require.Less(t, time.Since(begin), 20*time.Second)
	status, err := p.reap()
	require.NoError(t, err)
	require.Equal(t, syscall.SIGKILL, status.Signal())
}

func TestEndCatchesProcessesThatFork(t *testing.T) {
	p := started(t,
		`trap '' HUP TERM; set -m; echo x; i=0; while [ $i -lt 3000 ]; do (sleep 2; sleep 1012) & i=$((i+1)); done`)
	p.end(0, nil)
	require.True(t, onlyZombies(p.pid))
	_, err := p.reap()
	require.NoError(t, err)
}

func TestReapKeepsTheNumberUntilItIsCalled(t *testing.T) {
	p := started(t, "echo x; exit 3")
	<-p.exited
	require.NoError(t, p.signal(0), "the zombie is still there")
	status, err := p.reap()
	require.NoError(t, err)
	require.Equal(t, 3, status.ExitStatus())
}

// recorder is a channel that records what is sent.
type recorder struct {
	ssh.Channel
	mu   sync.Mutex
	sent []string
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, s)
}

func (r *recorder) Write(p []byte) (int, error) { r.note("data " + string(p)); return len(p), nil }
func (r *recorder) Read([]byte) (int, error)    { return 0, io.EOF }
func (r *recorder) CloseWrite() error           { r.note("eof"); return nil }
func (r *recorder) Close() error                { r.note("close"); return nil }
func (r *recorder) Stderr() io.ReadWriter       { return r }
func (r *recorder) SendRequest(name string, _ bool, payload []byte) (bool, error) {
	r.note(name + " " + string(payload))
	return true, nil
}

func TestWireOrder(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	srv, err := New(Config{HostKey: key})
	require.NoError(t, err)
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	for command, want := range map[string][]string{
		"echo last; exit 3": {"data last\n", "exit-status \x00\x00\x00\x03", "eof", "free", "close"},
		"ulimit -c 0; kill -9 $$": {
			"exit-signal \x00\x00\x00\x04KILL\x00\x00\x00\x00\x00\x00\x00\x00\x00", "eof", "free", "close",
		},
		"sleep 1000 & echo out $?": {"data out 0\n", "exit-status \x00\x00\x00\x00", "eof", "free", "close"},
	} {
		srv.limits.drainIdle = 50 * time.Millisecond
		c := newConn(srv, here, time.Minute)
		ch := &recorder{}
		s := &session{conn: c, srv: srv, ch: ch, free: func() { ch.note("free") }, gone: make(chan struct{})}
		var pid int
		srv.cfg.OnCommand = func(e CommandEvent) { pid = e.PID }
		start, err := s.begin(request{command: command})
		require.NoError(t, err)
		start()
		close(s.gone)
		s.work.Wait()
		c.deadline.Stop()
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		require.Equal(t, want, ch.sent)
	}
}

func TestEnvironmentWithoutPasswdEntry(t *testing.T) {
	if os.Getenv("SSHD_TEST_AS") == "1" {
		env, home, shell, _ := baseEnvironment([]string{"A=1", "bad", "=x"}, "/bin/sh")
		_, _ = os.Stdout.WriteString(strings.Join(append(env, home, shell), "|") + "|end\n")
		return
	}
	if os.Getuid() != 0 {
		why := "running as another user needs root"
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	self, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer func() { _ = self.Close() }()
	cmd := exec.Command("/proc/self/fd/3", "-test.run", "^TestEnvironmentWithoutPasswdEntry$")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Env = []string{"SSHD_TEST_AS=1"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "A=1|USER=54321|LOGNAME=54321|HOME=/|SHELL=/bin/sh|/|/bin/sh|end")
}

func TestPourSendsWhatIsThereHoweverLateItIs(t *testing.T) {
	exited := make(chan struct{})
	close(exited)
	for name, tt := range map[string]struct {
		open   func() (r, w *os.File, err error)
		length int
	}{
		"pipe":     {os.Pipe, 60 << 10},
		"terminal": {func() (r, w *os.File, err error) { return openTerminal(terminal{}) }, 3 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			for range 200 {
				r, w, err := tt.open()
				require.NoError(t, err)
				data := strings.Repeat("x", tt.length)
				require.NoError(t, r.SetReadDeadline(time.Now().Add(-time.Second)))
				_, err = w.WriteString(data)
				require.NoError(t, err)
				var got strings.Builder
				pour(&got, r, exited, time.Nanosecond, time.Nanosecond) // w is still open
				require.Equal(t, len(data), got.Len())
				require.NoError(t, w.Close())
				require.NoError(t, r.Close())
			}
		})
	}
}

func TestConfigurationIsOfOneConnection(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	srv, err := New(Config{HostKey: key})
	require.NoError(t, err)
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	c := newConn(srv, here, time.Minute)
	c.deadline.Stop()
	one, two := c.config(), c.config()
	require.NotSame(t, one, two)
	one.Ciphers[0], one.KeyExchanges[0], one.PublicKeyAuthAlgorithms[0] = "", "", "" // as a library may change them
	require.Equal(t, ssh.CipherAES128GCM, two.Ciphers[0])
	require.NotEmpty(t, two.KeyExchanges[0])
	require.NotEmpty(t, two.PublicKeyAuthAlgorithms[0])
}
