package sshd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/integration/testsignals"
	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/sshd"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "sftp-server" {
		if err := sshd.ServeSFTP(os.Stdin, os.Stdout, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testsignals.Default()
	goleak.VerifyTestMain(m)
}

// sftpProgram is this program: TestMain serves SFTP if it gets this argument.
func sftpProgram() []string { return []string{"/proc/self/exe", "sftp-server"} }

// result holds how a command ended.
type result struct {
	stdout, stderr string
	status         int    // -1: none was sent
	signal         string // of exit-signal
}

// run runs a command in a new session. It fails the test if that takes more than 20 seconds.
func run(tb testing.TB, client *ssh.Client, command string, stdin io.Reader) result {
	tb.Helper()
	session, err := client.NewSession()
	require.NoError(tb, err)
	defer func() { _ = session.Close() }()
	var stdout, stderr bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = stdin, &stdout, &stderr
	require.NoError(tb, session.Start(command))
	return finish(tb, session, &stdout, &stderr)
}

// testTimeout bounds what normally happens at once, even on a busy machine.
const testTimeout = time.Minute

func finish(tb testing.TB, session *ssh.Session, stdout, stderr fmt.Stringer) result {
	tb.Helper()
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err := <-ended:
		r := result{stdout: stdout.String(), stderr: stderr.String()}
		var exit *ssh.ExitError
		switch {
		case err == nil:
		case errors.As(err, &exit):
			r.status, r.signal = exit.ExitStatus(), exit.Signal()
		default:
			r.status = -1
		}
		return r
	case <-time.After(testTimeout):
		_ = session.Close()
		tb.Fatalf("the session did not end, then: %v", <-ended)
		return result{}
	}
}

// channel is a session channel that sends raw requests, unlike ssh.Session.
type channel struct {
	ssh.Channel
	reqs <-chan *ssh.Request
}

func open(tb testing.TB, client *ssh.Client) channel {
	tb.Helper()
	ch, reqs, err := client.OpenChannel("session", nil)
	require.NoError(tb, err)
	// Ends reads, so that the test fails instead of hanging.
	late := time.AfterFunc(testTimeout, func() { _ = ch.Close() })
	tb.Cleanup(func() { late.Stop() })
	return channel{ch, reqs}
}

func (c channel) ask(tb testing.TB, kind string, payload []byte) bool {
	tb.Helper()
	ok, err := c.SendRequest(kind, true, payload)
	require.NoError(tb, err)
	return ok
}

// lines returns the first n lines of the output.
func (c channel) lines(tb testing.TB, n int) []string {
	tb.Helper()
	var text []byte
	one := make([]byte, 1)
	for bytes.Count(text, []byte("\n")) < n {
		_, err := c.Read(one)
		require.NoError(tb, err, "after %q", text)
		text = append(text, one[0])
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func (c channel) pids(tb testing.TB, n int) []int {
	tb.Helper()
	var pids []int
	for _, line := range c.lines(tb, n) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		require.NoError(tb, err)
		pids = append(pids, pid)
	}
	return pids
}

func text(s string) []byte { return ssh.Marshal(struct{ S string }{s}) }

// alive reports whether a process runs. Zombies do not.
func alive(pid int) bool {
	p, err := proc.Read(os.DirFS("/proc"), pid)
	return err == nil && !p.Ended()
}

func gone(tb testing.TB, pids ...int) {
	tb.Helper()
	for _, pid := range pids {
		require.Eventually(tb, func() bool { return !alive(pid) }, testTimeout, 5*time.Millisecond, "process %d lives",
			pid)
	}
}

// killAtEnd kills a process at the end of the test.
func killAtEnd(tb testing.TB, pid int) {
	tb.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL); gone(tb, pid) })
}

// closedByServer waits for the other side to close nc.
func closedByServer(tb testing.TB, nc net.Conn, within time.Duration) {
	tb.Helper()
	require.NoError(tb, nc.SetReadDeadline(time.Now().Add(within)))
	_, err := io.Copy(io.Discard, nc)
	require.NotErrorIs(tb, err, os.ErrDeadlineExceeded, "the connection is still open")
}

// missing skips the test because something is missing, or fails it if skipping is not allowed.
func missing(tb testing.TB, why string) {
	tb.Helper()
	if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		tb.Fatal(why)
	}
	tb.Skip(why)
}

func soon(tb testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	tb.Cleanup(cancel)
	return ctx
}

// events collects the events of OnCommand.
func events(cfg *sshd.Config) <-chan sshd.CommandEvent {
	ch := make(chan sshd.CommandEvent, 1000)
	cfg.OnCommand = func(e sshd.CommandEvent) { ch <- e }
	return ch
}
