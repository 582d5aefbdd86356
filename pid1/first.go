package pid1

import (
	"errors"
	"os"
	"path"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/internal/proc"
)

const (
	endTimeout = 2 * time.Second        // at the end, how long killed processes may take to disappear
	endTick    = 10 * time.Millisecond  // how often to kill again, for processes that were started meanwhile
	sayTimeout = time.Second            // how long writing a line to standard error may take
	shedAfter  = 200 * time.Millisecond // delays shed: the agent, for which a job may wait, needs the processors

	// Launchers log in for seconds, and a job that ends sooner would load the pages again at its end: up to 5 ms.
	agentShedAfter = 5 * time.Second
	// A wait that is this long is mostly a long one, of minutes.
	waitingShedAfter = 10 * time.Second
	// An agent that waited longer than shedLate for processors meanwhile waits once more, shedTries times at the most.
	shedLate  = time.Second
	shedTries = 12
)

// process is the first process.
type process struct {
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
func first(environ, secrets []string) int {
	p := &process{
		init:     os.Getpid() == 1,
		signals:  make(chan os.Signal, 256),
		children: make(chan os.Signal, 1), // one SIGCHLD may stand for several children
	}
	notify(p.signals, ending)
	_, subreaper := prctl(prSetChildSubreaper, 1) // before any child can leave orphans
	err := p.start(environ, secrets)
	if subreaper != nil && !p.init {
		say("cannot become a child subreaper: " + subreaper.Error() +
			"; not being PID 1, paiinit can neither reap nor end daemons that the job leaves behind")
	}
	if err != nil {
		say(err.Error())
		if _, tooLong := errors.AsType[secretError](err); tooLong {
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
	var status [1]byte
	if n, _ := syscall.Read(p.status, status[:]); n == 1 {
		return int(status[0])
	}
	say("the agent ended without a result: " + describe(how) + "; the rest of the job was killed")
	return StatusCrash
}

// secretError says that a secret is too long for the pipe.
type secretError string

func (e secretError) Error() string { return string(e) }

func (p *process) start(environ, secrets []string) (err error) {
	h := handover{parent: os.Getpid(), init: p.init}
	// The agent's ends keep their numbers in the agent, and so do inherited files. They need no close-on-exec, because
	// this process starts nothing else.
	pipe := func() (r, w int, err error) {
		var fds [2]int
		if err := syscall.Pipe2(fds[:], syscall.O_NONBLOCK); err != nil {
			return 0, 0, errors.New("making a pipe to the agent: " + err.Error())
		}
		return fds[0], fds[1], nil
	}

	if h.signals, p.pipe, err = pipe(); err != nil {
		return err
	}
	syscall.CloseOnExec(p.pipe)
	if p.status, h.status, err = pipe(); err != nil {
		return err
	}
	syscall.CloseOnExec(p.status)

	public, found := environ, false
	for _, name := range secrets {
		var secret *string
		secret, public = take(public, name)
		if secret == nil {
			h.secrets = append(h.secrets, -1)
			continue
		}
		found = true
		if n := len(*secret); n > MaxSecret {
			text := name + " has " + strconv.Itoa(n) + " bytes; a secret may have at most " + strconv.Itoa(MaxSecret)
			return secretError(text)
		}
		r, w, err := pipe()
		if err != nil {
			return err
		}
		h.secrets = append(h.secrets, r)
		// The pipe has room, see MaxSecret. bytesOf makes no copy that would have to be erased.
		_, err = syscall.Write(w, bytesOf(*secret))
		_ = syscall.Close(w)
		if err != nil {
			return errors.New("passing " + name + " to the agent: " + err.Error())
		}
	}
	if found {
		if err := erase(environ, secrets); err != nil {
			say("a secret stays visible in /proc/" + strconv.Itoa(h.parent) + "/environ: " + err.Error())
		}
	}

	hide() // after erase, which reads /proc/self/environ
	h.slack, _ = prctl(syscall.PR_GET_TIMERSLACK, 0)
	public = append(public[:len(public):len(public)], Variable+"="+h.String())
	err = withSlack(agentSlack, func() (err error) {
		p.agent, err = startSelf(public)
		return err
	})
	for _, fd := range h.files() {
		_ = syscall.Close(fd)
	}
	return err
}

// startSelf starts this program again. It does not use os.StartProcess, because supervise waits for all children.
func startSelf(environ []string) (pid int, err error) {
	attr := &syscall.ProcAttr{Env: environ, Files: []uintptr{0, 1, 2}}
	pid, err = syscall.ForkExec("/proc/self/exe", os.Args, attr)
	if err == nil {
		return pid, nil
	}
	// There is no /proc, or it belongs to another PID namespace.
	file := lookPath(os.Args[0], environ)
	if file == "" {
		file = os.Args[0] + " is not in PATH, and /proc/self/exe"
	} else if pid, err = syscall.ForkExec(file, os.Args, attr); err == nil {
		return pid, nil
	}
	return 0, errors.New("starting this program again: " + file + ": " + err.Error())
}

// lookPath finds a program; "" if there is none. exec.LookPath would import large packages.
func lookPath(name string, environ []string) string {
	if path.Base(name) != name {
		return name
	}
	dirs, _ := take(environ, "PATH")
	if dirs == nil {
		return ""
	}
	for _, dir := range split(*dirs, ':') {
		file := dir + "/" + name
		info, err := os.Stat(file)
		if path.IsAbs(dir) && err == nil && info.Mode().IsRegular() && syscall.Access(file, 1 /* X_OK */) == nil {
			return file
		}
	}
	return ""
}

// supervise forwards signals and reaps children until the agent ends, and returns how it ended.
func (p *process) supervise() syscall.WaitStatus {
	settled := time.After(shedAfter)
	for {
		select {
		case <-settled:
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
	timeout, tick := time.After(endTimeout), time.Tick(endTick)
	p.killAll()
	for {
		if _, _, left := p.reap(); !left {
			return
		}
		select {
		case <-p.children:
		case <-tick:
			p.killAll()
		case <-timeout:
			say("some processes of the job still exist " + endTimeout.String() + " after SIGKILL")
			return
		}
	}
}

// killAll sends SIGKILL to everything that the job may have left. As PID 1 it reaches the whole namespace, else our
// descendants in /proc. If /proc is missing or belongs to another PID namespace, only PID 1 can kill anything.
func (p *process) killAll() {
	if p.init {
		// The kernel skips this process. ESRCH: no process is left. EPERM: we may kill none of the rest.
		_ = syscall.Kill(-1, syscall.SIGKILL)
		return
	}
	for _, pid := range proc.ReadAll(proc.System{}, os.Getpid()).Below(os.Getpid()) {
		// The number may belong to a new process only if another descendant reaped the old one and all other numbers
		// were used meanwhile.
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// say writes one line to standard error. It gives up after sayTimeout, so that an unread standard error does not keep
// the container alive. The goroutine then stays blocked in write(2) and ends with the process.
func say(text string) {
	notify(make(chan os.Signal, 1), []os.Signal{syscall.SIGPIPE}) // a broken pipe must not end this process
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = os.Stderr.WriteString("paiinit: pid1: " + text + "\n")
	}()
	select {
	case <-written:
	case <-time.After(sayTimeout):
	}
}

func describe(how syscall.WaitStatus) string {
	if how.Signaled() {
		return how.Signal().String() + " (signal " + strconv.Itoa(int(how.Signal())) + ")"
	}
	return "exit status " + strconv.Itoa(how.ExitStatus())
}

const prSetChildSubreaper = 36 // package syscall has it only on some architectures

// prctl calls prctl(2). With an error it returns -1.
func prctl(option, value int) (int, error) {
	result, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, uintptr(option), uintptr(value), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(result), nil
}

// agentSlack is how much later than requested a timer of the agent may expire. After every wake-up, a thread of the Go
// runtime (sysmon in runtime/proc.go) polls every 20 microseconds until the program is idle again, which costs more
// than the agent's work. With 64 agents on two processors this slack makes the launch a third faster. No timer of the
// agent needs more precision.
const agentSlack = int(time.Millisecond)

// withSlack calls start on a thread with this timer slack in nanoseconds, which a program started there inherits.
func withSlack(slack int, start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := prctl(syscall.PR_GET_TIMERSLACK, 0)
	if err != nil {
		return start()
	}
	_, _ = prctl(syscall.PR_SET_TIMERSLACK, slack)
	defer func() { _, _ = prctl(syscall.PR_SET_TIMERSLACK, before) }()
	return start()
}

// hide makes this process not dumpable (prctl(2), PR_SET_DUMPABLE): without CAP_SYS_PTRACE, no other process can read
// or write its memory, or read the files in /proc/PID that show it. A program that it executes is dumpable again. From
// then on, files of /proc/self that only their owner may open belong to root (proc_pid(5)).
func hide() { _, _ = prctl(syscall.PR_SET_DUMPABLE, 0) } // never fails
