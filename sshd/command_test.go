package sshd_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/sshd"
	"github.com/paiinit/paiinit/sshd/sshdtest"
)

func TestEveryExitStatusArrives(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	var group sync.WaitGroup
	for first := range 8 {
		group.Go(func() {
			for status := first; status < 256; status += 8 {
				if r := run(t, client, fmt.Sprintf("exit %d", status), nil); r.status != status || r.signal != "" {
					t.Errorf("exit %d: %+v", status, r)
				}
			}
		})
	}
	group.Wait()
}

func TestSignalThatEndsTheCommandIsExitSignal(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	for signal, want := range map[string]result{
		"KILL": {status: 137, signal: "KILL"},
		"TERM": {status: 143, signal: "TERM"},
		"HUP":  {status: 129, signal: "HUP"},
		"SEGV": {status: 139, signal: "SEGV"},
		"USR2": {status: 128, signal: "USR2"},        // x/crypto does not know its number
		"BUS":  {status: 128, signal: "BUS@paiinit"}, // RFC 4254 does not list it
	} {
		got := run(t, client, "ulimit -c 0; kill -"+signal+" $$", nil)
		if got != want {
			t.Errorf("%s: %+v", signal, got)
		}
	}
}

func TestStdoutAndStderrAreApart(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	r := run(t, client, "echo out; echo err >&2; nosuchprogram; echo $?", nil)
	require.Equal(t, "out\n127\n", r.stdout)
	require.Contains(t, r.stderr, "err\n")
	require.Contains(t, r.stderr, "not found")
	require.Zero(t, r.status)
	require.Equal(t, 127, run(t, client, "nosuchprogram", nil).status)
}

func TestShellSyntaxIsPassedRaw(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	r := run(t, client, `  PATH=/x:$PATH ; export PATH ; echo "a;b^[("  'c  d' "${PATH%%:*}"`, nil)
	require.Equal(t, "a;b^[( c  d /x\n", r.stdout)
	require.Equal(t, result{}, run(t, client, "", nil), "an empty command is not a shell")
}

func TestTenMegabytesEachWay(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	data := make([]byte, 10<<20)
	_, _ = rand.Read(data)
	r := run(t, client, "tee /dev/stderr; exit 5", bytes.NewReader(data))
	require.Equal(t, 5, r.status)
	require.True(t, bytes.Equal(data, []byte(r.stdout)), "stdout: %d bytes", len(r.stdout))
	require.True(t, bytes.Equal(data, []byte(r.stderr)), "stderr: %d bytes", len(r.stderr))
}

// The command has exited, its output fills the channel's window and the pipe, and the client reads after all deadlines.
func TestSlowReaderLosesNothing(t *testing.T) {
	cfg := sshd.Config{}
	told := events(&cfg)
	server := sshdtest.Start(t, cfg, func(s *sshd.Server) { s.SetDrain(10*time.Millisecond, 10*time.Millisecond) })
	ch := open(t, server.Dial(t))
	const size = 2<<20 + 60<<10 // window and pipe
	require.True(t, ch.ask(t, "exec", text(fmt.Sprintf("head -c %d /dev/zero", size))))
	start := <-told
	gone(t, start.PID)
	time.Sleep(200 * time.Millisecond) // much longer than the deadlines
	n, err := io.Copy(io.Discard, ch)
	require.NoError(t, err)
	require.EqualValues(t, size, n)
}

func TestStdinIsNotWaitedFor(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{},
		func(s *sshd.Server) { s.SetDrain(20*time.Second, 30*time.Second) }).Dial(t)
	r, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	begin := time.Now()
	require.Zero(t, run(t, client, "/bin/true", r).status)
	require.Less(t, time.Since(begin), 15*time.Second, "shorter than any bound")
}

func TestInputNobodyReadsDoesNotBlock(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	require.Equal(t, "done\n",
		run(t, client, "exec <&-; sleep 0.1; echo done", bytes.NewReader(make([]byte, 8<<20))).stdout)
}

func TestEndOfStdinReachesTheCommand(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	require.Equal(t, result{stdout: "one\ntwo\nend\n"},
		run(t, client, "cat; echo end", strings.NewReader("one\ntwo\n")))
}

func TestShellWithoutTerminalReadsStdin(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	session, err := client.NewSession()
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = strings.NewReader("echo $((20+3))\nexit 4\n"), &stdout, &stderr
	require.NoError(t, session.Shell())
	require.Equal(t, result{stdout: "23\n", status: 4}, finish(t, session, &stdout, &stderr))
}

func TestSignalsReachTheWholeGroup(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	ch := open(t, client)
	require.False(t, ch.ask(t, "signal", text("USR1")), "no command yet")
	require.False(t, ch.ask(t, "signal", text("NOSUCH")))
	require.True(t, ch.ask(t, "exec", text(
		`(trap "echo child; exit" USR1; echo r; while :; do sleep 0.01; done) & trap "echo leader; wait; `+
			`exit 9" USR1; echo r; while :; do sleep 0.01; done`)))
	require.Equal(t, []string{"r", "r"}, ch.lines(t, 2))
	require.True(t, ch.ask(t, "signal", text("USR1")))
	require.ElementsMatch(t, []string{"child", "leader"}, ch.lines(t, 2))
	req := <-ch.reqs
	require.Equal(t, "exit-status", req.Type)
	require.Equal(t, []byte{0, 0, 0, 9}, req.Payload)
}

func TestSignalBeforeTheCommandRunsIsNotLost(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	for range 20 {
		session, err := client.NewSession()
		require.NoError(t, err)
		require.NoError(t, session.Start("sleep 1000"))
		require.NoError(t, session.Signal(ssh.SIGTERM))
		require.Equal(t, "TERM", finish(t, session, &bytes.Buffer{}, &bytes.Buffer{}).signal)
	}
}

// Sessions get the variables that Extra returns when they start.
func TestExtraEnvironment(t *testing.T) {
	var rank atomic.Value
	rank.Store("unknown")
	client := sshdtest.Start(t, sshd.Config{
		Environ: []string{"PATH=/usr/bin:/bin", "RANK=none", "KEPT=1"},
		Extra:   func() []string { return []string{"RANK=" + rank.Load().(string)} },
	}).Dial(t)
	for _, want := range []string{"unknown", "7"} {
		rank.Store(want)
		session, err := client.NewSession()
		require.NoError(t, err)
		out, err := session.Output("echo $RANK $KEPT")
		require.NoError(t, err)
		require.Equal(t, want+" 1\n", string(out))
	}
}

func TestEnvironmentAndDirectory(t *testing.T) {
	home := t.TempDir()
	client := sshdtest.Start(t, sshd.Config{Environ: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "A=1", "LANG=C", "SSH_CLIENT=old", "SSH_TTY=old", "PWD=/nowhere",
	}}).Dial(t)
	session, err := client.NewSession()
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	session.Stdout, session.Stderr = &stdout, &stderr
	require.NoError(t, session.Setenv("LANG", "en_US.UTF-8"))
	require.NoError(t, session.Setenv("LC_TIME", "x"))
	for _, name := range []string{"LD_PRELOAD", "PATH", "BASH_ENV", "ENV", "GOTRACEBACK", "A", "LANGUAGE", "HOME"} {
		require.Error(t, session.Setenv(name, "bad"), name)
	}
	require.NoError(t, session.Start("env; pwd"))
	r := finish(t, session, &stdout, &stderr)
	require.Empty(t, r.stderr)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	for _, want := range []string{
		"A=1", "LANG=en_US.UTF-8", "LC_TIME=x", "HOME=" + home, "SHELL=/bin/sh", "PATH=" + os.Getenv("PATH"),
		"PWD=" + home, home,
	} {
		require.Contains(t, lines, want)
	}
	require.NotContains(t, r.stdout, "bad")
	require.NotContains(t, r.stdout, "SSH_CLIENT")
	require.NotContains(t, r.stdout, "SSH_TTY")
	require.Regexp(t, `(?m)^SSH_CONNECTION=127\.0\.0\.1 \d+ 127\.0\.0\.1 \d+$`, r.stdout)
	require.Regexp(t, `(?m)^USER=.+$`, r.stdout)
	require.Regexp(t, `(?m)^LOGNAME=.+$`, r.stdout)
}

func TestDirectoryWithoutHome(t *testing.T) {
	dir := t.TempDir()
	for home, want := range map[string]string{dir: dir, dir + "/no": "/", "relative": "/"} {
		client := sshdtest.Start(t, sshd.Config{Environ: []string{"HOME=" + home, "PATH=/usr/bin:/bin"}}).Dial(t)
		require.Equal(t, want+"\n", run(t, client, "pwd", nil).stdout)
	}
}

func TestCommandThatCannotBeStarted(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{Shell: "/nonexistent/sh"})
	r := run(t, server.Dial(t), "true", nil)
	require.Equal(t, 255, r.status)
	require.Contains(t, r.stderr, "paiinit: cannot run the command: fork/exec /nonexistent/sh: no such file")
	require.Equal(t, 1, strings.Count(r.stderr, "\n"))
	server.Log.Wait(t, "ssh command", "status=255")

	long := run(t, sshdtest.Start(t, sshd.Config{}).Dial(t), "true "+strings.Repeat("x", 200<<10), nil)
	require.Equal(t, 255, long.status, "longer than an argument can be in Linux")
	require.Contains(t, long.stderr, "argument list too long")
}

func TestCommandOf100kB(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	long := strings.Repeat("y", 100<<10)
	require.Equal(t, long+"\n", run(t, client, "echo "+long, nil).stdout)
}

func TestMalformedExecIsRefused(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	ch := open(t, server.Dial(t))
	for _, payload := range [][]byte{
		nil, {0}, {0, 0, 0, 9, 'x'}, append(text("true"), 0), text("tr\x00ue"), {0xff, 0xff, 0xff, 0xff},
	} {
		require.False(t, ch.ask(t, "exec", payload), "%q", payload)
	}
	require.False(t, ch.ask(t, "shell", []byte("x")))
	server.Log.Wait(t, "ssh request refused", "malformed exec")
	require.True(t, ch.ask(t, "exec", text("read x; echo fine")))
	require.False(t, ch.ask(t, "exec", text("echo again")), "one command per session")
	require.False(t, ch.ask(t, "shell", nil))
	_, err := ch.Write([]byte("\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"fine"}, ch.lines(t, 1))
}

func TestSubsystemsAndForwardingAreRefused(t *testing.T) {
	server := sshdtest.Start(t, sshd.Config{})
	withSFTP := open(t, sshdtest.Start(t, sshd.Config{SFTP: sftpProgram()}).Dial(t))
	require.False(t, withSFTP.ask(t, "subsystem", text("netconf")))
	require.False(t, withSFTP.ask(t, "subsystem", []byte("sftp")))
	client := server.Dial(t)
	ch := open(t, client)
	require.False(t, ch.ask(t, "subsystem", text("sftp")))
	require.False(t, ch.ask(t, "auth-agent-req@openssh.com", nil))
	require.False(t, ch.ask(t, "x11-req", make([]byte, 20)))
	require.False(t, ch.ask(t, "nonsense", nil))
	server.Log.Wait(t, "ssh request refused", "subsystem")
	for _, kind := range []string{
		"direct-tcpip", "direct-streamlocal@openssh.com", "x11", "auth-agent@openssh.com", "nonsense",
	} {
		_, _, err := client.OpenChannel(kind, make([]byte, 40))
		var refused *ssh.OpenChannelError
		require.ErrorAs(t, err, &refused, kind)
		server.Log.Wait(t, "ssh channel refused", kind)
	}
	for _, kind := range []string{"tcpip-forward", "streamlocal-forward@openssh.com", "hostkeys-prove-00@openssh.com"} {
		ok, _, err := client.SendRequest(kind, true, make([]byte, 20))
		require.NoError(t, err)
		require.False(t, ok, kind)
	}
	ok, _, err := client.SendRequest("keepalive@openssh.com", true, nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Zero(t, run(t, client, "true", nil).status, "the connection goes on")
}

func TestCommandsAreLoggedAndTold(t *testing.T) {
	cfg := sshd.Config{}
	told := events(&cfg)
	server := sshdtest.Start(t, cfg)
	client := server.Dial(t)
	require.Equal(t, 3, run(t, client, "exit 3", nil).status)
	require.Equal(t, "KILL", run(t, client, "kill -9 $$ # "+strings.Repeat("long", 100), nil).signal)
	key := ssh.FingerprintSHA256(server.User.PublicKey())
	line := server.Log.Wait(t, "ssh command", `command="exit 3"`, "status=3", "key="+key, "remote=127.0.0.1",
		"duration=")
	require.Contains(t, line, "level=DEBUG")
	line = server.Log.Wait(t, "ssh command", "signal=SIGKILL")
	require.Less(t, len(line), 620)
	require.Contains(t, line, "(413 bytes)")
	first, second := <-told, <-told
	require.NotZero(t, first.PID)
	require.False(t, first.Done)
	require.True(t, second.Done)
	require.Equal(t, 3, second.Status)
	require.Equal(t, first.ID, second.ID)
	require.Equal(t, key, second.Key)
	require.Equal(t, "exit 3", second.Command)
	<-told
	last := <-told
	require.Equal(t, 137, last.Status)
	require.EqualValues(t, 9, last.Signal)
	require.False(t, last.Lost)
}

// OpenSSH sends EOF when its input has ended.
func TestClientThatAnswersEOFWithCloseGetsTheStatus(t *testing.T) {
	client := sshdtest.Start(t, sshd.Config{}).Dial(t)
	for i := range 300 {
		ch := open(t, client)
		require.NoError(t, ch.CloseWrite())
		require.True(t, ch.ask(t, "exec", text("echo x; exit 9")))
		out, err := io.ReadAll(ch)
		require.NoError(t, err)
		_ = ch.Close() // the server may have been faster
		require.Equal(t, "x\n", string(out))
		req := <-ch.reqs
		require.NotNil(t, req, "no status in round %d", i)
		require.Equal(t, []byte{0, 0, 0, 9}, req.Payload)
	}
}

// A command may ask who is behind it before its start is reported: AwaitStarts waits for the report.
func TestAwaitStarts(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	cfg := sshd.Config{StartWithSlack: func(start func() error) error {
		err := start()
		close(started)
		<-release
		return err
	}}
	reported := events(&cfg)
	server := sshdtest.Start(t, cfg)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(t, server.Dial(t), "true", nil)
	}()
	<-started
	waited := make(chan int, 1)
	go func() {
		server.AwaitStarts()
		waited <- len(reported)
	}()
	atStart := -1
	select {
	case atStart = <-waited: // too early
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if atStart < 0 {
		atStart = <-waited
	}
	<-ended
	require.NotZero(t, atStart, "the start was not reported yet")
}
