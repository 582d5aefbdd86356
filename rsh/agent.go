package rsh

import (
	"cmp"
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

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/rfc4254"
	"github.com/paiinit/paiinit/internal/unixsock"
	"github.com/paiinit/paiinit/rsh/frame"
)

// Agent holds what ServeAgent asks and reports: it finds hosts, and receives the starts and ends of commands. All its
// functions may be called concurrently.
type Agent struct {
	// Resolve finds the container of a name or address that a user or launcher gave.
	Resolve func(ctx context.Context, host string) (Target, bool)
	// Hosts returns the names of each container, by rank, the best first; nil = errors do not list them.
	Hosts func() [][]string
	// Foreign reports whether another ssh may run a command on a host that Resolve does not know; nil = never.
	Foreign func(host, command string) bool
	// Person names the person behind a process that asks for a command, for the other host's log; nil or "" = the job
	// itself. pid is 0 for a process of another PID namespace. An error refuses the command or the signature.
	Person func(pid int) (name string, err error)

	// The command was started; it ended; it could not be started or was lost. All may be nil. The launcher's supervisor
	// needs them, because a launcher may hang when its agent fails (MPICH hydra always does).
	OnExec    func(t Target, command string)
	OnExit    func(t Target, command string, s Status)
	OnFailure func(t Target, command, stage string, err error)

	// RetryTimeout bounds the retries while a peer refuses or drops the connection before the command starts; 0 = 5 s,
	// negative = no retry. A peer that proved to be the wrong one is not tried again.
	RetryTimeout time.Duration
}

// ServeAgent answers Run on a Unix socket until ctx ends, and runs each command over the pool. Then it closes the
// socket, ends the commands, and returns nil. It serves only processes of its own user and of root.
func (p *Pool) ServeAgent(ctx context.Context, ln *net.UnixListener, a Agent) error {
	if a.RetryTimeout == 0 {
		a.RetryTimeout = 5 * time.Second
	}
	err := unixsock.Server{
		Answer: func(ctx context.Context, conn *net.UnixConn, pid int) { p.serveClient(ctx, conn, pid, a) },
		Refuse: func(conn *net.UnixConn, err error) {
			if other, ok := errors.AsType[*unixsock.UserError](err); ok {
				err = fmt.Errorf("user %d asked for a command; only user %d and root may", other.UID, other.Own)
			}
			p.refuse(conn, err)
		},
		Retry: func(err error, pause time.Duration) { // descriptors become free when other commands end
			p.cfg.Logger.Warn("cannot accept a command, trying again", "err", err, "pause", pause)
		},
	}.Serve(ctx, ln)
	if err != nil {
		return fmt.Errorf("serving the remote shell: %w", err)
	}
	return nil
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

var (
	errForeign    = errors.New("no container of this job has this name or address") // another ssh may reach it
	errClientGone = errors.New("the process that asked for the command has ended")
)

// refuse logs why a command is not run, and tells the client.
func (p *Pool) refuse(conn *net.UnixConn, err error) {
	p.cfg.Logger.Warn("refused to run a command", "err", err)
	p.reply(conn, frame.Error, []byte(err.Error()))
}

func (p *Pool) serveClient(ctx context.Context, conn *net.UnixConn, pid int, a Agent) {
	person, err := a.personBehind(pid)
	if err != nil {
		p.refuse(conn, err)
		return
	}
	// A client sends its request at once, so a slow one must not hold the connection.
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	kind, inv, fds, err := receiveRequest(conn)
	if errors.Is(err, errNoRoom) { // descriptors become free when other commands end
		p.cfg.Logger.Warn("cannot take a command, the client retries", "err", err)
		p.reply(conn, frame.Again, nil)
		return
	}
	if err != nil {
		if !errors.Is(err, io.EOF) {
			p.cfg.Logger.Warn("bad request for a command", "err", err)
			p.reply(conn, frame.Error, []byte(err.Error()))
		}
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if kind == frame.Known {
		known := byte(1)
		if _, ok := a.Resolve(ctx, inv.Host); !ok && a.foreign(inv.Host, inv.Command) {
			known = 0
		}
		p.reply(conn, frame.Known, []byte{known})
		return
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals, resize := make(chan os.Signal, 16), make(chan rfc4254.Size, 1)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer func() { _ = conn.CloseRead() }()
	listening.Go(func() {
		defer cancel(errClientGone)
		relay(conn, signals, resize)
	})

	files, err := openFiles(fds)
	if err != nil {
		p.reply(conn, frame.Error, []byte(err.Error()))
		return
	}
	closeFiles := sync.OnceFunc(func() {
		for _, f := range files {
			_ = f.Close()
		}
	})
	defer closeFiles()
	// A launcher that has ended or is stopped may leave a full pipe, which would block a Write for ever.
	stop := context.AfterFunc(ctx, closeFiles)
	defer stop()

	status, err := p.run(ctx, inv.Host, a, request{
		User: inv.User, Environ: inv.environ, person: person,
		Command: inv.Command, Subsystem: inv.Subsystem, Terminal: inv.terminal,
		Stdin: files[0], Stdout: files[1], Stderr: files[2], Signals: signals, Resize: resize,
	})
	switch {
	case errors.Is(err, errForeign):
		p.reply(conn, frame.Foreign, []byte(reason(err)))
	case err != nil:
		p.reply(conn, frame.Error, []byte(reason(err)))
	case status.Signal != 0:
		p.reply(conn, frame.Killed, []byte{byte(status.Signal)})
	default:
		p.reply(conn, frame.Exit, []byte{byte(status.Code)})
	}
}

// reason returns the text that the client prints after the name of the host.
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

// reply sends the agent's only message. It fails if the client has ended, which is no error.
func (p *Pool) reply(conn *net.UnixConn, kind byte, content []byte) {
	_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if err := writeFrame(conn, kind, content); err != nil {
		p.cfg.Logger.Debug("cannot send the status of a command", "err", err)
	}
}

// personBehind names the person behind a process; "" = the job itself.
func (a Agent) personBehind(pid int) (person string, err error) {
	if a.Person == nil {
		return "", nil
	}
	return a.Person(pid)
}

// relay passes signals and sizes on, and returns when the client has ended. It must never block, or it would miss that
// end: it drops signals that do not fit, and keeps only the newest size.
func relay(conn *net.UnixConn, signals chan<- os.Signal, resize chan rfc4254.Size) {
	for {
		kind, content, err := readFrame(conn)
		if err != nil {
			return
		}
		switch kind {
		case frame.Signal:
			if len(content) != 1 {
				continue
			}
			select {
			case signals <- syscall.Signal(content[0]):
			default:
			}
		case frame.Resize:
			size, ok := decodeSize(content)
			if !ok {
				continue
			}
			select {
			case <-resize:
			default:
			}
			resize <- size // there is room: this is the only sender
		}
	}
}

// openFiles makes streams of stdin, stdout and stderr. On failure it closes all three.
func openFiles(fds [3]int) (files [3]io.ReadWriteCloser, err error) {
	for i, events := range []uint32{unix.EPOLLIN, unix.EPOLLOUT, unix.EPOLLOUT} {
		file, openErr := openDescriptor(fds[i], events)
		files[i], err = file, cmp.Or(err, openErr)
	}
	for _, f := range files {
		if err != nil && f != nil {
			_ = f.Close()
		}
	}
	return files, err
}

func (p *Pool) run(ctx context.Context, host string, a Agent, r request) (Status, error) {
	target, ok := a.Resolve(ctx, host)
	if !ok {
		target = Target{Name: host}
		if a.foreign(host, r.Command) { // no failure yet: the client may run another ssh
			return Status{}, &DialError{target, StageResolve, fmt.Errorf("%w%s", errForeign, a.known())}
		}
		err := &DialError{target, StageResolve, errors.New(errForeign.Error() + a.known())}
		a.failed(target, r.Command, err)
		return Status{}, err
	}
	if target.Name == "" {
		target.Name = host
	}
	s, err := p.openSessionWithRetry(ctx, target, a.RetryTimeout)
	if err != nil {
		if ctx.Err() == nil {
			a.failed(target, r.Command, err)
		}
		return Status{}, err
	}
	started := func() {
		if a.OnExec != nil {
			a.OnExec(target, r.Command)
		}
	}
	status, err := p.exec(ctx, target, s, r, started)
	switch {
	case err != nil && ctx.Err() == nil:
		a.failed(target, r.Command, err)
	case err == nil && a.OnExit != nil:
		a.OnExit(target, r.Command, status)
	}
	return status, err
}

func (a Agent) failed(t Target, command string, err error) {
	if a.OnFailure == nil {
		return
	}
	stage := stageConnect
	if dial, ok := errors.AsType[*DialError](err); ok {
		stage = dial.Stage
	}
	a.OnFailure(t, command, stage, err)
}

func (a Agent) foreign(host, command string) bool {
	return a.Foreign != nil && a.Foreign(host, command)
}

// known lists some hosts of the job, for an error message.
func (a Agent) known() string {
	if a.Hosts == nil {
		return ""
	}
	const most = 8
	var names []string
	for _, host := range a.Hosts() {
		names = append(names, host[0])
	}
	if len(names) == 0 {
		return " (no host is known yet)"
	}
	list := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		list += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return " (its hosts are " + list + ")"
}

// openSessionWithRetry opens a session, and retries until the timeout while the failure may be temporary.
func (p *Pool) openSessionWithRetry(ctx context.Context, t Target, timeout time.Duration) (*channel, error) {
	deadline := time.Now().Add(timeout)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		s, err := p.openSession(ctx, t)
		dial, ok := errors.AsType[*DialError](err)
		if !ok || ctx.Err() != nil || !mayBeTemporary(dial) || time.Until(deadline) < pause {
			return s, err
		}
		p.cfg.Logger.Debug("cannot open a session, trying again", "peer", t.Name, "err", err, "pause", pause)
		wait(ctx, pause)
	}
}

// mayBeTemporary reports whether the peer may only be restarting or overloaded. The command has not been started yet.
func mayBeTemporary(e *DialError) bool {
	for _, final := range []error{errClosed, ErrNotPaiinit, ErrOtherJob, ErrOtherVersion, ErrOtherSecret, ErrOtherID} {
		if errors.Is(e, final) {
			return false
		}
	}
	if refused, ok := errors.AsType[*ssh.OpenChannelError](e); ok && e.Stage == stageChannel {
		return refused.Reason == ssh.ResourceShortage
	}
	return e.Stage == stageConnect || e.Stage == stageHandshake || e.Stage == stageChannel
}
