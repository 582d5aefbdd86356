package ready

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var local = netip.AddrFrom4([4]byte{127, 0, 0, 1})

func TestParse(t *testing.T) {
	for text, want := range map[string]Check{
		"tcp:8000":             {kind: "tcp", port: 8000},
		"http:8000":            {kind: "http", port: 8000, path: "/"},
		"http:1/health?a=b:c/": {kind: "http", port: 1, path: "/health?a=b:c/"},
		"file:/run/up":         {kind: "file", path: "/run/up"},
		"file:up":              {kind: "file", path: "/srv/up"},
		"file:/a:b":            {kind: "file", path: "/a:b"},
	} {
		c, err := Parse(text, "/srv")
		require.NoError(t, err, text)
		require.Equal(t, want, c)
	}
	for text, says := range map[string]string{
		"":             "want tcp:PORT, http:PORT/PATH or file:PATH",
		"8000":         "want tcp:PORT, http:PORT/PATH or file:PATH",
		"https:1/":     "want tcp:PORT, http:PORT/PATH or file:PATH",
		"tcp":          `"" is not a port from 1 to 65535`,
		"tcp:0":        `"0" is not a port from 1 to 65535`,
		"tcp:65536":    `"65536" is not a port from 1 to 65535`,
		"tcp:host:1":   `"host:1" is not a port from 1 to 65535`,
		"tcp:1/health": `"1/health" is not a port from 1 to 65535`,
		"http:/health": `"" is not a port from 1 to 65535`,
		"http:1/a b":   "a blank or control character must be percent-encoded in the path",
		"http:1/\r\nX": "a blank or control character must be percent-encoded in the path",
		"file:":        "the name of the file is missing: want file:PATH",
	} {
		_, err := Parse(text, "/srv")
		require.EqualError(t, err, says, text)
	}
}

// awaited starts to wait for a server, and returns the reasons as they come and the result.
func awaited(t *testing.T, s *Server) (reasons <-chan string, result <-chan error, cancel context.CancelCauseFunc) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	said, done := make(chan string), make(chan error, 1)
	go func() {
		done <- s.Await(ctx, func(why string) {
			select {
			case said <- why:
			case <-ctx.Done():
			}
		})
		close(said)
	}()
	return said, done, cancel
}

// until receives reasons until one is want.
func until(t *testing.T, reasons <-chan string, want string) {
	t.Helper()
	for why := range reasons {
		if why == want {
			return
		}
	}
	require.Fail(t, "the reason did not come", want)
}

func drain(reasons <-chan string) {
	for range reasons { //nolint:revive // until it is closed
	}
}

func TestTCP(t *testing.T) {
	// A server that comes late, on the loopback address only.
	hold, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := hold.Addr().(*net.TCPAddr).AddrPort()
	require.NoError(t, hold.Close())
	c, err := Parse(fmt.Sprintf("tcp:%d", addr.Port()), "")
	require.NoError(t, err)
	reasons, result, cancel := awaited(t, c.Watch(netip.MustParseAddr("127.0.0.2")))
	defer cancel(nil)
	until(t, reasons, fmt.Sprintf("127.0.0.2:%d: connection refused", addr.Port()))
	server, err := net.Listen("tcp", addr.String())
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	drain(reasons)
	require.NoError(t, <-result)
}

func TestHTTP(t *testing.T) {
	var status atomic.Int64
	status.Store(503)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.RequestURI != "/health?deep=1" || r.Host == "" {
			status.Store(400)
		}
		w.WriteHeader(int(status.Load()))
	}))
	defer server.Close()
	at := server.Listener.Addr().String()
	_, port, _ := strings.Cut(at, ":")
	c, err := Parse("http:"+port+"/health?deep=1", "")
	require.NoError(t, err)
	reasons, result, cancel := awaited(t, c.Watch(local))
	defer cancel(nil)
	until(t, reasons, at+": GET /health?deep=1 is answered with status 503")
	status.Store(204)
	drain(reasons)
	require.NoError(t, <-result)
}

func TestAnswersThatAreNotHTTP(t *testing.T) {
	for answer, says := range map[string]string{
		"":                       "closed without an answer",
		"SSH-2.0-x\r\n":          "the answer is not HTTP",
		"HTTP/1.1 abc\r\n":       "the answer is not HTTP",
		"HTTP/1.1 20\r\n":        "the answer is not HTTP",
		strings.Repeat("x", 1e6): "the answer is not HTTP",
		"HTTP/1.0 200\r\n":       "",
		"HTTP/1.1 302 Found\r\n": "",
		"HTTP/1.1 200 OK":        "", // it ends there
		"HTTP/1.1 404 No\r\n\r":  "GET / is answered with status 404",
	} {
		server, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		served := make(chan struct{})
		go func() {
			defer close(served)
			for {
				conn, err := server.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, answer)
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
		}()
		at := server.Addr().(*net.TCPAddr).AddrPort()
		err = Check{kind: "http", path: "/", port: at.Port()}.ask(t.Context(), at)
		if says == "" {
			require.NoError(t, err, answer)
		} else {
			require.EqualError(t, err, at.String()+": "+says)
		}
		require.NoError(t, server.Close())
		<-served
	}
}

// A server that accepts and does not answer is not ready, and delays nothing when the wait ends.
func TestSilentServer(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	at := server.Addr().(*net.TCPAddr).AddrPort()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := server.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Read(make([]byte, 1)) // the request is there
		cancel()
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}()
	err = Check{kind: "http", path: "/", port: at.Port()}.ask(ctx, at)
	require.EqualError(t, err, at.String()+": no answer to GET /")
	<-served

	_, result, stop := awaited(t, Check{kind: "http", path: "/", port: at.Port()}.Watch(local))
	over := errors.New("over")
	stop(over)
	require.ErrorIs(t, <-result, over)
}

// A file that an earlier start has left does not count until it changes.
func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "up")
	c, err := Parse("file:"+name, "")
	require.NoError(t, err)
	reasons, result, cancel := awaited(t, c.Watch(local))
	defer cancel(nil)
	until(t, reasons, "no such file")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	drain(reasons)
	require.NoError(t, <-result)

	reasons, result, cancel = awaited(t, c.Watch(local))
	defer cancel(nil)
	until(t, reasons, "the file was there before the start, and has not changed")
	require.NoError(t, os.WriteFile(name, []byte("2"), 0o600))
	drain(reasons)
	require.NoError(t, <-result)
}

func FuzzReadStatus(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\n")
	f.Fuzz(func(t *testing.T, answer string) {
		status, err := readStatus(strings.NewReader(answer))
		if err == nil && (status < -99 || status > 999) {
			t.Error(status)
		}
	})
}
