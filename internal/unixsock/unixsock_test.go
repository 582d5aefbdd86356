package unixsock_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/unixsock"
	"github.com/paiinit/paiinit/internal/unixsock/unixsocktest"
)

// TestMain turns this program into a client of another user, which prints the answer.
func TestMain(m *testing.M) {
	if path := os.Getenv("UNIXSOCK_TEST_CLIENT"); path != "" {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			_, err = unixsock.CheckServer(conn)
		}
		if err == nil {
			_, err = io.Copy(os.Stdout, conn)
		}
		if err != nil {
			_, _ = os.Stdout.WriteString(err.Error())
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve starts a server; end ends it and returns what Serve returned.
func serve(t *testing.T, s unixsock.Server) (path string, end func() error) {
	path = filepath.Join(t.TempDir(), "sock")
	ln, err := unixsock.Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	return path, func() error {
		cancel()
		return <-served
	}
}

func dial(t *testing.T, path string) *net.UnixConn {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	for range 2 { // the second time it replaces the socket of the first
		ln, err := unixsock.Listen(path)
		require.NoError(t, err)
		info, err := os.Lstat(path)
		require.NoError(t, err)
		require.Equal(t, os.ModeSocket|0o600, info.Mode())
		ln.SetUnlinkOnClose(false)
		require.NoError(t, ln.Close())
	}
	_, err := unixsock.Listen(filepath.Dir(path))
	require.ErrorContains(t, err, "listening on "+filepath.Dir(path)+": removing what is there: ")
	_, err = unixsock.Listen(filepath.Join(path, "below a file"))
	require.Error(t, err)
}

func TestServe(t *testing.T) {
	path, end := serve(t, unixsock.Server{Answer: func(_ context.Context, conn *net.UnixConn, pid int) {
		if pid != os.Getpid() {
			t.Errorf("process %d asks, not %d", pid, os.Getpid())
		}
		line, _ := bufio.NewReader(conn).ReadString('\n')
		_, _ = io.WriteString(conn, strings.ToUpper(line))
	}})
	conns := []*net.UnixConn{dial(t, path), dial(t, path), dial(t, path)}
	for i := range conns { // the last one first: no client waits for another
		conn := conns[len(conns)-1-i]
		pid, err := unixsock.CheckServer(conn)
		require.NoError(t, err)
		require.Equal(t, os.Getpid(), pid)
		_, err = io.WriteString(conn, "question\n")
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Equal(t, "QUESTION\n", string(answer))
	}
	require.NoError(t, end())
	_, err := os.Lstat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestServeWaitsForWhatItStarted(t *testing.T) {
	begun, answered := make(chan struct{}), false
	path, end := serve(t, unixsock.Server{Answer: func(ctx context.Context, _ *net.UnixConn, _ int) {
		close(begun)
		<-ctx.Done()
		answered = true
	}})
	dial(t, path)
	<-begun
	require.NoError(t, end())
	require.True(t, answered)
}

func TestServeTriesAgainWithoutDescriptors(t *testing.T) {
	pauses := make(chan time.Duration, 100)
	path, end := serve(t, unixsock.Server{
		Answer: func(_ context.Context, conn *net.UnixConn, _ int) { _, _ = io.WriteString(conn, "here") },
		Retry: func(err error, pause time.Duration) {
			if !errors.Is(err, syscall.EMFILE) {
				t.Error(err)
			}
			pauses <- pause
		},
	})
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	file := os.NewFile(uintptr(client), "client")
	defer func() { _ = file.Close() }()
	restore := unixsocktest.LimitFiles(t, 0)
	require.NoError(t, unix.Connect(client, &unix.SockaddrUnix{Name: path}))
	for want := 5 * time.Millisecond; want < 100*time.Millisecond; want *= 2 {
		require.Equal(t, want, <-pauses)
	}
	restore()
	answer, err := io.ReadAll(file)
	require.NoError(t, err)
	require.Equal(t, "here", string(answer))
	require.NoError(t, end())
}

// If the socket is closed from outside, the server ends, and so does everything that it has started.
func TestServeEndsWithItsSocket(t *testing.T) {
	ln, err := unixsock.Listen(filepath.Join(t.TempDir(), "sock"))
	require.NoError(t, err)
	begun := make(chan struct{})
	served := make(chan error, 1)
	go func() {
		served <- unixsock.Server{Answer: func(ctx context.Context, _ *net.UnixConn, _ int) {
			close(begun)
			<-ctx.Done()
		}}.Serve(context.Background(), ln)
	}()
	dial(t, ln.Addr().String())
	<-begun
	require.NoError(t, ln.Close())
	err = <-served
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorContains(t, err, "accepting on "+ln.Addr().String())
}

func TestPair(t *testing.T) {
	a, b, err := unixsock.Pair()
	require.NoError(t, err)
	for _, ends := range [][2]*net.UnixConn{{a, b}, {b, a}} {
		_, err := io.WriteString(ends[0], "text")
		require.NoError(t, err)
		require.NoError(t, ends[0].CloseWrite())
		got, err := io.ReadAll(ends[1])
		require.NoError(t, err)
		require.Equal(t, "text", string(got))
	}
	_, _ = a.Close(), b.Close()

	for free := range 4 { // two for the sockets, and net.FileConn copies each
		restore := unixsocktest.LimitFiles(t, free)
		_, _, err := unixsock.Pair()
		restore()
		require.ErrorIs(t, err, syscall.EMFILE, free)
	}
}

func TestOtherUsers(t *testing.T) {
	if os.Getuid() != 0 {
		why := "only root can start a process of another user"
		if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	dir, err := os.MkdirTemp("", "unixsock") // only root can read t.TempDir
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	self, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	binary := filepath.Join(dir, "client")
	require.NoError(t, os.WriteFile(binary, self, 0o755))
	client := func(uid uint32, path string) string {
		out, err := (&exec.Cmd{
			Path: binary, Args: []string{binary}, Env: []string{"UNIXSOCK_TEST_CLIENT=" + path}, Dir: "/",
			SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}},
		}).Output()
		require.NoError(t, err)
		return string(out)
	}

	path := filepath.Join(dir, "sock")
	ln, err := unixsock.Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- unixsock.Server{
			Answer: func(_ context.Context, conn *net.UnixConn, _ int) { _, _ = io.WriteString(conn, "welcome") },
			Refuse: func(conn *net.UnixConn, err error) { _, _ = io.WriteString(conn, err.Error()) },
		}.Serve(ctx, ln)
	}()
	require.Equal(t, "welcome", client(0, path))
	require.Contains(t, client(65534, path), "permission denied")
	require.NoError(t, os.Chmod(path, 0o777))
	require.Equal(t, "the other end belongs to user 65534 instead of user 0 or root", client(65534, path))
	cancel()
	require.NoError(t, <-served)

	foreign := filepath.Join(dir, "foreign")
	unixsocktest.ListenAs(t, 65534, foreign)
	require.Equal(t, "the other end belongs to user 65534 instead of user 65533 or root", client(65533, foreign))
	_, err = unixsock.CheckServer(dial(t, foreign))
	require.NoError(t, err, "root may ask every user's")
}

// Await returns when there is a client to accept, and leaves it to the caller.
func TestAwait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	ln, err := unixsock.Listen(path)
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	awaited := make(chan error, 1)
	go func() { awaited <- unixsock.Await(ctx, ln) }()
	select {
	case err := <-awaited:
		t.Fatalf("no client has come: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	cancel()
	require.NoError(t, <-awaited, "the end of ctx")
	for range 200 { // the poller of the runtime may have seen a client before Await waits for one
		_ = dial(t, path)
		within, stop := context.WithTimeout(t.Context(), 10*time.Second)
		require.NoError(t, unixsock.Await(within, ln))
		require.NoError(t, within.Err(), "the client has been there before")
		stop()
		conn, err := ln.Accept()
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}
