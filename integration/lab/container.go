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

// Program says what a container runs and what it sees.
type Program struct {
	Name     string   // of the container in output and errors; "" = the machine's
	Hostname string   // "" = the machine's name
	Args     []string // the program, looked up in the PATH of Env, and its arguments
	Env      []string // its whole environment
	Dir      string   // working directory; "" = /
	// Tmpfs lists directories of this host that are empty and private in the container, besides /run, /tmp and
	// /dev/shm. A missing one is made on this host, and stays there.
	Tmpfs []string
	// Overlay lists directories of this host that the container may change without this host seeing it.
	Overlay []string
	// Binds makes files and directories of this host visible, by the path they get in the container. It is
	// needed for what a tmpfs would hide. Missing mount points are made where they lie on a tmpfs or an
	// overlay.
	Binds map[string]string
	// Hide makes files unusable: they read as empty and cannot be executed. Those that do not exist are left out.
	Hide []string
	// Parent has the program run as the child of a first process that is not its own, as `docker run --init` does. That one tells what
	// the program leaves behind (Container.Left), which nobody could see otherwise: PID 1 takes all others with it.
	Parent bool
	// Input gives the program a standard input in which nothing comes, and which does not end, as
	// `docker run --interactive` does. Without it, the input is empty.
	Input bool

	// Hosts are further lines of /etc/hosts: address by name. The container's own name is always there.
	Hosts map[string]netip.Addr
}

// Line is one line that a container wrote, without its end.
type Line struct {
	Time      time.Time // of its arrival
	Container string
	Stderr    bool // else standard output
	Text      string
}

// Container is a program that runs, or ran, in its own namespaces, as PID 1 unless Program.Parent says otherwise.
type Container struct {
	Name    string
	Machine *Machine

	cmd  *exec.Cmd
	env  []string
	done chan struct{} // closed when PID 1 is waited for and its output is read

	left      Left // once done is closed
	leftKnown bool

	mu    sync.Mutex
	lines []Line
	more  chan struct{} // closed and replaced when lines grows or done closes
}

// Start starts a container on the machine and returns when the program has been executed.
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
			Setsid:     true, // a terminal's Ctrl-C is for us
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

	// The lab must know the container before anything that may fail, or Close would leave it behind.
	files.keep(stdout, stderr, leftOut)
	var readers sync.WaitGroup
	readers.Go(func() { c.read(stdout, false) })
	readers.Go(func() { c.read(stderr, true) })
	readers.Go(func() {
		defer func() { _ = leftOut.Close() }()
		c.leftKnown = json.NewDecoder(leftOut).Decode(&c.left) == nil // EOF where there is nothing to tell
	})
	go func() {
		readers.Wait()
		_ = c.cmd.Wait() // the status is in cmd.ProcessState
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

// adopt makes Close kill the container; it is too late for that when the lab is closed.
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
	in := bufio.NewReader(r)
	for {
		text, err := in.ReadString('\n')
		if text != "" {
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

// Lines returns what the container wrote up to now.
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

// WaitLine returns the first line that contains text, also one that was written before the call. It fails when
// ctx ends or the container does so without such a line.
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
				return Line{}, fmt.Errorf("lab: container %q ended with status %d and never wrote %q", c.Name, c.status(), text)
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

// Wait returns the exit status of PID 1 as its parent sees it, once it has ended and all its output has been
// read: its own, or 128+n where signal n killed it.
func (c *Container) Wait(ctx context.Context) (int, error) {
	select {
	case <-c.done:
		return c.status(), nil
	case <-ctx.Done():
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

// PID is the process id of PID 1 on this host.
func (c *Container) PID() int { return c.cmd.Process.Pid }

// Signal sends a signal to PID 1 from outside, as a container engine does. It is an error when PID 1 has ended.
func (c *Container) Signal(sig syscall.Signal) error {
	if err := c.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("lab: signal %v to container %q: %w", sig, c.Name, err)
	}
	return nil
}

// Kill ends all processes of the container at once.
func (c *Container) Kill() { _ = c.cmd.Process.Kill() }

// Pause stops every process of the container, as a frozen or hopelessly overloaded machine would: its kernel goes
// on acknowledging TCP segments, its programs do nothing. Resume undoes it.
func (c *Container) Pause() error {
	// A process that runs may start another one meanwhile; after a round without a new one none runs.
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
				_ = unix.Kill(p.PID, unix.SIGSTOP) // it may have ended
			}
		}
		if fresh == 0 {
			return nil
		}
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

// Process is a process of a container, as this host sees it.
type Process struct {
	PID     int      // on this host
	Parent  int      // on this host
	Args    []string // empty for a zombie
	Environ []string // as in /proc/PID/environ: what it was started with
}

// Processes returns the processes of the container, PID 1 among them, by PID. It is empty when PID 1 has ended.
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
			continue // it may have ended since
		}
		stat, _ := proc.Read(fsys, pid)
		processes = append(processes, Process{pid, stat.Parent, proc.CommandLine(fsys, pid), proc.Environ(fsys, pid)})
	}
	slices.SortFunc(processes, func(a, b Process) int { return a.PID - b.PID })
	return processes, nil
}

// Exec runs a command inside the container beside its processes, in the environment of Program.Env, and returns
// what it writes. The error holds its standard error and wraps an *exec.ExitError.
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
		return stdout.Bytes(), fmt.Errorf("lab: exec %q in container %q: %w: %s", args, c.Name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// pipes opens pipes and closes what nobody took.
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

// stageResult reads what stage writes when it fails; it writes nothing and its end is closed when it executes the
// program.
func stageResult(r io.Reader) error {
	text, err := io.ReadAll(r)
	if err == nil && len(text) > 0 {
		err = errors.New(string(text))
	}
	return err
}
