package docker

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/training"
)

// trainer is a launcher that runs testdata/resume.py.
type trainer struct {
	name, suite string
	flags       []string
	command     []string
	backend     string
}

var trainers = []trainer{
	{"openmpi4", "bookworm", nil, []string{"mpirun"}, "mpi"},
	{"openmpi5", "trixie", nil, []string{"mpirun"}, "mpi"},
	{"mpich42", "trixie", nil, []string{"mpiexec.hydra"}, "mpi"},
	{"torchrun", "trixie", everywhere, []string{"torchrun", "--nproc-per-node", "1"}, "gloo"},
}

// trainingJob is a job that runs testdata/resume.py.
type trainingJob struct {
	*job
	trainer
	dir string // shared by all containers
}

// newTrainingJob prepares a job with one slot in each container.
func newTrainingJob(t *testing.T, tr trainer) *trainingJob {
	t.Helper()
	j := &trainingJob{job: newJob(t, tr.suite).withInput(), trainer: tr, dir: t.TempDir()}
	j.slots = 1
	// A killed daemon of Open MPI 5 would leave a directory with which a later one may fail (docs/launchers.md).
	j.options = append(j.options, "--tmpfs", "/tmp:exec")
	if tr.backend == "gloo" {
		j.withoutLibuv(t, true)
		j.within = torchTime
	}
	program, err := filepath.Abs("testdata/resume.py")
	require.NoError(t, err)
	j.volumes = append(j.volumes, program+":/train/resume.py:ro", j.dir+":/train/run")
	return j
}

// train starts all containers.
func (j *trainingJob) train(t *testing.T, steps int, flags ...string) {
	t.Helper()
	command := append(append([]string{}, j.command...), strings.Fields("/train/resume.py /train/run")...)
	if j.backend == "mpi" {
		command = append(append([]string{}, j.command...), strings.Fields("python3 /train/resume.py /train/run")...)
	}
	j.start(t, ranks, ranks, append(flags, j.flags...), append(command, strconv.Itoa(steps), j.backend)...)
}

// log returns what the job's ranks have logged until now.
func (j *trainingJob) log(t *testing.T) training.Log {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(j.dir, "log"))
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	log, err := training.Read(string(text))
	require.NoError(t, err, string(text))
	return log
}

// advance waits until all ranks of a launch, of the given generation or a later one, have made some steps.
func (j *trainingJob) advance(t *testing.T, generation int) training.Launch {
	t.Helper()
	const steps = 3
	for deadline := time.Now().Add(cmp.Or(j.within, documentTime)); ; time.Sleep(50 * time.Millisecond) {
		log := j.log(t)
		if last := log.Last(); last.Generation >= generation && log.Slowest(ranks) >= last.Resumed+steps {
			return last
		}
		require.True(t, time.Now().Before(deadline), "no progress in generation %d: %+v", generation, log)
	}
}

// stop lets the ranks end after their step.
func (j *trainingJob) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(j.dir, "stop"), nil, 0o600))
}

// process is a process of a container, with its id on this machine.
type process struct {
	pid, parent int
	command     string
}

// top returns the processes of a container.
func (j *job) top(t *testing.T, rank int) (all []process) {
	t.Helper()
	out, err := docker(t.Context(), "top", j.containers[rank], "-eo", "pid,ppid,args")
	require.NoError(t, err)
	return parseTop(out)
}

// parseTop reads the output of docker top, whose columns are pid, ppid and others.
func parseTop(out string) (all []process) {
	for line := range strings.Lines(out) {
		var p process
		if n, _ := fmt.Sscan(line, &p.pid, &p.parent); n == 2 {
			p.command = strings.Join(strings.Fields(line)[2:], " ")
			all = append(all, p)
		}
	}
	return all
}

func matches(expression, text string) bool { return regexp.MustCompile(expression).MatchString(text) }

// killProcess kills a process of a container whose command line matches.
func (j *job) killProcess(t *testing.T, rank int, command string) {
	t.Helper()
	for _, p := range j.top(t, rank) {
		if matches(command, p.command) {
			require.NoError(t, syscall.Kill(p.pid, syscall.SIGKILL))
			return
		}
	}
	require.Fail(t, "no such process", "%q in the container of rank %d: %v", command, rank, j.top(t, rank))
}

// signal sends a signal to process 1 of a container. The engine does not start a container again that it has signalled
// itself.
func (j *job) signal(t *testing.T, rank int, signal syscall.Signal) {
	t.Helper()
	out, err := docker(t.Context(), "inspect", "--format", "{{.State.Pid}}", j.containers[rank])
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, signal))
}

// rankProcess matches the command line of a rank's process, and not that of its launcher.
const rankProcess = `^\S*python3\S* (-u )?/train/resume\.py`

// TestRestarts: a job loses a process and containers, which the engine starts again, and goes on from its last
// checkpoint each time.
func TestRestarts(t *testing.T) {
	for _, tr := range trainers {
		t.Run(tr.name, func(t *testing.T) {
			j := newTrainingJob(t, tr)
			j.options = append(j.options, "--restart", "on-failure:3")
			j.train(t, 1_000_000, "--restarts", "4")
			for i, lose := range []func(){
				func() { j.killProcess(t, 1, rankProcess) },
				func() { j.signal(t, 2, syscall.SIGKILL) },
				func() {
					_, err := docker(t.Context(), "restart", j.containers[1])
					require.NoError(t, err)
				},
				func() { j.signal(t, 0, syscall.SIGKILL) },
			} {
				require.Equal(t, i+1, j.advance(t, i+1).Generation)
				lose()
			}
			require.Equal(t, 5, j.advance(t, 5).Generation)
			j.stop(t)
			require.Equal(t, same(0), j.wait(t, documentTime))
			log := j.log(t)
			require.Len(t, log.Launches, 5)
			require.True(t, log.Complete(ranks))
			for i, launch := range log.Launches[1:] {
				require.Greater(t, launch.Resumed, log.Launches[i].Resumed)
			}
			restarts, err := docker(t.Context(),
				append([]string{"inspect", "--format", "{{.RestartCount}}"}, j.containers...)...)
			require.NoError(t, err)
			require.Equal(t, []string{"1", "0", "1"}, strings.Fields(restarts))
			for rank := range ranks {
				_, says := j.output(t, rank)
				require.Contains(t, says, "after 4 of 4 restarts")
			}
		})
	}
}
