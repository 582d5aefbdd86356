package pid1

import (
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"
)

const (
	endTimeout = 2 * time.Second        // at the end, how long killed processes may take to disappear
	endTick    = 10 * time.Millisecond  // how often to kill again, for processes that were started meanwhile
	sayTimeout = time.Second            // how long writing a line to Stderr may take
	shedAfter  = 200 * time.Millisecond // delays shed: the agent, for which a job may wait, needs the processors
)

// process is the first process.
type process struct {
	stderr   *os.File
	init     bool           // we are PID 1
	signals  chan os.Signal // to forward
	children chan os.Signal // SIGCHLD: something to reap
	agent    int            // process id
	pipe     int            // write end of handover.signals
	status   int            // read end of handover.status
}

// first implements Main in the first process.
//
// To start the agent early, it first catches only the signals that would end this process. It catches the others, each
// of which costs two thread switches, while the agent starts.
func first(cfg Config) int {
	p := &process{
		stderr:   cfg.Stderr,
		init:     os.Getpid() == 1,
		signals:  make(chan os.Signal, 256),
		children: make(chan os.Signal, 1), // one SIGCHLD may stand for several children
	}
	notify(p.signals, ending)
	subreaper := prctl(prSetChildSubreaper, 1) // before any child can leave orphans
	err := p.start(cfg)
	if subreaper != nil && !p.init {
		p.say("cannot become a child subreaper: " + subreaper.Error() +
			"; not being PID 1, paiinit can neither reap nor end daemons that the job leaves behind")
	}
	if err != nil {
		p.say(err.Error())
		if tooLong := (*secretError)(nil); errors.As(err, &tooLong) {
			return StatusConfig
		}
		return StatusCrash
	}
	notify(p.children, []os.Signal{syscall.SIGCHLD})
	select {
	case p.children <- syscall.SIGCHLD: // for children that ended before
	default:
	}
	notify(p.signals, others()) // the agent waits for the byte that reports this
	_, _ = syscall.Write(p.pipe, []byte{ready})
	// So that a file system in which the job was started can be unmounted. A failure is harmless.
	_ = syscall.Chdir("/")
	how := p.supervise()
	p.end()
	if status, ok := p.handedOver(); ok {
		return status
	}
	p.say("the agent ended without a result: " + describe(how) + "; the rest of the job was killed")
	return StatusCrash
}

// secretError says that a secret is too long for the pipe.
type secretError struct {
	name string
	size int
}

func (e *secretError) Error() string {
	return e.name + " has " + strconv.Itoa(e.size) + " bytes; a secret may have at most " + strconv.Itoa(MaxSecret)
}

// start starts the agent.
func (p *process) start(cfg Config) (err error) {
	h := handover{parent: os.Getpid(), init: p.init}
	var agents []int // the agent's ends
	defer func() {
		for _, fd := range agents {
			_ = syscall.Close(fd)
		}
	}()
	// The agent's ends keep their numbers in the agent, and so do inherited files. They need no close-on-exec, because
	// this process starts nothing else.
	pipe := func() (r, w int, err error) {
		var fds [2]int
		if err := syscall.Pipe2(fds[:], syscall.O_NONBLOCK); err != nil {
			return 0, 0, because("making a pipe to the agent", err)
		}
		return fds[0], fds[1], nil
	}

	if h.signals, p.pipe, err = pipe(); err != nil {
		return err
	}
	agents = append(agents, h.signals)
	syscall.CloseOnExec(p.pipe)
	if p.status, h.status, err = pipe(); err != nil {
		return err
	}
	agents = append(agents, h.status)
	syscall.CloseOnExec(p.status)

	environ, found := cfg.Environ, false
	for _, name := range cfg.Secrets {
		var secret *string
		secret, environ = take(environ, name)
		if secret == nil {
			h.secrets = append(h.secrets, -1)
			continue
		}
		found = true
		if len(*secret) > MaxSecret {
			return &secretError{name, len(*secret)}
		}
		r, w, err := pipe()
		if err != nil {
			return err
		}
		agents = append(agents, r)
		h.secrets = append(h.secrets, r)
		// The pipe has room, see MaxSecret. bytesOf makes no copy that would have to be erased.
		_, err = syscall.Write(w, bytesOf(*secret))
		_ = syscall.Close(w)
		if err != nil {
			return because("passing "+name+" to the agent", err)
		}
	}
	if found {
		if err := erase(cfg.Args, cfg.Environ, cfg.Secrets); err != nil {
			p.say("a secret stays visible in /proc/" + strconv.Itoa(h.parent) + "/environ: " + err.Error())
		}
	}

	hide() // after erase, which reads /proc/self/environ
	h.slack = timerSlack()
	attr := &syscall.ProcAttr{
		Env:   append(environ[:len(environ):len(environ)], Variable+"="+h.String()),
		Files: []uintptr{0, 1, 2},
	}
	start := func() { p.agent, err = startSelf(cfg.Args, attr) }
	if h.slack < 0 {
		start()
		return err
	}
	withSlack(agentSlack, start)
	return err
}

// startSelf starts this program again. It does not use os.StartProcess, because supervise waits for all children.
func startSelf(args []string, attr *syscall.ProcAttr) (pid int, err error) {
	pid, err = syscall.ForkExec("/proc/self/exe", args, attr)
	if err == nil {
		return pid, nil
	}
	// There is no /proc, or it belongs to another PID namespace.
	path := lookPath(args[0], attr.Env)
	if path == "" {
		return 0, because("starting this program again: "+args[0]+" is not in PATH, and /proc/self/exe", err)
	}
	if pid, err = syscall.ForkExec(path, args, attr); err != nil {
		return 0, because("starting this program again: "+path, err)
	}
	return pid, nil
}

// lookPath finds a program; "" if there is none. exec.LookPath would import large packages.
func lookPath(name string, environ []string) string {
	if len(split(name, '/')) > 1 {
		return name
	}
	dirs, _ := take(environ, "PATH")
	if dirs == nil {
		return ""
	}
	for _, dir := range split(*dirs, ':') {
		path := dir + "/" + name
		info, err := os.Stat(path)
		_, absolute := cutPrefix(dir, "/")
		if absolute && err == nil && info.Mode().IsRegular() && syscall.Access(path, 1 /* X_OK */) == nil {
			return path
		}
	}
	return ""
}

// supervise forwards signals and reaps children until the agent ends, and returns how it ended.
func (p *process) supervise() syscall.WaitStatus {
	settled := time.NewTimer(shedAfter)
	defer settled.Stop()
	for {
		select {
		case <-settled.C:
			shed()
		case sig := <-p.signals:
			p.forward(sig.(syscall.Signal))
		case <-p.children:
			if how, ended, _ := p.reap(); ended {
				return how
			}
		}
	}
}

// forward passes a signal to the agent.
func (p *process) forward(sig syscall.Signal) {
	// The pipe does not block. If it is full, the agent has thousands of unread signals, and may lose this one.
	_, _ = syscall.Write(p.pipe, []byte{byte(sig)})

	switch sig {
	case syscall.SIGCONT:
		// Also wake the agent, in case SIGSTOP stopped it.
		_ = syscall.Kill(p.agent, syscall.SIGCONT)
	case syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
		if !p.init {
			stop(sig)
		}
	}
}

// reap collects every child that has ended. It reports whether the agent was one of them, and whether children are
// left.
func (p *process) reap() (agent syscall.WaitStatus, ended, left bool) {
	for {
		var how syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &how, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD
			return agent, ended, false
		case pid == 0:
			return agent, ended, true
		case pid == p.agent:
			agent, ended = how, true
		}
	}
}

// end kills all processes that are left, and reaps the children. After endTimeout it leaves the rest to the kernel,
// which ends everything else in the namespace before PID 1.
func (p *process) end() {
	if _, _, left := p.reap(); !left && !p.init {
		return // a subreaper without children has no descendants
	}
	timeout := time.NewTimer(endTimeout)
	defer timeout.Stop()
	tick := time.NewTicker(endTick)
	defer tick.Stop()
	p.killAll()
	for {
		if _, _, left := p.reap(); !left {
			return
		}
		select {
		case <-p.children:
		case <-tick.C:
			p.killAll()
		case <-timeout.C:
			p.say("some processes of the job still exist " + endTimeout.String() + " after SIGKILL")
			return
		}
	}
}

// handedOver returns the status that the agent passed to the first process, if it did.
func (p *process) handedOver() (status int, ok bool) {
	var b [1]byte
	n, err := syscall.Read(p.status, b[:])
	return int(b[0]), n == 1 && err == nil
}

func (p *process) say(text string) {
	notify(make(chan os.Signal, 1), []os.Signal{syscall.SIGPIPE}) // a broken Stderr must not end this process
	say(p.stderr, text)
}

// say writes one line. It gives up after sayTimeout, so that an unread Stderr does not keep the container alive. The
// goroutine then stays blocked in write(2) and ends with the process.
func say(w io.Writer, text string) {
	line := "paiinit: pid1: " + text + "\n"
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.WriteString(w, line)
	}()
	timeout := time.NewTimer(sayTimeout)
	defer timeout.Stop()
	select {
	case <-written:
	case <-timeout.C:
	}
}

// describe returns how a process ended, in words.
func describe(how syscall.WaitStatus) string {
	if how.Signaled() {
		return how.Signal().String() + " (signal " + strconv.Itoa(int(how.Signal())) + ")"
	}
	return "exit status " + strconv.Itoa(how.ExitStatus())
}

// because returns fmt.Errorf("doing: %w", err) without importing that package.
func because(doing string, err error) error { return &causedError{doing, err} }

type causedError struct {
	doing string
	cause error
}

func (e *causedError) Error() string { return e.doing + ": " + e.cause.Error() }
func (e *causedError) Unwrap() error { return e.cause }

// prctl calls prctl(2), with options that package syscall does not name.
func prctl(option int, value uintptr) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, uintptr(option), value, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// hide makes this process not dumpable (prctl(2), PR_SET_DUMPABLE): without CAP_SYS_PTRACE, no other process can read
// or write its memory, or read the files in /proc/PID that show it. A program that it executes is dumpable again. From
// then on, files of /proc/self that only their owner may open belong to root (proc_pid(5)).
func hide() { _ = prctl(prSetDumpable, 0) } // fails for no process

const (
	prSetDumpable       = 4
	prSetChildSubreaper = 36
	prSetTimerslack     = 29
	prGetTimerslack     = 30
)
