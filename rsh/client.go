package rsh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/unixsock"
	"github.com/paiinit/paiinit/rsh/frame"
)

// exitTransport is the status of a remote shell that could not run its command, as of ssh(1).
const exitTransport = 255

// parentDied is a status that nobody will see: that of a process that its terminal left.
const parentDied = 128 + int(unix.SIGHUP)

// Caller is a process that stands for a command on another host.
type Caller struct {
	Socket                string   // of the ServeAgent of this container; "" = there is none
	Stdin, Stdout, Stderr *os.File // nil = /dev/null

	// Signals, if not nil, is called just before the command is handed over, and gives the signals that this process gets from then
	// on. WINCH says that its terminal has another size.
	Signals func() <-chan os.Signal

	Term    string   // type of the terminal, as in TERM
	Environ []string // "name=value", from which -o SendEnv chooses

	// Direct, if not nil, makes a pool for this one command when nobody answers at Socket. Run closes it.
	Direct func(context.Context) (*Pool, Agent, error)

	// HandOn, if not nil, is called instead of reporting that the host is not one of the job's, before anything was
	// done with the files. It does not return if another remote shell takes the place of this process.
	HandOn func()

	// Answer, if not nil, is the connection to a ServeAgent that has been given the command already, by somebody who has watched over
	// it until now. Run only says what the answer is.
	Answer io.Reader
}

// Run is the process that a launcher or a person starts as remote shell. It hands the command line and the three files to
// ServeAgent, forwards signals, and returns the status of the command: 0 to 255 as it is, 128+n if signal n ended it. If
// the command could not be run, or its connection was lost, it writes one line to stderr and returns 255. It never waits for
// stdin, and copies nothing itself, except from a terminal: only a process in the foreground may read that.
//
// A command gets a terminal if it was asked for as ssh(1) has it: by -t if stdin is one, by -tt always, and without
// a command if stdin is one. Then every key goes to the other side, and the size follows.
//
// Signals that have a name in RFC 4254 are passed on to the command. The command decides what it makes of TERM, INT, HUP and QUIT; the
// second of these means that the caller does not wait any longer: Run returns 128+n, and the peer ends the command. It does the
// same 2 s after the first one if the agent has not read it by then, because it is stopped; when ctx ends (255); and
// when the process that started it has died, so that no command outlives a killed launcher: it asks the kernel for
// SIGPWR on the death of its parent (prctl(2), PR_SET_PDEATHSIG). The kernel sends it also when only the thread that
// started it ends, so getppid(2) has the last word.
func (c Caller) Run(ctx context.Context, inv Invocation) int {
	status, err := c.run(ctx, inv)
	if err != nil && c.Stderr != nil {
		line := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r < ' ' }), " ")
		_, _ = fmt.Fprintf(c.Stderr, "paiinit rsh: %s: %s\n", inv.Host, line)
	}
	return status
}

func (c Caller) run(ctx context.Context, inv Invocation) (int, error) {
	if inv.Unsupported != "" {
		return exitTransport, fmt.Errorf("%s is not supported: this ssh only runs commands on the hosts of the job",
			inv.Unsupported)
	}
	inv.environ = inv.environment(c.Environ)
	if c.Answer != nil {
		kind, content, err := readFrame(c.Answer)
		if err == nil && kind == frameForeign && c.HandOn != nil {
			c.HandOn()
		}
		if err != nil || kind != frameAgain {
			return result(kind, content, err)
		}
		wait(ctx, againPause)
	}
	if inv.NoStdin {
		c.Stdin = nil
	}
	if c.Signals != nil {
		c.Signals = sync.OnceValue(c.Signals)
	}
	for begin := time.Now(); ; {
		status, err := c.ask(ctx, inv)
		if !errors.Is(err, errNoRoom) || time.Since(begin) > againPatience || ctx.Err() != nil {
			return status, err
		}
		wait(ctx, againPause)
	}
}

// For how long, and how often, a command is asked for again that the agent has no room for.
const (
	againPatience = 10 * time.Second
	againPause    = 50 * time.Millisecond
)

// ask asks for the command once. It fails with errNoRoom if the agent has not taken it.
func (c Caller) ask(ctx context.Context, inv Invocation) (int, error) {
	parent := os.Getppid()
	conn, end, err := c.connect(ctx)
	if err != nil {
		return exitTransport, err
	}
	defer end()
	typed, err := c.terminal(&inv)
	if err != nil {
		return exitTransport, err
	}
	defer typed.close()
	var signals <-chan os.Signal
	if c.Signals != nil {
		signals = c.Signals()
	}
	if err := send(conn, inv, typed.stdin(c.Stdin), c.Stdout, c.Stderr); err != nil {
		// It may have refused us before it read all, and have said why.
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		if kind, content, readErr := readFrame(conn); readErr == nil && (kind == frameError || kind == frameAgain) {
			return result(kind, content, nil)
		}
		return exitTransport, fmt.Errorf("asking the paiinit of this container: %w", err)
	}
	left := typed.start()

	// Only now, while the peer works already.
	parentEvent := make(chan os.Signal, 1)
	signal.Notify(parentEvent, unix.SIGPWR)
	defer signal.Stop(parentEvent)
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGPWR), 0, 0, 0); err != nil {
		return exitTransport, fmt.Errorf("watching the parent process: %w", err)
	}
	if os.Getppid() != parent {
		return parentDied, nil
	}

	type reply struct {
		kind    byte
		content []byte
		err     error
	}
	replied := make(chan reply, 1)
	go func() { // ends with conn
		var r reply
		r.kind, r.content, r.err = readFrame(conn)
		replied <- r
	}()

	ending := syscall.Signal(0) // the first one that asked the command to end
	var unread <-chan time.Time
	for {
		select {
		case r := <-replied:
			return result(r.kind, r.content, r.err)
		case sig := <-signals:
			n, ok := sig.(syscall.Signal)
			if n == unix.SIGWINCH && inv.terminal != nil && typed != nil {
				_ = conn.SetWriteDeadline(time.Now().Add(agentTimeout))
				_ = writeFrame(conn, frameResize, typed.screen.size().bytes())
			}
			if !ok || signalName(n) == "" {
				continue
			}
			switch n {
			case unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT:
				// A person's terminal that has gone, or their session, needs no command any more.
				if ending != 0 || inv.terminal != nil {
					return 128 + int(n), nil
				}
				ending, unread = n, time.After(agentTimeout)
			}
			// If this fails, the reply fails too and says why, or the agent does not read.
			_ = conn.SetWriteDeadline(time.Now().Add(agentTimeout))
			_ = writeFrame(conn, frameSignal, []byte{byte(n)})
		case <-unread:
			if isUnread(conn) {
				return 128 + int(ending), errors.New(
					"the paiinit of this container is stopped or hangs; it ends the command once it goes on")
			}
		case <-left:
			return exitTransport, errors.New("left by ~. at the terminal")
		case <-parentEvent:
			if os.Getppid() != parent {
				return parentDied, nil
			}
		case <-ctx.Done():
			return exitTransport, context.Cause(ctx)
		}
	}
}

// agentTimeout bounds how long the agent may leave unread that the command has to end.
const agentTimeout = frame.AgentTimeout

// isUnread reports whether the agent has not read all that was sent to it (unix_ioctl in net/unix/af_unix.c: for a Unix
// socket, SIOCOUTQ counts what the peer has not received).
func isUnread(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	left := 0
	if err == nil {
		_ = raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	}
	return left > 0
}

func result(kind byte, content []byte, err error) (int, error) {
	switch {
	case errors.Is(err, io.EOF):
		return exitTransport, errors.New("the paiinit of this container ended before the command did")
	case err != nil:
		return exitTransport, fmt.Errorf("waiting for the paiinit of this container: %w", err)
	case kind == frameAgain:
		return exitTransport, errNoRoom
	case kind == frameError, kind == frameForeign:
		return exitTransport, errors.New(string(content))
	case kind == frameExit && len(content) == 1:
		return int(content[0]), nil
	case kind == frameKilled && len(content) == 1:
		return min(128+int(content[0]), 255), nil
	}
	return exitTransport, fmt.Errorf("the paiinit of this container gave an answer that is not understood: %q", kind)
}

// Known asks the ServeAgent at a socket whether a command on a host is its own to run, and not another ssh's.
func Known(ctx context.Context, socket, host, command string) (bool, error) {
	answer, err := question(ctx, socket, frameKnown, []byte(host+"\x00"+command))
	if err == nil && len(answer) != 1 {
		err = fmt.Errorf("asking the paiinit of this container: an answer of %d bytes", len(answer))
	}
	return err == nil && answer[0] != 0, err
}

// question asks the ServeAgent at a socket for what is answered by a frame of the same kind.
func question(ctx context.Context, socket string, kind byte, content []byte) (answer []byte, err error) {
	conn, err := dialAgent(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var got byte
	if err = writeFrame(conn, kind, content); err == nil {
		got, answer, err = readFrame(conn)
	}
	switch {
	case err == nil && got == kind:
		return answer, nil
	case err == nil && got == frameError:
		return nil, errors.New(string(answer))
	case err == nil:
		err = fmt.Errorf("an answer that is not understood: %q", got)
	}
	return nil, fmt.Errorf("asking the paiinit of this container: %w", err)
}

// connect returns a connection to an agent: the one of this container, or one of our own. The caller calls end.
func (c Caller) connect(ctx context.Context) (conn *net.UnixConn, end func(), err error) {
	conn, err = dialAgent(ctx, c.Socket)
	switch {
	case err == nil:
		return conn, func() { _ = conn.Close() }, nil
	case c.Direct == nil || ctx.Err() != nil || errors.As(err, new(otherUserError)):
		return nil, nil, err
	}
	p, agent, directErr := c.Direct(ctx)
	if directErr != nil {
		return nil, nil, fmt.Errorf("%w; and not without it either: %w", err, directErr)
	}
	conn, other, err := unixsock.Pair()
	if err != nil {
		_ = p.Close()
		return nil, nil, err
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		defer func() { _ = other.Close() }()
		p.serveClient(ctx, other, os.Getpid(), agent)
	})
	return conn, func() {
		_ = conn.Close()
		_ = p.Close()
		serving.Wait()
	}, nil
}

// dialAgent connects to the socket. A socket with a full queue is tried again for a while, as a launcher starts
// hundreds of these processes. An agent of another user gets neither the command nor the files, unless root asks.
func dialAgent(ctx context.Context, socket string) (*net.UnixConn, error) {
	if socket == "" {
		return nil, errors.New("there is no running paiinit to ask: PAIINIT_AGENT is not set; use it inside of a container that paiinit started")
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		switch {
		case err == nil:
			agent := conn.(*net.UnixConn)
			if err := checkAgent(agent); err != nil {
				_ = agent.Close()
				return nil, fmt.Errorf("asking the paiinit at %s: %w", socket, err)
			}
			return agent, nil
		case errors.Is(err, unix.EAGAIN) && time.Now().Before(deadline) && ctx.Err() == nil:
			wait(ctx, 5*time.Millisecond)
		default:
			return nil, fmt.Errorf("asking the paiinit of this container, which may have ended: %w", err)
		}
	}
}

// otherUserError says that another user answers on the socket of the agent.
type otherUserError struct{ *unixsock.UserError }

func (e otherUserError) Error() string {
	return fmt.Sprintf("user %d answers, neither user %d nor root; nothing was handed over", e.UID, e.Own)
}

func checkAgent(conn *net.UnixConn) error {
	_, err := unixsock.CheckServer(conn)
	var other *unixsock.UserError
	if errors.As(err, &other) {
		return otherUserError{other}
	}
	return err
}

// send hands the request and the files over.
func send(conn *net.UnixConn, inv Invocation, files ...*os.File) error {
	var fds [3]int
	var null *os.File
	for i, f := range files {
		if f == nil {
			if null == nil {
				var err error
				if null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
					return err
				}
				defer func() { _ = null.Close() }()
			}
			f = null
		}
		// Not Fd, which makes the file blocking for everybody who shares it.
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return err
		}
	}
	return sendRequest(conn, inv, fds)
}

// keyboard is a terminal at stdin. The agent must not read from it: it may be a process of the same session in the background,
// which the kernel would stop for that (termios(3), TTIN). nil = stdin is something else.
type keyboard struct {
	screen  *screen
	r, w    *os.File // what was typed
	escapes *escapes // nil = none
}

// terminal finds out what stdin is and whether the command gets a terminal, which it notes in inv.
func (c Caller) terminal(inv *Invocation) (*keyboard, error) {
	s := openScreen(c.Stdin)
	wanted := inv.TTY == 2 || s != nil && (inv.TTY == 1 || inv.TTY == 0 && inv.Command == "" && !inv.Subsystem)
	if inv.TTY == 1 && !wanted && c.Stderr != nil {
		_, _ = fmt.Fprintln(c.Stderr, "paiinit rsh: the command gets no terminal, because stdin is none; -tt gives it one")
	}
	if wanted {
		inv.terminal = &terminal{Name: c.Term}
		for _, kv := range inv.SetEnv {
			if term, ok := strings.CutPrefix(kv, "TERM="); ok {
				inv.terminal.Name = term
			}
		}
	}
	if s == nil {
		return nil, nil
	}
	k := &keyboard{screen: s}
	var err error
	if k.r, k.w, err = os.Pipe(); err != nil {
		return nil, err
	}
	if wanted {
		inv.terminal.Size = s.size()
		if inv.terminal.Modes, err = s.raw(); err != nil {
			k.close()
			return nil, err
		}
		if !inv.NoEscape {
			k.escapes = &escapes{}
		}
	}
	return k, nil
}

// stdin is what the agent is given.
func (k *keyboard) stdin(otherwise *os.File) *os.File {
	if k == nil {
		return otherwise
	}
	return k.r
}

// start begins to copy what is typed; left is closed when that says that the session should end. Nobody can wait for the
// goroutine: it reads from a terminal, until the process ends.
func (k *keyboard) start() (left <-chan struct{}) {
	if k == nil {
		return nil
	}
	_ = k.r.Close() // the agent has it
	leaving := make(chan struct{})
	go func() {
		defer func() { _ = k.w.Close() }()
		buf := make([]byte, 4096)
		for {
			n, err := k.screen.file.Read(buf)
			out, end := buf[:n], false
			if k.escapes != nil {
				out, end = k.escapes.filter(out)
			}
			if _, werr := k.w.Write(out); err != nil || werr != nil {
				return
			}
			if end {
				close(leaving)
				return
			}
		}
	}()
	return leaving
}

// close gives the terminal back as it was.
func (k *keyboard) close() {
	if k != nil {
		k.screen.restore()
		_ = k.r.Close() // a second time does no harm
		_ = k.w.Close()
	}
}
