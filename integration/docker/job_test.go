package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/hang"
	"github.com/paiinit/paiinit/integration/sample"
)

const secret = "correct horse battery staple"

// submitted puts the secret into a job file, like envsubst(1) or the platform's own tool in docs/schedulers.
func submitted(t *testing.T, text []byte) []byte {
	t.Helper()
	reference := []byte("${PAIINIT_SECRET}")
	require.Equal(t, 1, bytes.Count(text, reference))
	return bytes.Replace(text, reference, []byte(secret), 1)
}

// job is a job of containers on a network of their own, which have only Debian's packages and paiinit, and no other
// remote shell.
type job struct {
	name       string
	image      string
	env        []string
	volumes    []string
	options    []string // options of docker run
	slots      int
	containers []string // ids, in rank order
	hosts      []string // ids of the containers whose networks the job's containers use

	// stop replaces docker stop, for a scheduler that leaves paiinit no time to tell the others; nil = docker stop.
	stop func(t *testing.T, id string)

	// within is the timeout of a documented job, and of follow; 0 = their defaults.
	within time.Duration
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// suites are the images in which launchers are tested, by Debian release.
var suites = map[string]func() (string, error){
	"bookworm": sync.OnceValues(func() (string, error) { return launcherImage("bookworm") }),
	"trixie":   sync.OnceValues(func() (string, error) { return launcherImage("trixie") }),
}

func launcherImage(suite string) (string, error) {
	recipe := []string{"./base.sh", suite, "openmpi-bin", "mpich", "python3", "python3-mpi4py", "python3-torch"}
	if suite == "trixie" {
		recipe = append(recipe, "python3-distributed")
	}
	return image(recipe...)
}

// binary builds paiinit as released, once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	file := filepath.Join(scratch, "paiinit")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "urfave_cli_no_docs", "-ldflags", "-s -w",
		"-o", file, "./cmd/paiinit")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building paiinit: %w\n%s", err, out)
	}
	return file, nil
})

// newJob creates the network of a job with two slots in each container.
func newJob(t *testing.T, suite string) *job {
	t.Helper()
	return newJobOf(t, suites[suite])
}

func newJobOf(t *testing.T, image func() (string, error)) *job {
	t.Helper()
	sample.OneIn(t, 8)
	t.Parallel()
	needEngine(t)
	tag, err := image()
	require.NoError(t, err)
	name := fmt.Sprintf("paiinit-job-%s-%s", runName,
		notInNames.ReplaceAllLiteralString(strings.ToLower(t.Name()), "-"))
	j := &job{name: name, image: tag, slots: 2}
	_, err = docker(t.Context(), "network", "create", "--label", "paiinit-test=yes", j.name)
	require.NoError(t, err)
	t.Cleanup(func() { j.remove(t) })
	return j
}

// withInput keeps the standard input of the containers open. At EOF on its own input, MPICH 4.0.2's mpiexec dies of
// SIGPIPE if rank 0 has already ended, as a rank that runs a few milliseconds may have.
func (j *job) withInput() *job {
	j.options = append(j.options, "--interactive")
	return j
}

// start starts the next n containers of a job of size ranks.
func (j *job) start(t *testing.T, n, size int, flags []string, command ...string) {
	t.Helper()
	file, err := binary()
	require.NoError(t, err)
	examples, err := filepath.Abs(filepath.Join(root, "examples"))
	require.NoError(t, err)
	var peers []string
	for i := range size {
		peers = append(peers, j.host(i))
	}
	for range n {
		rank := len(j.containers)
		args := []string{"run", "--detach", "--network", j.name, "--hostname", fmt.Sprintf("host-%d", rank),
			"--network-alias", j.host(rank), "--name", fmt.Sprintf("%s-%d", j.name, rank),
			"--label", "paiinit-test=yes", "--entrypoint", "paiinit",
			"--volume", file + ":/usr/local/bin/paiinit:ro", "--volume", examples + ":/examples:ro",
			"--env", "PAIINIT_LOG_FORMAT=logfmt", "--env", "PAIINIT_LOG_LEVEL=debug",
			"--env", hang.Variable,
			"--env", "PAIINIT_SECRET=" + secret, "--env", "PAIINIT_PEERS=" + strings.Join(peers, ","),
			"--env", fmt.Sprintf("PAIINIT_RANK=%d", rank), "--env", fmt.Sprintf("PAIINIT_SLOTS=%d", j.slots)}
		args = append(args, j.options...)
		for _, e := range j.env {
			args = append(args, "--env", e)
		}
		for _, v := range j.volumes {
			args = append(args, "--volume", v)
		}
		args = append(args, j.image)
		id, err := docker(t.Context(), append(append(append(args, flags...), "--"), command...)...)
		require.NoError(t, err)
		j.containers = append(j.containers, strings.TrimSpace(id))
	}
}

func (j *job) host(rank int) string { return fmt.Sprintf("peer-%d", rank) }

// wait waits until all containers have ended, and returns their statuses. It fails after the timeout within.
func (j *job) wait(t *testing.T, within time.Duration) []int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_, err := docker(ctx, append([]string{"wait"}, j.containers...)...)
	require.NoError(t, err, "not all containers have ended within %v", within)
	out, err := docker(t.Context(), append([]string{"inspect", "--type", "container"}, j.containers...)...)
	require.NoError(t, err)
	var all []container
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	var statuses []int
	for _, c := range all {
		statuses = append(statuses, c.State.ExitCode)
	}
	return statuses
}

// output returns what a container wrote to stdout and to stderr.
func (j *job) output(t *testing.T, rank int) (stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "docker", "logs", j.containers[rank])
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run())
	return out.String(), errs.String()
}

// follow waits until a container has written the text n times.
func (j *job) follow(t *testing.T, rank int, text string, n int) {
	t.Helper()
	(&project{within: j.within}).follow(t.Context(), t, j.containers[rank], text, n)
}

func (j *job) remove(t *testing.T) {
	if t.Failed() {
		t.Log(running(t, j.containers))
		for i := range j.containers {
			out, errs := j.output(t, i)
			t.Logf("--- rank %d\n%s%s", i, out, errs)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	defer cancel()
	if made := slices.Concat(j.containers, j.hosts); len(made) > 0 {
		if _, err := docker(ctx, append([]string{"rm", "--force", "--volumes"}, made...)...); err != nil {
			t.Error(err)
		}
	}
	if _, err := docker(ctx, "network", "rm", j.name); err != nil {
		t.Error(err)
	}
}
