package docker

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// horovodSuites are the images in which horovodrun is tested, with Open MPI and mpi4py, without and with an ssh client.
var horovodSuites = map[bool]func() (string, error){
	false: sync.OnceValues(func() (string, error) { return image("./base.sh") }),
	true: sync.OnceValues(func() (string, error) {
		base, err := image("./base.sh")
		if err != nil {
			return "", err
		}
		return image("./withssh.sh", base)
	}),
}

func image(command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	tag, err := run(ctx, nil, command...)
	return strings.TrimSpace(tag), err
}

const (
	horovodRanks = 4
	horovodTime  = 3 * time.Minute // a job starts Python a dozen times, beside other tests
)

// newHorovodJob prepares a job of containers with one slot each that have horovodrun in /usr/local/bin.
//
// Building Horovod needs a compiler, PyTorch and minutes, so testdata/horovod stands in for its launcher. It does what
// the source of version 0.28.1 does in horovod/runner:
//
//   - launch.py: options, abbreviated by argparse; hosts by -H, a host file, or localhost; local hosts by their
//     addresses; the ssh check with its five attempts in threads, cached for an hour (util/cache.py)
//   - util/remote.py: ssh by its name, options on both sides of the host, or Kubeflow's kubexec.sh
//   - driver/driver_service.py, task_fn.py: python -m horovod.runner.task_fn on each host, a ring of probes by
//     interface, the interfaces in common; skipped with --network-interfaces
//   - mpi_run.py: execs sh -c "mpirun ... -H ... -x ..." with all variables by name
//   - gloo_run.py: a rendezvous server over HTTP; one command with all variables per slot of the hosts, which may be
//     more than -np, by ssh on other hosts; SIGINT, SIGTERM and the first failing rank end the others
//   - common/util/safe_shell_exec.py: each command in a session of its own, below a process that ends it at the
//     launcher's request or death: TERM to the shell's children, five seconds, KILL; STOP, TERM, five seconds, KILL to
//     the shell
//
// It differs as follows:
//
//   - it has no elastic jobs, jsrun, LSF, --config-file and run function, and supports only Open MPI; --check-build and
//     --verbose print less
//   - its services and its cache use JSON instead of pickled objects, and know one address per interface
//   - a small Python process leads each session, and multiprocessing's resource tracker is missing
//   - only mpirun understands --output-filename
//   - its messages and tracebacks differ, except the lines that name the first failed rank
//   - the training is testdata/train.py, with mpi4py instead of Horovod's MPI controller, and a ring over TCP instead
//     of Gloo
func newHorovodJob(t *testing.T, withSSH bool) *job {
	t.Helper()
	j := newJobOf(t, horovodSuites[withSSH])
	testdata, err := filepath.Abs("testdata")
	require.NoError(t, err)
	j.slots = 1
	j.volumes = []string{
		testdata + "/horovod:/usr/local/lib/python3.11/dist-packages/horovod:ro",
		testdata + "/horovod/horovodrun:/usr/local/bin/horovodrun:ro",
		testdata + "/train.py:/train.py:ro",
	}
	return j
}

// unprivileged runs the job as a user without a passwd entry, on a read-only root with a writable /tmp.
func (j *job) unprivileged() {
	j.options = append(j.options, "--user", "1000:1000", "--read-only", "--tmpfs", "/tmp")
	j.env = append(j.env, "HOME=/tmp") // for Horovod's cache
}

func inShell(words ...string) []string {
	return []string{"sh", "-ec", "echo a script; " + strings.Join(words, " ") + "; echo its end"}
}

func (j *job) startAll(t *testing.T, command ...string) {
	t.Helper()
	j.start(t, horovodRanks, horovodRanks, nil, command...)
}

// requireTrainedOn fails unless rank 0 has printed the sum of four ranks on the hosts.
func requireTrainedOn(t *testing.T, j *job, hosts ...int) {
	t.Helper()
	var names []string
	for _, h := range hosts {
		names = append(names, "host-"+strconv.Itoa(h))
	}
	out, _ := j.output(t, 0)
	require.Contains(t, out, "OK size=4 sum=10 hosts="+strings.Join(names, ",")+"\n")
}

func statuses(status int) []int { return slices.Repeat([]int{status}, horovodRanks) }

func TestHorovodrun(t *testing.T) {
	t.Parallel()
	for _, controller := range []string{"--mpi", "--gloo"} {
		name := strings.TrimPrefix(controller, "--")
		for _, tt := range []struct {
			name                          string
			withSSH, unprivileged, script bool
		}{
			{"root", false, false, false},
			{"unprivileged, in a script", false, true, true},
			{"ssh in the image, in a script", true, false, true},
			{"ssh in the image, unprivileged", true, true, false},
		} {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				j := newHorovodJob(t, tt.withSSH)
				if tt.unprivileged {
					j.unprivileged()
				}
				command := []string{"horovodrun", controller, "-np", "4", "python3", "/train.py"}
				if tt.script {
					command = inShell(command...)
				}
				j.startAll(t, command...)
				require.Equal(t, statuses(0), j.wait(t, horovodTime))
				requireTrainedOn(t, j, 0, 1, 2, 3)
			})
		}
		t.Run(name+"/failing rank", func(t *testing.T) {
			j := newHorovodJob(t, false)
			j.startAll(t, "horovodrun", controller, "-np", "4", "python3", "/train.py", "--fail", "2")
			want, failed := 3, "MPI rank 2 "
			if controller == "--gloo" {
				want, failed = 1, "Horovod rank 2 " // Python's status after an exception
			}
			require.Equal(t, statuses(want), j.wait(t, horovodTime))
			// The servers of horovodrun may print tracebacks for connections of the ranks that it ends.
			_, says := j.output(t, 3)
			require.Contains(t, says, failed)
			require.Contains(t, says, "ended with status 3")
			require.Contains(t, says, "this rank fails")
		})
		for rank := range 2 {
			t.Run(name+"/stopped "+[]string{"rank 0", "worker"}[rank], func(t *testing.T) {
				j := newHorovodJob(t, rank == 1)
				saved := t.TempDir()
				require.NoError(t, os.Chmod(saved, 0o777)) //nolint:gosec // for containers of another user
				j.volumes = append(j.volumes, saved+":/saved")
				j.startAll(t, "horovodrun", controller, "-np", "4", "python3", "/train.py", "--train", "/saved")
				j.follow(t, 0, "OK size=4", 1)
				_, err := docker(t.Context(), "stop", "--time", "30", j.containers[rank])
				require.NoError(t, err)
				require.Equal(t, statuses(143), j.wait(t, horovodTime))
				files, err := os.ReadDir(saved)
				require.NoError(t, err)
				require.Len(t, files, horovodRanks, "each rank must save its work")
			})
		}
	}
	// Without --network-interface, Horovod asks the hosts for their interfaces.
	t.Run("hosts given", func(t *testing.T) {
		j := newHorovodJob(t, true)
		j.startAll(t, inShell("horovodrun", "--hostfile", "$PAIINIT_HOSTFILE", "-np", "4", "python3", "/train.py")...)
		require.Equal(t, statuses(0), j.wait(t, horovodTime))
		requireTrainedOn(t, j, 0, 1, 2, 3)
	})
	t.Run("one host by the user's choice", func(t *testing.T) {
		j := newHorovodJob(t, false)
		j.startAll(t, "horovodrun", "-np", "4", "-H", "peer-0:4", "python3", "/train.py")
		require.Equal(t, statuses(0), j.wait(t, horovodTime))
		requireTrainedOn(t, j, 0)
	})
	// paiinit does not give the hosts to a horovodrun that is called by its path, which then uses localhost.
	t.Run("one host by mistake", func(t *testing.T) {
		j := newHorovodJob(t, false)
		j.startAll(t, "/usr/local/bin/horovodrun", "-np", "4", "python3", "/train.py")
		require.Equal(t, statuses(69), j.wait(t, horovodTime))
		requireTrainedOn(t, j, 0)
	})
}
