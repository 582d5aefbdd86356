package sshd

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
	"github.com/paiinit/paiinit/internal/rawconn"
)

// process is a running command: the leader of a session (setsid) and a process group, and its descendants.
//
// The leader stays a zombie from its exit until reap, so its number, which is also that of group and session, cannot
// belong to another process while signals are sent to it.
type process struct {
	cmd    *exec.Cmd
	pid    int
	exited chan struct{} // closed when the leader exits
	proc   string        // where /proc is

	mu     sync.Mutex
	reaped bool
}

// startProcess starts cmd, whose SysProcAttr must set Setsid, through fork. The caller must run watch and call reap.
func startProcess(cmd *exec.Cmd, fork func(func() error) error) (*process, error) {
	if err := fork(cmd.Start); err != nil {
		return nil, err
	}
	return &process{cmd: cmd, pid: cmd.Process.Pid, exited: make(chan struct{}), proc: "/proc"}, nil
}

// watch returns when the leader has exited.
func (p *process) watch() {
	defer close(p.exited)
	// pidfd_open(2) (Linux 5.3) needs no thread that blocks in a system call: while one blocks, the Go runtime polls
	// several dozen times, which costs more than the rest of a short command.
	if fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK); err == nil {
		file := os.NewFile(uintptr(fd), "pidfd")
		_ = rawconn.AwaitReadable(file) // may return early
		_ = file.Close()
	}
	for unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// reap waits for the leader and returns its status.
func (p *process) reap() (syscall.WaitStatus, error) {
	<-p.exited
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped = true
	err := p.cmd.Wait()
	if p.cmd.ProcessState == nil {
		return 0, err
	}
	return p.cmd.ProcessState.Sys().(syscall.WaitStatus), nil
}

func (p *process) isReaped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reaped
}

// signal sends sig to the process group of the leader. After reap it does nothing.
func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return os.ErrProcessDone
	}
	return syscall.Kill(-p.pid, sig)
}

// signalAll sends sig to every process of the session, also in other process groups, which job control and MPI daemons
// create, but not to processes that left by setsid. Without a readable /proc it reaches only the leader's group.
func (p *process) signalAll(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return
	}
	_ = syscall.Kill(-p.pid, sig) // the whole group at once: a process that forks now cannot escape
	list, _ := members(p.proc, p.pid)
	for _, m := range list {
		if m.group != p.pid {
			_ = syscall.Kill(m.pid, sig)
		}
	}
}

// end ends all processes of the session: by HUP and CONT, after grace by TERM, after grace again by KILL; if hurry is
// closed, by KILL at once. It returns when none is left, or when KILL has had no effect for long (a process in
// uninterruptible sleep). It does not reap the leader.
func (p *process) end(grace time.Duration, hurry <-chan struct{}) {
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		if isClosed(hurry) {
			break
		}
		p.signalAll(sig)
		p.signalAll(syscall.SIGCONT) // a stopped process would not handle sig
		if p.empty(grace, hurry, nil) {
			return
		}
	}
	kill := func() { p.signalAll(syscall.SIGKILL) }
	kill()
	p.empty(10*time.Second, nil, kill) // repeatedly: it may fork faster than it can be listed
}

// empty waits until no process of the session is left, at most for d or until hurry is closed. It polls less and less
// often, and calls again before each poll but the first.
func (p *process) empty(d time.Duration, hurry <-chan struct{}, again func()) bool {
	end := time.Now().Add(d)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		list, ok := members(p.proc, p.pid)
		if ok && len(list) == 0 {
			return true
		}
		if !ok && again != nil && isClosed(p.exited) {
			return true // the group got KILL; nothing more is known
		}
		left := time.Until(end)
		if left <= 0 || isClosed(hurry) {
			return false
		}
		select {
		case <-time.After(min(pause, left)):
		case <-hurry:
		}
		if again != nil {
			again()
		}
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// member is a living process of a session.
type member struct{ pid, group int }

// members lists the processes of a session from the proc file system at root, without zombies. ok is false if there is
// none, or it belongs to another PID namespace.
func members(root string, sid int) (list []member, ok bool) {
	all := proc.ReadAll(os.DirFS(root), os.Getpid())
	for _, p := range all {
		if p.Session == sid && !p.Ended() {
			list = append(list, member{p.PID, p.Group})
		}
	}
	return list, all != nil
}
