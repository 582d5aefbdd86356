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
)

// What one session channel may bring in "env" requests, over its life.
const (
	maxEnvNames = 256
	maxEnvBytes = 64 << 10
)

// session is one channel of type "session". Its requests are answered by the goroutine of serve, which never waits for the
// command or for the client to read; the command, once requested, belongs to the goroutine of run.
type session struct {
	conn *conn
	srv  *Server
	id   identity
	user string
	ch   ssh.Channel
	free func()         // gives the place among the connection's sessions back
	gone chan struct{}  // closed when the client has closed the channel or the connection is lost
	work sync.WaitGroup // goroutines that end after gone is closed

	// Of the goroutine of serve.
	envNames, envBytes int

	mu      sync.Mutex
	behind  string   // the person on whose behalf a rank asks; "" = the job itself
	env     []string // accepted from the client
	term    *terminal
	asked   bool             // for a command
	forced  bool             // by the key's line: not the client's to signal
	proc    *process         // while the command runs
	master  *os.File         // of its terminal
	pending []syscall.Signal // came before proc was there
}

// session serves one channel of type "session".
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

// serve answers requests until the channel is gone and everything that works for it has ended.
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
			s.logger().Info("ssh request refused", "request", cut(req.Type, 64), "reason", err.Error())
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
	return s.srv.log.With("remote", address(s.conn.RemoteAddr()), "who", s.id.who(), "key", s.id.fingerprint)
}

// errIgnored refuses what clients may ask for in good faith: it is not worth a line.
var errIgnored = errors.New("not served")

// answer decides on one request; an error refuses it. What it returns is the command to run after the reply.
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
		name, err := parseSubsystem(req.Payload)
		if err != nil {
			return nil, err
		}
		if name != "sftp" || len(s.srv.cfg.SFTP) == 0 {
			return nil, fmt.Errorf("there is no subsystem %q", cut(name, 64))
		}
		return s.begin(request{sftp: true})
	case "auth-agent-req@openssh.com", "x11-req@openssh.com", "x11-req":
		return nil, errors.New("not served here")
	case "env":
		return nil, s.setenv(req.Payload)
	case personRequest:
		return nil, s.relayed(req.Payload)
	case "user@paiinit": // the job's connections are kept, and shared by commands for all login names
		var m struct{ Name string }
		if err := ssh.Unmarshal(req.Payload, &m); err != nil {
			return nil, fmt.Errorf("malformed user request: %w", err)
		}
		if _, ok := s.srv.names[m.Name]; !ok {
			return nil, fmt.Errorf("login name %q does not belong to this container's user", cut(m.Name, 64))
		}
		return nil, nil
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
		s.term.Size = size
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

// personRequest names the person on another host who uses the job's key. It is for the log, and restricts nothing.
const personRequest = "person@paiinit"

// relayed keeps the name of the person.
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

// person returns the name of the person that asks, here or on another host; "" = the job itself does.
func (s *session) person() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id.person != nil {
		return s.id.person.name
	}
	return s.behind
}

// setenv keeps a variable for the command. A client cannot know whether a refused one was ignored or too much.
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

// request is for a command, for a shell, or for the subsystem sftp.
type request struct {
	shell    bool
	sftp     bool
	command  string
	forced   bool   // command is that of the key's line
	original string // what was asked for instead; "": a shell
}

// force puts the command of a person's key in the place of what was asked for.
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

// begin takes the request for a command, of which there is one per channel (RFC 4254 section 6.5).
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
		return nil, errors.New("there is no sftp")
	}
	s.asked, s.forced = true, req.forced
	s.srv.running[s] = struct{}{}
	received := time.Now()
	return func() { s.run(req, received) }, nil
}

// signal passes a signal to the command, or keeps it until the command has been started. own: it is the server's.
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
		ID: s.srv.commands.Add(1), Key: s.id.fingerprint, User: s.user, Remote: s.conn.RemoteAddr(),
		Command: req.command, Shell: req.shell, SFTP: req.sftp, Started: received,
	}
	event.Person = s.person()
	level := s.id.level()
	if event.Person != "" {
		level = slog.LevelInfo
	}
	status, err := s.execute(req, &event)
	name, payload := "exit-status", ssh.Marshal(struct{ Status uint32 }{uint32(status.ExitStatus())})
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
		payload = ssh.Marshal(struct{ Status uint32 }{255})
		_, _ = fmt.Fprintf(s.ch.Stderr(), "paiinit: cannot run the command: %v\n", err)
		attrs = append(attrs, "status", 255, "err", err)
	case status.Signaled():
		event.Signal, event.Status = status.Signal(), 128+int(status.Signal())
		name, payload = "exit-signal", ssh.Marshal(struct {
			Signal   string
			Core     bool
			Message  string
			Language string
		}{Signal: signalName(status.Signal()), Core: status.CoreDump()})
		attrs = append(attrs, "signal", unix.SignalName(event.Signal))
	default:
		event.Status = status.ExitStatus()
		attrs = append(attrs, "status", event.Status)
	}
	event.Done, event.Duration = true, time.Since(received)
	if event.Lost {
		attrs = append(attrs, "lost", true)
	}
	attrs = append(attrs, "duration", event.Duration.Round(time.Millisecond))
	s.logger().Log(s.conn.ctx, level, "ssh command", attrs...)
	s.srv.tell(event)

	// The output is out; now status, EOF, close. The status goes first: OpenSSH and PuTTY answer EOF with close when their
	// own input has ended, x/crypto/ssh answers close with close at once, and after that a status cannot be sent.
	// The place is free before the client can know it.
	_, _ = s.ch.SendRequest(name, false, payload)
	_ = s.ch.CloseWrite()
	s.free()
	_ = s.ch.Close()
}

// execute starts the command, moves its input and output, and returns its status when it has ended and what it has written is
// sent. The error is one of starting it.
func (s *session) execute(req request, event *CommandEvent) (syscall.WaitStatus, error) {
	cmd, files, err := s.prepare(req)
	if err != nil {
		return 0, err
	}
	defer files.close()
	starting := sync.OnceFunc(s.srv.starting.RUnlock)
	s.srv.starting.RLock()
	defer starting()
	p, err := startProcess(cmd, s.conn.srv.cfg.Fork)
	files.closeTheirs()
	if err != nil {
		return 0, err
	}
	s.spawn("waiting for a command", p.watch)
	defer func() { // after a panic the command must not live on with nobody to wait for it
		s.adopt(nil, nil)
		if !p.isReaped() {
			p.end(0, s.gone)
			_, _ = p.reap()
		}
	}()
	s.adopt(p, files.master)
	event.PID = p.pid
	s.srv.tell(*event)
	starting()

	s.spawn("stdin", func() { feed(files.stdin, s.ch, files.master == nil) })
	var outputs sync.WaitGroup
	drained := make(chan struct{})
	limits := s.srv.limits
	for file, w := range files.outputs(s.ch) {
		outputs.Add(1)
		s.spawn("output", func() { defer outputs.Done(); pour(w, file, p.exited, limits.drainIdle, limits.drainTotal) })
	}
	s.spawn("output", func() { defer close(drained); outputs.Wait() })

	select {
	case <-p.exited:
	case <-s.srv.hurry:
		p.end(0, s.srv.hurry)
	case <-s.gone:
		if !isClosed(p.exited) {
			event.Lost = true
			_ = files.stdin.Close() // with a terminal that is a hang-up
			p.end(s.srv.cfg.Grace, s.srv.hurry)
			files.close()
		}
	}
	status, err := p.reap()
	for file := range files.outputs(s.ch) {
		_ = file.SetReadDeadline(time.Now().Add(limits.drainIdle)) // wakes pour
	}
	<-drained
	return status, err
}

// adopt makes the running command known to the goroutine that answers requests, and delivers what came early.
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

// feed moves the client's input to the command. What comes after the command has closed its end is thrown away, so that it does not
// fill the window of the channel. It ends with the channel and is not waited for at the end of the command.
func feed(w io.WriteCloser, ch io.Reader, eof bool) {
	_, _ = io.Copy(w, ch)
	if eof {
		_ = w.Close()
	}
	_, _ = io.Copy(io.Discard, ch)
}

// pour moves output to the client until EOF. Once exited is closed and a read deadline passes with nothing read since the last one, or total later
// in any case, it moves what lies in the pipe at that moment - all that the command itself can have written - and ends:
// whoever still holds the other end was left behind.
//
// When the client is gone output is thrown away: a command that prints while it cleans up after HUP or TERM must not die of PIPE.
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

// drain moves what is there without waiting: a busy machine may let every deadline pass before the read. Only read(2)
// finds all that was written to a terminal, FIONREAD does not count what the kernel has yet to process (tty_buffer.c).
func drain(w io.Writer, r *os.File) {
	const pipe = 64 << 10
	left := int(max(pendingBytes(r), pipe))
	buf := make([]byte, 32<<10)
	for left > 0 {
		var n int
		err := control(r, func(fd int) (err error) { n, err = unix.Read(fd, buf[:min(len(buf), left)]); return err })
		if err != nil || n <= 0 {
			return
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return
		}
		left -= n
	}
}

// files are the ends of pipes or terminal between us and a command.
type files struct {
	stdin, stdout, stderr *os.File // ours; stderr is nil with a terminal
	master                *os.File // the terminal, which is also stdin and stdout; or nil
	theirs                []*os.File
}

func (f *files) close() {
	f.closeTheirs()
	for _, file := range []*os.File{f.stdin, f.stdout, f.stderr} {
		if file != nil {
			_ = file.Close() // a second time does no harm
		}
	}
}

func (f *files) closeTheirs() {
	for _, file := range f.theirs {
		_ = file.Close()
	}
	f.theirs = nil
}

// outputs says which file goes where on the channel.
func (f *files) outputs(ch ssh.Channel) map[*os.File]io.Writer {
	if f.stderr == nil {
		return map[*os.File]io.Writer{f.stdout: ch}
	}
	return map[*os.File]io.Writer{f.stdout: ch, f.stderr: ch.Stderr()}
}

// prepare makes the command and what connects it with us.
func (s *session) prepare(req request) (_ *exec.Cmd, _ *files, err error) {
	s.mu.Lock()
	env, term := s.env, s.term
	if term != nil {
		t := *term
		term = &t
	}
	s.mu.Unlock()

	dir := s.srv.directory()
	cmd := &exec.Cmd{
		Path:        s.srv.cfg.Shell,
		Args:        []string{filepath.Base(s.srv.cfg.Shell), "-c", req.command},
		Dir:         dir,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	cmd.Env = append(cmd.Env, s.srv.environ...)
	if s.srv.cfg.Extra != nil {
		cmd.Env = append(cmd.Env, s.srv.cfg.Extra()...)
	}
	cmd.Env = append(cmd.Env, env...)
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
	stdin, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	f.stdin, f.theirs, cmd.Stdin = w, append(f.theirs, stdin), stdin
	r, stdout, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	f.stdout, f.theirs, cmd.Stdout = r, append(f.theirs, stdout), stdout
	r, stderr, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	f.stderr, f.theirs, cmd.Stderr = r, append(f.theirs, stderr), stderr
	return cmd, f, nil
}

// directory is where sessions start: HOME, else Config.Dir, else the root.
func (s *Server) directory() string {
	for _, dir := range []string{s.home, s.cfg.Dir} {
		if !filepath.IsAbs(dir) {
			continue
		}
		if info, err := os.Stat(dir); err == nil && info.IsDir() && unix.Access(dir, unix.X_OK) == nil {
			return dir
		}
	}
	return "/"
}

// baseEnvironment completes the environment of sessions, by the user database where that knows us; a uid without
// an entry is common in containers. shell is for a person at a terminal: their SHELL, if there is such a program.
//
// names are the login names that mean us.
func baseEnvironment(environ []string, fallback string) (env []string, home, shell string, names map[string]struct{}) {
	set := make(map[string]string)
	for _, v := range environ {
		name, value, ok := strings.Cut(v, "=")
		switch name {
		case "SSH_CLIENT", "SSH_TTY", "SSH_CONNECTION", "SSH_ORIGINAL_COMMAND": // of another session
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

// endpoints is the value of SSH_CONNECTION: address and port of the client and of the server (ssh(1), ENVIRONMENT).
func endpoints(remote, local net.Addr) string {
	words := make([]string, 0, 4)
	for _, a := range []net.Addr{remote, local} {
		host, port := "UNKNOWN", "65535"
		if t, ok := a.(*net.TCPAddr); ok {
			host, port = t.AddrPort().Addr().Unmap().WithZone("").String(), strconv.Itoa(t.Port)
		}
		words = append(words, host, port)
	}
	return strings.Join(words, " ")
}

// terminate is Shutdown's TERM. Shells at a terminal ignore it; they are told that their terminal is gone.
func (s *session) terminate() {
	s.mu.Lock()
	person := s.term != nil
	s.mu.Unlock()
	if person {
		_ = s.signal(syscall.SIGHUP, true)
	}
	_ = s.signal(syscall.SIGTERM, true)
}
