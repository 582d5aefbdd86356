package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/integration/lab"
)

// process is a paiinit on the loopback address, where a lab cannot run: a container without the namespaces.
type process struct {
	cmd    *exec.Cmd
	rank   int
	show   func(lab.Line)
	output *os.File

	mu    sync.Mutex
	lines []lab.Line
	said  chan struct{} // closed and replaced after each line
	done  chan struct{} // closed after the end
}

// processes are the paiinit that the demo has started.
type processes []*process

// patience is how long a process may take to end: longer than paiinit's own --grace.
const patience = 45 * time.Second

// stop ends all processes at once, with SIGTERM, or after patience with SIGKILL, and waits for their ends.
func (all *processes) stop() {
	var wg sync.WaitGroup
	for _, p := range *all {
		wg.Go(p.stop)
	}
	wg.Wait()
}

// onLoopback returns one start function for each rank.
func (all *processes) onLoopback(dir, secret string, show func(lab.Line), opts options) (
	[]func() (started, error), error,
) {
	var peers []string
	for range opts.hosts { // all at once, so that no two are equal
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		peers = append(peers, l.Addr().String())
	}
	starts := make([]func() (started, error), opts.hosts)
	for rank := range starts {
		starts[rank] = func() (started, error) {
			cmd := exec.Command(opts.paiinit, append([]string{"--exec", "all", "--"}, opts.command...)...)
			state := "PAIINIT_STATE_DIR=" + filepath.Join(dir, strconv.Itoa(rank))
			cmd.Env = append(environment(rank, secret, peers), state)
			p, err := start(cmd, rank, show)
			if err != nil {
				return nil, err
			}
			*all = append(*all, p)
			return p, nil
		}
	}
	return starts, nil
}

// start starts a process and reads its output.
func start(cmd *exec.Cmd, rank int, show func(lab.Line)) (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a key of the terminal reaches the demo alone
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("starting paiinit: %w", err)
	}
	p := &process{
		cmd: cmd, rank: rank, show: show, output: r, said: make(chan struct{}), done: make(chan struct{}),
	}
	go p.read()
	return p, nil
}

// read takes the output until all writers have ended, then the status.
func (p *process) read() {
	in := bufio.NewReader(p.output)
	for {
		text, err := in.ReadString('\n')
		if text = strings.TrimSuffix(text, "\n"); text != "" {
			l := lab.Line{Container: p.name(), Time: time.Now(), Text: text}
			p.mu.Lock()
			p.lines = append(p.lines, l)
			close(p.said)
			p.said = make(chan struct{})
			p.mu.Unlock()
			p.show(l)
		}
		if err != nil {
			break
		}
	}
	_ = p.output.Close()
	_ = p.cmd.Wait() // the state of the process has the same information
	close(p.done)
}

func (p *process) name() string { return fmt.Sprintf("worker-%d", p.rank) }

// WaitLine waits for a line that contains text.
func (p *process) WaitLine(ctx context.Context, text string) (lab.Line, error) {
	for {
		p.mu.Lock()
		for _, l := range p.lines {
			if strings.Contains(l.Text, text) {
				p.mu.Unlock()
				return l, nil
			}
		}
		said := p.said
		p.mu.Unlock()
		select {
		case <-said:
		case <-p.done:
			return lab.Line{}, fmt.Errorf("%s ended and never wrote %q: %w", p.name(), text, io.ErrUnexpectedEOF)
		case <-ctx.Done():
			return lab.Line{}, ctx.Err()
		}
	}
}

// Kill ends the agent, and the first process then ends the command. Without a PID namespace, the command would survive
// the end of both.
func (p *process) Kill() {
	// each thread has its own children (proc_pid_task(5)); the pattern is correct
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid))
	for _, name := range lists {
		children, _ := os.ReadFile(name)
		for _, child := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
	}
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error: it has ended
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // the group: its command would survive it
		<-p.done
	}
}

// Wait returns the exit status.
func (p *process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return -1, fmt.Errorf("waiting for %s: %w", p.name(), ctx.Err())
	}
	if state := p.cmd.ProcessState.Sys().(syscall.WaitStatus); state.Signaled() {
		return 128 + int(state.Signal()), nil
	}
	return p.cmd.ProcessState.ExitCode(), nil
}

// Lines returns the output.
func (p *process) Lines() []lab.Line {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lines
}
