package rsh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/rfc4254"
	"github.com/paiinit/paiinit/internal/unixsock/unixsocktest"
	"github.com/paiinit/paiinit/rsh/frame"
)

// testAgent is an agent that serves until the end of the test and records the calls of its hooks.
type testAgent struct {
	socket string
	pool   *Pool
	stop   func()

	mu     sync.Mutex
	events []string
}

func (a *testAgent) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, fmt.Sprintf(format, args...))
}

func (a *testAgent) noted() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.events...)
}

func startAgent(t testing.TB, peers ...*peerServer) *testAgent {
	return startAgentWith(t, nil, peers...)
}

func startAgentWith(t testing.TB, set func(*Agent), peers ...*peerServer) *testAgent {
	return startAgentOn(t, testPool(t, nil), set, peers...)
}

func startAgentOn(t testing.TB, pool *Pool, set func(*Agent), peers ...*peerServer) *testAgent {
	// Not t.TempDir, whose path may be longer than the 107 bytes of a socket's name.
	dir, err := os.MkdirTemp("", "rsh")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := &testAgent{socket: filepath.Join(dir, "agent.sock"), pool: pool}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: a.socket, Net: "unix"})
	require.NoError(t, err)
	agent := Agent{
		Resolve: func(_ context.Context, host string) (Target, bool) {
			for _, p := range peers {
				if p.target.Name == host {
					return p.target, true
				}
			}
			return Target{}, false
		},
		Hosts: func() (names [][]string) {
			for _, p := range peers {
				names = append(names, []string{p.target.Name, "other-name"})
			}
			return names
		},
		OnExec:       func(t Target, command string) { a.note("exec %s %s", t.Name, command) },
		OnExit:       func(t Target, command string, s Status) { a.note("exit %s %s %d", t.Name, command, s.Code) },
		OnFailure:    func(t Target, _, stage string, err error) { a.note("failure %s %s", t.Name, stage) },
		RetryTimeout: -1,
	}
	if set != nil {
		set(&agent)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.pool.ServeAgent(ctx, ln, agent) }()
	a.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-served)
	})
	t.Cleanup(a.stop)
	return a
}

// client returns the thin client as a command to start.
func (a *testAgent) client(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	// The race detector would make every process wait for a second at its end.
	cmd.Env = append(os.Environ(), clientSocket+"="+a.socket, "GORACE=atexit_sleep_ms=0")
	return cmd
}

type outcome struct {
	code     int
	out, err string
}

func run1(t testing.TB, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

func TestClient(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	a := startAgent(t, peer)
	tests := []struct {
		args  []string
		stdin string
		want  outcome
	}{
		{[]string{"worker-1", "exit", "0"}, "", outcome{0, "", ""}},
		{[]string{"worker-1", "exit", "3"}, "", outcome{3, "", ""}},
		{[]string{"worker-1", "exit", "255"}, "", outcome{255, "", ""}},
		{[]string{"worker-1", "killed", "TERM"}, "", outcome{143, "", ""}},
		{[]string{"worker-1", "killed", "KILL"}, "", outcome{137, "", ""}},
		{[]string{"-x", "-p", "22", "root@worker-1", "-q", "echo", ` "a" `, "$b"}, "",
			outcome{0, ` "a"  $b` + "\n", ""}},
		{[]string{"worker-1", "both"}, "", outcome{5, "to stdout", "to stderr"}},
		{[]string{"-oSendEnv=RSH_TEST_A*", "worker-1", "-o", "SetEnv=LC_A=\"x y\" B no", "environ"}, "",
			outcome{0, `["RSH_TEST_A=1 2" "LC_A=x y"]` + "\n", ""}},
		{[]string{"other@worker-1", "exit", "0"}, "", outcome{255, "",
			"paiinit rsh: worker-1: " + peer.target.Addr.String() + `, channel: user "other": ` +
				`commands run as that container's user, who has another name` + "\n"}},
		{[]string{"worker-1", "-D", "1080", "exit", "0"}, "", outcome{255, "",
			"paiinit rsh: worker-1: -D is not supported: this ssh only runs commands on the hosts of the job\n"}},
		{[]string{"-oRemoteCommand=exit 0", "worker-1"}, "", outcome{255, "",
			"paiinit rsh: worker-1: RemoteCommand is not supported: " +
				"this ssh only runs commands on the hosts of the job\n"}},
		{[]string{"worker-1", "cat"}, "some input", outcome{0, "some input", ""}},
		{[]string{"-n", "worker-1", "cat"}, "some input", outcome{0, "", ""}},
		{[]string{"worker-1"}, "", outcome{0, "shell ", ""}},
		{[]string{"-s", "worker-1", "sftp"}, "", outcome{0, "subsystem sftp", ""}},
		{[]string{"worker-1", "refuse"}, "", outcome{255, "",
			"paiinit rsh: worker-1: " + peer.target.Addr.String() +
				`, channel: the peer refused to run "refuse"` + "\n"}},
		{[]string{"worker-1", "nostatus"}, "", outcome{255, "",
			"paiinit rsh: worker-1: " + peer.target.Addr.String() +
				", session: the peer ended the session without a status\n"}},
		{[]string{"worker-1", "drop"}, "", outcome{255, "",
			"paiinit rsh: worker-1: " + peer.target.Addr.String() +
				", session: the connection was lost while the command ran: EOF\n"}},
		{[]string{"nobody", "true"}, "", outcome{255, "",
			"paiinit rsh: nobody: resolve: " +
				"no container of this job has this name or address (its hosts are worker-1)\n"}},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			cmd := a.client(tt.args...)
			cmd.Env = append(cmd.Env, "RSH_TEST_A=1 2")
			if tt.stdin != "" {
				cmd.Stdin = strings.NewReader(tt.stdin)
			}
			got := run1(t, cmd)
			got.err = reset.ReplaceAllString(got.err, "EOF")
			require.Equal(t, tt.want, got)
		})
	}
}

// reset matches what a client reads instead of EOF if the peer had not read everything when it closed the connection
// (RFC 1122, section 4.2.2.13).
var reset = regexp.MustCompile(`read tcp \S+: read: connection reset by peer`)

// Another ssh may reach a host outside the job, unless the command is a launcher's daemon.
func TestForeignHost(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	a := startAgentWith(t, func(a *Agent) {
		a.Foreign = func(_, command string) bool { return command != "orted" }
	}, peer)
	for command, want := range map[string][2]bool{"true": {true, false}, "orted": {true, true}, "": {true, false}} {
		for i, host := range []string{"worker-1", "example.org"} {
			known, err := Known(t.Context(), a.socket, host, command)
			require.NoError(t, err)
			require.Equal(t, want[i], known, "%s %q", host, command)
		}
	}
	_, err := Known(t.Context(), filepath.Join(t.TempDir(), "none"), "worker-1", "true")
	require.Error(t, err)
	require.Empty(t, a.noted(), "a question is no command")

	// The command itself gets the same answer, because the fast path does not ask first.
	none := "paiinit rsh: example.org: resolve: " +
		"no container of this job has this name or address (its hosts are worker-1)\n"
	require.Equal(t, outcome{255, "", none}, run1(t, a.client("example.org", "true")))
	require.Empty(t, a.noted(), "the caller decides whether it is a failure")
	require.Equal(t, outcome{255, "", none}, run1(t, a.client("example.org", "orted")))
	require.Equal(t, []string{"failure example.org resolve"}, a.noted())

	answer := append(append(frame.Header(frame.Foreign, 4), "none"...), "rest"...)
	for _, kind := range []byte{frame.Foreign, frame.Error} {
		handed := 0
		answer[0] = kind
		c := Caller{Answer: bytes.NewReader(answer), HandOn: func() { handed++ }}
		require.Equal(t, 255, c.Run(t.Context(), Invocation{Host: "example.org", Command: "true"}))
		require.Equal(t, map[byte]int{frame.Foreign: 1}[kind], handed)
	}
}

func TestClientNoAgent(t *testing.T) {
	dir := t.TempDir()
	for socket, want := range map[string]string{
		"": "paiinit rsh: h: no running paiinit found: PAIINIT_AGENT is not set; " +
			"run this command in a container that paiinit started\n",
		filepath.Join(dir, "no.sock"): "paiinit rsh: h: " +
			"connecting to the paiinit of this container, which may have ended: dial unix " +
			filepath.Join(dir, "no.sock") + ": connect: no such file or directory\n",
	} {
		require.Equal(t, outcome{255, "", want}, run1(t, (&testAgent{socket: socket}).client("h", "true")))
	}
}

func TestHooks(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	down := &peerServer{target: Target{Name: "worker-2", ID: "worker-2", Addr: closedAddr(t)}}
	a := startAgent(t, peer, down)
	for _, args := range [][]string{
		{"worker-1", "exit", "3"}, {"worker-2", "true"}, {"worker-1", "refuse"}, {"worker-1", "drop"},
		{"worker-9", "true"},
	} {
		run1(t, a.client(args...))
	}
	a.stop()
	require.Equal(t, []string{
		"exec worker-1 exit 3", "exit worker-1 exit 3 3",
		"failure worker-2 connect",
		"failure worker-1 channel",
		"exec worker-1 drop", "failure worker-1 session",
		"failure worker-9 resolve",
	}, a.noted())
}

// Stdin and stdout may be any kind of file, and their flags must not change.
func TestClientFiles(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	a := startAgent(t, peer)

	t.Run("regular files", func(t *testing.T) {
		dir := t.TempDir()
		big := make([]byte, 3<<20)
		_, _ = io.ReadFull(pattern{}, big)
		require.NoError(t, os.WriteFile(dir+"/in", big, 0o600))
		in, err := os.Open(dir + "/in")
		require.NoError(t, err)
		defer in.Close()
		out, err := os.Create(dir + "/out")
		require.NoError(t, err)
		defer out.Close()
		cmd := a.client("worker-1", "cat")
		cmd.Stdin, cmd.Stdout = in, out
		require.NoError(t, cmd.Run())
		got, err := os.ReadFile(dir + "/out")
		require.NoError(t, err)
		require.True(t, bytes.Equal(big, got))
	})
	t.Run("sockets", func(t *testing.T) { // pdsh passes sockets
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
		defer ours.Close()
		cmd := a.client("worker-1", "cat")
		cmd.Stdin, cmd.Stdout = theirs, theirs
		require.NoError(t, cmd.Start())
		require.NoError(t, theirs.Close())
		_, err = ours.WriteString("over the socket")
		require.NoError(t, err)
		require.NoError(t, unix.Shutdown(int(ours.Fd()), unix.SHUT_WR))
		got, err := io.ReadAll(ours)
		require.NoError(t, err)
		require.NoError(t, cmd.Wait())
		require.Equal(t, "over the socket", string(got))
	})
	t.Run("pipe never written", func(t *testing.T) { // hydra passes such a pipe
		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer r.Close()
		defer w.Close()
		cmd := a.client("worker-1", "exit", "4")
		cmd.Stdin = r
		require.Equal(t, 4, run1(t, cmd).code)
		flags, err := unix.FcntlInt(w.Fd(), unix.F_GETFL, 0)
		require.NoError(t, err)
		require.Zero(t, flags&unix.O_NONBLOCK)
	})
	t.Run("blocking pipes stay blocking", func(t *testing.T) {
		stdin, in := blockingPipe(t)
		out, stdout := blockingPipe(t)
		cmd := a.client("worker-1", "hang")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stdout
		require.NoError(t, cmd.Start())
		_, err := io.ReadFull(out, make([]byte, len("started\n")))
		require.NoError(t, err)
		for _, f := range []*os.File{stdin, in, out, stdout} {
			raw, err := f.SyscallConn()
			require.NoError(t, err)
			require.NoError(t, raw.Control(func(fd uintptr) {
				flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
				require.NoError(t, err)
				require.Zero(t, flags&unix.O_NONBLOCK)
			}))
		}
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.Equal(t, "hang", <-peer.ended)
	})
	t.Run("big output to a slow reader", func(t *testing.T) {
		cmd := a.client("worker-1", "big", "1000000")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		require.NoError(t, cmd.Start())
		n := 0
		for buf := make([]byte, 777); ; {
			m, err := out.Read(buf)
			n += m
			if err != nil {
				break
			}
		}
		require.NoError(t, cmd.Wait())
		require.Equal(t, 1000000, n)
		require.Equal(t, 1000000, errs.Len())
	})
	t.Run("reader that has gone", func(t *testing.T) {
		cmd := a.client("worker-1", "yes")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = io.ReadFull(out, make([]byte, 10))
		require.NoError(t, err)
		require.NoError(t, out.Close())
		_ = cmd.Wait()
		require.Equal(t, 128+int(syscall.SIGPIPE), cmd.ProcessState.ExitCode())
	})
}

// blockingPipe returns a pipe in blocking mode, unlike os.Pipe.
func blockingPipe(t *testing.T) (r, w *os.File) {
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	r, w = os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	t.Cleanup(func() {
		_ = r.Close()
		_ = w.Close()
	})
	return r, w
}

func TestClientSignals(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	a := startAgent(t, peer)

	// The command decides: it prints the signals that it gets, and exits on TERM with its own status.
	cmd, out := startCommand(t, a, "signals")
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP} {
		require.NoError(t, cmd.Process.Signal(s))
		require.Equal(t, unix.SignalName(s)[3:], out.line(t))
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Equal(t, "signals", <-peer.ended)

	cmd, out = startCommand(t, a, "signals")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, "TERM", out.line(t))
	_ = cmd.Wait()
	require.Equal(t, 42, cmd.ProcessState.ExitCode())

	// If the command ignores the first signal, the client leaves at the second one, and the peer ends the command.
	cmd, out = startCommand(t, a, "signals")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, "INT", out.line(t))
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	require.Equal(t, "signals", <-peer.ended)
}

// Killing a client ends its command, even if the command's output blocks.
func TestClientKilled(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	a := startAgent(t, peer)
	cmd, _ := startCommand(t, a, "hang")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Equal(t, "hang", <-peer.ended)

	// Its stdout is full, and the reader neither reads nor ends.
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	cmd = a.client("worker-1", "yes")
	cmd.Stdout = w
	require.NoError(t, cmd.Start())
	waitFor(t, func() bool { // the pipe is full
		full := false
		raw, err := w.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
			full = err == nil && n == 0
		}))
		return full
	})
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	a.stop() // waits for every goroutine of the agent
}

// The client ends when its parent process ends.
func TestClientParentDies(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	a := startAgent(t, peer)
	parent := exec.Command("/bin/sh", "-c", `"$0" worker-1 hang & wait`, os.Args[0])
	parent.Env = a.client().Env
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	_, err = io.ReadFull(out, make([]byte, len("started\n")))
	require.NoError(t, err)
	require.NoError(t, parent.Process.Kill())
	require.Equal(t, "hang", <-peer.ended)
	_, err = io.Copy(io.Discard, out) // ends when the client has
	require.NoError(t, err)
	_ = parent.Wait()
}

// The clients report the end of the agent.
func TestAgentStops(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	a := startAgent(t, peer)
	cmd := a.client("worker-1", "hang")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	_, err = io.ReadFull(out, make([]byte, len("started\n")))
	require.NoError(t, err)
	waitFor(t, func() bool { return len(a.noted()) > 0 }) // output may come before the hook is called
	a.stop()
	_ = cmd.Wait()
	require.Equal(t, 255, cmd.ProcessState.ExitCode())
	require.Equal(t, "paiinit rsh: worker-1: the paiinit of this container is ending\n", errs.String())
	require.Equal(t, "hang", <-peer.ended)
	require.Equal(t, []string{"exec worker-1 hang"}, a.noted())
}

// The agent retries a peer that comes back within RetryTimeout, but not a wrong peer.
func TestPatience(t *testing.T) {
	var served atomic.Int32
	peer := startPeer(t, "worker-1", func(s *peerServer) {
		s.raw = func(net.Conn) bool { return served.Add(1) <= 3 } // closes the first three
	})
	wrong := startPeer(t, "worker-2", func(s *peerServer) { s.hostKey = testKey("other", "host worker-2") })
	a := startAgentWith(t, func(a *Agent) { a.RetryTimeout = time.Minute }, peer, wrong)
	require.Equal(t, outcome{7, "", ""}, run1(t, a.client("worker-1", "exit", "7")))
	require.EqualValues(t, 4, served.Load())
	got := run1(t, a.client("worker-2", "exit", "7"))
	require.Equal(t, 255, got.code)
	require.Contains(t, got.err, "it has another secret")
	require.EqualValues(t, 1, wrong.accepted.Load())
}

// The agent rejects bytes that are no request.
func TestAgentBadClients(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	a := startAgent(t, peer)
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	fds := func(n int) []byte {
		list := make([]int, n)
		for i := range list {
			list[i] = int(null.Fd())
		}
		return unix.UnixRights(list...)
	}
	framed := func(kind byte, content string) []byte { return append(frame.Header(kind, len(content)), content...) }
	good := string(encodeRequest(Invocation{Host: "worker-1", Command: "exit 0"}))
	for name, tt := range map[string]struct {
		data, oob []byte
		answer    string
	}{
		"nothing":       {nil, nil, ""},
		"half a header": {[]byte("R"), fds(3), "E" + "unexpected EOF"},
		"no files":      {framed('R', good), nil, "Ea request has 0 files, expected 3"},
		"names":         {frame.Header('N', 0), nil, "Ea request has 0 files, expected 3"}, // asked on status.sock
		"names, files":  {frame.Header('N', 0), fds(3), `Eunknown message 'N'`},
		"two files":     {framed('R', good), fds(2), "Ea request has 2 files, expected 3"},
		"four files":    {framed('R', good), fds(4), "files, expected 3"},
		"too long": {frame.Header('R', maxFrame+1), fds(3),
			fmt.Sprintf("Ea message has %d bytes, more than %d", maxFrame+1, maxFrame)},
		"cut off":    {framed('R', good)[:12], fds(3), "Eunexpected EOF"},
		"other kind": {framed('Z', good), fds(3), `Eunknown message 'Z'`},
		"HTTP":       {[]byte("GET / HTTP/1.1\r\n\r\n"), fds(3), "Ea message has"},
		"other version": {framed('R', "paiinit-rsh/9\x00h\x00\x00\x00c"), fds(3),
			"Enot a request of this version of paiinit rsh"},
		"good": {framed('R', good), fds(3), "X\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: a.socket, Net: "unix"})
			require.NoError(t, err)
			defer conn.Close()
			if len(tt.data) > 0 {
				_, _, err = conn.WriteMsgUnix(tt.data, tt.oob, nil)
				require.NoError(t, err)
			}
			if name != "good" {
				require.NoError(t, conn.CloseWrite())
			}
			kind, content, err := readFrame(conn)
			if tt.answer == "" {
				require.ErrorIs(t, err, io.EOF)
				return
			}
			require.NoError(t, err)
			require.Contains(t, string(kind)+string(content), tt.answer)
		})
	}
	before := openFDs(t)
	for range 20 {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: a.socket, Net: "unix"})
		require.NoError(t, err)
		_, _, err = conn.WriteMsgUnix(framed('R', "bad"), fds(3), nil)
		require.NoError(t, err)
		_, _, _ = readFrame(conn)
		_ = conn.Close()
	}
	waitFor(t, func() bool { return openFDs(t) <= before })
}

func openFDs(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// Commands leave no descriptor open, however they end.
func TestNoDescriptorsLeak(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	a := startAgent(t, peer)
	run1(t, a.client("worker-1", "exit", "0"))
	before := openFDs(t)
	for _, args := range [][]string{
		{"worker-1", "exit", "1"}, {"worker-1", "refuse"}, {"nobody", "x"}, {"worker-1", "both"},
	} {
		for range 5 {
			run1(t, a.client(args...))
		}
	}
	waitFor(t, func() bool { return openFDs(t) <= before })
}

// The client sends a command again if the agent could not receive its files for lack of descriptors.
func TestNoRoomForFiles(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	refused := make(chan struct{})
	tell := sync.OnceFunc(func() { close(refused) })
	logger := slog.New(slog.NewTextHandler(writeFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("ulimit -n")) {
			tell()
		}
		return len(b), nil
	}), nil))
	a := startAgentOn(t, testPool(t, func(c *Config) { c.Logger = logger }), nil, peer)
	require.Equal(t, 0, run1(t, a.client("worker-1", "exit", "0")).code) // it is connected
	client := a.client("worker-1", "exit", "7")
	cmd := exec.Command("sh", append([]string{"-c", `read go; exec "$0" "$@" </dev/null`}, client.Args...)...)
	cmd.Env = client.Env
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	var says bytes.Buffer
	cmd.Stderr = &says
	require.NoError(t, cmd.Start())

	restore := unixsocktest.LimitFiles(t, 2) // the connection, and one of three files
	_, err = stdin.Write([]byte("\n"))
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the test reads the status below
	}()
	select {
	case <-refused:
	case <-ended:
	}
	restore()
	<-ended
	require.Equal(t, 7, cmd.ProcessState.ExitCode(), says.String())
	require.Empty(t, says.String())
	<-refused
}

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(b []byte) (int, error) { return f(b) }

func TestClientsAtOnce(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	a := startAgent(t, peer)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			got := run1(t, a.client("worker-1", "echo", fmt.Sprint(i)))
			if want := (outcome{0, fmt.Sprintln(i), ""}); got != want {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, peer.logins.Load())
}

// The agent refuses another user's process, whatever the mode of the socket.
func TestAgentOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		skip(t, "only root can start a process of another user")
	}
	peer := startPeer(t, "worker-1", nil)
	a := startAgent(t, peer)
	require.NoError(t, os.Chmod(a.socket, 0o777))
	require.NoError(t, os.Chmod(filepath.Dir(a.socket), 0o755))
	binary := publicBinary(t, filepath.Dir(a.socket))
	cmd := a.client("worker-1", "exit", "0")
	cmd.Path = binary
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	require.Equal(t, outcome{255, "",
		"paiinit rsh: worker-1: user 65534 asked for a command; only user 0 and root may\n"}, run1(t, cmd))
}

// The client sends neither the command nor its files to an agent of another user.
func TestAgentOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		skip(t, "only root can be another user")
	}
	dir, err := os.MkdirTemp("", "rsh") // as in startAgentWith
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	binary := publicBinary(t, dir)
	for i, tt := range []struct {
		listener, client int
		refused          bool
	}{
		{65534, 65533, true},
		{65533, 65533, false},
		{0, 65533, false},
		{65534, 0, false},
	} {
		a := &testAgent{socket: filepath.Join(dir, fmt.Sprint(i))}
		ln := unixsocktest.ListenAs(t, tt.listener, a.socket)
		cmd := a.client("worker-1", "true")
		cmd.Path, cmd.Dir = binary, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uint32(tt.client), Gid: 65534},
		}
		got := make(chan []byte, 1)
		go func() {
			defer close(got)
			conn, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			b := make([]byte, 1)
			n, _ := conn.Read(b)
			got <- b[:n]
			_ = writeFrame(conn, frame.Exit, []byte{7})
			_ = conn.Close()
		}()
		out := run1(t, cmd)
		if tt.refused {
			require.Equal(t, outcome{255, "", fmt.Sprintf("paiinit rsh: worker-1: asking the paiinit at %s: "+
				"user 65534 serves this socket instead of user 65533 or root; nothing was sent to it\n",
				a.socket)}, out)
			require.Empty(t, <-got)
		} else {
			require.Equal(t, 7, out.code, "%+v", out)
			require.Len(t, <-got, 1)
		}
	}
}

// publicBinary copies this program to a place that every user can read.
func publicBinary(t *testing.T, dir string) string {
	data, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	binary := filepath.Join(dir, "rsh.test")
	require.NoError(t, os.WriteFile(binary, data, 0o755))
	return binary
}

func skip(t *testing.T, why string) {
	if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// startCommand starts a client and returns a function that reads its output line by line.
func startCommand(t *testing.T, a *testAgent, args ...string) (*exec.Cmd, *lineReader) {
	before := strings.Count(strings.Join(a.noted(), "\n"), "exec ")
	cmd := a.client(append([]string{"worker-1"}, args...)...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	waitFor(t, func() bool { return strings.Count(strings.Join(a.noted(), "\n"), "exec ") == before+1 })
	return cmd, &lineReader{out}
}

type lineReader struct{ r io.Reader }

func (l *lineReader) line(t *testing.T) string {
	var line []byte
	for b := make([]byte, 1); ; line = append(line, b[0]) {
		_, err := l.r.Read(b)
		require.NoError(t, err)
		if b[0] == '\n' {
			return string(line)
		}
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add(encodeRequest(Invocation{Host: "h", Command: "c"}))
	f.Add(encodeRequest(Invocation{Host: "h", Command: "sftp", Subsystem: true}))
	f.Add(encodeRequest(Invocation{Host: "h", User: "u", Command: "c", environ: []string{"A=b", "C="}}))
	f.Add([]byte{})
	f.Add([]byte(frame.Protocol + "\x00\x00\x00\x00"))
	f.Add(encodeRequest(Invocation{Host: "h", terminal: &terminal{
		Name: "xterm", Size: rfc4254.Size{Columns: 80, Rows: 24}, Modes: []byte{1, 0, 0, 0, 3, 0},
	}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		inv, err := decodeRequest(b)
		if err != nil {
			return
		}
		again, err := decodeRequest(encodeRequest(inv))
		require.NoError(t, err)
		require.Equal(t, inv, again)
	})
}

// BenchmarkClient measures one thin client from the start to the end of its process.
func BenchmarkClient(b *testing.B) {
	peer := startPeer(b, "worker-1", nil)
	a := startAgent(b, peer)
	require.Equal(b, 0, run1(b, a.client("worker-1", "exit", "0")).code)
	b.ResetTimer()
	for range b.N {
		if err := a.client("worker-1", "exit", "0").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
