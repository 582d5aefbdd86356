package sshd

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/rawconn"
	"github.com/paiinit/paiinit/internal/rfc4254"
)

// Limits of all "env" requests on one session channel.
const (
	maxEnvNames = 256
	maxEnvBytes = 64 << 10
)

// session is one channel of type "session". The goroutine of serve answers its requests and never waits for the command
// or for the client to read. The goroutine of run owns the command.
type session struct {
	conn *conn
	srv  *Server
	id   identity
	user string
	ch   ssh.Channel
	free func()         // frees the place among the connection's sessions
	gone chan struct{}  // closed when the client closes the channel or the connection is lost
	work sync.WaitGroup // goroutines that end after gone is closed

	// Used by the goroutine of serve.
	envNames, envBytes int

	mu      sync.Mutex
	behind  string   // the person behind a rank's request; "" = the job
	env     []string // accepted from the client
	term    *terminal
	asked   bool             // a command was requested
	forced  bool             // the key's line gave the command: the client cannot signal it
	proc    *process         // while the command runs
	master  *os.File         // of its terminal
	pending []syscall.Signal // signals that came before proc was set
}

func (c *conn) session(sc *ssh.ServerConn, id identity, nc ssh.NewChannel) {
	if c.srv.closed() || !c.take(&c.sessions, c.srv.limits.sessions) {
		_ = nc.Reject(ssh.ResourceShortage, "too many sessions on this connection")
		return
	}
	free := sync.OnceFunc(func() { c.put(&c.sessions) })
	defer free()
	if !c.take(&c.opened, 4*c.srv.limits.sessions) {
		_ = nc.Reject(ssh.ResourceShortage, "too many sessions on this connection that were not closed")
		return
	}
	defer c.put(&c.opened)
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	s := &session{conn: c, srv: c.srv, id: id, user: sc.User(), ch: ch, free: free, gone: make(chan struct{})}
	s.serve(reqs)
}

// serve answers requests until the channel is closed, and waits for its goroutines.
func (s *session) serve(reqs <-chan *ssh.Request) {
	defer func() {
		s.srv.mu.Lock()
		delete(s.srv.running, s)
		s.srv.shrunk()
		s.srv.mu.Unlock()
	}()
	defer s.work.Wait()
	defer close(s.gone)
	defer s.conn.guard("session")
	for req := range reqs {
		command, err := s.answer(req)
		if err != nil && !errors.Is(err, errIgnored) {
			s.conn.logRepeated(slog.LevelInfo, "ssh request refused", cut(req.Type, 64), "who", s.id.who(),
				"key", s.id.fingerprint, "request", cut(req.Type, 64), "reason", err.Error())
		}
		_ = req.Reply(err == nil, nil)
		if command != nil {
			s.spawn("command", command)
		}
	}
}

// spawn runs f in a goroutine that serve waits for.
func (s *session) spawn(doing string, f func()) {
	s.work.Add(1)
	if !s.conn.spawn(doing, func() { defer s.work.Done(); f() }) {
		s.work.Done()
	}
}

func (s *session) logger() *slog.Logger {
	return s.conn.log().With("who", s.id.who(), "key", s.id.fingerprint)
}

// errIgnored refuses requests that ordinary clients send. They are not logged.
var errIgnored = errors.New("not supported")

// answer handles one request. An error refuses it. The function that it returns runs the command after the reply.
func (s *session) answer(req *ssh.Request) (func(), error) {
	switch req.Type {
	case "exec":
		command, err := parseCommand(req.Payload)
		if err != nil {
			return nil, err
		}
		return s.begin(request{command: command})
	case "shell":
		if len(req.Payload) > 0 {
			return nil, errors.New("malformed shell request")
		}
		return s.begin(request{shell: true})
	case "subsystem":
		name, err := parseText("subsystem", req.Payload)
		if err != nil {
			return nil, err
		}
		if name != "sftp" || len(s.srv.cfg.SFTP) == 0 {
			return nil, fmt.Errorf("there is no subsystem %q", cut(name, 64))
		}
		return s.begin(request{sftp: true})
	case "auth-agent-req@openssh.com", "x11-req@openssh.com", "x11-req":
		return nil, errors.New("not supported")
	case "env":
		return nil, s.setenv(req.Payload)
	case personRequest:
		return nil, s.relayed(req.Payload)
	case "user@paiinit": // commands for all login names share the job's kept connections
		name, err := parseText("user", req.Payload)
		if _, ok := s.srv.names[name]; err == nil && !ok {
			err = fmt.Errorf("login name %q does not belong to this container's user", cut(name, 64))
		}
		return nil, err
	case "pty-req":
		term, err := parseTerminal(req.Payload)
		if err != nil {
			return nil, err
		}
		if s.id.person != nil && !s.id.person.pty {
			return nil, errors.New("no terminal for this key")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.asked || s.term != nil {
			return nil, errors.New("pty-req after a command or another pty-req")
		}
		s.term = &term
		return nil, nil
	case "window-change":
		size, err := parseWindow(req.Payload)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.term == nil {
			return nil, errors.New("window-change without a terminal")
		}
		changed := *s.term // run may use the old value
		changed.Size, s.term = size, &changed
		if s.master != nil {
			return nil, resize(s.master, size)
		}
		return nil, nil
	case "signal":
		sig, err := parseSignal(req.Payload)
		if err != nil {
			return nil, err
		}
		return nil, s.signal(sig, false)
	}
	return nil, errIgnored
}

// personRequest names the person on another host who uses the job's key. It is for the log and restricts nothing.
const personRequest = "person@paiinit"

// relayed keeps the person's name.
func (s *session) relayed(payload []byte) error {
	name, err := parsePersonRequest(payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id.person != nil || s.asked {
		return errors.New("only a rank may name a person, before its command")
	}
	s.behind = name
	return nil
}

// person returns the name of the person who asks, here or on another host; "" = the job.
func (s *session) person() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id.person != nil {
		return s.id.person.name
	}
	return s.behind
}

// setenv keeps a variable for the command. The client gets the same error for ignored and for too many variables.
func (s *session) setenv(payload []byte) error {
	name, value, err := parseEnv(payload)
	if err != nil {
		return err
	}
	s.envNames++
	s.envBytes += len(name) + len(value)
	if s.envNames > maxEnvNames || s.envBytes > maxEnvBytes || !acceptable(name) {
		return errIgnored
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked {
		return errIgnored
	}
	s.env = append(s.env, name+"="+value)
	return nil
}

// request asks for a command, a shell, or the subsystem sftp.
type request struct {
	shell    bool
	sftp     bool
	command  string
	forced   bool   // command is from the key's line
	original string // what the client asked for; "": a shell
}

// force replaces the client's request by the command of a person's key.
func (r *request) force(command string) {
	original := r.command
	if r.sftp {
		original = internalSFTP
	}
	*r = request{command: command, forced: true, original: original}
	if command == internalSFTP {
		r.sftp, r.command = true, ""
	}
}

// begin accepts the request for a command, one per channel (RFC 4254 section 6.5).
func (s *session) begin(req request) (func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked {
		return nil, errors.New("a second command in one session")
	}
	s.srv.mu.Lock()
	defer s.srv.mu.Unlock()
	if s.srv.closed() {
		return nil, errors.New("the server is shutting down")
	}
	if p := s.id.person; p != nil && p.command != "" {
		req.force(p.command)
	}
	if req.sftp && s.term != nil {
		return nil, errors.New("sftp at a terminal")
	}
	if req.sftp && len(s.srv.cfg.SFTP) == 0 {
		return nil, errors.New("there is no subsystem sftp")
	}
	s.asked, s.forced = true, req.forced
	s.srv.running[s] = struct{}{}
	received := time.Now()
	return func() { s.run(req, received) }, nil
}

// signal passes a signal to the command, or keeps it until the command starts. own says that the server sends it.
func (s *session) signal(sig syscall.Signal, own bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.forced && !own:
		return errors.New("signal to a forced command")
	case s.proc != nil:
		return s.proc.signal(sig)
	case !s.asked:
		return errors.New("signal without a command")
	case len(s.pending) < 16:
		s.pending = append(s.pending, sig)
	}
	return nil
}

// run runs the command and tells the client how it ended.
func (s *session) run(req request, received time.Time) {
	event := CommandEvent{
		ID: s.srv.commands.Add(1), Key: s.id.fingerprint, Person: s.person(),
		Command: req.command, SFTP: req.sftp,
	}
	level := s.id.level()
	if event.Person != "" {
		level = slog.LevelInfo
	}
	status, err := s.execute(req, &event)
	attrs := []any{"id", event.ID, "user", cut(s.user, 64), "command", cut(req.command, 200)}
	if s.id.person == nil && event.Person != "" {
		attrs = append(attrs, "for", event.Person)
	}
	if req.shell {
		attrs = append(attrs, "shell", true)
	}
	if req.sftp {
		attrs = append(attrs, "subsystem", "sftp")
	}
	if req.forced {
		attrs = append(attrs, "asked", cut(req.original, 200))
	}
	switch {
	case err != nil:
		event.Status = 255
		_, _ = fmt.Fprintf(s.ch.Stderr(), "paiinit: cannot run the command: %v\n", err)
		attrs = append(attrs, "status", 255, "err", err)
	case status.Signaled():
		event.Signal, event.Status = status.Signal(), 128+int(status.Signal())
		attrs = append(attrs, "signal", unix.SignalName(event.Signal))
	default:
		event.Status = status.ExitStatus()
		attrs = append(attrs, "status", event.Status)
	}
	event.Done = true
	if event.Lost {
		attrs = append(attrs, "lost", true)
	}
	attrs = append(attrs, "duration", time.Since(received).Round(time.Millisecond))
	s.logger().Log(s.conn.ctx, level, "ssh command", attrs...)
	s.srv.cfg.OnCommand(event)

	// The output was sent; now status, EOF and close. The status goes before EOF: OpenSSH and PuTTY answer EOF with
	// close when their own input has ended, and after close no status can be sent. The place is free before the client
	// knows.
	if event.Signal != 0 {
		end := rfc4254.ExitSignal{Signal: signalName(event.Signal), CoreDumped: status.CoreDump()}
		_, _ = s.ch.SendRequest("exit-signal", false, ssh.Marshal(end))
	} else {
		_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(event.Status)}))
	}
	_ = s.ch.CloseWrite()
	s.free()
	_ = s.ch.Close()
}

// execute starts the command, copies its input and output, and returns its status after it ended and its output was
// sent. The error says why it did not start.
func (s *session) execute(req request, event *CommandEvent) (syscall.WaitStatus, error) {
	cmd, files, err := s.prepare(req)
	if err != nil {
		return 0, err
	}
	defer files.close()
	starting := sync.OnceFunc(s.srv.starting.RUnlock)
	s.srv.starting.RLock()
	defer starting()
	p, err := startProcess(cmd, s.conn.srv.cfg.StartWithSlack)
	files.closeTheirs()
	if err != nil {
		return 0, err
	}
	s.spawn("waiting for a command", p.watch)
	defer func() { // after a panic the command must not live on without a parent that waits
		s.adopt(nil, nil)
		if !p.isReaped() {
			p.end(0, s.gone)
			_, _ = p.reap()
		}
	}()
	s.adopt(p, files.master)
	event.PID = p.pid
	s.srv.cfg.OnCommand(*event)
	starting()

	s.spawn("stdin", func() { feed(files.stdin, s.ch, files.master == nil) })
	var outputs sync.WaitGroup
	limits := s.srv.limits
	for file, w := range files.outputs(s.ch) {
		outputs.Add(1)
		s.spawn("output", func() { defer outputs.Done(); pour(w, file, p.exited, limits.drainIdle, limits.drainTotal) })
	}

	select {
	case <-p.exited:
	case <-s.srv.hurry:
		p.end(0, s.srv.hurry)
	case <-s.gone:
		if !isClosed(p.exited) {
			event.Lost = true
			_ = files.stdin.Close() // hangs up a terminal
			p.end(s.srv.cfg.Grace, s.srv.hurry)
			files.close()
		}
	}
	status, err := p.reap()
	for file := range files.outputs(s.ch) {
		_ = file.SetReadDeadline(time.Now().Add(limits.drainIdle)) // wakes pour
	}
	outputs.Wait()
	return status, err
}

// adopt tells the running command to the goroutine that answers requests, and delivers early signals.
func (s *session) adopt(p *process, master *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc, s.master = p, master
	if p == nil {
		return
	}
	if master != nil {
		_ = resize(master, s.term.Size)
	}
	for _, sig := range s.pending {
		_ = p.signal(sig)
	}
	s.pending = nil
}

// feed copies the client's input to the command. It discards what comes after the command closed its end, which would
// fill the window of the channel. It ends with the channel; the end of the command does not wait for it.
func feed(w io.WriteCloser, ch io.Reader, eof bool) {
	_, _ = io.Copy(w, ch)
	if eof {
		_ = w.Close()
	}
	_, _ = io.Copy(io.Discard, ch)
}

// pour copies output to the client until EOF. Once exited is closed and nothing was read between two read deadlines, or
// after total in any case, it copies what is in the pipe, which includes everything that the command wrote, and ends:
// processes that still hold the other end were left behind.
//
// Output to a client that is gone is discarded: SIGPIPE must not end a command that prints while it cleans up.
func pour(w io.Writer, r *os.File, exited <-chan struct{}, idle, total time.Duration) {
	buf := make([]byte, 4<<10) // most commands print little
	var last time.Time
	moved := false
	for {
		n, err := r.Read(buf)
		if n > 0 {
			moved = true
			if _, err := w.Write(buf[:n]); err != nil {
				w = io.Discard
			}
			if n == len(buf) && n < 32<<10 {
				buf = make([]byte, 32<<10)
			}
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !isClosed(exited) {
			return
		}
		now := time.Now()
		if last.IsZero() {
			last = now.Add(total - idle)
		}
		if moved && now.Before(last) {
			moved = false
			_ = r.SetReadDeadline(now.Add(idle))
			continue
		}
		drain(w, r)
		return
	}
}

// drain copies what is there without waiting: on a busy machine every deadline may pass before the read. Only read(2)
// finds all that was written to a terminal: FIONREAD does not count what the kernel still processes (tty_buffer.c).
func drain(w io.Writer, r *os.File) {
	const pipe = 64 << 10
	left := 0
	_ = rawconn.Control(r, func(fd int) (err error) { left, err = unix.IoctlGetInt(fd, unix.TIOCINQ); return err })
	left = max(left, pipe)
	buf := make([]byte, 32<<10)
	for left > 0 {
		var n int
		part := buf[:min(len(buf), left)]
		err := rawconn.Control(r, func(fd int) (err error) { n, err = unix.Read(fd, part); return err })
		if err != nil || n <= 0 {
			return
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return
		}
		left -= n
	}
}

// files are the pipes or the terminal between the server and a command.
type files struct {
	stdin, stdout, stderr *os.File // the server's ends; stderr is nil with a terminal
	master                *os.File // the terminal, which is also stdin and stdout; or nil
	theirs                []*os.File
}

func (f *files) close() {
	f.closeTheirs()
	for _, file := range []*os.File{f.stdin, f.stdout, f.stderr} {
		_ = file.Close() // harmless if it is nil or closed already
	}
}

func (f *files) closeTheirs() {
	for _, file := range f.theirs {
		_ = file.Close()
	}
	f.theirs = nil
}

// outputs returns where each output goes on the channel.
func (f *files) outputs(ch ssh.Channel) map[*os.File]io.Writer {
	if f.stderr == nil {
		return map[*os.File]io.Writer{f.stdout: ch}
	}
	return map[*os.File]io.Writer{f.stdout: ch, f.stderr: ch.Stderr()}
}

func (s *session) prepare(req request) (_ *exec.Cmd, _ *files, err error) {
	s.mu.Lock()
	env, term := s.env, s.term
	s.mu.Unlock()

	dir := s.srv.directory()
	cmd := &exec.Cmd{
		Path:        s.srv.cfg.Shell,
		Args:        []string{filepath.Base(s.srv.cfg.Shell), "-c", req.command},
		Dir:         dir,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	cmd.Env = slices.Concat(s.srv.environ, s.srv.cfg.Extra(), env)
	cmd.Env = append(cmd.Env, "PWD="+dir, "SSH_CONNECTION="+endpoints(s.conn.RemoteAddr(), s.conn.LocalAddr()))
	switch {
	case req.shell:
		cmd.Args = cmd.Args[:1]
	case req.sftp:
		cmd.Path, cmd.Args = s.srv.cfg.SFTP[0], s.srv.cfg.SFTP
		if req.forced {
			cmd.Args = slices.Concat(cmd.Args, s.srv.cfg.Hidden)
		}
	}
	if req.forced {
		cmd.Env = append(cmd.Env, "SSH_ORIGINAL_COMMAND="+req.original)
	}

	f := &files{}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if term != nil {
		master, tty, err := openTerminal(*term)
		if err != nil {
			return nil, nil, err
		}
		f.stdin, f.stdout, f.master, f.theirs = master, master, master, []*os.File{tty}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		cmd.SysProcAttr.Setctty = true
		cmd.Env = append(cmd.Env, "SSH_TTY="+tty.Name())
		if term.Term != "" {
			cmd.Env = append(cmd.Env, "TERM="+term.Term)
		}
		if req.shell {
			cmd.Path, cmd.Args = s.srv.pathShell, []string{filepath.Base(s.srv.pathShell)}
		}
		return cmd, f, nil
	}
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	stdin, toStdin := pipe()
	fromStdout, stdout := pipe()
	fromStderr, stderr := pipe()
	f.stdin, f.stdout, f.stderr, f.theirs = toStdin, fromStdout, fromStderr, []*os.File{stdin, stdout, stderr}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	return cmd, f, err
}

// directory returns where sessions start: HOME if it can be entered, else the root.
func (s *Server) directory() string {
	info, err := os.Stat(s.home)
	if err == nil && filepath.IsAbs(s.home) && info.IsDir() && unix.Access(s.home, unix.X_OK) == nil {
		return s.home
	}
	return "/"
}

// baseEnvironment completes the environment of sessions from the user database, if that knows our uid; in containers it
// often does not. shell is for a person at a terminal: SHELL, if there is such a program. names are the login names of
// this user.
func baseEnvironment(environ []string, fallback string) (env []string, home, shell string, names map[string]struct{}) {
	set := make(map[string]string)
	for _, v := range environ {
		name, value, ok := strings.Cut(v, "=")
		switch name {
		case "SSH_CLIENT", "SSH_TTY", "SSH_CONNECTION", "SSH_ORIGINAL_COMMAND": // belong to another session
			continue
		}
		if ok && name != "" {
			set[name] = value
			env = append(env, v)
		}
	}
	name, dir := strconv.Itoa(os.Getuid()), "/"
	names = map[string]struct{}{"root": {}, name: {}}
	if u, err := user.LookupId(name); err == nil {
		name, dir = u.Username, u.HomeDir
		names[name] = struct{}{}
	}
	if v := set["USER"]; v != "" {
		name = v
		names[name] = struct{}{}
	}
	add := func(key, value string) {
		if set[key] == "" {
			set[key] = value
			env = append(env, key+"="+value)
		}
	}
	add("USER", name)
	add("LOGNAME", name)
	add("HOME", dir)
	add("SHELL", fallback)
	shell = set["SHELL"]
	if !filepath.IsAbs(shell) || unix.Access(shell, unix.X_OK) != nil {
		shell = fallback
	}
	return env, set["HOME"], shell, names
}

// endpoints returns the value of SSH_CONNECTION: address and port of client and server (ssh(1), ENVIRONMENT).
func endpoints(remote, local net.Addr) string {
	var words []string
	for _, a := range []net.Addr{remote, local} {
		host, port := "UNKNOWN", "65535"
		if t, ok := a.(*net.TCPAddr); ok {
			host, port = t.AddrPort().Addr().Unmap().WithZone("").String(), strconv.Itoa(t.Port)
		}
		words = append(words, host, port)
	}
	return strings.Join(words, " ")
}

// terminate sends Shutdown's TERM. Shells at a terminal ignore it, so they get HUP as well.
func (s *session) terminate() {
	s.mu.Lock()
	hasTerminal := s.term != nil
	s.mu.Unlock()
	if hasTerminal {
		_ = s.signal(syscall.SIGHUP, true)
	}
	_ = s.signal(syscall.SIGTERM, true)
}
