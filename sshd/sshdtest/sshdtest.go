// Package sshdtest starts SSH servers for tests: on loopback, with new keys, stopped when the test ends.
package sshdtest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/sshd"
)

// A Server is a running sshd.Server.
type Server struct {
	*sshd.Server
	Addr net.Addr      // where it listens
	Host ssh.PublicKey // its host key
	User ssh.Signer    // a key that may log in
	Log  *Log          // what it has logged
}

// Start starts a server with cfg on a free port of 127.0.0.1. It adds a new user key to Authorized and sets what is
// missing in cfg: a new host key, a logger that writes to Log, a Grace of 100 milliseconds. It calls prepare before the
// server serves. When the test ends, it shuts the server down, and the test fails if something is left behind.
func Start(tb testing.TB, cfg sshd.Config, prepare ...func(*sshd.Server)) *Server {
	tb.Helper()
	s := &Server{User: Key(tb), Log: &Log{}}
	if cfg.HostKey == nil {
		cfg.HostKey = Key(tb)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(s.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if cfg.Grace == 0 {
		cfg.Grace = 100 * time.Millisecond
	}
	s.Host = cfg.HostKey.PublicKey()
	cfg.Authorized = append(cfg.Authorized[:len(cfg.Authorized):len(cfg.Authorized)], s.User.PublicKey())
	srv, err := sshd.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range prepare {
		f(srv)
	}
	s.Server = srv
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s.Addr = ln.Addr()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			tb.Errorf("shutting the server down: %v\n%s", err, s.Log)
		}
		if err := <-served; !errors.Is(err, sshd.ErrServerClosed) {
			tb.Errorf("serving: %v", err)
		}
		if tb.Failed() {
			tb.Logf("log of the server:\n%s", s.Log)
		}
	})
	return s
}

// ClientConfig returns what a client needs to log in and to verify the server.
func (s *Server) ClientConfig() *ssh.ClientConfig {
	return &ssh.ClientConfig{
		User:            "root",
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(s.User)},
		HostKeyCallback: ssh.FixedHostKey(s.Host),
		Timeout:         20 * time.Second,
	}
}

// Dial returns a new connection that has logged in. It is closed when the test ends.
func (s *Server) Dial(tb testing.TB) *ssh.Client {
	tb.Helper()
	client, err := ssh.Dial("tcp", s.Addr.String(), s.ClientConfig())
	if err != nil {
		tb.Fatalf("logging in: %v\n%s", err, s.Log)
	}
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// Key returns a new ed25519 key.
func Key(tb testing.TB) ssh.Signer {
	tb.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	signer, err := ssh.NewSignerFromSigner(private)
	if err != nil {
		tb.Fatal(err)
	}
	return signer
}

// Log collects lines. It can be used by several goroutines.
type Log struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wrote chan struct{}
}

// Write appends p.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wrote != nil {
		close(l.wrote)
		l.wrote = nil
	}
	return l.text.Write(p)
}

// String returns everything written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Wait returns the first line that contains all words, waiting for it.
func (l *Log) Wait(tb testing.TB, words ...string) string {
	tb.Helper()
	return l.WaitN(tb, 1, words...)[0]
}

// WaitN returns all lines that contain all words, once there are n or more. A server logs before its client can know,
// but a log that comes through a pipe is read later.
func (l *Log) WaitN(tb testing.TB, n int, words ...string) []string {
	tb.Helper()
	timeout := time.After(time.Minute) // enough even on a busy machine
	for {
		l.mu.Lock()
		text := l.text.String()
		if l.wrote == nil {
			l.wrote = make(chan struct{})
		}
		wrote := l.wrote
		l.mu.Unlock()
		var found []string
		for line := range strings.Lines(text) {
			lacks := func(word string) bool { return !strings.Contains(line, word) }
			if strings.HasSuffix(line, "\n") && !slices.ContainsFunc(words, lacks) { // the last line may be incomplete
				found = append(found, strings.TrimSuffix(line, "\n"))
			}
		}
		if len(found) >= n {
			return found
		}
		select {
		case <-wrote:
		case <-timeout:
			tb.Fatalf("%d of %d log lines with %q in:\n%s", len(found), n, words, l)
		}
	}
}
