package localapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// askAs turns this program into a client; its value is the path of the socket.
const askAs = "LOCALAPI_TEST_ASK"

func TestMain(m *testing.M) {
	if socket := os.Getenv(askAs); socket != "" {
		_, err := Client{Socket: socket}.Names(context.Background())
		fmt.Print(err)
		return
	}
	goleak.VerifyTestMain(m)
}

// job is a Job whose Wait and Barrier return when the test tells them to, or when their context ends.
type job struct {
	begun   chan string // the waiting questions that have begun
	dropped chan string // the questions that ended with their context
	release chan struct{}
	pid     int // of the last process that asked for names
	call    FillCall
}

func newJob() *job {
	return &job{begun: make(chan string, 8), dropped: make(chan string, 8), release: make(chan struct{})}
}

func (j *job) Status(context.Context) *Status {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &Status{
		Phase: Running, Rank: 1, Size: 2, Epoch: 3, Hash: "abc", Timings: map[string]float64{"listen": 0.5},
		Ranks: []Rank{{
			Rank: 0, Alias: "worker-0", Host: "10.0.0.1", Port: 12345, State: Lost, Reason: "gone", Since: since,
			Slots: 8, GPUs: -1, Fabric: "none", Name: "job-worker-0", RTT: 0.25,
		}},
		Name: "job-worker-1", Deadline: since.Add(time.Minute), Outcome: &Outcome{3, "why"},
	}
}

func (j *job) Timeline(context.Context) *Timeline {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &Timeline{
		Now: at.Add(time.Minute), Job: "j",
		Ranks: []Times{{Rank: 1, Name: "worker-1", Started: at, Lost: true, Reason: "gone"}},
		Ended: true, Status: 3, Reason: "it failed", Facts: [][]string{{"paiinit", "1"}},
	}
}

func (j *job) Ready(context.Context) *Refusal { return &Refusal{1, "running: it loads"} }

func (j *job) Wait(ctx context.Context) *Refusal { return j.await(ctx, "wait") }

func (j *job) Barrier(ctx context.Context, name string) *Refusal {
	return j.await(ctx, "barrier "+name)
}

func (j *job) await(ctx context.Context, what string) *Refusal {
	j.begun <- what
	select {
	case <-j.release:
		return nil
	case <-ctx.Done():
		j.dropped <- what
		return &Refusal{75, what + ": " + ctx.Err().Error()}
	}
}

func (j *job) Hosts(context.Context) ([]Host, *Refusal) { return []Host{{"worker-0", 8}}, nil }

func (j *job) Hostfile(context.Context) ([]Host, *Refusal) {
	return nil, &Refusal{75, "there is no list yet"}
}

func (j *job) Drift() (*Drift, *Refusal) {
	return &Drift{Mode: "warn", Size: 2, Rows: [][]string{{"GPUs", "8", "worker-0"}, {"GPUs", "7", "worker-1"}}}, nil
}

func (j *job) Names(pid int) ([][]string, *Refusal) {
	j.pid = pid
	return [][]string{{"node-7", "worker-0"}, {"worker-1"}}, nil
}

func (j *job) Fill(_ context.Context, launcher string, call FillCall) ([]string, bool) {
	j.call = call
	return []string{"-H", "worker-0:8"}, launcher == "horovodrun"
}

// startServer serves j until the test ends.
func startServer(t *testing.T, j Job) Client {
	t.Helper()
	c := Client{Socket: filepath.Join(t.TempDir(), "s")}
	stop := serveOn(t, j, c)
	t.Cleanup(stop)
	return c
}

// serveOn serves j on the client's socket until the test calls stop, which returns when everything has ended.
func serveOn(t *testing.T, j Job, c Client) (stop func()) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Socket, Net: "unix"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- Server{Job: j, Version: "v1", Logger: slog.New(slog.DiscardHandler)}.Serve(ctx, ln)
	}()
	return func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

func TestQuestions(t *testing.T) {
	j := newJob()
	c := startServer(t, j)
	ctx := t.Context()

	status, err := c.Status(ctx)
	require.NoError(t, err)
	require.Equal(t, j.Status(ctx), status)

	hosts, err := c.Hosts(ctx)
	require.NoError(t, err)
	require.Equal(t, []Host{{"worker-0", 8}}, hosts)

	_, err = c.Hostfile(ctx)
	require.Equal(t, &Refusal{75, "there is no list yet"}, err)

	names, err := c.Names(ctx)
	require.NoError(t, err)
	require.Equal(t, [][]string{{"node-7", "worker-0"}, {"worker-1"}}, names)
	require.Equal(t, os.Getpid(), j.pid)

	require.Equal(t, &Refusal{1, "running: it loads"}, c.Ready(ctx))
	require.NoError(t, c.Live(ctx))

	drift, err := c.Drift(ctx)
	require.NoError(t, err)
	want, _ := j.Drift()
	require.Equal(t, want, drift)

	call := FillCall{Args: []string{"-np", "2"}, Dir: "/work", Network: "ib0", Old: true}
	add, err := c.Fill(ctx, "horovodrun", call)
	require.NoError(t, err)
	require.Equal(t, []string{"-H", "worker-0:8"}, add)
	require.Equal(t, call, j.call)

	require.Equal(t, &Refusal{75, "wait: context deadline exceeded"}, c.Wait(ctx, time.Millisecond))
	require.Equal(t, &Refusal{75, "barrier b: context deadline exceeded"}, c.Barrier(ctx, "b", time.Millisecond))
	close(j.release)
	require.NoError(t, c.Wait(ctx, 0))
	require.NoError(t, c.Barrier(ctx, "b", time.Hour))
}

// Both ends understand the lines of another version of paiinit.
func TestWireFormat(t *testing.T) {
	for _, tt := range []struct{ request, answer string }{
		{
			`{"ask":"status","name":"","timeout":0}`,
			`{"exit":0,"error":"","status":{"phase":"running","rank":1,"size":2,"epoch":3,"hash":"abc","ranks":[` +
				`{"rank":0,"alias":"worker-0","host":"10.0.0.1","port":12345,"state":"lost","reason":"gone",` +
				`"since":"2026-01-02T03:04:05Z","slots":8,"gpus":-1,"fabric":"none","name":"job-worker-0",` +
				`"rtt_ms":0.25}],"timings":{"listen":0.5},"name":"job-worker-1","deadline":"2026-01-02T03:05:05Z",` +
				`"outcome":{"status":3,"reason":"why"},"generation":0}}`,
		},
		{`{"ask":"hosts"}`, `{"exit":0,"error":"","hosts":[{"Name":"worker-0","Slots":8}]}`},
		{`{"ask":"hostfile"}`, `{"exit":75,"error":"there is no list yet"}`},
		{`{"ask":"ready"}`, `{"exit":1,"error":"running: it loads"}`},
		{`{"ask":"live"}`, `{"exit":0,"error":""}`},
		{`{"ask":"names"}`, `{"exit":0,"error":"","names":[["node-7","worker-0"],["worker-1"]]}`},
		{
			`{"ask":"drift"}`, `{"exit":0,"error":"","drift":{"check":"warn","size":2,"absent":null,` +
				`"rows":[["GPUs","8","worker-0"],["GPUs","7","worker-1"]]}}`,
		},
		{`{"ask":"wait","timeout":1}`, `{"exit":75,"error":"wait: context deadline exceeded"}`},
		{`{"ask":"barrier","name":"b","timeout":1}`, `{"exit":75,"error":"barrier b: context deadline exceeded"}`},
		{
			`{"ask":"horovodrun","horovodrun":{"args":["-np","2"],"dir":"/","network":"","old":false}}`,
			`{"exit":0,"error":"","add":["-H","worker-0:8"]}`,
		},
		{`{"ask":"status","of":"a later version"}`, ""},
		{
			`{"ask":"horovodrun"}`,
			`{"exit":64,"error":"the running paiinit, v1, does not know the question \"horovodrun\""}`,
		},
		{`{"ask":"weather"}`, `{"exit":64,"error":"the running paiinit, v1, does not know the question \"weather\""}`},
		{`{}`, `{"exit":64,"error":"the running paiinit, v1, does not know the question \"\""}`},
	} {
		conn := dialServer(t, newJob())
		_, err := conn.Write([]byte(tt.request + "\n"))
		require.NoError(t, err)
		line, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err, tt.request)
		if tt.answer != "" {
			require.Equal(t, tt.answer+"\n", line, tt.request)
		}
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	}
	b, err := json.Marshal(request{Ask: askBarrier, Name: "b", Timeout: time.Second})
	require.NoError(t, err)
	require.Equal(t, `{"ask":"barrier","name":"b","timeout":1000000000}`, string(b))
}

// dialServer connects to a server by a pipe.
func dialServer(t *testing.T, j Job) net.Conn {
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = Server{Job: j, Version: "v1"}.exchange(t.Context(), theirs, 0)
		_ = theirs.Close()
	}()
	t.Cleanup(func() {
		_ = ours.Close()
		<-served
	})
	return ours
}

// An invalid or incomplete request gets no answer.
func TestBadRequests(t *testing.T) {
	for name, tt := range map[string]struct{ text, says string }{
		"nothing":         {"", ""},
		"an empty line":   {"\n", "reading a question: unexpected end of JSON input"},
		"no JSON":         {"GET / HTTP/1.1\r\n", "reading a question: invalid character 'G'"},
		"no object":       {"[]\n", "cannot unmarshal array"},
		"another type":    {`{"timeout":"1s"}` + "\n", "cannot unmarshal string"},
		"no end of line":  {`{"ask":"status"}`, "reading a question: EOF"},
		"half a line":     {`{"ask":"sta`, "reading a question: EOF"},
		"too long a line": {`{"name":"` + strings.Repeat("x", maxRequest) + `"}` + "\n", "reading a question: EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			go func() {
				_, _ = io.WriteString(ours, tt.text)
				_ = ours.Close()
			}()
			err := Server{Job: newJob()}.exchange(t.Context(), theirs, 0)
			_ = theirs.Close()
			if tt.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.says)
		})
	}
}

func TestRequestThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer func() { _ = ours.Close() }()
		go func() { _, _ = io.WriteString(ours, `{"ask":`) }()
		begin := time.Now()
		err := Server{Job: newJob()}.exchange(t.Context(), theirs, 0)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, requestTimeout, time.Since(begin))
	})
}

// The server gives up a client that does not take its answer.
func TestAnswerThatIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer func() { _ = ours.Close() }()
		go func() { _, _ = io.WriteString(ours, `{"ask":"status"}`+"\n") }()
		begin := time.Now()
		err := Server{Job: newJob()}.exchange(t.Context(), theirs, 0)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, sendTimeout, time.Since(begin))
	})
}

// Neither a client that sends no request nor a client that does not take its answer delays the end.
func TestStuckClientAtTheEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		most time.Duration
	}{
		"asks nothing":         {"", 100 * time.Millisecond},
		"asks half a question": {`{"ask":`, 100 * time.Millisecond},
		"takes no answer":      {`{"ask":"status"}` + "\n", time.Second},
		"waits, takes none":    {`{"ask":"wait"}` + "\n", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer func() { _ = ours.Close() }()
				go func() { _, _ = io.WriteString(ours, tt.text) }()
				ctx, cancel := context.WithCancel(t.Context())
				served := make(chan error, 1)
				go func() { served <- Server{Job: newJob()}.exchange(ctx, theirs, 0) }()
				synctest.Wait()
				begin := time.Now()
				cancel()
				require.ErrorIs(t, <-served, os.ErrDeadlineExceeded)
				require.LessOrEqual(t, time.Since(begin), tt.most)
			})
		})
	}
}

// The server still answers a question that arrives at its end.
func TestQuestionAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer func() { _ = ours.Close() }()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		served := make(chan error, 1)
		go func() { served <- Server{Job: newJob()}.exchange(ctx, theirs, 0) }()
		synctest.Wait()
		a, err := exchange(t.Context(), ours, request{Ask: askStatus})
		require.NoError(t, err)
		require.Equal(t, Running, a.Status.Phase)
		require.NoError(t, <-served)
	})
}

// The client waits for a server that never answers as long as the question may take, and no longer.
func TestServerNeverAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		question request
		want     time.Duration
	}{
		"status":               {request{Ask: askStatus}, answerTimeout},
		"names":                {request{Ask: askNames}, answerTimeout},
		"horovodrun":           {request{Ask: "horovodrun", Timeout: time.Hour}, answerTimeout},
		"wait for a minute":    {request{Ask: askWait, Timeout: time.Minute}, time.Minute + answerTimeout},
		"barrier for a minute": {request{Ask: askBarrier, Timeout: time.Minute}, time.Minute + answerTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer func() { _ = theirs.Close() }()
				go func() { _, _ = bufio.NewReader(theirs).ReadString('\n') }()
				begin := time.Now()
				_, err := exchange(t.Context(), ours, tt.question)
				require.Equal(t, &TimeoutError{}, err)
				require.Equal(t, tt.want, time.Since(begin))
			})
		})
	}
	t.Run("wait without limit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer func() { _ = theirs.Close() }()
			go func() { _, _ = bufio.NewReader(theirs).ReadString('\n') }()
			ctx, cancel := context.WithTimeout(t.Context(), 1000*time.Hour)
			defer cancel()
			_, err := exchange(ctx, ours, request{Ask: askWait})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		})
	})
}

func TestBadAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		text, says string
		closed     bool
	}{
		"none":        {"", "paiinit ended before it answered: EOF", true},
		"half":        {`{"exit":0,`, "paiinit ended before it answered: EOF", true},
		"no JSON":     {"later\n", "reading the answer of paiinit: invalid character 'l'", false},
		"a refusal":   {`{"exit":7,"error":"no","hosts":[{}]}` + "\n", "no", false},
		"without end": {strings.Repeat(" ", maxAnswer+1), "it has more than 16777216 bytes", false},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				_, _ = bufio.NewReader(theirs).ReadString('\n')
				_, _ = io.WriteString(theirs, tt.text)
				_ = theirs.Close()
			}()
			a, err := exchange(t.Context(), ours, request{Ask: askHosts})
			_ = ours.Close()
			<-answered
			require.ErrorContains(t, err, tt.says)
			require.Equal(t, answer{}, a)
			require.Equal(t, tt.closed, errors.As(err, new(*ClosedError)))
		})
	}
	t.Run("a status is missing", func(t *testing.T) {
		c := startServer(t, noStatus{newJob()})
		_, err := c.Status(t.Context())
		require.EqualError(t, err, "reading the answer of paiinit: the status is missing")
	})
}

type noStatus struct{ *job }

func (noStatus) Status(context.Context) *Status { return nil }

func TestNobodyThere(t *testing.T) {
	c := Client{Socket: filepath.Join(t.TempDir(), "none")}
	_, err := c.Names(t.Context())
	var dial *DialError
	require.ErrorAs(t, err, &dial)
	require.Equal(t, c.Socket, dial.Socket)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "no such file")

	// A socket file without a server.
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Socket, Net: "unix"})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	_, err = c.Names(t.Context())
	require.ErrorAs(t, err, &dial)
	require.ErrorIs(t, err, unix.ECONNREFUSED)
}

// A client retries while the queue of the socket is full.
func TestFullQueue(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: socket}))
	require.NoError(t, unix.Listen(fd, 0))
	file := os.NewFile(uintptr(fd), socket)
	other, err := net.FileListener(file)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	ln := other.(*net.UnixListener)

	first, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer func() { _ = first.Close() }()
	_, err = net.Dial("unix", socket)
	require.ErrorIs(t, err, unix.EAGAIN)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = Client{Socket: socket}.Names(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the client gave up earlier")

	ctx, cancel = context.WithCancel(t.Context())
	served := make(chan error, 1)
	asked := make(chan error, 1)
	go func() {
		_, err := Client{Socket: socket}.Names(t.Context())
		asked <- err
	}()
	go func() { served <- Server{Job: newJob(), Logger: slog.New(slog.DiscardHandler)}.Serve(ctx, ln) }()
	require.NoError(t, <-asked)
	_ = first.Close()
	cancel()
	require.NoError(t, <-served)
}

// The server drops the question of a process that has ended.
func TestClientThatIsGone(t *testing.T) {
	j := newJob()
	c := startServer(t, j)
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { asked <- c.Barrier(ctx, "b", 0) }()
	require.Equal(t, "barrier b", <-j.begun)
	cancel()
	require.ErrorIs(t, <-asked, context.Canceled)
	require.Equal(t, "barrier b", <-j.dropped)
	// Another question still gets its answer.
	go func() { asked <- c.Wait(t.Context(), 0) }()
	require.Equal(t, "wait", <-j.begun)
	close(j.release)
	require.NoError(t, <-asked)
}

// At its end, the server answers the waiting clients, and leaves no socket, goroutine or connection.
func TestServerEnds(t *testing.T) {
	j := newJob()
	c := Client{Socket: filepath.Join(t.TempDir(), "s")}
	stop := serveOn(t, j, c)
	const n = 3
	asked := make(chan error, n)
	for range n {
		go func() { asked <- c.Wait(t.Context(), 0) }()
	}
	for range n {
		require.Equal(t, "wait", <-j.begun)
	}
	before := goleak.IgnoreCurrent()
	stop()
	for range n {
		require.Equal(t, &Refusal{75, "wait: context canceled"}, <-asked)
	}
	goleak.VerifyNone(t, before)
	_, err := c.Names(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Serve does not return before the Job has returned.
func TestServerWaits(t *testing.T) {
	j := &slowJob{job: newJob()}
	c := Client{Socket: filepath.Join(t.TempDir(), "s")}
	stop := serveOn(t, j, c)
	asked := make(chan error, 1)
	go func() { asked <- c.Wait(t.Context(), 0) }()
	require.Equal(t, "wait", <-j.begun)
	stop()
	require.True(t, j.returned.Load())
	require.Equal(t, &Refusal{75, "late"}, <-asked)
}

// slowJob returns some time after the end of its context.
type slowJob struct {
	*job
	returned atomic.Bool
}

func (j *slowJob) Wait(ctx context.Context) *Refusal {
	j.begun <- "wait"
	<-ctx.Done()
	<-time.After(20 * time.Millisecond)
	j.returned.Store(true)
	return &Refusal{75, "late"}
}

// A listener that fails for good ends the server.
func TestListenerFails(t *testing.T) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	err = Server{Job: newJob(), Logger: slog.New(slog.DiscardHandler)}.Serve(t.Context(), ln)
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorContains(t, err, "accepting on ")
}

// The server does not answer another user's process, whatever the mode of the socket.
func TestClientOfAnotherUser(t *testing.T) {
	requireRoot(t)
	c := Client{Socket: filepath.Join(publicDir(t), "s")}
	defer serveOn(t, newJob(), c)()
	require.NoError(t, os.Chmod(c.Socket, 0o777))
	got := make(chan string)
	go asUser(65534, func() {
		conn, err := net.Dial("unix", c.Socket)
		if err != nil {
			got <- err.Error()
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, `{"ask":"names"}`+"\n")
		line, err := io.ReadAll(conn)
		if errors.Is(err, syscall.ECONNRESET) { // the server closed before it had read the question
			err = nil
		}
		got <- fmt.Sprintf("%q %v", line, err)
	})
	require.Equal(t, `"" <nil>`, <-got)
}

// A client does not ask another user's server, unless root asks.
func TestServerOfAnotherUser(t *testing.T) {
	requireRoot(t)
	dir := publicDir(t)
	text, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	binary := filepath.Join(dir, "ask") // the test binary may be in a directory that only root can read
	require.NoError(t, os.WriteFile(binary, text, 0o755))
	for i, tt := range []struct {
		server, client int
		refused        bool
	}{
		{65534, 65533, true},
		{65533, 65533, false},
		{0, 65533, false},
		{65534, 0, false},
	} {
		c := Client{Socket: filepath.Join(dir, fmt.Sprint(i))}
		lns := make(chan *net.UnixListener)
		go asUser(tt.server, func() {
			ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Socket, Net: "unix"})
			if err != nil {
				t.Error(err)
			}
			lns <- ln
		})
		ln := <-lns
		require.NotNil(t, ln)
		require.NoError(t, os.Chmod(c.Socket, 0o777))
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			if _, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
				_, _ = io.WriteString(conn, `{"exit":7,"error":"asked"}`+"\n")
			}
		}()
		cmd := exec.Command(binary)
		cmd.Env = append(os.Environ(), askAs+"="+c.Socket, "GORACE=atexit_sleep_ms=0")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uint32(tt.client), Gid: 65534},
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		_ = ln.Close()
		<-answered
		want := "asked"
		if tt.refused {
			want = fmt.Sprintf("asking on %s: the other end belongs to user 65534 instead of user 65533 or root",
				c.Socket)
		}
		require.Equal(t, want, string(out), "%+v", tt)
	}
}

// asUser calls f on a thread of another user, which ends after f. The kernel reports that user as the peer (unix(7),
// SO_PEERCRED).
func asUser(uid int, f func()) {
	runtime.LockOSThread()
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		panic(errno)
	}
	f()
}

// publicDir returns a directory where every user may write.
func publicDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "localapi")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

func requireRoot(t *testing.T) {
	if os.Getuid() == 0 {
		return
	}
	const why = "only root can be another user"
	if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// FuzzRequest checks that the server answers any line with a line of JSON, or not at all.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"ask":"status"}`, `{"ask":"wait","timeout":1}`, `{"ask":"barrier","name":"b","timeout":-1}`,
		`{"ask":"names"}`, `{"ask":"horovodrun","horovodrun":{"args":["-np","2"]}}`,
		`{"ask":"hosts","name":7}`, "", "null", "[", "\x00",
	} {
		f.Add([]byte(seed + "\n"))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		j := newJob()
		close(j.release)
		ours, theirs := net.Pipe()
		written := make(chan struct{})
		go func() {
			defer close(written)
			_, _ = ours.Write(text)
		}()
		served := make(chan error, 1)
		go func() {
			served <- Server{Job: j}.exchange(context.Background(), theirs, 0)
			_ = theirs.Close()
		}()
		if !strings.Contains(string(text), "\n") {
			<-written
			_ = ours.Close()
		}
		line, _ := bufio.NewReader(ours).ReadBytes('\n')
		_ = ours.Close()
		err := <-served
		<-written
		if len(line) == 0 {
			return
		}
		require.NoError(t, err)
		var a answer
		require.NoError(t, json.Unmarshal(line, &a))
		_, err = readAnswer(line)
		require.Equal(t, a.Exit != 0, err != nil)
	})
}

// FuzzAnswer checks that the client survives any line.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"exit":0,"error":"","hosts":[{"Name":"a","Slots":1}]}`, `{"exit":75,"error":"later"}`,
		`{"status":{"ranks":null}}`, `{"names":[[],["a","b"]]}`, `{"exit":-1}`, "", "null", `{"exit":1e9}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		a, err := readAnswer(line)
		if err == nil {
			require.Zero(t, a.Exit)
			return
		}
		require.Equal(t, answer{}, a)
		var refusal *Refusal
		if errors.As(err, &refusal) {
			require.NotZero(t, refusal.Exit)
		}
	})
}
