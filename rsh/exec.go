package rsh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/rfc4254"
)

// request is a command to run and where its input and output go.
type request struct {
	Command   string // the peer's shell gets it as it is; "" = a login shell
	Subsystem bool   // Command is the name of a subsystem

	User    string   // must be a login name of the peer's own user, who runs every command; "" = any
	Environ []string // "name=value" for the command; the peer accepts only some names

	Terminal *terminal // for the command, whose output then all goes to Stdout; nil = none

	Stdin          io.Reader           // nil = empty. A Read may still be pending when the command has ended
	Stdout, Stderr io.Writer           // nil = discard. No Write is in progress after the command
	Signals        <-chan os.Signal    // for the command while it runs; nil = none
	Resize         <-chan rfc4254.Size // new sizes of the terminal; nil = never

	person string // who asks, for the peer's log; "" = the job itself
}

// Status is how a command ended.
type Status struct {
	Code   int            // 0 to 255, as a shell shows it: 128+n if signal n ended it
	Signal syscall.Signal // the signal that ended it; 0 = none
}

const (
	maxCommand = 250 << 10 // fits, with its framing, into one packet of x/crypto/ssh (256 KiB)
	maxEnviron = 128 << 10 // twice sshd's limit for the environment of a command
)

// exec runs a command in a session, which it closes, and waits until the command has ended and all of its output was
// written. It calls started once the peer has begun. When ctx ends, it closes the channel, on which the peer ends the
// command, and returns without waiting for that. It never waits for Stdin. If a Write to Stdout fails, the command gets
// SIGPIPE, as in a local pipe. Every error is a *DialError: of StageSession if the command was started.
func (p *Pool) exec(ctx context.Context, t Target, ch *channel, r request, started func()) (Status, error) {
	defer p.leave(ch.link)
	s := &session{ch: ch, out: gate{w: r.Stdout}, err: gate{w: r.Stderr}, over: make(chan struct{})}
	defer s.out.shut()
	defer s.err.shut()

	// Every call that can wait for the peer runs in a goroutine, which ends with the channel or with the connection.
	var copying sync.WaitGroup
	copying.Add(2)
	accepted, ended := make(chan error, 1), make(chan struct{})
	ok := p.start(func() { s.requests(ch.reqs) }) &&
		p.start(func() { accepted <- s.begin(r) }) &&
		p.start(func() { defer copying.Done(); s.copyOut(&s.out, ch) }) &&
		p.start(func() { defer copying.Done(); s.copyOut(&s.err, ch.Stderr()) }) &&
		p.start(func() { <-s.over; copying.Wait(); close(ended) })
	if !ok {
		_ = ch.Close()
		return Status{}, &DialError{t, stageChannel, errClosed}
	}
	defer p.start(func() { _ = ch.Close() }) // the caller need not wait until the close is sent

	select {
	case err := <-accepted:
		if err != nil {
			return Status{}, &DialError{t, stageChannel, err}
		}
	case <-ctx.Done():
		return Status{}, &DialError{t, stageChannel, context.Cause(ctx)}
	}
	started()
	go s.copyIn(r.Stdin) // it may block in r.Stdin for ever, so Close does not wait for it
	p.start(func() { s.notices(r.Signals, r.Resize) })

	select {
	case <-ended:
	case <-ctx.Done():
		return Status{}, &DialError{t, StageSession, context.Cause(ctx)}
	}
	if s.status == nil {
		return Status{}, &DialError{t, StageSession, p.whyNoStatus(ctx, ch.link)}
	}
	return *s.status, nil
}

// whyNoStatus finds out whether the peer closed one channel or the connection was lost. The channels of a lost
// connection end a moment before the connection itself.
func (p *Pool) whyNoStatus(ctx context.Context, l *link) error {
	answer := make(chan error, 1)
	if !p.start(func() {
		_, _, err := l.conn.SendRequest("keepalive@openssh.com", true, nil)
		answer <- err
	}) {
		return errClosed
	}
	select {
	case err := <-answer:
		if err == nil {
			return errors.New("the peer ended the session without a status")
		}
		return fmt.Errorf("the connection was lost while the command ran: %w", l.conn.Wait())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// session is one command on one channel.
type session struct {
	ch       ssh.Channel
	out, err gate

	over   chan struct{} // closed when the peer has closed the channel
	status *Status       // valid once over is closed; nil = none was received
}

func (s *session) begin(r request) error {
	// The command becomes one argument of the peer's shell, and Linux limits an argument to 32 pages, including the
	// final NUL (MAX_ARG_STRLEN, include/uapi/linux/binfmts.h).
	if n, most := len(r.Command), min(maxCommand, 32*os.Getpagesize()-1); n > most {
		return fmt.Errorf("the command has %d bytes, but a shell takes at most %d: put it into a file", n, most)
	}
	var ok bool
	var err error
	text := func(s string) []byte { return ssh.Marshal(struct{ Text string }{s}) }
	if r.person != "" { // package sshd, personRequest
		if _, err = s.ch.SendRequest("person@paiinit", false, text(r.person)); err != nil {
			return err
		}
	}
	if r.User != "" {
		ok, err = s.ch.SendRequest("user@paiinit", true, text(r.User))
		if err == nil && !ok {
			return fmt.Errorf("user %q: commands run as that container's user, who has another name", r.User)
		}
	}
	for _, kv := range r.Environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			// If this fails, starting the command fails as well and reports it.
			_, _ = s.ch.SendRequest("env", false, ssh.Marshal(struct{ Name, Value string }{name, value}))
		}
	}
	if t := r.Terminal; t != nil {
		pty := ssh.Marshal(rfc4254.PTYRequest{
			Term: t.Name, Columns: t.Size.Columns, Rows: t.Size.Rows, Width: t.Size.Width, Height: t.Size.Height,
			Modes: string(t.Modes),
		})
		if ok, err = s.ch.SendRequest("pty-req", true, pty); err == nil && !ok {
			return errors.New("the peer refused a terminal")
		}
	}
	switch {
	case r.Subsystem:
		ok, err = s.ch.SendRequest("subsystem", true, text(r.Command))
	case r.Command == "":
		ok, err = s.ch.SendRequest("shell", true, nil)
	default:
		ok, err = s.ch.SendRequest("exec", true, text(r.Command))
	}
	if err == nil && !ok {
		err = fmt.Errorf("the peer refused to run %s", brief(r.Command))
	}
	return err
}

// requests receives the status (RFC 4254, 6.10) and notices the end of the channel.
func (s *session) requests(reqs <-chan *ssh.Request) {
	defer close(s.over)
	for req := range reqs {
		switch req.Type {
		case "exit-status":
			var msg struct{ Status uint32 }
			if ssh.Unmarshal(req.Payload, &msg) == nil {
				s.status = &Status{Code: int(min(msg.Status, 255))}
			}
		case "exit-signal":
			var msg rfc4254.ExitSignal
			if ssh.Unmarshal(req.Payload, &msg) == nil {
				n := unix.SignalNum("SIG" + msg.Signal)
				s.status = &Status{Code: 128 + int(n), Signal: n} // n is 0 for a signal that Linux does not have
			}
		}
		if req.WantReply {
			_ = req.Reply(false, nil)
		}
	}
}

// copyOut copies until the channel ends. It keeps reading when the writer has failed, so that the window never closes.
func (s *session) copyOut(to *gate, from io.Reader) {
	if _, err := io.Copy(to, from); err == nil {
		return
	}
	if to == &s.out && to.open() {
		_, _ = s.ch.SendRequest("signal", false, ssh.Marshal(struct{ Name string }{"PIPE"}))
	}
	_, _ = io.Copy(io.Discard, from)
}

func (s *session) copyIn(from io.Reader) {
	if from != nil {
		_, _ = io.Copy(s.ch, from)
	}
	_ = s.ch.CloseWrite()
}

// notices forwards signals and sizes until the command has ended.
func (s *session) notices(signals <-chan os.Signal, sizes <-chan rfc4254.Size) {
	for {
		select {
		case sig := <-signals:
			n, _ := sig.(syscall.Signal)
			if name := rfc4254.SignalName(n); name != "" {
				_, _ = s.ch.SendRequest("signal", false, ssh.Marshal(struct{ Name string }{name}))
			}
		case size := <-sizes:
			_, _ = s.ch.SendRequest("window-change", false, ssh.Marshal(size))
		case <-s.over:
			return
		}
	}
}

// gate is a writer that can be shut: after that no Write is in progress, and none will reach w.
type gate struct {
	mu     sync.Mutex
	w      io.Writer // nil = discard
	closed bool
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return 0, io.ErrClosedPipe
	case g.w == nil:
		return len(p), nil
	}
	return g.w.Write(p)
}

// ReadFrom is for io.Copy, whose own buffer is larger than the output of most commands.
func (g *gate) ReadFrom(r io.Reader) (written int64, err error) {
	buf := make([]byte, 4<<10)
	for {
		n, readErr := r.Read(buf)
		if n > 0 {
			w, err := g.Write(buf[:n])
			written += int64(w)
			if err != nil {
				return written, err
			}
			if n == len(buf) && n < 32<<10 {
				buf = make([]byte, 32<<10)
			}
		}
		switch {
		case errors.Is(readErr, io.EOF):
			return written, nil
		case readErr != nil:
			return written, readErr
		}
	}
}

func (g *gate) shut() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

func (g *gate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.closed
}
