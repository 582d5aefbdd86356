package launch

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// realJob is a job of two hosts for a real launcher; its agent reports for which host it was called, and does nothing
// else.
type realJob struct {
	launcher Setup
	environ  []string
	calls    *bufio.Reader
}

func newRealJob(t *testing.T) realJob {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(content), mode))
		return file
	}
	fifo := filepath.Join(dir, "calls")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	calls, err := os.OpenFile(fifo, os.O_RDWR, 0) // also for writing, so that the end of an agent is no end of file
	require.NoError(t, err)
	t.Cleanup(func() { _ = calls.Close() })
	agent := write("agent", "#!/bin/sh\necho \"$$ $*\" >"+fifo+"\nexec sleep 20\n", 0o755)
	j := realJob{calls: bufio.NewReader(calls), launcher: Setup{
		Hostfile:        write("hostfile", "worker-0 slots=1\nps-server-1 slots=1\n", 0o644),
		CountedHostfile: write("hostfile.hydra", "worker-0:1\nps-server-1:1\n", 0o644),
		Agent:           []string{agent, "rsh"}, AgentPath: agent, Root: os.Geteuid() == 0,
	}}
	require.NoError(t, j.launcher.Check())
	// Variables that a scheduler left behind must not override the host list.
	leftovers := []string{"PATH=" + defaultPath, "HOME=" + dir, "TMPDIR=/tmp", "SLURM_JOBID=7", "SLURM_JOB_ID=7"}
	vars := append(Environment(j.launcher), Fabric{Kind: FabricTCP, Why: "test"}.Job()...)
	environ, kept := Merge(Without(leftovers, Leftovers(leftovers)), vars)
	require.Empty(t, kept)
	j.environ = environ
	return j
}

func (j realJob) look(t *testing.T, name string) string {
	t.Helper()
	file, err := Look(name, j.environ, "")
	if err != nil {
		missing(t, err.Error())
	}
	return file
}

func (j realJob) call(t *testing.T) []string {
	t.Helper()
	line, err := j.calls.ReadString('\n')
	require.NoError(t, err)
	words := strings.Fields(line)
	pid, err := strconv.Atoi(words[0])
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	return words[1:]
}

func TestRealOpenMPI4(t *testing.T) {
	j := newRealJob(t)
	mpirun := j.look(t, "mpirun.openmpi")
	out, err := exec.Command(mpirun, "--version").Output()
	if err != nil || !strings.Contains(string(out), "(OpenRTE) 4.") {
		missing(t, "mpirun.openmpi is not version 4")
	}
	s := begin(t, Command{Path: mpirun, Args: []string{"mpirun", "-np", "2", "true"}, Environ: j.environ})
	hosts := []string{}
	for range 2 {
		call := j.call(t)
		require.Equal(t, "rsh", call[0])
		require.Contains(t, call, "orted")
		hosts = append(hosts, call[1])
	}
	slices.Sort(hosts)
	require.Equal(t, []string{"ps-server-1", "worker-0"}, hosts)
	s.end()
}

func TestRealHydra(t *testing.T) {
	j := newRealJob(t)
	mpiexec := j.look(t, "mpiexec.hydra")
	s := begin(t, Command{Path: mpiexec, Args: []string{"mpiexec", "-n", "2", "true"}, Environ: j.environ})
	hosts := []string{}
	for range 2 {
		call := j.call(t)
		require.Equal(t, "-x", call[0])
		hosts = append(hosts, call[1])
	}
	slices.Sort(hosts)
	require.Equal(t, []string{"ps-server-1", "worker-0"}, hosts)
	s.end()
}

// end stops a launcher, which must not count as a success, whatever its exit status.
func (s *started) end() {
	s.t.Helper()
	asked := time.Now()
	s.cancel()
	r := s.wait()
	s.t.Logf("ended after %v: %+v", time.Since(asked), r)
	require.Equal(s.t, syscall.SIGTERM, r.Forwarded)
	require.NotZero(s.t, r.Status())
}
