package rsh_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/rsh"
)

// These tests simulate a person at a terminal: the client as a process on a pseudo-terminal, the agent, and the real
// server.

// agentOf serves an agent that knows the targets, on a socket, until the end of the test.
func agentOf(t *testing.T, p *rsh.Pool, targets ...rsh.Target) (socket string) {
	dir, err := os.MkdirTemp("", "rsh") // t.TempDir may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "agent.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- p.ServeAgent(ctx, ln, rsh.Agent{
			Resolve: func(_ context.Context, host string) (rsh.Target, bool) {
				for _, target := range targets {
					if target.Name == host {
						return target, true
					}
				}
				return rsh.Target{}, false
			},
			Hosts: func() (names [][]string) {
				for _, target := range targets {
					names = append(names, strings.Fields(target.Name+" "+target.ID))
				}
				return names
			},
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	return socket
}

func clientOf(socket string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "RSH_TEST_SOCKET="+socket, "GORACE=atexit_sleep_ms=0", "TERM=vt220")
	return cmd
}

// person types and reads.
type person struct {
	t    *testing.T
	tty  *os.File
	cmd  *exec.Cmd
	seen bytes.Buffer
	mu   sync.Mutex
	more chan struct{}
	gone chan struct{}
}

// sit starts the client in the foreground of a terminal of the given size.
func sit(t *testing.T, cmd *exec.Cmd, rows, columns uint16) *person {
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: rows, Cols: columns})
	require.NoError(t, err)
	p := &person{t: t, tty: tty, cmd: cmd, more: make(chan struct{}, 1), gone: make(chan struct{})}
	go func() {
		defer close(p.gone)
		buf := make([]byte, 4096)
		for {
			n, err := tty.Read(buf)
			p.mu.Lock()
			p.seen.Write(buf[:n])
			p.mu.Unlock()
			select {
			case p.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = tty.Close()
		<-p.gone
	})
	return p
}

func (p *person) types(text string) {
	p.t.Helper()
	_, err := p.tty.WriteString(text)
	require.NoError(p.t, err)
}

// reads waits for output that matches, and discards the output up to the end of the match.
func (p *person) reads(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	deadline := time.After(time.Minute)
	for {
		p.mu.Lock()
		at := re.FindSubmatchIndex(p.seen.Bytes())
		var found []string
		if at != nil {
			for i := 0; i < len(at); i += 2 {
				found = append(found, string(p.seen.Bytes()[at[i]:at[i+1]]))
			}
			p.seen.Next(at[1])
		}
		text := p.seen.String()
		p.mu.Unlock()
		if at != nil {
			return found
		}
		select {
		case <-p.more:
		case <-deadline:
			p.t.Fatalf("no %s in %q", pattern, text)
		}
	}
}

func (p *person) leaves() int {
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

func TestPersonShell(t *testing.T) {
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	socket := agentOf(t, pool(t, k), target)

	p := sit(t, clientOf(socket, "worker-1"), 24, 80)
	p.types("PS1=; stty size; echo $TERM $CONTAINER; tty\n")
	p.reads(`24 80\s+vt220 worker-1\s+/dev/pts/\d+`)
	p.types("stty -a | tr ';' '\\n' | grep -c intr.*C\n")
	p.reads(`\n1\r`)

	// The window is resized.
	require.NoError(t, pty.Setsize(p.tty, &pty.Winsize{Rows: 50, Cols: 132}))
	p.types("while ! stty size | grep '50 132'; do sleep 0.02; done\n")
	p.reads(`\n50 132\r`)

	// Ctrl-C ends a command of the shell, not the shell. The command writes the name in two parts, unlike the echo.
	p.types("sh -c \"echo rea''dy; exec sleep 1000\"\n")
	p.reads(`\nready\r`)
	p.types("\x03")
	p.types("echo st''ill here\n")
	p.reads(`still here`)
	p.types("exit 7\n")
	require.Equal(t, 7, p.leaves())
}

func TestPersonTerminalIsRestored(t *testing.T) {
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	socket := agentOf(t, pool(t, k), target)
	sh := clientOf(socket)
	sh.Path, sh.Args = "/bin/sh", []string{"sh", "-c",
		`before=$(stty -g); "$0" -t worker-1 'exit 3'; echo "status $?"; [ "$before" = "$(stty -g)" ] && echo same`,
		os.Args[0]}
	p := sit(t, sh, 24, 80)
	p.reads(`status 3\s+same`)
	require.Equal(t, 0, p.leaves())
}

// A background process of the same session may not read from the terminal, so the agent does not.
func TestPersonWithoutTerminal(t *testing.T) {
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	socket := agentOf(t, pool(t, k), target)

	p := sit(t, clientOf(socket, "worker-1", "tty; cat; exit 4"), 24, 80) // a command gets no terminal unless asked for
	p.reads("not a tty")
	p.types("some text\n\x04")
	p.reads("some text\r\nsome text\r\n") // once by the terminal's own echo
	require.Equal(t, 4, p.leaves())

	p = sit(t, clientOf(socket, "-T", "worker-1"), 24, 80)
	p.types("tty\nexit 5\n")
	p.reads("not a tty")
	require.Equal(t, 5, p.leaves())

	p = sit(t, clientOf(socket, "worker-1", "trap 'exit 42' INT; echo ready; while :; do sleep 0.02; done"), 24, 80)
	p.reads("ready")
	p.types("\x03") // the terminal turns it into a signal, which the client forwards
	require.Equal(t, 42, p.leaves())
}

func TestPersonLeaves(t *testing.T) {
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	socket := agentOf(t, pool(t, k), target)
	command := `trap '' HUP; echo pid $$; exec sleep 1000`

	p := sit(t, clientOf(socket, "-t", "worker-1", command), 24, 80)
	pid := p.reads(`pid (\d+)`)[1]
	p.types("~.")
	p.reads(`left by ~\.`)
	require.Equal(t, 255, p.leaves())
	waitGone(t, pid)

	// The person closes the terminal.
	p = sit(t, clientOf(socket, "-t", "worker-1", command), 24, 80)
	pid = p.reads(`pid (\d+)`)[1]
	require.NoError(t, p.cmd.Process.Signal(unix.SIGHUP))
	require.Equal(t, 129, p.leaves())
	waitGone(t, pid)
}

func waitGone(t *testing.T, pid string) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, time.Minute, 5*time.Millisecond)
}

// -tt gives a command a terminal even if stdin is none; -t does not, and the client says so.
func TestForcedTerminal(t *testing.T) {
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	socket := agentOf(t, pool(t, k), target)
	var out, errs bytes.Buffer
	cmd := clientOf(socket, "-tt", "worker-1", "tty; stty size; read -r x; echo \"got $x\"; echo err >&2; exit 6")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("line\n"), &out, &errs
	_ = cmd.Run()
	require.Equal(t, 6, cmd.ProcessState.ExitCode(), errs.String())
	require.Regexp(t, `(?s)/dev/pts/\d+.*0 0.*got line.*err`, out.String())
	require.Empty(t, errs.String())

	out.Reset()
	cmd = clientOf(socket, "-t", "worker-1", "tty; exit 6")
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	require.Equal(t, 6, cmd.ProcessState.ExitCode())
	require.Equal(t, "not a tty\n", out.String())
	require.Contains(t, errs.String(), "stdin is not a terminal")
}

// More concurrent sessions than a host allows on one connection all succeed.
func TestRealManySessions(t *testing.T) {
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	p := pool(t, k)
	dir := t.TempDir()
	const n = 150
	// Longer than the wait below, so that a session that does not begin is reported as such.
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { // each session waits until all have begun
			command := fmt.Sprintf(`touch %s/%d; while [ ! -e %s/go ]; do sleep 1; done; exit 9`, dir, i, dir)
			status, err := p.Exec(ctx, target, rsh.Request{Command: command})
			if err != nil || status.Code != 9 {
				t.Errorf("%d: %v %v", i, status, err)
			}
		})
	}
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(dir)
		return err == nil && len(entries) == n
	}, 3*time.Minute, 20*time.Millisecond)
	require.NoError(t, os.WriteFile(dir+"/go", nil, 0o600))
	wg.Wait()
}

// Without an agent, the client runs the command over its own connection.
func TestRealDirect(t *testing.T) {
	k := keys(t, secret, "job", "0")
	target := container(t, k, "worker-1")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	c := rsh.Caller{Stdout: w, Stderr: w, Direct: func(context.Context) (*rsh.Pool, rsh.Agent, error) {
		return pool(t, k), rsh.Agent{Resolve: func(_ context.Context, host string) (rsh.Target, bool) {
			return target, host == "worker-1"
		}}, nil
	}}
	require.Equal(t, 3, c.Run(within(t), rsh.Invocation{Host: "worker-1", Command: "echo direct; exit 3"}))
	require.Equal(t, 255, c.Run(within(t), rsh.Invocation{Host: "worker-2", Command: "true"}))
	require.NoError(t, w.Close())
	var out bytes.Buffer
	_, err = out.ReadFrom(r)
	require.NoError(t, err)
	require.Equal(t, "direct\npaiinit rsh: worker-2: resolve: no container of this job has this name or address\n",
		out.String())
}
