package rsh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Agent tells ServeAgent where the hosts are, and is told what became of them. All functions may be called at the same time.
type Agent struct {
	Resolve func(host string) (Target, bool) // the container of a name or address that a user or launcher gave
	Names   func() []string                  // the names that Resolve knows, for messages; nil = do not list them

	// Optional. A launcher may hang when a command of its agent fails (MPICH hydra does, always), so whoever started
	// it has to know. OnExec: the command was started. OnExit: it ended. OnFailure: it could not be started, or was lost.
	OnExec    func(t Target, command string)
	OnExit    func(t Target, command string, s Status)
	OnFailure func(t Target, stage string, err error)

	// Patience is for how long a peer that refuses or drops the connection is tried again before a command was started;
	// 0 = 5 s, negative = not at all. A peer that proved to be a wrong one is not tried again.
	Patience time.Duration
}

// ServeAgent answers Run on a Unix socket until ctx ends, and runs each command over the pool. Then it closes the socket,
// ends the commands, and returns nil. It serves processes of its own user and of root only.
func (p *Pool) ServeAgent(ctx context.Context, ln *net.UnixListener, a Agent) error {
	if a.Patience == 0 {
		a.Patience = 5 * time.Second
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()

	var clients sync.WaitGroup
	defer clients.Wait()
	pause := time.Duration(0)
	for {
		conn, err := ln.AcceptUnix()
		switch {
		case err == nil:
			pause = 0
			clients.Go(func() {
				defer func() { _ = conn.Close() }()
				p.serveClient(ctx, conn, a)
			})
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS):
			// The kernel keeps the client waiting; commands that end make room.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			p.cfg.Logger.Warn("cannot accept a command, trying again", "err", err, "pause", pause)
			wait(ctx, pause)
		default:
			err = fmt.Errorf("rsh: accepting on %v: %w", ln.Addr(), err)
			cancel(err)
			return err
		}
	}
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

var errClientGone = errors.New("the process that asked for the command has ended")

func (p *Pool) serveClient(ctx context.Context, conn *net.UnixConn, a Agent) {
	if err := permitted(conn); err != nil {
		p.cfg.Logger.Warn("refused to run a command", "err", err)
		p.reply(conn, frameError, []byte(err.Error()))
		return
	}
	// A client sends its request at once.
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	inv, fds, err := receiveRequest(conn)
	if err != nil {
		if !errors.Is(err, io.EOF) {
			p.cfg.Logger.Warn("bad request for a command", "err", err)
			p.reply(conn, frameError, []byte(err.Error()))
		}
		return
	}
	_ = conn.SetDeadline(time.Time{})

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 16)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer func() { _ = conn.CloseRead() }()
	listening.Go(func() {
		defer cancel(errClientGone)
		relaySignals(conn, signals)
	})

	files, err := openFiles(fds)
	if err != nil {
		p.reply(conn, frameError, []byte(err.Error()))
		return
	}
	closeFiles := sync.OnceFunc(func() {
		for _, f := range files {
			_ = f.Close()
		}
	})
	defer closeFiles()
	// A launcher that is gone or stopped may leave a pipe that is full for ever.
	stop := context.AfterFunc(ctx, closeFiles)
	defer stop()

	status, err := p.run(ctx, inv, a, files, signals)
	switch {
	case err != nil:
		p.reply(conn, frameError, []byte(reason(err)))
	case status.Signal != 0:
		p.reply(conn, frameKilled, []byte{byte(status.Signal)})
	default:
		p.reply(conn, frameExit, []byte{byte(status.Code)})
	}
}

// reason is what the client prints after the name of the host.
func reason(err error) string {
	var dial *DialError
	switch {
	case errors.Is(err, context.Canceled):
		return "the paiinit of this container is ending"
	case !errors.As(err, &dial):
		return err.Error()
	case dial.Target.Addr.IsValid():
		return fmt.Sprintf("%s, %s: %v", dial.Target.Addr, dial.Stage, dial.Err)
	}
	return fmt.Sprintf("%s: %v", dial.Stage, dial.Err)
}

// reply sends the only message of the agent. A client that has gone does not miss it.
func (p *Pool) reply(conn *net.UnixConn, kind byte, content []byte) {
	_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if err := writeFrame(conn, kind, content); err != nil {
		p.cfg.Logger.Debug("nobody takes the status of a command", "err", err)
	}
}

// permitted checks who is at the other end of the socket (unix(7), SO_PEERCRED).
func permitted(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return fmt.Errorf("finding out who asks: %w", err)
	}
	if own := os.Getuid(); cred.Uid != 0 && int(cred.Uid) != own {
		return fmt.Errorf("user %d asked for a command, only user %d and root may", cred.Uid, own)
	}
	return nil
}

// relaySignals returns when the client has ended.
func relaySignals(conn *net.UnixConn, signals chan<- os.Signal) {
	for {
		kind, content, err := readFrame(conn)
		if err != nil {
			return
		}
		if kind != frameSignal || len(content) != 1 {
			continue
		}
		select {
		case signals <- syscall.Signal(content[0]):
		default: // the peer takes none, and the end of the client must still be noticed
		}
	}
}

// openFiles makes streams of stdin, stdout and stderr, or closes all three.
func openFiles(fds [3]int) (files [3]io.ReadWriteCloser, err error) {
	for i, events := range []uint32{unix.EPOLLIN, unix.EPOLLOUT, unix.EPOLLOUT} {
		files[i], err = openDescriptor(fds[i], events)
		if err != nil {
			for _, f := range files[:i] {
				_ = f.Close()
			}
			for _, fd := range fds[i+1:] {
				_ = unix.Close(fd)
			}
			return files, err
		}
	}
	return files, nil
}

// run finds the host and runs the command there.
func (p *Pool) run(ctx context.Context, inv Invocation, a Agent, files [3]io.ReadWriteCloser, signals <-chan os.Signal) (Status, error) {
	target, ok := a.Resolve(inv.Host)
	if !ok {
		target = Target{Name: inv.Host}
		err := &DialError{target, StageResolve, errors.New("no container of this job has this name or address" + a.known())}
		a.failed(target, err)
		return Status{}, err
	}
	if target.Name == "" {
		target.Name = inv.Host
	}
	if err := p.persist(ctx, target, a.Patience); err != nil {
		if ctx.Err() == nil {
			a.failed(target, err)
		}
		return Status{}, err
	}
	started := func() {
		if a.OnExec != nil {
			a.OnExec(target, inv.Command)
		}
	}
	status, err := p.exec(ctx, target, Request{
		Command: inv.Command, Subsystem: inv.Subsystem,
		Stdin: files[0], Stdout: files[1], Stderr: files[2], Signals: signals,
	}, started)
	switch {
	case err != nil && ctx.Err() == nil:
		a.failed(target, err)
	case err == nil && a.OnExit != nil:
		a.OnExit(target, inv.Command, status)
	}
	return status, err
}

func (a Agent) failed(t Target, err error) {
	if a.OnFailure == nil {
		return
	}
	stage := StageConnect
	var dial *DialError
	if errors.As(err, &dial) {
		stage = dial.Stage
	}
	a.OnFailure(t, stage, err)
}

// known lists some of the names that would have been right.
func (a Agent) known() string {
	if a.Names == nil {
		return ""
	}
	const most = 8
	names := a.Names()
	if len(names) == 0 {
		return " (it knows none yet)"
	}
	list := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		list += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return " (it has " + list + ")"
}

// persist connects, and tries again for a while where the reason can pass.
func (p *Pool) persist(ctx context.Context, t Target, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		_, err := p.Connect(ctx, t)
		var dial *DialError
		if err == nil || !errors.As(err, &dial) || ctx.Err() != nil || !mayPass(dial) || time.Until(deadline) < pause {
			return err
		}
		p.cfg.Logger.Debug("trying again", "peer", t.Name, "err", err, "pause", pause)
		wait(ctx, pause)
	}
}

// mayPass tells a peer that is restarting or overloaded from a wrong one.
func mayPass(e *DialError) bool {
	if e.Stage != StageConnect && e.Stage != StageHandshake || errors.Is(e, errClosed) {
		return false
	}
	for _, final := range []error{ErrNotPaiinit, ErrOtherJob, ErrOtherSecret, ErrOtherID} {
		if errors.Is(e, final) {
			return false
		}
	}
	return true
}
