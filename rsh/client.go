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

	"github.com/paiinit/paiinit/internal/rawconn"
	"github.com/paiinit/paiinit/internal/rfc4254"
	"github.com/paiinit/paiinit/internal/unixsock"
	"github.com/paiinit/paiinit/rsh/frame"
)

const (
	exitTransport = 255                    // the command could not be run, as with ssh(1)
	parentDied    = 128 + int(unix.SIGHUP) // as after the loss of a terminal; no process reads it

	// The limits of the retries while the agent has no room for the files of a command.
	noRoomTimeout = 10 * time.Second
	noRoomPause   = 50 * time.Millisecond
)

// Caller is the local process that stands for a command on another host.
type Caller struct {
	Socket                string   // the ServeAgent of this container; "" = there is none
	Stdin, Stdout, Stderr *os.File // nil = /dev/null

	// Signals is called just before Run sends the command. Its channel delivers the signals that this process receives
	// from then on. SIGWINCH means that the terminal has a new size. It may be nil.
	Signals func() <-chan os.Signal

	Term    string   // type of the terminal, as in TERM
	Environ []string // "name=value", from which -o SendEnv chooses

	// Direct, if not nil, makes a pool for this one command when there is no agent at Socket. Run closes it.
	Direct func(context.Context) (*Pool, Agent, error)

	// HandOn, if not nil, is called when the host is not one of the job's, before Run touches the files. It does not
	// return if another remote shell replaces this process; if it returns, Run reports the error.
	HandOn func()

	// Answer, if not nil, is a connection on which another client has already sent the command to ServeAgent and has
	// watched over it until now. Run only reads the answer.
	Answer io.Reader
}

// Run is the process that a launcher or a person starts as remote shell. It sends the command line and the three files
// to ServeAgent, forwards signals, and returns the exit status of the command: 0 to 255 as it is, 128+n if signal n
// ended it. If the command could not be run, or its connection was lost, Run writes one line to stderr and returns 255.
// It never waits for stdin, and copies only from a terminal, which only a foreground process may read.
//
// A command gets a terminal under the rules of ssh(1): with -t if stdin is one, with -tt always, and without a command
// if stdin is one. Then every key goes to the remote command, and the size follows.
//
// At the second TERM, INT, HUP or QUIT, Run waits no longer: it returns 128+n, and the peer ends the command. It does
// the same if the agent, being stopped, has not read the first one after 2 s; when ctx ends (255); and when its parent
// has died, so that no command outlives a killed launcher. For that it asks the kernel for SIGPWR (prctl(2),
// PR_SET_PDEATHSIG), which also comes when only the thread that started this process ends: getppid(2) tells.
func (c Caller) Run(ctx context.Context, inv Invocation) int {
	status, err := c.run(ctx, inv)
	if err != nil {
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
		a := readAnswer(c.Answer)
		if a.kind == frame.Foreign && c.HandOn != nil {
			c.HandOn()
		}
		if a.kind != frame.Again {
			return a.status()
		}
		wait(ctx, noRoomPause)
	}
	if inv.NoStdin {
		c.Stdin = nil
	}
	if c.Signals == nil {
		c.Signals = func() <-chan os.Signal { return nil }
	}
	c.Signals = sync.OnceValue(c.Signals)
	for begin := time.Now(); ; {
		status, err := c.ask(ctx, inv)
		if !errors.Is(err, errNoRoom) || time.Since(begin) > noRoomTimeout || ctx.Err() != nil {
			return status, err
		}
		wait(ctx, noRoomPause)
	}
}

// ask sends the command once. It fails with errNoRoom if the agent could not take it.
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
	if typed != nil {
		c.Stdin = typed.r
	}
	signals := c.Signals()
	if err := send(conn, inv, c.Stdin, c.Stdout, c.Stderr); err != nil {
		// The agent may have refused the request before it read all of it, and have sent the reason.
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		if a := readAnswer(conn); a.kind == frame.Error || a.kind == frame.Again {
			return a.status()
		}
		return exitTransport, fmt.Errorf("asking the paiinit of this container: %w", err)
	}
	left := typed.start()

	// This comes after the request: it costs time while the peer already works.
	parentEvent := make(chan os.Signal, 1)
	signal.Notify(parentEvent, unix.SIGPWR)
	defer signal.Stop(parentEvent)
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGPWR), 0, 0, 0); err != nil {
		return exitTransport, fmt.Errorf("watching the parent process: %w", err)
	}
	if os.Getppid() != parent {
		return parentDied, nil
	}

	answered := make(chan answer, 1)
	go func() { answered <- readAnswer(conn) }() // ends with conn

	ending := syscall.Signal(0) // the first signal that asked the command to end
	var unread <-chan time.Time
	for {
		select {
		case a := <-answered:
			return a.status()
		case sig := <-signals:
			n, _ := sig.(syscall.Signal)
			if n == unix.SIGWINCH && inv.terminal != nil && typed != nil {
				_ = conn.SetWriteDeadline(time.Now().Add(frame.AgentTimeout))
				_ = writeFrame(conn, frame.Resize, encodeSize(typed.size()))
			}
			if rfc4254.SignalName(n) == "" {
				continue
			}
			switch n {
			case unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT:
				// The person has closed the terminal or the session: they need the command no more.
				if ending != 0 || inv.terminal != nil {
					return 128 + int(n), nil
				}
				ending, unread = n, time.After(frame.AgentTimeout)
			}
			// If this fails, the agent does not read, or reading the reply fails too and says why.
			_ = conn.SetWriteDeadline(time.Now().Add(frame.AgentTimeout))
			_ = writeFrame(conn, frame.Signal, []byte{byte(n)})
		case <-unread:
			if isUnread(conn) {
				return 128 + int(ending), errors.New(
					"the paiinit of this container is stopped or hangs; it ends the command as soon as it continues")
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

// isUnread reports whether the agent has not read all that was sent to it (unix_ioctl in net/unix/af_unix.c: for a Unix
// socket, SIOCOUTQ counts what the peer has not received).
func isUnread(conn *net.UnixConn) bool {
	left := 0
	_ = rawconn.Control(conn, func(fd int) (err error) { left, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ); return err })
	return left > 0
}

// answer is the only frame of the agent; kind is 0 if err is set.
type answer struct {
	kind    byte
	content []byte
	err     error
}

func readAnswer(r io.Reader) (a answer) {
	a.kind, a.content, a.err = readFrame(r)
	return a
}

// status returns the exit status of Run.
func (a answer) status() (int, error) {
	switch {
	case errors.Is(a.err, io.EOF):
		return exitTransport, errors.New("the paiinit of this container ended before the command did")
	case a.err != nil:
		return exitTransport, fmt.Errorf("waiting for the paiinit of this container: %w", a.err)
	case a.kind == frame.Again:
		return exitTransport, errNoRoom
	case a.kind == frame.Error, a.kind == frame.Foreign:
		return exitTransport, errors.New(string(a.content))
	case a.kind == frame.Exit && len(a.content) == 1:
		return int(a.content[0]), nil
	case a.kind == frame.Killed && len(a.content) == 1:
		return min(128+int(a.content[0]), 255), nil
	}
	return exitTransport, fmt.Errorf("the paiinit of this container sent an unknown answer: %q", a.kind)
}

// Known asks the ServeAgent at a socket whether it runs a command on a host itself, rather than another ssh.
func Known(ctx context.Context, socket, host, command string) (bool, error) {
	conn, err := dialAgent(ctx, socket)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := writeFrame(conn, frame.Known, []byte(host+"\x00"+command)); err != nil {
		return false, fmt.Errorf("asking the paiinit of this container: %w", err)
	}
	a := readAnswer(conn)
	if a.kind == frame.Known && len(a.content) == 1 {
		return a.content[0] != 0, nil
	}
	if a.err == nil {
		a.err = fmt.Errorf("unknown answer %q %q", a.kind, a.content)
	}
	return false, fmt.Errorf("asking the paiinit of this container: %w", a.err)
}

// connect returns a connection to the agent of this container, or to an agent in this process. The caller calls end.
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
		return nil, nil, fmt.Errorf("%w; connecting directly also failed: %w", err, directErr)
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

// dialAgent connects to the socket. It refuses an agent of another user, which must get neither the command nor the
// files, unless root asks.
func dialAgent(ctx context.Context, socket string) (*net.UnixConn, error) {
	if socket == "" {
		return nil, errors.New("no running paiinit found: PAIINIT_AGENT is not set; " +
			"run this command in a container that paiinit started")
	}
	agent, err := unixsock.Dial(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("connecting to the paiinit of this container, which may have ended: %w", err)
	}
	if _, err = unixsock.CheckServer(agent); err != nil {
		_ = agent.Close()
		if other, ok := errors.AsType[*unixsock.UserError](err); ok {
			err = otherUserError{other}
		}
		return nil, fmt.Errorf("asking the paiinit at %s: %w", socket, err)
	}
	return agent, nil
}

// otherUserError says that another user serves the socket of the agent.
type otherUserError struct{ *unixsock.UserError }

func (e otherUserError) Error() string {
	return fmt.Sprintf("user %d serves this socket instead of user %d or root; nothing was sent to it", e.UID, e.Own)
}

// send sends the request and the files.
func send(conn *net.UnixConn, inv Invocation, files ...*os.File) error {
	var fds [3]int
	for i, f := range files {
		if f == nil {
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer func() { _ = null.Close() }()
			f = null
		}
		if err := rawconn.Control(f, func(fd int) error { fds[i] = fd; return nil }); err != nil {
			return err
		}
	}
	return sendRequest(conn, inv, fds)
}

// keyboard is a terminal at stdin; nil = stdin is something else. The agent must not read from it: as a background
// process of the same session, it would be stopped by the kernel (termios(3), TTIN).
type keyboard struct {
	file    *os.File
	saved   *unix.Termios // the modes before raw; nil = not raw
	r, w    *os.File      // the pipe for the typed bytes; the agent gets r as stdin
	escapes *escapes      // nil = no escapes
}

// terminal finds out what stdin is, and sets inv.terminal if the command gets a terminal.
func (c Caller) terminal(inv *Invocation) (*keyboard, error) {
	typed := isTerminal(c.Stdin)
	wanted := inv.TTY == 2 || typed && (inv.TTY == 1 || inv.TTY == 0 && inv.Command == "" && !inv.Subsystem)
	if inv.TTY == 1 && !wanted {
		_, _ = fmt.Fprintln(c.Stderr,
			"paiinit rsh: stdin is not a terminal, so the command gets none; -tt gives it one")
	}
	if wanted {
		inv.terminal = &terminal{Name: c.Term}
		for _, kv := range inv.SetEnv {
			if term, ok := strings.CutPrefix(kv, "TERM="); ok {
				inv.terminal.Name = term
			}
		}
	}
	if !typed {
		return nil, nil
	}
	k := &keyboard{file: c.Stdin}
	var err error
	if k.r, k.w, err = os.Pipe(); err != nil {
		return nil, err
	}
	if wanted {
		inv.terminal.Size = k.size()
		if inv.terminal.Modes, err = k.raw(); err != nil {
			k.close()
			return nil, err
		}
		if !inv.NoEscape {
			k.escapes = &escapes{}
		}
	}
	return k, nil
}

// start begins to copy what is typed. It closes left when the person types the escape that ends the session. Run cannot
// wait for its goroutine, which may block in reading the terminal until the process ends.
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
			n, err := k.file.Read(buf)
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

// close restores the modes of the terminal.
func (k *keyboard) close() {
	if k == nil {
		return
	}
	if k.saved != nil { // this fails if the terminal no longer exists
		_ = rawconn.Control(k.file, func(fd int) error { return unix.IoctlSetTermios(fd, unix.TCSETSW, k.saved) })
	}
	_, _ = k.r.Close(), k.w.Close() // start may have closed r already
}
