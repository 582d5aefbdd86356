// Package ready finds out whether the server that a command starts can be used.
package ready

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Check says when a server is ready: its port accepts a connection (tcp:8000), it answers a request with a status from
// 200 to 399 (http:8000/health), or it has written a file (file:/run/up).
type Check struct {
	kind, path string
	port       uint16
}

// Parse reads a check, as the user writes it. A relative name of a file begins in dir.
func Parse(text, dir string) (Check, error) {
	kind, rest, _ := strings.Cut(text, ":")
	c := Check{kind: kind}
	place := rest
	switch kind {
	case "file":
		c.path = rest
		if !strings.HasPrefix(rest, "/") {
			c.path = dir + "/" + rest
		}
		if rest == "" {
			return Check{}, errors.New("the name of the file is missing: want file:PATH")
		}
		return c, nil
	case "http":
		place, c.path, _ = strings.Cut(rest, "/")
		c.path = "/" + c.path
		if strings.ContainsFunc(c.path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return Check{}, errors.New("a blank or control character must be percent-encoded in the path")
		}
	case "tcp":
	default:
		return Check{}, errors.New("want tcp:PORT, http:PORT/PATH or file:PATH")
	}
	port, err := strconv.ParseUint(place, 10, 16)
	if err != nil || port == 0 {
		return Check{}, fmt.Errorf("%q is not a port from 1 to 65535", place)
	}
	c.port = uint16(port)
	return c, nil
}

// Server is a server that is watched from before its start.
type Server struct {
	check  Check
	addrs  []netip.Addr
	before fs.FileInfo // of the file; nil = it did not exist
}

// Watch begins to watch a server before it is started. addr is the address by which other hosts reach it.
func (c Check) Watch(addr netip.Addr) *Server {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	s := &Server{check: c, addrs: []netip.Addr{addr, loopback, netip.IPv6Loopback()}}
	if c.kind == "file" {
		s.before, _ = os.Stat(c.path)
	}
	return s
}

// Times of the looks at a server. A model may load for many minutes; a small server is up in milliseconds.
const (
	firstPause = 20 * time.Millisecond // doubled until lastPause
	lastPause  = time.Second
	lookLimit  = 5 * time.Second // for one request
)

// Await returns nil once the server is ready, or the cause of ctx's end. It calls say with each reason why it is not.
func (s *Server) Await(ctx context.Context, say func(why string)) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		why := s.look(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case why == "":
			return nil
		}
		say(why)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// look returns "" if the server is ready, else why not.
func (s *Server) look(ctx context.Context) (why string) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if s.check.kind == "file" {
		missing := make(chan string, 1)
		go func() { missing <- s.awaits(os.Stat(s.check.path)) }() // a stat on a dead file server never returns
		select {
		case why := <-missing:
			return why
		case <-ctx.Done():
			return "the file system does not answer"
		}
	}
	var first error
	for _, addr := range s.addrs {
		err := s.check.ask(ctx, netip.AddrPortFrom(addr, s.check.port))
		if err == nil {
			return ""
		}
		// A server that answers on one address alone says more than the others that refuse.
		if first == nil || errors.Is(first, syscall.ECONNREFUSED) && errors.As(err, new(*answerError)) {
			first = err
		}
	}
	return first.Error()
}

// awaits returns why the file does not count yet, "" if it does. A file of an earlier start must change.
func (s *Server) awaits(now fs.FileInfo, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file"
	case err != nil:
		return err.Error()
	case s.before != nil && os.SameFile(s.before, now) && s.before.Size() == now.Size() &&
		s.before.ModTime().Equal(now.ModTime()):
		return "the file was there before the start, and has not changed"
	}
	return ""
}

// ask returns nil if the server is ready at an address. It speaks HTTP by itself, because the client of net/http would
// make the program much larger.
func (c Check) ask(ctx context.Context, at netip.AddrPort) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		if cause := errors.Unwrap(errors.Unwrap(err)); cause != nil { // without "dial tcp" and the address
			err = cause
		}
		return fmt.Errorf("%v: %w", at, err)
	}
	defer func() { _ = conn.Close() }()
	if c.kind == "tcp" {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %v\r\nUser-Agent: paiinit\r\nAccept: */*\r\n"+
		"Connection: close\r\n\r\n", c.path, at); err != nil {
		return fmt.Errorf("%v: %w", at, err)
	}
	status, err := readStatus(conn)
	switch {
	case ctx.Err() != nil:
		return &answerError{at, "no answer to GET " + c.path}
	case err != nil:
		return &answerError{at, err.Error()}
	case status < 200 || status > 399:
		return &answerError{at, fmt.Sprintf("GET %s is answered with status %d", c.path, status)}
	}
	return nil
}

// answerError says that a server has accepted a connection, and does not answer as a ready one does.
type answerError struct {
	at   netip.AddrPort
	what string
}

func (e *answerError) Error() string { return e.at.String() + ": " + e.what }

// readStatus reads the first line of an answer (RFC 9112, section 4).
func readStatus(r io.Reader) (int, error) {
	line, err := bufio.NewReader(io.LimitReader(r, 1024)).ReadString('\n')
	if err != nil && line == "" {
		return 0, errors.New("closed without an answer")
	}
	version, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if !strings.HasPrefix(version, "HTTP/") || err != nil || len(code) != 3 {
		return 0, errors.New("the answer is not HTTP")
	}
	return status, nil
}
