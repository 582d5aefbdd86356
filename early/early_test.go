package early

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/testsignals"
	"github.com/paiinit/paiinit/internal/unixsock/unixsocktest"
	"github.com/paiinit/paiinit/rsh"
)

// TestMain takes the place of main: under the name ssh, this process has already run init.
func TestMain(m *testing.M) {
	if name := base(os.Args); name == "ssh" {
		if Answer() == nil {
			fmt.Println("left to main")
			os.Exit(0)
		}
		text, err := io.ReadAll(Answer())
		fmt.Printf("answer %q, %v\n", text, err)
		os.Exit(0)
	} else if name == "parent" { // the parent of an ssh, which runs until the test kills it
		self, _ := os.Executable()
		_ = (&exec.Cmd{Path: self, Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout}).Run()
		os.Exit(1)
	} else if name == "stranger" { // an agent that is no ancestor of the processes that ask it
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: os.Args[1]})
		fmt.Println("listening", err)
		go func() {
			for conn, err := ln.Accept(); err == nil; conn, err = ln.Accept() {
				_, _ = conn.Read(make([]byte, 1)) // the first byte of a call, if there is one
				_ = conn.Close()
			}
		}()
		_, _ = io.ReadAll(os.Stdin)
		_ = ln.Close()
		os.Exit(0)
	}
	testsignals.Default()
	os.Exit(m.Run())
}

// usual reads a command line as the full client does.
func TestUsual(t *testing.T) {
	t.Setenv("PAIINIT_AGENT", "/agent")
	stdin(t)
	for line, want := range map[string]string{
		"paiinit|rsh|worker-1|true":               "worker-1|true",
		"/usr/bin/ssh|10.0.0.2|a||-b":             "10.0.0.2|a  -b",
		"rsh|worker_1.ns|rsh|x":                   "worker_1.ns|rsh x",
		"ssh|-x|host|hydra_pmi_proxy|-p|1":        "host|hydra_pmi_proxy -p 1",
		"./paiinit|rsh|-x|host|a":                 "host|a",
		"paiinit|rsh|host| orted|-mca":            "host| orted -mca",
		"paiinit|rsh|host|-|x":                    "",
		"paiinit":                                 "",
		"paiinit|rsh":                             "",
		"paiinit|rsh|host":                        "",
		"paiinit|run|rsh|host|true":               "",
		"paiinit|--|rsh|host|true":                "",
		"ssh|-V":                                  "",
		"ssh|-x":                                  "",
		"ssh|-x|-x|host|true":                     "",
		"ssh|-n|host|true":                        "",
		"ssh|-tt|host|true":                       "",
		"ssh|--help":                              "",
		"ssh|-x|--help|me":                        "",
		"ssh|host|-n|true":                        "",
		"ssh|host|--|true":                        "",
		"ssh|host|":                               "",
		"ssh|host||":                              "",
		"ssh||true|true":                          "",
		"ssh|root@host|true":                      "",
		"ssh|[::1]|true":                          "",
		"ssh|::1|true":                            "",
		"ssh|ssh://host|true":                     "",
		"ssh|.host|true":                          "",
		"ssh|h\u00f6st|true":                      "",
		"paiinit|rsh|--secret-file=x|host|true":   "",
		"ssh|host|" + strings.Repeat("a", 64<<10): "",
		"ssh|host|" + strings.Repeat("a b ", (64<<10)/5): "host|" + strings.Repeat("a b ", (64<<10)/5),
	} {
		args := strings.Split(line, "|")
		c, ok := usual(args)
		require.Equal(t, want != "", ok, "%.80q", line)
		if !ok {
			continue
		}
		words := args[1:]
		if base(args) == "paiinit" {
			words = args[2:]
		}
		inv, err := rsh.Parse(words)
		require.NoError(t, err)
		require.True(t, want == inv.Host+"|"+inv.Command, "%.80q", line)
		require.Equal(t, rsh.Invocation{Host: inv.Host, Command: inv.Command}, inv, "%.80q", line)
		require.True(t, request(inv.Host, inv.Command) == string(c.request), "%.80q", line)
	}
	_, ok := usual(nil)
	require.False(t, ok)
	t.Setenv("PAIINIT_AGENT", "")
	_, ok = usual([]string{"ssh", "host", "true"})
	require.False(t, ok, "PAIINIT_AGENT is not set")
}

// stdin makes sure that the standard input of the test is not a terminal.
func stdin(t *testing.T) {
	if IsTerminal(0) {
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal("stdin is a terminal")
		}
		t.Skip("stdin is a terminal")
	}
}

func request(host, command string) string {
	content := "paiinit-rsh/3\x00" + host + "\x00\x00\x00\x00" + command
	return string(binary.BigEndian.AppendUint32([]byte{'R'}, uint32(len(content)))) + content
}

func TestIsTerminal(t *testing.T) {
	master, tty, err := pty.Open()
	require.NoError(t, err)
	defer func() { _, _ = master.Close(), tty.Close() }()
	require.True(t, IsTerminal(int(tty.Fd())))
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { _ = null.Close() }()
	require.False(t, IsTerminal(int(null.Fd())))
	require.False(t, IsTerminal(-1))
}

// agent is the server end of the socket.
type agent struct {
	ln   *net.UnixListener
	path string
}

func newAgent(t *testing.T) *agent {
	path := filepath.Join(t.TempDir(), "a")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return &agent{ln, path}
}

// ssh starts this program under the name ssh.
func (a *agent) ssh(t *testing.T, args ...string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Args = append([]string{"ssh"}, args...)
	cmd.Env = append(os.Environ(), "PAIINIT_AGENT="+a.path, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// acceptTimeout only ends a test that hangs: a machine may stand still for a minute.
const acceptTimeout = 5 * time.Minute

// accept accepts one call.
func (a *agent) accept(t *testing.T, want string) (conn *net.UnixConn, files [3]*os.File) {
	require.NoError(t, a.ln.SetDeadline(time.Now().Add(acceptTimeout)))
	conn, err := a.ln.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(acceptTimeout)))
	buf, oob := make([]byte, len(want)+1), make([]byte, 256)
	n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
	require.NoError(t, err)
	require.Equal(t, want, string(buf[:n]))
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	require.NoError(t, err)
	require.Len(t, messages, 1)
	fds, err := unix.ParseUnixRights(&messages[0])
	require.NoError(t, err)
	require.Len(t, fds, 3)
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), strconv.Itoa(i))
		t.Cleanup(func() { _ = files[i].Close() })
	}
	return conn, files
}

func TestStatus(t *testing.T) {
	for answer, want := range map[string]string{
		"X\x00\x00\x00\x01\x00":             "0 ",
		"X\x00\x00\x00\x01\x07":             "7 ",
		"X\x00\x00\x00\x01\xff":             "255 ",
		"K\x00\x00\x00\x01\x09":             "137 ",
		"K\x00\x00\x00\x01\xff":             "255 ",
		"E\x00\x00\x00\x04lost":             `0 answer "E\x00\x00\x00\x04lost", <nil>` + "\n",
		"E\x00\x00\x00\x01?":                `0 answer "E\x00\x00\x00\x01?", <nil>` + "\n",
		"X\x00\x00\x00\x02\x00\x00":         `0 answer "X\x00\x00\x00\x02\x00\x00", <nil>` + "\n",
		"X\x00":                             `0 answer "X\x00", <nil>` + "\n",
		"":                                  `0 answer "", <nil>` + "\n",
		"K\x00\x00\x00\x01\x0f and a rest?": "143 ",
	} {
		a := newAgent(t)
		cmd := a.ssh(t, "-x", "host", "say", "hello")
		var stdout, stderr strings.Builder
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("input"), &stdout, &stderr
		require.NoError(t, cmd.Start())
		conn, files := a.accept(t, request("host", "say hello"))
		text, err := io.ReadAll(files[0])
		require.NoError(t, err)
		require.Equal(t, "input", string(text))
		_, err = files[2].WriteString("from the agent")
		require.NoError(t, err)
		_, err = conn.Write([]byte(answer))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		for _, f := range files {
			require.NoError(t, f.Close())
		}
		_ = cmd.Wait() // the test reads the status below
		require.Equal(t, want, fmt.Sprintf("%d %s", cmd.ProcessState.ExitCode(), stdout.String()), "%q", answer)
		require.Equal(t, "from the agent", stderr.String())
	}
}

func TestLeftToMain(t *testing.T) {
	a := newAgent(t)
	cmd := a.ssh(t, "-n", "host", "true")
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "left to main\n", string(out), "an option")

	self, err := os.Executable()
	require.NoError(t, err)
	other := &agent{path: filepath.Join(t.TempDir(), "b")}
	stranger := &exec.Cmd{Path: self, Args: []string{"parent", "stranger", other.path}}
	hold, err := stranger.StdinPipe()
	require.NoError(t, err)
	says, err := stranger.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, stranger.Start())
	line := make([]byte, len("listening <nil>\n"))
	_, err = io.ReadFull(says, line)
	require.NoError(t, err)
	require.Equal(t, "listening <nil>\n", string(line))
	out, err = other.ssh(t, "host", "true").Output()
	require.NoError(t, err)
	require.Equal(t, "left to main\n", string(out), "a forwarded PAIINIT_AGENT")
	require.NoError(t, hold.Close())
	_ = stranger.Wait() // its status is 1

	if os.Getuid() == 0 {
		dir, err := os.MkdirTemp("", "early")
		require.NoError(t, err)
		defer func() { _ = os.RemoveAll(dir) }()
		require.NoError(t, os.Chmod(dir, 0o777))
		data, err := os.ReadFile(self)
		require.NoError(t, err)
		binary := filepath.Join(dir, "ssh") // the test binary may be in a directory that only root can read
		require.NoError(t, os.WriteFile(binary, data, 0o755))
		foreign := &agent{path: filepath.Join(dir, "a")}
		foreign.ln = unixsocktest.ListenAs(t, 65534, foreign.path)
		go func() {
			for {
				conn, err := foreign.ln.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
		cmd = foreign.ssh(t, "host", "true")
		cmd.Path, cmd.Dir = binary, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}
		out, err = cmd.Output()
		require.NoError(t, err)
		require.Equal(t, "left to main\n", string(out), "an ancestor of another user")
	} else if why := "only root can be another user"; os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		t.Error(why)
	} else {
		t.Log(why)
	}

	master, tty, err := pty.Open()
	require.NoError(t, err)
	defer func() { _, _ = master.Close(), tty.Close() }()
	cmd = a.ssh(t, "host", "true")
	cmd.Stdin = tty
	out, err = cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "left to main\n", string(out), "a terminal")

	require.NoError(t, a.ln.Close())
	out, err = a.ssh(t, "host", "true").Output()
	require.NoError(t, err)
	require.Equal(t, "left to main\n", string(out), "no agent")
}

// catches returns when a process catches all the signals that it forwards: the thread on which the Go runtime receives
// signals unblocks the last of them (runtime, ensureSigM).
func catches(t *testing.T, pid int) {
	require.Eventually(t, func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		require.NoError(t, err)
		return slices.ContainsFunc(threads, func(name string) bool {
			text, err := os.ReadFile(name)
			_, mask, _ := strings.Cut(string(text), "SigBlk:\t")
			mask, _, _ = strings.Cut(mask, "\n")
			blocked, parseErr := strconv.ParseUint(mask, 16, 64)
			blocks := func(sig syscall.Signal) bool { return blocked>>(sig-1)&1 == 1 }
			return err == nil && parseErr == nil && blocks(syscall.SIGWINCH) && !blocks(syscall.SIGPWR)
		})
	}, time.Minute, time.Millisecond)
}

func TestSignals(t *testing.T) {
	a := newAgent(t)
	cmd := a.ssh(t, "host", "true")
	require.NoError(t, cmd.Start())
	conn, _ := a.accept(t, request("host", "true"))
	catches(t, cmd.Process.Pid)
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH,
		syscall.SIGPWR, syscall.SIGUSR1, syscall.SIGINT} {
		require.NoError(t, cmd.Process.Signal(sig))
		if sig == syscall.SIGWINCH || sig == syscall.SIGPWR {
			continue
		}
		var frame [6]byte
		_, err := io.ReadFull(conn, frame[:])
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("S\x00\x00\x00\x01%c", int(sig)), string(frame[:]))
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait() // the test reads the status below
	require.Equal(t, 128+int(syscall.SIGTERM), cmd.ProcessState.ExitCode(), "the second signal that asks to end")
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// A stopped agent reads nothing.
func TestSignalThatIsNotRead(t *testing.T) {
	a := newAgent(t)
	cmd := a.ssh(t, "host", "true")
	require.NoError(t, cmd.Start())
	conn, _ := a.accept(t, request("host", "true"))
	catches(t, cmd.Process.Pid)
	require.NoError(t, cmd.Process.Signal(syscall.SIGUSR1))
	const usr1, term = "S\x00\x00\x00\x01\x0a", "S\x00\x00\x00\x01\x0f"
	first := make([]byte, len(usr1)) // read before SIGTERM: two pending signals may be delivered in either order
	_, err := io.ReadFull(conn, first)
	require.NoError(t, err)
	require.Equal(t, usr1, string(first))
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait() // the test reads the status below
	require.Equal(t, 128+int(syscall.SIGTERM), cmd.ProcessState.ExitCode())
	text, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, term, string(text))
}

func TestParentDies(t *testing.T) {
	a := newAgent(t)
	ssh := a.ssh(t, "host", "true")
	parent := &exec.Cmd{Path: ssh.Path, Args: append([]string{"parent"}, ssh.Args...), Env: ssh.Env}
	require.NoError(t, parent.Start())
	conn, _ := a.accept(t, request("host", "true"))
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait() // the test has killed it
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}
