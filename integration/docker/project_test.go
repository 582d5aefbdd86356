package docker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/hang"
	"github.com/paiinit/paiinit/integration/sample"
	"github.com/paiinit/paiinit/integration/sweep"
)

const root = "../.."

// runName is part of the name of each object that this run creates in the Docker engine.
var runName = sweep.NewName()

// scratch is a directory for this run.
var scratch string

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "paiinit-docker-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stop, err := sweep.Later(runName)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	stop()
	_ = os.RemoveAll(scratch)
	os.Exit(status)
}

// project is one start of examples/compose.
type project struct {
	name   string
	secret string
	base   []string // the compose command with the options that choose this project
	env    []string
	alone  int           // the number of containers of a project that has the service worker only
	size   int           // the number of containers of another one; 0 = four
	within time.Duration // timeout of follow; 0 = three minutes
}

// container is the state of a container after the job.
type container struct {
	Name  string
	State struct {
		Status   string
		ExitCode int
	}
}

// newProject prepares a project whose containers have the image. override, if not empty, is a second compose file.
func newProject(t *testing.T, image, override string) *project {
	t.Helper()
	return newProjectOf(t, "compose.yaml", image, override)
}

// newProjectOf prepares a project of a file in examples/compose.
func newProjectOf(t *testing.T, file, image, override string) *project {
	t.Helper()
	sample.OneIn(t, 8)
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	p := &project{
		name: fmt.Sprintf("paiinit-test-%s-%s", runName, notInNames.ReplaceAllLiteralString(
			strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-")),
		secret: rand.Text(),
		env:    append(os.Environ(), "PAIINIT_IMAGE="+image, "PAIINIT_SECRET_FILE="+secret),
	}
	require.NoError(t, os.WriteFile(secret, []byte(p.secret), 0o400))
	require.NoError(t, os.Chmod(secret, 0o444)) // for containers of another user
	p.base = append(composeCommand(t),
		"--project-name", p.name, "--file", filepath.Join(root, "examples/compose", file))
	if override != "" {
		file := filepath.Join(dir, "override.yaml")
		require.NoError(t, os.WriteFile(file, []byte(override), 0o600))
		p.base = append(p.base, "--file", file)
	}
	t.Cleanup(func() { p.remove(t) })
	return p
}

// up starts the project like a user, waits until all its containers have ended, and returns them by name.
func (p *project) up(t *testing.T) map[string]container {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	// Log an error only: versions of compose differ in their exit status after a container failed.
	if out, err := p.compose(ctx, "up", "--no-build", "--scale", p.workers()); err != nil {
		t.Logf("%v\n%s", err, out)
	}
	return p.wait(ctx, t)
}

// workers returns the scale of the service worker. The other service has one container.
func (p *project) workers() string {
	return fmt.Sprintf("worker=%d", cmp.Or(p.alone, cmp.Or(p.size, 4)-1))
}

// wait returns the project's containers when all have ended.
func (p *project) wait(ctx context.Context, t *testing.T) map[string]container {
	t.Helper()
	ids := p.containers(t)
	if _, err := docker(ctx, append([]string{"wait"}, ids...)...); err != nil {
		t.Errorf("not all containers have ended: %v", err)
	}
	out, err := docker(t.Context(), append([]string{"inspect", "--type", "container"}, ids...)...)
	require.NoError(t, err)
	var all []container
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	ended := make(map[string]container)
	for _, c := range all {
		ended[strings.TrimLeft(c.Name, "/")] = c
	}
	require.Len(t, ended, cmp.Or(p.alone, p.size, 4))
	return ended
}

// containers returns the ids of the project's containers, running or not.
func (p *project) containers(t *testing.T, filters ...string) []string {
	t.Helper()
	args := []string{"ps", "--all", "--quiet", "--no-trunc", "--filter", "label=com.docker.compose.project=" + p.name}
	for _, f := range filters {
		args = append(args, "--filter", f)
	}
	out, err := docker(context.WithoutCancel(t.Context()), args...)
	require.NoError(t, err)
	return strings.Fields(out)
}

// service returns the id of container number n, from 1, of a service.
func (p *project) service(t *testing.T, name string, n int) string {
	t.Helper()
	ids := p.containers(t, "label=com.docker.compose.service="+name,
		fmt.Sprintf("label=com.docker.compose.container-number=%d", n))
	require.Len(t, ids, 1)
	return ids[0]
}

// follow reads the output of a container until it contains text n times.
func (p *project) follow(ctx context.Context, t *testing.T, id, text string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(p.within, 3*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", "logs", "--follow", id)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.CloseWithError(cmd.Wait())
	}()
	var seen bytes.Buffer
	for buf := make([]byte, 4096); bytes.Count(seen.Bytes(), []byte(text)) < n; {
		got, err := r.Read(buf)
		seen.Write(buf[:got])
		if err != nil {
			t.Errorf("%q did not appear %d times: %v", text, n, err)
			break
		}
	}
	cancel()
	_ = r.Close()
	<-ended
}

// running returns hang.Report of the containers that run. Their output then ends with the stacks of their goroutines.
func running(t *testing.T, containers []string) string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var left []hang.Container
	for _, id := range containers {
		_, _ = docker(ctx, "update", "--restart", "no", id)
		_, _ = docker(ctx, "unpause", id)
		out, err := docker(ctx, "inspect", "--format", "{{.Name}} {{.State.Pid}}", id)
		var c hang.Container
		if _, scanned := fmt.Sscan(out, &c.Name, &c.First); err == nil && scanned == nil && c.First != 0 {
			left = append(left, c)
		}
	}
	return hang.Report(left...)
}

// logs returns the output of all containers, each after its name.
func (p *project) logs(t *testing.T) string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var all strings.Builder
	for _, id := range p.containers(t) {
		state, _ := docker(ctx, "inspect", "--format",
			"{{.Name}}: {{.State.Status}}, exit status {{.State.ExitCode}}", id)
		out, err := docker(ctx, "logs", "--timestamps", id)
		if err != nil {
			out += err.Error()
		}
		fmt.Fprintf(&all, "--- %s%s", state, out)
	}
	return all.String()
}

// remove removes the project, and logs the output of its containers if the test has failed.
func (p *project) remove(t *testing.T) {
	if t.Failed() {
		t.Log(running(t, p.containers(t)))
		t.Log("\n" + p.logs(t))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	defer cancel()
	if out, err := p.compose(ctx, "down", "--volumes", "--timeout", "1"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, kind := range []string{"container", "network", "volume"} {
		args := []string{kind, "ls", "--quiet", "--filter", "label=com.docker.compose.project=" + p.name}
		if kind == "container" {
			args = append(args, "--all")
		}
		if left, err := docker(ctx, args...); err != nil || left != "" {
			t.Errorf("%ss are left behind: %s %v", kind, left, err)
		}
	}
}

func (p *project) compose(ctx context.Context, args ...string) (string, error) {
	command := append(slices.Clone(p.base), args...)
	return run(ctx, p.env, command...)
}

// composeCommand returns the compose tool of this machine: the plug-in of docker, or docker-compose.
func composeCommand(t *testing.T) []string {
	t.Helper()
	if _, err := docker(t.Context(), "compose", "version"); err == nil {
		return []string{"docker", "compose"}
	}
	if _, err := exec.LookPath("docker-compose"); err != nil {
		need(t, "no docker compose and no docker-compose")
	}
	return []string{"docker-compose"}
}

// jobImage builds the image of the job, once for all tests.
func jobImage(t *testing.T) string {
	t.Helper()
	needEngine(t)
	image, err := build()
	require.NoError(t, err)
	return image
}

// needEngine ends the test if this machine cannot build or run images.
func needEngine(t *testing.T) {
	t.Helper()
	if _, err := docker(t.Context(), "info"); err != nil {
		need(t, fmt.Sprintf("no Docker engine: %v", err))
	}
	if os.Getuid() != 0 {
		need(t, "debootstrap needs root")
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		need(t, "no debootstrap")
	}
}

var build = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	base, err := run(ctx, nil, "./base.sh")
	if err != nil {
		return "", err
	}
	base = strings.TrimSpace(base)
	builder, err := run(ctx, nil, "./builder.sh", base)
	if err != nil {
		return "", err
	}
	const tag = "paiinit-test/job"
	_, err = docker(ctx, "build", "--network", "none", "--tag", tag, "--tag", tag+":"+runName,
		"--build-arg", "BUILDER="+strings.TrimSpace(builder), "--build-arg", "BASE="+base,
		"--build-arg", "VERSION=test", "--file", filepath.Join(root, "Dockerfile.example"), root)
	if err != nil {
		return "", err
	}
	// Remove unnamed images of earlier builds. Images of other runs have names.
	_, err = docker(ctx, "image", "prune", "--force", "--filter", "label=paiinit-test", "--filter", "until=2h")
	if err != nil {
		return "", err
	}
	// Return the id, because another run may move the tag.
	id, err := docker(ctx, "image", "inspect", "--format", "{{.Id}}", tag)
	return strings.TrimSpace(id), err
})

func docker(ctx context.Context, args ...string) (string, error) {
	return run(ctx, nil, append([]string{"docker"}, args...)...)
}

// run runs a command and returns its standard output; for logs also its standard error, which the error contains
// otherwise.
func run(ctx context.Context, env []string, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = env
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if slices.Contains(command, "logs") {
		cmd.Stderr = &stdout
	}
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func need(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("PAIINIT_TEST_REQUIRE") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}
