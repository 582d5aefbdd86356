package sshd

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
)

// process is a running command: the leader of a session (setsid) and a process group, and what descends from it.
//
// The leader stays a zombie from its exit until reap, so its number, which is also the number of group and session,
// cannot belong to anybody else while signals are sent to it.
type process struct {
	cmd    *exec.Cmd
	pid    int
	exited chan struct{} // closed when the leader has exited
	proc   string        // where the proc file system is

	mu     sync.Mutex
	reaped bool
}

// startProcess starts cmd, whose SysProcAttr must ask for Setsid, through fork. The caller sees to it that watch runs, and calls reap.
func startProcess(cmd *exec.Cmd, fork func(func() error) error) (*process, error) {
	if err := fork(cmd.Start); err != nil {
		return nil, err
	}
	return &process{cmd: cmd, pid: cmd.Process.Pid, exited: make(chan struct{}), proc: "/proc"}, nil
}

// watch returns when the leader has exited.
func (p *process) watch() {
	defer close(p.exited)
	p.await()
	for unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// await is watch without a thread that is blocked in a system call, where the kernel has pidfd_open(2), since Linux 5.3. It may return early.
// Beside such a thread the Go runtime looks several dozen times whether somebody else needs its processor, which costs more than the rest of
// a short command.
func (p *process) await() {
	fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer func() { _ = file.Close() }()
	raw, err := file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
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

// signalAll sends sig to every process of the session, also to those that have moved to other process groups (as job control and
// MPI daemons do with their children), but not to those that left by setsid. Where /proc is not ours to read only
// the group is reached.
func (p *process) signalAll(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return
	}
	_ = syscall.Kill(-p.pid, sig) // the group at once: a process that forks now cannot slip through
	list, _ := members(p.proc, p.pid)
	for _, m := range list {
		if m.group != p.pid {
			_ = syscall.Kill(m.pid, sig)
		}
	}
}

// end makes all processes of the session end: HUP and CONT, TERM after grace, KILL after grace once more. It starts with KILL when
// hurry is closed. It returns when none is left, or when KILL has had no effect for a long time (a process in
// uninterruptible sleep). The leader is still to be reaped.
func (p *process) end(grace time.Duration, hurry <-chan struct{}) {
	if !isClosed(hurry) {
		p.signalAll(syscall.SIGHUP)
		p.signalAll(syscall.SIGCONT) // a stopped process would not get the HUP
		if p.empty(grace, hurry, nil) {
			return
		}
	}
	if !isClosed(hurry) {
		p.signalAll(syscall.SIGTERM)
		p.signalAll(syscall.SIGCONT)
		if p.empty(grace, hurry, nil) {
			return
		}
	}
	kill := func() { p.signalAll(syscall.SIGKILL) }
	kill()
	p.empty(10*time.Second, nil, kill) // again and again: it may fork faster than it can be listed
}

// empty waits until no process of the session is left, at most for d or until hurry is closed. It looks less and less often, and calls again
// before each look but the first.
func (p *process) empty(d time.Duration, hurry <-chan struct{}, again func()) bool {
	end := time.Now().Add(d)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		list, ok := members(p.proc, p.pid)
		if ok && len(list) == 0 {
			return true
		}
		if !ok && again != nil && isClosed(p.exited) {
			return true // the group has got a KILL; more cannot be known
		}
		left := time.Until(end)
		if left <= 0 || isClosed(hurry) {
			return false
		}
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
		case <-hurry:
		}
		timer.Stop()
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

// members lists the processes of a session from the proc file system that is mounted at root, without zombies. ok is
// false if there is none, or one of another PID namespace.
func members(root string, sid int) (list []member, ok bool) {
	all := proc.ReadAll(os.DirFS(root), os.Getpid())
	for _, p := range all {
		if p.Session == sid && !p.Ended() {
			list = append(list, member{p.PID, p.Group})
		}
	}
	return list, all != nil
}
