package docker

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// otherCommand replaces the command of the example's launcher.
const otherCommand = `
services:
  launcher:
    command: %s
`

// restricted takes from a container everything that paiinit does not need. The user has no passwd entry.
const restricted = `
services:
  launcher: &restricted
    user: "12345:12345"
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
  worker: *restricted
`

// shells are programs that a launcher may use as a remote shell.
var shells = []string{"ssh", "sshd", "rsh", "slogin", "dropbear", "dbclient"}

func TestImageHasNoRemoteShell(t *testing.T) {
	image := jobImage(t)
	// apt has methods with these names, which only call the programs.
	find := "find / -xdev -not -path /usr/lib/apt/methods/* ( -name " + strings.Join(shells, " -o -name ") + " ) -print"
	args := []string{"run", "--rm", "--network", "none", "--entrypoint", "find", image}
	out, err := docker(t.Context(), append(args, strings.Fields(find)[1:]...)...)
	require.NoError(t, err)
	assert.Empty(t, out)
}

// TestImageIsStillAShell: without a command, the image starts a shell, as its base does.
func TestImageIsStillAShell(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "docker", "run", "--rm", "--interactive", "--network", "none", jobImage(t))
	cmd.Stdin = strings.NewReader("echo $0 of $PAIINIT_SIZE; exit 7\n")
	out, err := cmd.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.ExitCode(), "%s", exit.Stderr)
	require.Equal(t, "bash of 1\n", string(out))
}

func TestSum(t *testing.T) {
	p := newProject(t, jobImage(t), "")
	ended := p.up(t)
	requireStatus(t, ended, 0)
	requireSum(t, p)
	assert.NotContains(t, p.logs(t), p.secret)
}

func TestSumRestricted(t *testing.T) {
	p := newProject(t, jobImage(t), restricted)
	ended := p.up(t)
	requireStatus(t, ended, 0)
	requireSum(t, p)
}

func TestFailingProgram(t *testing.T) {
	p := newProject(t, jobImage(t), fmt.Sprintf(otherCommand, `[mpirun, python3, /examples/allreduce.py, --fail, "1"]`))
	requireStatus(t, p.up(t), 3)
}

// TestUnknownCommand: a typo in rank 0's command ends all containers at once, not only after --timeout.
func TestUnknownCommand(t *testing.T) {
	p := newProject(t, jobImage(t), fmt.Sprintf(otherCommand, "[mpirum, python3, /examples/allreduce.py]"))
	for name, c := range p.up(t) {
		assert.Equal(t, 127, c.State.ExitCode, name)
	}
}

func TestStopWorker(t *testing.T) {
	p := newProject(t, jobImage(t),
		fmt.Sprintf(otherCommand, `[mpirun, python3, /examples/allreduce.py, --sleep, "600"]`))
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	_, err := p.compose(ctx, "up", "--detach", "--no-build", "--scale", "worker=3")
	require.NoError(t, err)
	p.follow(ctx, t, p.service(t, "launcher", 1), "sum = ", 1)

	stopped := time.Now()
	_, err = docker(ctx, "stop", "--time", "30", p.service(t, "worker", 2))
	require.NoError(t, err)
	ended := p.wait(ctx, t)
	assert.Less(t, time.Since(stopped), 20*time.Second, "the job ends soon after one of its containers")
	var statuses []int
	for _, c := range ended {
		statuses = append(statuses, c.State.ExitCode)
		assert.NotEqual(t, 0, c.State.ExitCode, c.Name)
	}
	for _, s := range statuses {
		assert.Equal(t, statuses[0], s, "exit statuses differ: %v", statuses)
	}
}

// TestRestartedWorker: a worker whose container dies is started again by the engine, and the job starts again in the
// containers, none of which ends.
func TestRestartedWorker(t *testing.T) {
	p := newProject(t, jobImage(t), fmt.Sprintf(otherCommand, `[mpirun, -npernode, "1", sh, -c, `+
		`'[ "$$PAIINIT_GENERATION" = 2 ] || { echo up; sleep 600; }; python3 /examples/allreduce.py']`))
	p.base = append(p.base, "--file", filepath.Join(root, "examples/compose/restarts.yaml"))
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	_, err := p.compose(ctx, "up", "--detach", "--no-build", "--scale", "worker=3")
	require.NoError(t, err)
	launcher, worker := p.service(t, "launcher", 1), p.service(t, "worker", 2)
	p.follow(ctx, t, launcher, "up\n", 4)

	pid, err := docker(ctx, "inspect", "--format", "{{.State.Pid}}", worker)
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(n, syscall.SIGKILL)) // the engine does not restart what it has killed itself
	p.follow(ctx, t, launcher, "the job has ended, status 0", 1)
	requireStatus(t, p.wait(ctx, t), 0)
	requireSum(t, p)
	restarts, err := docker(ctx, "inspect", "--format", "{{.RestartCount}}", launcher, worker)
	require.NoError(t, err)
	require.Equal(t, []string{"0", "1"}, strings.Fields(restarts))
}

// requireStatus fails unless every container has ended with the status.
func requireStatus(t *testing.T, ended map[string]container, status int) {
	t.Helper()
	for name, c := range ended {
		if c.State.ExitCode != status {
			t.Errorf("%s: exit status %d, not %d", name, c.State.ExitCode, status)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// requireSum fails unless the launcher has printed the right sum over all four hosts.
func requireSum(t *testing.T, p *project) {
	t.Helper()
	out, err := docker(t.Context(), "logs", p.service(t, "launcher", 1))
	require.NoError(t, err)
	for line := range strings.Lines(out) {
		var ranks, hosts, sum, expected int
		n, _ := fmt.Sscanf(line, "allreduce over %d ranks on %d hosts: sum = %d, expected %d",
			&ranks, &hosts, &sum, &expected)
		if n == 4 {
			assert.Equal(t, 4, hosts)
			assert.Equal(t, ranks*(ranks+1)/2, sum)
			return
		}
	}
	t.Fatal("the launcher has not printed the sum")
}
