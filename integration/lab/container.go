package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/internal/proc"
)

// Program describes what a container runs and sees.
type Program struct {
	Name     string   // the container's name in output and errors; "" = the machine's
	Hostname string   // "" = the machine's name
	Args     []string // the program, looked up in the PATH of Env, and its arguments
	Env      []string // its whole environment
	Dir      string   // working directory; "" = /
	// Tmpfs lists further directories that are empty and private in the container, besides /run, /tmp and /dev/shm.
	// Start creates missing ones on this host, and leaves them there.
	Tmpfs []string
	// Overlay lists directories of this host in which the container keeps its own changes.
	Overlay []string
	// Binds mounts files and directories of this host, by their paths in the container. A mount point that does not
	// exist must be on a tmpfs or an overlay.
	Binds map[string]string
	// Hide makes files of this host empty and not executable, if they exist.
	Hide []string
	// Parent runs the program as the child of another PID 1, like `docker run --init`. This PID 1 records the processes
	// and sockets that the program leaves behind (Container.Left). Without it, the kernel removes them with PID 1.
	Parent bool
	// Input keeps the program's standard input open without data, like `docker run --interactive`. By default it is at
	// EOF.
	Input bool

	// Hosts adds addresses by name to /etc/hosts, which always has the container's own name.
	Hosts map[string]netip.Addr
}

// Line is a line that a container wrote.
type Line struct {
	Time      time.Time // when it arrived
	Container string
	Stderr    bool   // standard error, not standard output
	Text      string // without the newline
}

// Container is a program that runs, or ran, in its own namespaces, as PID 1 unless Program.Parent is set.
type Container struct {
	Name    string
	Machine *Machine

	cmd  *exec.Cmd
	env  []string
	done chan struct{} // closed when PID 1 is reaped and its output is read

	stderr unread
	groups groups

	// These are valid once done is closed.
	ended     time.Time
	left      Left
	leftKnown bool

	mu    sync.Mutex
	lines []Line
	more  chan struct{} // closed and replaced when lines grows or done closes
}

// Start starts a container on the machine, and returns after it has executed the program.
func (m *Machine) Start(p Program) (*Container, error) {
	if p.Name == "" {
		p.Name = m.Name
	}
	if p.Hostname == "" {
		p.Hostname = m.Name
	}
	c, err := m.start(p)
	if err != nil {
		return nil, fmt.Errorf("lab: starting container %q: %w", p.Name, err)
	}
	return c, nil
}

func (m *Machine) start(p Program) (*Container, error) {
	l := m.lab
	var files pipes
	defer files.closeAll()
	plan, planIn := files.pipe()
	failOut, fail := files.pipe()
	leftOut, left := files.pipe()
	stdout, stdoutIn := files.pipe()
	stderr, stderrIn := files.pipe()
	if files.err != nil {
		return nil, files.err
	}

	c := &Container{Name: p.Name, Machine: m, env: p.Env, done: make(chan struct{}), more: make(chan struct{})}
	c.cmd = &exec.Cmd{
		Path:       "/proc/self/exe",
		Args:       []string{stageName},
		Env:        []string{},
		Stdout:     stdoutIn,
		Stderr:     stderrIn,
		ExtraFiles: []*os.File{plan, fail, left}, // stagePlan, stageFailure, stageLeft
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
			Pdeathsig:  syscall.SIGKILL,
			Setsid:     true, // a terminal's Ctrl-C must reach only this process
		},
	}
	if p.Input {
		if _, err := c.cmd.StdinPipe(); err != nil { // closed by Wait
			return nil, err
		}
	}
	if err := l.in(m.network, c.cmd.Start); err != nil {
		return nil, err
	}
	files.close(plan, fail, left, stdoutIn, stderrIn)

	files.keep(stdout, stderr, leftOut)
	c.stderr.init(stderr)
	var readers sync.WaitGroup
	readers.Go(func() { c.read(stdout, false) })
	readers.Go(func() { c.read(stderr, true) })
	readers.Go(func() {
		defer func() { _ = leftOut.Close() }()
		c.leftKnown = json.NewDecoder(leftOut).Decode(&c.left) == nil // EOF if the program has no parent
	})
	go func() {
		readers.Wait()
		_ = c.cmd.Wait() // cmd.ProcessState has the status
		c.ended = time.Now()
		close(c.done)
		c.mu.Lock()
		close(c.more)
		c.more = make(chan struct{})
		c.mu.Unlock()
	}()

	err := json.NewEncoder(planIn).Encode(stagePlanOf(p, m))
	files.close(planIn)
	if err == nil {
		err = stageResult(failOut)
	}
	if err == nil && !l.adopt(c) {
		err = ErrClosed
	}
	if err != nil {
		c.Kill()
		<-c.done
		return nil, err
	}
	return c, nil
}

// adopt registers the container with Close. It returns false if the lab is already closed.
func (l *Lab) adopt(c *Container) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.containers = append(l.containers, c)
	}
	return !l.closed
}

func (c *Container) read(r *os.File, isStderr bool) {
	defer func() { _ = r.Close() }()
	if isStderr {
		defer c.stderr.end()
	}
	in := bufio.NewReader(r)
	for {
		if isStderr {
			c.stderr.await()
		}
		text, err := in.ReadString('\n')
		if text != "" && (!isStderr || text != filler) {
			c.line(Line{time.Now(), c.Name, isStderr, strings.TrimSuffix(text, "\n")})
		}
		if err != nil {
			return
		}
	}
}

func (c *Container) line(line Line) {
	l := c.Machine.lab
	l.writing.Lock()
	defer l.writing.Unlock()
	c.mu.Lock()
	c.lines = append(c.lines, line)
	close(c.more)
	c.more = make(chan struct{})
	c.mu.Unlock()
	if l.onLine != nil {
		l.onLine(line)
	}
}

// Lines returns what the container has written so far.
func (c *Container) Lines() []Line {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lines)
}

// Output returns the text of Lines, each with its newline.
func (c *Container) Output() string {
	var b strings.Builder
	for _, l := range c.Lines() {
		b.WriteString(l.Text)
		b.WriteByte('\n')
	}
	return b.String()
}

// WaitLine waits for a line that contains text and returns the first one, which may be older than the call. It fails if
// ctx or the container ends without such a line.
func (c *Container) WaitLine(ctx context.Context, text string) (Line, error) {
	seen := 0
	for {
		c.mu.Lock()
		lines, more := c.lines[seen:], c.more
		c.mu.Unlock()
		seen += len(lines)
		for _, l := range lines {
			if strings.Contains(l.Text, text) {
				return l, nil
			}
		}
		if len(lines) > 0 {
			continue
		}
		select {
		case <-c.done:
			if c.written() == seen {
				return Line{}, fmt.Errorf("lab: container %q ended with status %d and never wrote %q",
					c.Name, c.status(), text)
			}
			continue
		default:
		}
		select {
		case <-more:
		case <-ctx.Done():
			return Line{}, fmt.Errorf("lab: waiting for container %q to write %q: %w", c.Name, text, ctx.Err())
		}
	}
}

func (c *Container) written() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lines)
}

// Wait waits until PID 1 has ended and all its output is read, and returns its exit status, or 128+n if signal n killed
// it.
func (c *Container) Wait(ctx context.Context) (int, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
	}
	select { // both may be ready
	case <-c.done:
		return c.status(), nil
	default:
		return -1, fmt.Errorf("lab: waiting for container %q: %w", c.Name, ctx.Err())
	}
}

func (c *Container) status() int {
	ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return c.cmd.ProcessState.ExitCode()
}

// Ended is closed when Wait would return at once.
func (c *Container) Ended() <-chan struct{} { return c.done }

// EndedAt returns the time when Ended was closed. It may be called after that.
func (c *Container) EndedAt() time.Time { return c.ended }

// PID returns the process id of PID 1 on this host.
func (c *Container) PID() int { return c.cmd.Process.Pid }

// Signal sends a signal to PID 1 from outside, as a container engine does. It fails if PID 1 has ended.
func (c *Container) Signal(sig syscall.Signal) error {
	if err := c.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("lab: signal %v to container %q: %w", sig, c.Name, err)
	}
	return nil
}

// Kill ends all processes of the container at once.
func (c *Container) Kill() { _ = c.cmd.Process.Kill() }

// Pause stops all processes of the container until Resume. The kernel still acknowledges TCP segments, as on a frozen
// or overloaded machine.
func (c *Container) Pause() error {
	// A running process may start another one meanwhile, so repeat until a round finds no new process.
	stopped := map[int]bool{}
	for {
		processes, err := c.Processes()
		if err != nil {
			return err
		}
		fresh := 0
		for _, p := range processes {
			if !stopped[p.PID] {
				fresh++
				stopped[p.PID] = true
				_ = unix.Kill(p.PID, unix.SIGSTOP) // fails if the process has ended
				awaitStop(p.PID)
			}
		}
		if fresh == 0 {
			return nil
		}
	}
}

// awaitStop waits until a process has stopped or ended. On a busy machine its other threads may go on until the thread
// runs that takes the signal.
func awaitStop(pid int) {
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		state := stat[min(bytes.LastIndexByte(stat, ')')+2, len(stat)):]
		if err != nil || len(state) == 0 || bytes.IndexByte([]byte("TtZX"), state[0]) >= 0 {
			return
		}
		<-time.After(time.Millisecond)
	}
}

// Resume continues the processes of a paused container.
func (c *Container) Resume() error {
	processes, err := c.Processes()
	for _, p := range processes {
		_ = unix.Kill(p.PID, unix.SIGCONT)
	}
	return err
}

// Process is a process of a container.
type Process struct {
	PID     int      // on this host
	Parent  int      // its PID on this host
	Args    []string // empty for a zombie
	Environ []string // the environment at its start, from /proc/PID/environ
}

// Processes returns the processes of the container, including PID 1, sorted by PID. It returns none if PID 1 has ended.
func (c *Container) Processes() ([]Process, error) {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.PID()))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lab: processes of container %q: %w", c.Name, err)
	}
	fsys := os.DirFS("/proc")
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, fmt.Errorf("lab: processes of container %q: %w", c.Name, err)
	}
	var processes []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if ns, err := os.Readlink("/proc/" + e.Name() + "/ns/pid"); err != nil || ns != own {
			continue // the process may have ended
		}
		stat, _ := proc.Read(fsys, pid)
		processes = append(processes, Process{pid, stat.Parent, proc.CommandLine(fsys, pid), proc.Environ(fsys, pid)})
	}
	slices.SortFunc(processes, func(a, b Process) int { return a.PID - b.PID })
	return processes, nil
}

// Exec runs a command inside the container, with the environment of Program.Env, and returns its standard output. The
// error contains its standard error and wraps an *exec.ExitError.
func (c *Container) Exec(ctx context.Context, args ...string) ([]byte, error) {
	nsenter, err := lookSbin("nsenter")
	if err != nil {
		return nil, fmt.Errorf("lab: exec in container %q: %w", c.Name, err)
	}
	all := append([]string{"-t", strconv.Itoa(c.PID()), "-m", "-u", "-i", "-n", "-p", "--"}, args...)
	cmd := exec.CommandContext(ctx, nsenter, all...)
	cmd.Env = c.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("lab: exec %q in container %q: %w: %s",
			args, c.Name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// pipes opens pipes, and closes the ends that no caller kept.
type pipes struct {
	open []*os.File
	err  error
}

func (p *pipes) pipe() (r, w *os.File) {
	if p.err == nil {
		if r, w, p.err = os.Pipe(); p.err == nil {
			p.open = append(p.open, r, w)
		}
	}
	return r, w
}

func (p *pipes) close(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
	p.keep(files...)
}

func (p *pipes) keep(files ...*os.File) {
	p.open = slices.DeleteFunc(p.open, func(f *os.File) bool { return slices.Contains(files, f) })
}

func (p *pipes) closeAll() { p.close(slices.Clone(p.open)...) }

// stageResult reads the error of stage. It gets EOF when stage executes the program, because exec closes the pipe.
func stageResult(r io.Reader) error {
	text, err := io.ReadAll(r)
	if err == nil && len(text) > 0 {
		err = errors.New(string(text))
	}
	return err
}
