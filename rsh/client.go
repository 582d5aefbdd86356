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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// exitTransport is the status of a remote shell that could not run its command, as of ssh(1).
const exitTransport = 255

// parentDied is a status that nobody will see: that of a process that its terminal left.
const parentDied = 128 + int(unix.SIGHUP)

// Run is the process that a launcher starts as its remote shell. It hands the command line and the three files to
// ServeAgent at socket, forwards signals, and returns the status of the command: 0 to 255 as it is, 128+n if signal n ended it. If
// the command could not be run, or its connection was lost, it writes one line to stderr and returns 255. It copies nothing
// itself and never waits for stdin. A nil file is /dev/null.
//
// Signals that have a name in RFC 4254 are passed on to the command. The command decides what it makes of TERM, INT, HUP and QUIT; the
// second of these means that the caller does not wait any longer: Run returns 128+n, and the peer ends the command. It does the
// same when ctx ends (255), and when the process that started it has died, so that no command outlives a killed
// launcher: it asks the kernel for SIGPWR on the death of its parent (prctl(2), PR_SET_PDEATHSIG). The kernel sends
// it also when only the thread that started it ends, so getppid(2) has the last word.
func Run(ctx context.Context, socket string, inv Invocation, stdin, stdout, stderr *os.File, signals <-chan os.Signal) int {
	status, err := run(ctx, socket, inv, stdin, stdout, stderr, signals)
	if err != nil && stderr != nil {
		line := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r < ' ' }), " ")
		_, _ = fmt.Fprintf(stderr, "paiinit rsh: %s: %s\n", inv.Host, line)
	}
	return status
}

func run(ctx context.Context, socket string, inv Invocation, stdin, stdout, stderr *os.File, signals <-chan os.Signal) (int, error) {
	parentEvent := make(chan os.Signal, 1)
	signal.Notify(parentEvent, unix.SIGPWR)
	defer signal.Stop(parentEvent)
	parent := os.Getppid()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGPWR), 0, 0, 0); err != nil {
		return exitTransport, fmt.Errorf("watching the parent process: %w", err)
	}
	if os.Getppid() != parent {
		return parentDied, nil
	}

	conn, err := dialAgent(ctx, socket)
	if err != nil {
		return exitTransport, err
	}
	defer func() { _ = conn.Close() }()
	if inv.NoStdin {
		stdin = nil
	}
	if err := send(conn, inv, stdin, stdout, stderr); err != nil {
		// It may have refused us before it read all, and have said why.
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		if kind, content, readErr := readFrame(conn); readErr == nil && kind == frameError {
			return result(kind, content, nil)
		}
		return exitTransport, fmt.Errorf("asking the paiinit of this container: %w", err)
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

	ending := false // the command was asked to end
	for {
		select {
		case r := <-replied:
			return result(r.kind, r.content, r.err)
		case sig := <-signals:
			n, ok := sig.(syscall.Signal)
			if !ok || signalName(n) == "" {
				continue
			}
			switch n {
			case unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT:
				if ending {
					return 128 + int(n), nil
				}
				ending = true
			}
			// If this fails, the reply fails too and says why.
			_ = writeFrame(conn, frameSignal, []byte{byte(n)})
		case <-parentEvent:
			if os.Getppid() != parent {
				return parentDied, nil
			}
		case <-ctx.Done():
			return exitTransport, context.Cause(ctx)
		}
	}
}

func result(kind byte, content []byte, err error) (int, error) {
	switch {
	case errors.Is(err, io.EOF):
		return exitTransport, errors.New("the paiinit of this container ended before the command did")
	case err != nil:
		return exitTransport, fmt.Errorf("waiting for the paiinit of this container: %w", err)
	case kind == frameError:
		return exitTransport, errors.New(string(content))
	case kind == frameExit && len(content) == 1:
		return int(content[0]), nil
	case kind == frameKilled && len(content) == 1:
		return min(128+int(content[0]), 255), nil
	}
	return exitTransport, fmt.Errorf("the paiinit of this container gave an answer that is not understood: %q", kind)
}

// dialAgent connects to the socket. A socket with a full queue is tried again for a while: a launcher starts hundreds of us.
func dialAgent(ctx context.Context, socket string) (*net.UnixConn, error) {
	if socket == "" {
		return nil, errors.New("there is no running paiinit to ask: PAIINIT_AGENT is not set; use it inside of a container that paiinit started")
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		switch {
		case err == nil:
			return conn.(*net.UnixConn), nil
		case errors.Is(err, unix.EAGAIN) && time.Now().Before(deadline) && ctx.Err() == nil:
			wait(ctx, 5*time.Millisecond)
		default:
			return nil, fmt.Errorf("asking the paiinit of this container, which may have ended: %w", err)
		}
	}
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
