package initspec

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/hang"
	"github.com/paiinit/paiinit/integration/initspec/stage"
)

// driver creates containers.
type driver interface {
	// missing returns the reason why the driver does not work on this machine, "" if it works.
	missing() string
	// prepare sets c.cmd.
	prepare(c *container, p program)
	signal(c *container, sig syscall.Signal) error
	// enter returns a command that runs args in the container.
	enter(c *container, args ...string) *exec.Cmd
	// remove kills a running container.
	remove(c *container)
	first(c *container) int // PID of its first process on this machine; 0 = none
}

// need skips the test if something is missing, or fails it if PAIINIT_TEST_REQUIRE is set.
func need(t *testing.T, missing string) {
	t.Helper()
	if missing == "" {
		return
	}
	if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		t.Fatal(missing)
	}
	t.Skip(missing)
}

// namespaces creates containers from namespaces, in which PID 1 is root.
type namespaces struct {
	user bool // also from a user namespace
}

func (n namespaces) missing() string {
	if !n.user && os.Geteuid() != 0 {
		return "namespaces without a user namespace need root"
	}
	if noBusybox != "" {
		return noBusybox
	}
	cmd, err := stage.Plan{Root: root, Args: []string{"/bin/true"}}.Command(inside, n.user)
	if err == nil {
		var out []byte
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		return fmt.Sprintf("namespaces do not work here (user namespace: %v): %v", n.user, err)
	}
	return ""
}

// baseEnviron has what every container gets: a job of one rank logs its steps at level debug.
func baseEnviron() []string {
	return []string{"PATH=/bin:/sbin", "PAIINIT_LOG_FORMAT=logfmt", "PAIINIT_LOG_LEVEL=debug", hang.Variable}
}

func (n namespaces) prepare(c *container, p program) {
	plan := stage.Plan{
		Root: root, Args: p.args(), Env: append(baseEnviron(), p.env...),
		ReadOnly: p.bare, Bare: p.bare, NoProc: p.noProc,
	}
	var err error
	c.cmd, err = plan.Command(inside, n.user)
	require.NoError(c.t, err)
	c.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // the container dies with the test
	r, w, err := os.Pipe()
	require.NoError(c.t, err)
	c.cmd.ExtraFiles, c.executed = []*os.File{w}, r
}

func (n namespaces) signal(c *container, sig syscall.Signal) error { return c.cmd.Process.Signal(sig) }

func (n namespaces) enter(c *container, args ...string) *exec.Cmd {
	options := []string{"--target", strconv.Itoa(c.cmd.Process.Pid), "--all", "--root", "--wd"}
	return exec.Command("nsenter", append(options, args...)...)
}

func (n namespaces) remove(c *container) { _ = c.cmd.Process.Kill() }

func (n namespaces) first(c *container) int { return c.cmd.Process.Pid }

// docker creates containers with the Docker engine.
type docker struct {
	options []string
	tmpfs   string // the option to omit for a bare container
}

func (d docker) missing() string { return noDocker }

var containers atomic.Int64

func (d docker) prepare(c *container, p program) {
	c.name = fmt.Sprintf("paiinit-initspec-%s-%d", runName, containers.Add(1))
	args := []string{"run", "--name", c.name, "--rm", "--network", "none"}
	for _, option := range d.options {
		if !p.bare || option != d.tmpfs {
			args = append(args, option)
		}
	}
	if p.bare {
		args = append(args, "--read-only", "--ipc", "none", "--user", "12345") // not root, who can write to /dev
	}
	for _, entry := range append(baseEnviron(), p.env...) {
		args = append(args, "--env", entry)
	}
	if p.stdin != nil || p.tty {
		args = append(args, "--interactive")
	}
	if p.tty {
		args = append(args, "--tty")
	}
	program := p.args()
	args = append(args, "--entrypoint", program[0], image)
	c.cmd = exec.Command("docker", append(args, program[1:]...)...)
	// If the test is killed, docker must not create a container after that.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

func (d docker) signal(c *container, sig syscall.Signal) error {
	out, err := exec.Command("docker", "kill", "--signal", strconv.Itoa(int(sig)), c.name).CombinedOutput()
	if err != nil {
		return fmt.Errorf("docker kill: %w: %s", err, out)
	}
	return nil
}

func (d docker) enter(c *container, args ...string) *exec.Cmd {
	return exec.Command("docker", append([]string{"exec", c.name}, args...)...)
}

func (d docker) remove(c *container) {
	out, err := exec.Command("docker", "rm", "--force", c.name).CombinedOutput()
	ending := strings.Contains(string(out), "No such container") || strings.Contains(string(out), "already in progress")
	if err != nil && !ending {
		c.t.Errorf("docker rm: %v: %s", err, out)
	}
}

func (d docker) first(c *container) int {
	out, _ := exec.Command("docker", "inspect", "--format", "{{.State.Pid}}", c.name).Output()
	pid, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	return pid
}

// drivers lists all drivers.
var drivers = []struct {
	name string
	driver
}{
	{"root", namespaces{}},
	{"user", namespaces{user: true}},
	{"docker", docker{}},
	{"restricted", docker{
		options: []string{"--read-only", "--tmpfs=/run", "--user=12345", "--cap-drop=ALL"}, tmpfs: "--tmpfs=/run",
	}},
}
