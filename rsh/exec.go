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
)

// request is a command to run and where its input and output go.
type request struct {
	Command   string // given to the peer's shell as it is; "" = its login shell
	Subsystem bool   // Command is the name of a subsystem

	User    string   // login name that has to be one of the peer's own user, as which everything runs; "" = any
	Environ []string // "name=value" for the command, as far as the peer admits the names

	Terminal *terminal // for the command, whose output is then all on Stdout; nil = none

	Stdin          io.Reader         // nil = empty. A Read of it may be left unfinished when the command has ended
	Stdout, Stderr io.Writer         // nil = discard. No Write to them goes on after the command
	Signals        <-chan os.Signal  // passed on to the command while it runs; nil = none
	Resize         <-chan windowSize // of the terminal; nil = never

	person string // that asks, for the peer's log; "" = the job itself
}

// Status is how a command ended.
type Status struct {
	Code   int            // 0 to 255, as a shell shows it: 128+n if signal n ended it
	Signal syscall.Signal // that ended it; 0 = none
}

// maxCommand is the longest command that fits into one packet of x/crypto/ssh (256 KiB) with what is around it.
const maxCommand = 250 << 10

// maxEnviron is twice what sshd takes for a command.
const maxEnviron = 128 << 10

// checkCommand finds out now what would fail after the start: Linux takes no argument of 32 pages or more, of which the last byte
// is a NUL, and the command is one of the peer's shell (MAX_ARG_STRLEN, include/uapi/linux/binfmts.h).
func checkCommand(command string) error {
	most := min(maxCommand, 32*os.Getpagesize()-1)
	if len(command) > most {
		return fmt.Errorf("the command has %d bytes, and a shell can be given %d: put it into a file", len(command), most)
	}
	return nil
}

// exec runs a command in a session, which it closes, and waits for its end, when all of its output was written. started
// is called once the peer has begun. The environment of the command is the peer's own. When ctx ends the channel is
// closed, on which the peer ends the command, and exec returns without waiting for that. It never waits for Stdin. If a
// Write to Stdout fails, the command is sent SIGPIPE, as in a local pipe. Every error is a *DialError; a command that was
// started and whose status never came is one of StageSession.
func (p *Pool) exec(ctx context.Context, t Target, on *opened, r request, started func()) (Status, error) {
	defer on.release()
	ch, reqs, l := on.ch, on.reqs, on.link
	s := &session{ch: ch, out: gate{w: r.Stdout}, err: gate{w: r.Stderr}, over: make(chan struct{})}
	defer s.out.shut()
	defer s.err.shut()

	// Everything that can wait for the peer is in goroutines, which end with the channel or with the connection.
	var copying sync.WaitGroup
	copying.Add(2)
	accepted, ended := make(chan error, 1), make(chan struct{})
	ok := p.start(func() { s.requests(reqs) }) &&
		p.start(func() { accepted <- s.begin(r) }) &&
		p.start(func() { defer copying.Done(); s.copyOut(&s.out, ch) }) &&
		p.start(func() { defer copying.Done(); s.copyOut(&s.err, ch.Stderr()) }) &&
		p.start(func() { <-s.over; copying.Wait(); close(ended) })
	if !ok {
		_ = ch.Close()
		return Status{}, &DialError{t, stageChannel, errClosed}
	}
	gone := func(stage string) (Status, error) {
		p.start(func() { _ = ch.Close() })
		return Status{}, &DialError{t, stage, context.Cause(ctx)}
	}

	select {
	case err := <-accepted:
		if err != nil {
			p.start(func() { _ = ch.Close() })
			return Status{}, &DialError{t, stageChannel, err}
		}
	case <-ctx.Done():
		return gone(stageChannel)
	}
	started()
	go s.copyIn(r.Stdin) // waits for r.Stdin, so nobody waits for it
	p.start(func() { s.notices(r.Signals, r.Resize) })

	select {
	case <-ended:
	case <-ctx.Done():
		return gone(StageSession)
	}
	p.start(func() { _ = ch.Close() }) // answers the peer's close; nobody has to wait until that is sent
	if s.status == nil {
		return Status{}, &DialError{t, StageSession, p.whyNoStatus(ctx, l)}
	}
	return *s.status, nil
}

// whyNoStatus tells a lost connection, all of whose channels end a moment before it does, from a peer that closed one channel.
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
	status *Status       // valid then; nil = none came
}

// begin asks for the command.
func (s *session) begin(r request) error {
	if err := checkCommand(r.Command); err != nil {
		return err
	}
	var ok bool
	var err error
	if r.person != "" { // package sshd, personRequest
		name := ssh.Marshal(struct{ Name string }{r.person})
		if _, err = s.ch.SendRequest("person@paiinit", false, name); err != nil {
			return err
		}
	}
	if r.User != "" {
		ok, err = s.ch.SendRequest("user@paiinit", true, ssh.Marshal(struct{ Name string }{r.User}))
		if err == nil && !ok {
			return fmt.Errorf("user %q: commands run as the user of that container, which has another name", r.User)
		}
	}
	for _, kv := range r.Environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			// If this fails, the command does.
			_, _ = s.ch.SendRequest("env", false, ssh.Marshal(struct{ Name, Value string }{name, value}))
		}
	}
	if r.Terminal != nil {
		if ok, err = s.ch.SendRequest("pty-req", true, r.Terminal.request()); err == nil && !ok {
			return errors.New("the peer gives no terminal")
		}
	}
	switch payload := ssh.Marshal(struct{ Command string }{r.Command}); {
	case r.Subsystem:
		ok, err = s.ch.SendRequest("subsystem", true, payload)
	case r.Command == "":
		ok, err = s.ch.SendRequest("shell", true, nil)
	default:
		ok, err = s.ch.SendRequest("exec", true, payload)
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
			var msg struct {
				Signal     string
				CoreDumped bool
				Message    string
				Language   string
			}
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

// copyOut copies until the channel has no more, also when nobody wants it, so that the window never closes.
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

// notices passes signals and sizes on until the command has ended.
func (s *session) notices(signals <-chan os.Signal, sizes <-chan windowSize) {
	for {
		select {
		case sig, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			if name := signalName(sig); name != "" {
				_, _ = s.ch.SendRequest("signal", false, ssh.Marshal(struct{ Name string }{name}))
			}
		case size := <-sizes:
			_, _ = s.ch.SendRequest("window-change", false, size.change())
		case <-s.over:
			return
		}
	}
}

// signalName returns the name of a signal that has one in RFC 4254, 6.10, or in OpenSSH (INFO apart), else "".
func signalName(sig os.Signal) string {
	n, ok := sig.(syscall.Signal)
	if !ok {
		return ""
	}
	switch n {
	case unix.SIGABRT, unix.SIGALRM, unix.SIGFPE, unix.SIGHUP, unix.SIGILL, unix.SIGINT, unix.SIGKILL,
		unix.SIGPIPE, unix.SIGQUIT, unix.SIGSEGV, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2:
		return unix.SignalName(n)[len("SIG"):]
	}
	return ""
}

// gate is a writer that can be shut: then no Write is going on and none will reach w.
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

// ReadFrom is for io.Copy, whose buffer is large for what most commands print.
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
