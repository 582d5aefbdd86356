// Package probe answers the probes of a scheduler, the scrapes of Prometheus, and a browser on the same machine, over
// HTTP/1. It serves four paths by GET and HEAD, and accepts nothing: the port is open to strangers.
package probe

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Job is what the answers tell about.
type Job struct {
	// Ready returns on one line why the job is not ready; "" = it is ready.
	Ready func(context.Context) string
	// Metrics returns the numbers of now; Metrics.Ready is set from Ready.
	Metrics func() Metrics
	// Page writes a page in HTML, which may show what strangers must not read.
	Page func(context.Context, io.Writer) error
}

// Answers are used again for this long, so that probes cost little, however many come.
const (
	fresh     = 100 * time.Millisecond
	freshPage = time.Second
)

// The paths.
const (
	pathLive    = "/livez"
	pathReady   = "/readyz"
	pathMetrics = "/metrics"
	pathPage    = "/"
)

// Handler returns what answers requests.
func (j Job) Handler() http.Handler {
	ready := keep(fresh, j.Ready)
	return &answers{
		ready: ready,
		metrics: keep(fresh, func(ctx context.Context) string {
			m := j.Metrics()
			m.Ready = ready.now(ctx) == ""
			return m.text()
		}),
		page: keep(freshPage, func(ctx context.Context) []byte {
			var b bytes.Buffer
			if j.Page(ctx, &b) != nil {
				return nil
			}
			return b.Bytes()
		}),
	}
}

// answers are the answers that requests share.
type answers struct {
	ready, metrics *kept[string]
	page           *kept[[]byte] // nil = it cannot be written
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	known := slices.Contains([]string{pathLive, pathReady, pathMetrics, pathPage}, r.URL.Path)
	switch {
	case r.ContentLength != 0:
		say(w, http.StatusBadRequest, "a request with a body is not accepted")
	case !known, r.URL.Path == pathPage && !isLoopback(r.RemoteAddr):
		say(w, http.StatusNotFound, "not found")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		say(w, http.StatusMethodNotAllowed, "only GET and HEAD are answered")
	case r.URL.Path == pathLive:
		say(w, http.StatusOK, "ok")
	case r.URL.Path == pathReady:
		if why := a.ready.now(r.Context()); why != "" {
			say(w, http.StatusServiceUnavailable, why)
			return
		}
		say(w, http.StatusOK, "ok")
	case r.URL.Path == pathMetrics:
		const format = "text/plain; version=0.0.4; charset=utf-8"
		answer(w, http.StatusOK, format, []byte(a.metrics.now(r.Context())))
	case !isLocalhost(r.Host):
		say(w, http.StatusForbidden, "the page is shown at http://localhost only")
	default:
		a.show(w, r)
	}
}

// show answers with the page. No other site can frame or embed it.
func (a *answers) show(w http.ResponseWriter, r *http.Request) {
	page := a.page.now(r.Context())
	if page == nil {
		say(w, http.StatusInternalServerError, "the page cannot be written")
		return
	}
	w.Header().Set("Content-Security-Policy",
		"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox")
	w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
	answer(w, http.StatusOK, "text/html; charset=utf-8", page)
}

func say(w http.ResponseWriter, status int, line string) {
	answer(w, status, "text/plain; charset=utf-8", []byte(line+"\n"))
}

// answer sends an answer; the server itself leaves out the body of one to HEAD.
func answer(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // it fails if the client is gone
}

// isLoopback reports whether a request comes from this machine or pod, as those of kubectl port-forward do.
func isLoopback(remote string) bool {
	from, err := netip.ParseAddrPort(remote)
	return err == nil && from.Addr().Unmap().IsLoopback()
}

// isLocalhost reports whether a browser has asked for this machine. A site whose name was made to resolve to 127.0.0.1
// has its own name here (DNS rebinding).
func isLocalhost(host string) bool {
	name, port := host, ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		name, port = host[:i], host[i+1:]
		if port == "" {
			return false
		}
	}
	switch strings.ToLower(name) {
	case "localhost", "127.0.0.1", "[::1]":
		return strings.Trim(port, "0123456789") == ""
	}
	return false
}

// kept is a value that is computed again when it is older than fresh, for one request at a time.
type kept[T any] struct {
	fresh time.Duration
	get   func(context.Context) T
	turn  chan struct{} // holds one element while a request looks at the fields below

	at    time.Time // zero = never
	value T
}

func keep[T any](fresh time.Duration, get func(context.Context) T) *kept[T] {
	return &kept[T]{fresh: fresh, get: get, turn: make(chan struct{}, 1)}
}

func (k *kept[T]) now(ctx context.Context) T {
	k.turn <- struct{}{}
	defer func() { <-k.turn }()
	if k.at.IsZero() || time.Since(k.at) >= k.fresh {
		k.value = k.get(context.WithoutCancel(ctx)) // the next request gets it, too
		k.at = time.Now()
	}
	return k.value
}
