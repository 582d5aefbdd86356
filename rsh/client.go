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

// exitTransport is the exit status of a remote shell that could not run its command, as with ssh(1).
const exitTransport = 255

// parentDied is the exit status after the parent has died, as after the loss of a terminal. No process reads it.
const parentDied = 128 + int(unix.SIGHUP)

// Caller is the local process that stands for a command on another host.
type Caller struct {
	Socket                string   // the ServeAgent of this container; "" = there is none
	Stdin, Stdout, Stderr *os.File // nil = /dev/null

	// Signals, if not nil, is called just before Run sends the command. Its channel delivers the signals that this
	// process receives from then on. SIGWINCH means that the terminal has a new size.
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
// It never waits for stdin, and copies nothing itself, except from a terminal, which only a foreground process may
// read.
//
// A command gets a terminal under the rules of ssh(1): with -t if stdin is one, with -tt always, and without a command
// if stdin is one. Then every key goes to the remote command, and the size follows.
//
// Run forwards the signals that have a name in RFC 4254. The command decides how it reacts to TERM, INT, HUP and QUIT.
// At the second of these the caller waits no longer: Run returns 128+n, and the peer ends the command. Run does the
// same if the agent, being stopped, has not read the first one after 2 s; when ctx ends (255); and when the process
// that started Run has died, so that no command outlives a killed launcher. For that it asks the kernel for SIGPWR on
// the death of its parent (prctl(2), PR_SET_PDEATHSIG). The kernel sends it also when only the thread that started this
// process ends, so Run confirms it with getppid(2).
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
		wait(ctx, noRoomPause)
	}
	if inv.NoStdin {
		c.Stdin = nil
	}
	if c.Signals != nil {
		c.Signals = sync.OnceValue(c.Signals)
	}
	for begin := time.Now(); ; {
		status, err := c.ask(ctx, inv)
		if !errors.Is(err, errNoRoom) || time.Since(begin) > noRoomTimeout || ctx.Err() != nil {
			return status, err
		}
		wait(ctx, noRoomPause)
	}
}

// The limits of the retries while the agent has no room for the files of a command.
const (
	noRoomTimeout = 10 * time.Second
	noRoomPause   = 50 * time.Millisecond
)

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
	var signals <-chan os.Signal
	if c.Signals != nil {
		signals = c.Signals()
	}
	if err := send(conn, inv, typed.stdin(c.Stdin), c.Stdout, c.Stderr); err != nil {
		// The agent may have refused the request before it read all of it, and have sent the reason.
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		if kind, content, readErr := readFrame(conn); readErr == nil && (kind == frameError || kind == frameAgain) {
			return result(kind, content, nil)
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

	ending := syscall.Signal(0) // the first signal that asked the command to end
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
				// The person has closed the terminal or the session: they need the command no more.
				if ending != 0 || inv.terminal != nil {
					return 128 + int(n), nil
				}
				ending, unread = n, time.After(agentTimeout)
			}
			// If this fails, the agent does not read, or reading the reply fails too and says why.
			_ = conn.SetWriteDeadline(time.Now().Add(agentTimeout))
			_ = writeFrame(conn, frameSignal, []byte{byte(n)})
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

// agentTimeout bounds how long the agent may leave a signal that ends the command unread.
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
	return exitTransport, fmt.Errorf("the paiinit of this container sent an unknown answer: %q", kind)
}

// Known asks the ServeAgent at a socket whether it runs a command on a host itself, rather than another ssh.
func Known(ctx context.Context, socket, host, command string) (bool, error) {
	answer, err := question(ctx, socket, frameKnown, []byte(host+"\x00"+command))
	if err == nil && len(answer) != 1 {
		err = fmt.Errorf("asking the paiinit of this container: the answer has %d bytes instead of 1", len(answer))
	}
	return err == nil && answer[0] != 0, err
}

// question sends a frame to the ServeAgent at a socket, and returns the content of its answer, a frame of the same
// kind.
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
		err = fmt.Errorf("unknown answer %q", got)
	}
	return nil, fmt.Errorf("asking the paiinit of this container: %w", err)
}

// connect returns a connection to the agent of this container, or to one that it starts itself. The caller calls end.
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

// dialAgent connects to the socket. It retries while the queue of the socket is full, because a launcher starts
// hundreds of these processes at once. It sends neither the command nor the files to an agent of another user, unless
// root asks.
func dialAgent(ctx context.Context, socket string) (*net.UnixConn, error) {
	if socket == "" {
		return nil, errors.New("no running paiinit found: PAIINIT_AGENT is not set; " +
			"run this command in a container that paiinit started")
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
			return nil, fmt.Errorf("connecting to the paiinit of this container, which may have ended: %w", err)
		}
	}
}

// otherUserError says that another user serves the socket of the agent.
type otherUserError struct{ *unixsock.UserError }

func (e otherUserError) Error() string {
	return fmt.Sprintf("user %d serves this socket instead of user %d or root; nothing was sent to it", e.UID, e.Own)
}

func checkAgent(conn *net.UnixConn) error {
	_, err := unixsock.CheckServer(conn)
	var other *unixsock.UserError
	if errors.As(err, &other) {
		return otherUserError{other}
	}
	return err
}

// send sends the request and the files.
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
		// Not Fd, which makes the file blocking for every process that shares it.
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

// keyboard is a terminal at stdin; nil = stdin is something else. The agent must not read from it: as a background
// process of the same session, it would be stopped by the kernel (termios(3), TTIN).
type keyboard struct {
	screen  *screen
	r, w    *os.File // the pipe for the typed bytes
	escapes *escapes // nil = no escapes
}

// terminal finds out what stdin is, and sets inv.terminal if the command gets a terminal.
func (c Caller) terminal(inv *Invocation) (*keyboard, error) {
	s := openScreen(c.Stdin)
	wanted := inv.TTY == 2 || s != nil && (inv.TTY == 1 || inv.TTY == 0 && inv.Command == "" && !inv.Subsystem)
	if inv.TTY == 1 && !wanted && c.Stderr != nil {
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

// stdin returns the file that the agent gets as stdin.
func (k *keyboard) stdin(otherwise *os.File) *os.File {
	if k == nil {
		return otherwise
	}
	return k.r
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

// close restores the modes of the terminal.
func (k *keyboard) close() {
	if k != nil {
		k.screen.restore()
		_ = k.r.Close() // start may have closed it already
		_ = k.w.Close()
	}
}
