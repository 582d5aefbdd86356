package rsh

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// lines is a writer that hands over what it gets.
type lines struct{ got chan string }

func (l *lines) Write(p []byte) (int, error) {
	l.got <- string(p)
	return len(p), nil
}

func TestExec(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	tests := []struct {
		req    request
		status Status
		out    string
		err    string
	}{
		{request{Command: "exit 0"}, Status{}, "", ""},
		{request{Command: "exit 3"}, Status{Code: 3}, "", ""},
		{request{Command: "exit 255"}, Status{Code: 255}, "", ""},
		{request{Command: "exit 4294967295"}, Status{Code: 255}, "", ""},
		{request{Command: "killed TERM"}, Status{Code: 143, Signal: syscall.SIGTERM}, "", ""},
		{request{Command: "killed KILL"}, Status{Code: 137, Signal: syscall.SIGKILL}, "", ""},
		{request{Command: "killed NONSENSE"}, Status{Code: 128}, "", ""},
		{request{Command: `echo  "a"  'b' $c ;  `}, Status{}, " \"a\"  'b' $c ;  \n", ""},
		{request{Command: "both"}, Status{Code: 5}, "to stdout", "to stderr"},
		{request{Command: "cat", Stdin: strings.NewReader("some input")}, Status{}, "some input", ""},
		{request{Command: "cat"}, Status{}, "", ""},
		{request{}, Status{}, "shell ", ""},
		{request{Command: "sftp", Subsystem: true}, Status{}, "subsystem sftp", ""},
	}
	for _, tt := range tests {
		t.Run(tt.req.Command, func(t *testing.T) {
			var out, errs bytes.Buffer
			tt.req.Stdout, tt.req.Stderr = &out, &errs
			status, err := p.Exec(testCtx(t), peer.target, tt.req)
			require.NoError(t, err)
			require.Equal(t, tt.status, status)
			require.Equal(t, tt.out, out.String())
			require.Equal(t, tt.err, errs.String())
		})
	}
	require.EqualValues(t, 1, peer.logins.Load())
}

func TestExecErrors(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	prefix := "rsh: reaching worker-1 (" + peer.target.Addr.String() + "): "
	for command, want := range map[string]string{
		"refuse":                   `channel: the peer refused to run "refuse"`,
		"nostatus":                 "session: the peer ended the session without a status",
		strings.Repeat("x", 1<<20): fmt.Sprintf("channel: the command has %d bytes, and a shell can be given %d: put it into a file", 1<<20, 32*os.Getpagesize()-1),
	} {
		_, err := p.Exec(testCtx(t), peer.target, request{Command: command})
		require.EqualError(t, err, prefix+want)
	}
	// The kernel resets the connection where the peer has not read everything, and ends it otherwise.
	_, err := p.Exec(testCtx(t), peer.target, Request{Command: "drop"})
	require.ErrorContains(t, err, prefix+"session: the connection was lost while the command ran: ")
}

// The longest command passes through x/crypto/ssh.
func TestExecLongCommand(t *testing.T) {
	command := "echo " + strings.Repeat("x", min(maxCommand, 32*os.Getpagesize()-1)-5)
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	var out bytes.Buffer
	_, err := p.Exec(testCtx(t), peer.target, request{Command: command, Stdout: &out})
	require.NoError(t, err)
	require.Equal(t, command[5:]+"\n", out.String())
}

func TestExecBig(t *testing.T) {
	const n = 2 << 20
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	var out, errs bytes.Buffer
	_, err := p.Exec(testCtx(t), peer.target, request{Command: fmt.Sprintf("big %d", n), Stdout: &out, Stderr: &errs})
	require.NoError(t, err)
	require.Equal(t, n, out.Len())
	require.Equal(t, n, errs.Len())

	in := out.Bytes()
	var back bytes.Buffer
	_, err = p.Exec(testCtx(t), peer.target, request{Command: "cat", Stdin: bytes.NewReader(in), Stdout: &back})
	require.NoError(t, err)
	require.True(t, bytes.Equal(in, back.Bytes()))
}

// A stdin that never says anything does not hold up the end of the command.
func TestExecStdinNeverWritten(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	r, w := io.Pipe()
	defer w.Close() // lets the copier go
	status, err := p.Exec(testCtx(t), peer.target, request{Command: "exit 6", Stdin: r})
	require.NoError(t, err)
	require.Equal(t, Status{Code: 6}, status)
}

func TestExecSignals(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	signals := make(chan os.Signal, 8)
	for _, s := range []os.Signal{syscall.SIGUSR1, syscall.SIGWINCH, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		signals <- s
	}
	var out bytes.Buffer
	status, err := p.Exec(testCtx(t), peer.target, request{Command: "signals", Stdout: &out, Signals: signals})
	require.NoError(t, err)
	require.Equal(t, Status{Code: 42}, status)
	require.Equal(t, "USR1\nHUP\nINT\nTERM\n", out.String())
}

// When ctx ends the channel is closed and nothing is written any more.
func TestExecCtxEnds(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	for _, command := range []string{"hang", "never answered"} {
		ctx, cancel := context.WithCancel(testCtx(t))
		out := &lines{got: make(chan string, 8)}
		done := make(chan error, 1)
		go func() {
			_, err := p.Exec(ctx, peer.target, request{Command: command, Stdout: out})
			done <- err
		}()
		if command == "hang" {
			require.Equal(t, "started\n", <-out.got)
		}
		cancel()
		err := <-done
		require.ErrorIs(t, err, context.Canceled)
		var dial *DialError
		require.ErrorAs(t, err, &dial)
		if command == "hang" {
			require.Equal(t, "hang", <-peer.ended)
		}
	}
	// The connection is none the worse for it.
	_, err := p.Exec(testCtx(t), peer.target, request{Command: "exit 0"})
	require.NoError(t, err)
	require.EqualValues(t, 1, peer.logins.Load())
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A reader that has gone ends the command like a local pipe does.
func TestExecStdoutGone(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	status, err := p.Exec(testCtx(t), peer.target, request{Command: "yes", Stdout: failing{}})
	require.NoError(t, err)
	require.Equal(t, Status{Code: 141, Signal: syscall.SIGPIPE}, status)
	// A command that ignores it is not stopped, and its output goes nowhere.
	status, err = p.Exec(testCtx(t), peer.target, request{Command: "big 1000000", Stdout: failing{}, Stderr: failing{}})
	require.NoError(t, err)
	require.Equal(t, Status{}, status)
}

// The connection is lost in the middle of a command.
func TestExecLost(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	out := &lines{got: make(chan string, 8)}
	done := make(chan error, 1)
	go func() {
		_, err := p.Exec(testCtx(t), peer.target, request{Command: "hang", Stdout: out})
		done <- err
	}()
	require.Equal(t, "started\n", <-out.got)
	peer.drop()
	var dial *DialError
	require.ErrorAs(t, <-done, &dial)
	require.Equal(t, StageSession, dial.Stage)
	require.ErrorContains(t, dial, "the connection was lost while the command ran: ")
}

func TestExecMany(t *testing.T) {
	peer := startPeer(t, "worker-1", nil)
	p := testPool(t, nil)
	ctx := testCtx(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range 5 {
				var out bytes.Buffer
				status, err := p.Exec(ctx, peer.target, request{Command: fmt.Sprintf("echo %d-%d", i, j), Stdout: &out})
				if err != nil || status.Code != 0 || out.String() != fmt.Sprintf("%d-%d\n", i, j) {
					t.Errorf("%d-%d: %v %v %q", i, j, err, status, out.String())
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, peer.logins.Load())
}

func BenchmarkExecWarm(b *testing.B) {
	peer := startPeer(b, "worker-1", nil)
	p := testPool(b, nil)
	_, err := p.Connect(b.Context(), peer.target)
	require.NoError(b, err)
	for b.Loop() {
		status, err := p.Exec(b.Context(), peer.target, request{Command: "exit 0"})
		if err != nil || status.Code != 0 {
			b.Fatal(err)
		}
	}
}

func BenchmarkHandshake(b *testing.B) {
	peer := startPeer(b, "worker-1", nil)
	for b.Loop() {
		p := New(testConfig("s"))
		if _, err := p.Connect(b.Context(), peer.target); err != nil {
			b.Fatal(err)
		}
		_ = p.Close()
	}
}

func BenchmarkExecThroughput(b *testing.B) {
	const n = 32 << 20
	peer := startPeer(b, "worker-1", nil)
	p := testPool(b, nil)
	b.SetBytes(2 * n)
	for b.Loop() {
		_, err := p.Exec(b.Context(), peer.target, request{Command: fmt.Sprintf("big %d", n)})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzStatus is how a peer says that a command has ended.
func FuzzStatus(f *testing.F) {
	f.Add("exit-status", ssh.Marshal(struct{ Status uint32 }{1 << 31}))
	f.Add("exit-signal", ssh.Marshal(struct {
		Signal     string
		CoreDumped bool
		Message    string
		Language   string
	}{"TERM", false, "", ""}))
	f.Add("exit-signal", []byte{0, 0, 0, 9, 'x'})
	f.Fuzz(func(t *testing.T, kind string, payload []byte) {
		reqs := make(chan *ssh.Request, 1)
		reqs <- &ssh.Request{Type: kind, Payload: payload}
		close(reqs)
		s := &session{over: make(chan struct{})}
		s.requests(reqs)
		<-s.over
		if s.status != nil {
			require.GreaterOrEqual(t, s.status.Code, 0)
			require.LessOrEqual(t, s.status.Code, 255)
		}
	})
}
