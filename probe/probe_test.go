package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite testdata/metrics")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secretPage = "<p>stderr of the job</p>"

// jobWith returns a job that is not ready for this reason.
func jobWith(why string) Job {
	return Job{
		Ready:   func(context.Context) string { return why },
		Metrics: func() Metrics { return Metrics{Version: "1"} },
		Page: func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, secretPage)
			return err
		},
	}
}

// TestAnswers: the status of each path, method and client; all other requests are refused.
func TestAnswers(t *testing.T) {
	const (
		kubelet = "10.0.0.9:40000"
		forward = "127.0.0.1:40000"
		why     = "gathering: waiting for ranks: 1 of 2 present; missing: worker-1 (never heard)"
	)
	for name, tt := range map[string]struct {
		method, target, body, from, host string
		why                              string
		status                           int
		says                             string
	}{
		"live":               {"GET", "/livez", "", kubelet, "10.0.0.1:12345", why, 200, "ok\n"},
		"live, HEAD":         {"HEAD", "/livez", "", kubelet, "10.0.0.1:12345", why, 200, "ok\n"},
		"ready":              {"GET", "/readyz", "", kubelet, "10.0.0.1:12345", "", 200, "ok\n"},
		"not ready":          {"GET", "/readyz", "", kubelet, "10.0.0.1:12345", why, 503, why + "\n"},
		"not ready, HEAD":    {"HEAD", "/readyz", "", kubelet, "10.0.0.1:12345", why, 503, why + "\n"},
		"a query":            {"GET", "/readyz?verbose=1", "", kubelet, "x", "", 200, "ok\n"},
		"metrics":            {"GET", "/metrics", "", kubelet, "x", why, 200, "paiinit_ready 0\n"},
		"metrics, ready":     {"GET", "/metrics", "", kubelet, "x", "", 200, "paiinit_ready 1\n"},
		"the page":           {"GET", "/", "", forward, "localhost:8080", why, 200, secretPage},
		"the page, IPv6":     {"GET", "/", "", "[::1]:40000", "[::1]:8080", why, 200, secretPage},
		"the page, mapped":   {"GET", "/", "", "[::ffff:127.0.0.1]:4", "127.0.0.1", why, 200, secretPage},
		"the page, rebound":  {"GET", "/", "", forward, "evil.example:8080", why, 403, "http://localhost only"},
		"the page, no host":  {"GET", "/", "", forward, "", why, 403, "http://localhost only"},
		"the page, absolute": {"GET", "http://evil.example/", "", forward, "evil.example", why, 403, "localhost only"},
		"the page, outside":  {"GET", "/", "", kubelet, "localhost:8080", why, 404, "not found"},
		"the page, no peer":  {"GET", "/", "", "pipe", "localhost:8080", why, 404, "not found"},
		"another path":       {"GET", "/healthz", "", kubelet, "x", "", 404, "not found"},
		"a longer path":      {"GET", "/livez/", "", kubelet, "x", "", 404, "not found"},
		"a crooked path":     {"GET", "//livez", "", kubelet, "x", "", 404, "not found"},
		"a path with dots":   {"GET", "/x/../livez", "", kubelet, "x", "", 404, "not found"},
		"POST":               {"POST", "/livez", "", kubelet, "x", "", 405, "only GET and HEAD"},
		"DELETE":             {"DELETE", "/metrics", "", kubelet, "x", "", 405, "only GET and HEAD"},
		"POST to the page":   {"POST", "/", "", kubelet, "x", "", 404, "not found"},
		"OPTIONS":            {"OPTIONS", "*", "", kubelet, "x", "", 404, "not found"},
		"a body":             {"POST", "/livez", "x", kubelet, "x", "", 400, "a body is not accepted"},
		"a body of GET":      {"GET", "/livez", "x", kubelet, "x", "", 400, "a body is not accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(tt.method, tt.target, strings.NewReader(tt.body))
			r.RemoteAddr, r.Host = tt.from, tt.host
			w := httptest.NewRecorder()
			jobWith(tt.why).Handler().ServeHTTP(w, r)
			require.Equal(t, tt.status, w.Code)
			require.Contains(t, w.Body.String(), tt.says)
			require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
			if tt.says != secretPage {
				require.NotContains(t, w.Body.String(), secretPage)
			} else {
				require.Contains(t, w.Header().Get("Content-Security-Policy"), "frame-ancestors 'none'")
			}
			if tt.status == 405 {
				require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
			}
		})
	}
}

func TestThePageCannotBeWritten(t *testing.T) {
	j := jobWith("")
	j.Page = func(context.Context, io.Writer) error { return errors.New("it failed") }
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
	w := httptest.NewRecorder()
	j.Handler().ServeHTTP(w, r)
	require.Equal(t, 500, w.Code)
}

func TestLocalhost(t *testing.T) {
	for host, is := range map[string]bool{
		"localhost": true, "localhost:8080": true, "LocalHost:1": true, "127.0.0.1": true, "127.0.0.1:65535": true,
		"[::1]": true, "[::1]:8080": true,
		"": false, ":8080": false, "localhost:": false, "localhost:http": false, "localhost:80:80": false,
		"localhost.": false, "localhost.evil.example": false, "evil.example": false, "127.0.0.1.evil.example": false,
		"127.0.0.2": false, "::1": false, "[::1": false, "[::1]x": false, "[::2]:80": false, "0.0.0.0:80": false,
		"127.1": false, "2130706433": false, "user@localhost": false, "localhost:8080@evil.example": false,
		"xlocalhost": false, "[::ffff:127.0.0.1]:80": false, "[::1%25lo]:80": false,
	} {
		require.Equal(t, is, isLocalhost(host), "%q", host)
	}
}

func TestMetricsGolden(t *testing.T) {
	status := 137
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC)
	phases := []string{"gathering", "prepared", "running", "ended"}
	var out strings.Builder
	for _, m := range []Metrics{
		{
			Version: "v1.2.3", Started: at, Phase: "gathering", Phases: phases, PhaseBegan: at,
			Steps: map[string]float64{"identify": 0.0125, "listen": 0.25},
			Ranks: map[string]int{"present": 3, "missing": 1, "lost": 0, "spare": 0},
		},
		{
			Version: "a\"b\\c\nd", Started: at, Phase: "ended", Phases: phases, PhaseBegan: at.Add(time.Hour),
			Ready: true, Restarts: 2, Sessions: 4, ExitStatus: &status,
		},
	} {
		out.WriteString(m.text() + "\n")
	}
	const file = "testdata/metrics"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
}

// TestProbesShareAnswers: the job is asked ten times a second at most, by one request at a time.
func TestProbesShareAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		j := jobWith("")
		j.Ready = func(ctx context.Context) string {
			require.NoError(t, ctx.Err(), "the request that asks may be gone")
			asked++
			time.Sleep(10 * time.Millisecond)
			return "because"
		}
		h := j.Handler()
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				r := httptest.NewRequest("GET", "/readyz", nil)
				ctx, cancel := context.WithCancel(r.Context())
				cancel()
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r.WithContext(ctx))
				require.Equal(t, 503, w.Code)
			})
		}
		all.Wait()
		require.LessOrEqual(t, asked, 10)
		require.GreaterOrEqual(t, asked, 9)
	})
}

// pipes is a listener whose connections are pipes.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// fromAddr is a pipe with the address of a client.
type fromAddr struct {
	net.Conn
	addr string
}

func (c fromAddr) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", c.addr)
	if err != nil {
		panic(err)
	}
	return a
}

func (p *pipes) dial(from string) net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- fromAddr{theirs, from}
	return ours
}

// serve runs a server in the background, and returns what ends it.
func serve(t testing.TB, ln net.Listener, j Job) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, j.Handler()) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// TestSlowRequests: a client that sends too slowly, too much or nothing is cut off, and none is kept after its answer.
func TestSlowRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		stop := serve(t, ln, jobWith(""))
		begin := time.Now()
		slow := ln.dial("10.0.0.1:1")
		go func() {
			for _, b := range []byte("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") {
				if _, err := slow.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}()
		got, err := io.ReadAll(slow)
		require.NoError(t, err)
		require.NotContains(t, string(got), "200 OK")
		require.LessOrEqual(t, time.Since(begin), readTimeout+100*time.Millisecond)

		long := ln.dial("10.0.0.1:1")
		go func() {
			_, _ = io.WriteString(long, "GET /livez HTTP/1.1\r\nHost: x\r\nA: "+strings.Repeat("a", 16<<10)+"\r\n\r\n")
		}()
		r, err := http.ReadResponse(bufio.NewReader(long), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, r.StatusCode)
		require.NoError(t, r.Body.Close())
		_ = long.Close()

		keen := ln.dial("10.0.0.1:1")
		go func() {
			const request = "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n"
			_, _ = io.WriteString(keen, request+request)
		}()
		got, err = io.ReadAll(keen)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(got, []byte("HTTP/1.1 200 OK")), string(got))
		require.Contains(t, string(got), "Connection: close")

		head := ln.dial("10.0.0.1:1")
		go func() { _, _ = io.WriteString(head, "HEAD /readyz HTTP/1.0\r\n\r\n") }()
		got, err = io.ReadAll(head)
		require.NoError(t, err)
		require.Regexp(t, `^HTTP/1.0 200 OK\r\n(?s:.*)\r\n\r\n$`, string(got))
		stop()
	})
}

// TestCrowd: silent clients do not keep others out, from their own address or another one.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		stop := serve(t, ln, jobWith(""))
		ask := func(from string) {
			t.Helper()
			c := ln.dial(from)
			go func() { _, _ = io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") }()
			got, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Contains(t, string(got), "200 OK")
		}
		gone := make(chan string, 1000)
		silent := func(from string, n int) {
			for range n {
				c := ln.dial(from)
				go func() {
					_, _ = c.Read(make([]byte, 1))
					gone <- from
				}()
			}
			synctest.Wait()
		}
		silent("10.0.0.1:1", maxOfAddress+2)
		require.Len(t, gone, 2)
		ask("10.0.0.1:2")
		require.Len(t, gone, 3)
		ask("[2001:db8::1]:1")
		silent("10.0.0.6:1", 1) // slow, but the only one of its address
		for _, other := range []string{"10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"} {
			silent(other, maxOfAddress)
		}
		silent("10.0.0.5:1", maxOfAddress/2)
		for range 100 {
			silent("10.0.0.2:1", 1)
			ask("[2001:db8::1]:1")
		}
		for len(gone) > 0 {
			require.NotContains(t, []string{"10.0.0.5:1", "10.0.0.6:1"}, <-gone)
		}
		stop()
	})
}

func TestNetworks(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.0.1:5": "10.0.0.1/32", "[::ffff:10.0.0.1]:5": "10.0.0.1/32",
		"[2001:db8::1:2]:5": "2001:db8::/64", "[fe80::1%lo]:5": "fe80::/64",
	} {
		require.Equal(t, want, network(fromAddr{addr: addr}.RemoteAddr()).String())
	}
	require.False(t, network(&net.UnixAddr{Name: "x"}).IsValid())
}

// FuzzRequest: whatever a stranger sends, the answer is HTTP, and only the requests that are served get 200.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", "HEAD /readyz HTTP/1.0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "POST /livez HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
		"GET http://localhost/ HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "GET /livez HTTP/1.1\n\n",
		"GET /livez HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
		"GET /livez HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"CONNECT x:1 HTTP/1.1\r\n\r\n", "GET\r\n\r\n", "\x16\x03\x01",
	} {
		f.Add([]byte(s))
	}
	ln := newPipes()
	stop := serve(f, ln, jobWith(""))
	f.Cleanup(stop)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := ln.dial("10.0.0.1:1")
		defer c.Close()
		go func() {
			_, _ = c.Write(b)
			_, _ = io.WriteString(c, "\r\n\r\n") // else the server would wait for the end of the request
		}()
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		got, err := io.ReadAll(c)
		require.NoError(t, err)
		if len(got) == 0 {
			return
		}
		require.NotContains(t, string(got), secretPage)
		in := bufio.NewReader(bytes.NewReader(got))
		r, err := http.ReadResponse(in, nil)
		require.NoError(t, err, "%q", got)
		defer r.Body.Close()
		if r.StatusCode == http.StatusOK {
			method, rest, _ := strings.Cut(strings.TrimLeft(string(b), "\r\n"), " ")
			require.Contains(t, []string{"GET", "HEAD"}, method)
			require.Regexp(t, `^\S*/(livez|readyz|metrics)(\?\S*)? HTTP/1\.[01]`, rest)
		}
	})
}
