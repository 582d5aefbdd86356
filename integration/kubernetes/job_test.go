//go:build kubernetes

package kubernetes

import (
	"context"
	"encoding/json"
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
)

const (
	size        = 4
	waitTimeout = 3 * time.Minute
	examples    = "../../examples/kubernetes/"
)

// job is the example's Job in a namespace of its own.
type job struct {
	c         *cluster
	namespace string
	logs      transcript
}

// pod is the part of a pod's object that the tests use.
type pod struct {
	Metadata struct {
		Name        string
		Annotations map[string]string
	}
	Status struct {
		Phase             string
		ContainerStatuses []struct {
			ContainerID  string
			RestartCount int
			State        struct {
				Running    *struct{}
				Terminated *struct {
					ExitCode        int
					Reason, Message string
				}
			}
		}
	}

	deleted bool
	ended   time.Time // when watch saw its end
}

func (p pod) index() string {
	return p.Metadata.Annotations["batch.kubernetes.io/job-completion-index"]
}

func (p pod) started() bool {
	return len(p.Status.ContainerStatuses) == 1 && (p.running() || p.status() >= 0)
}

func (p pod) running() bool { return p.Status.ContainerStatuses[0].State.Running != nil }

// status returns the exit status of the pod's container, -1 while it runs.
func (p pod) status() int {
	if len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Terminated != nil {
		return p.Status.ContainerStatuses[0].State.Terminated.ExitCode
	}
	return -1
}

func allStarted(pods map[string]pod) bool { return count(pods, pod.started) == size }

func allEnded(pods map[string]pod) bool {
	return count(pods, func(p pod) bool { return !p.ended.IsZero() }) == size
}

func count(pods map[string]pod, is func(pod) bool) (n int) {
	for _, p := range pods {
		if is(p) {
			n++
		}
	}
	return n
}

// statuses returns the exit statuses by index.
func statuses(pods map[string]pod) map[string]int {
	all := make(map[string]int)
	for _, p := range pods {
		all[p.index()] = p.status()
	}
	return all
}

// start starts the job like a user, and returns after its pods have started. command replaces the example's.
func start(t *testing.T, namespace string, command ...string) *job {
	t.Helper()
	return startChanged(t, namespace, func(manifest string) string { return manifest }, command...)
}

// startChanged is start with a changed manifest.
func startChanged(t *testing.T, namespace string, change func(manifest string) string, command ...string) *job {
	t.Helper()
	return startExample(t, "indexed-job.yaml", namespace, change, command...)
}

func startExample(
	t *testing.T, name, namespace string, change func(manifest string) string, command ...string,
) *job {
	t.Helper()
	j := &job{c: theCluster, namespace: namespace}
	yaml, err := os.ReadFile(filepath.Join(examples, name))
	require.NoError(t, err)
	text := change(replace(t, string(yaml), "my/image", jobImage))
	if len(command) > 0 {
		args, err := json.Marshal(command)
		require.NoError(t, err)
		text = replace(t, text, "[mpirun, python3, /examples/allreduce.py]", string(args))
	}
	_, err = j.kubectl(t, "create", "namespace", namespace)
	require.NoError(t, err)
	t.Cleanup(func() { j.remove(t) })
	_, err = j.kubectl(t, "wait", "--for=create", "serviceaccount/default")
	require.NoError(t, err)
	// The example has this command to create the secret.
	secret := regexp.MustCompile(`(?m)^#\s+(kubectl create secret .*)$`).FindStringSubmatch(text)
	require.NotNil(t, secret)
	_, err = output(j.c.shell(t.Context(), secret[1]+" --namespace "+namespace))
	require.NoError(t, err)
	apply := j.command(t.Context(), "apply", "--filename", "-")
	apply.Stdin = strings.NewReader(text)
	begin := time.Now()
	_, err = output(apply)
	require.NoError(t, err)
	j.watch(t, allStarted)
	t.Logf("all pods started %.2f s after kubectl apply", time.Since(begin).Seconds())
	j.logs.follow(t, j.command(context.WithoutCancel(t.Context()), "logs", "--follow",
		"--selector=job-name=allreduce", "--prefix", "--timestamps", "--tail=-1", "--max-log-requests=10"))
	return j
}

func replace(t *testing.T, text, old, with string) string {
	t.Helper()
	require.Contains(t, text, old)
	return strings.ReplaceAll(text, old, with)
}

func (j *job) command(ctx context.Context, args ...string) *exec.Cmd {
	return j.c.kubectl(ctx, append([]string{"--namespace", j.namespace}, args...)...)
}

func (j *job) kubectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout)
	defer cancel()
	return output(j.command(ctx, args...))
}

// watch follows the pods until done returns true, and returns them by name, including the last state of deleted pods.
func (j *job) watch(t *testing.T, done func(map[string]pod) bool) map[string]pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	pods, err := j.follow(ctx, done)
	require.NoError(t, err, "%+v", pods)
	return pods
}

// follow is watch until ctx ends.
func (j *job) follow(ctx context.Context, done func(map[string]pod) bool) (pods map[string]pod, err error) {
	pods = make(map[string]pod)
	err = watch(ctx, j.c, func(event string, p pod) bool {
		p.deleted = event == "DELETED"
		p.ended = pods[p.Metadata.Name].ended
		if p.ended.IsZero() && (p.deleted || p.status() >= 0) {
			p.ended = time.Now()
		}
		pods[p.Metadata.Name] = p
		return done(pods)
	}, "--namespace", j.namespace, "pods")
	return pods, err
}

// condition waits until the job has ended, and returns its conditions.
func (j *job) condition(t *testing.T) (types []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	type object struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	err := watch(ctx, j.c, func(_ string, o object) bool {
		types = nil
		for _, c := range o.Status.Conditions {
			types = append(types, c.Type)
		}
		return slices.Contains(types, "Complete") || slices.Contains(types, "Failed")
	}, "--namespace", j.namespace, "jobs")
	require.NoError(t, err)
	return types
}

func (j *job) remove(t *testing.T) {
	if t.Failed() {
		state, err := j.kubectl(t, "get", "pods,events", "--output=wide")
		t.Logf("%v\n%s\n%s", err, state, j.running(t))
		logs, _ := j.kubectl(t, "logs", "--selector=job-name", "--prefix", "--tail=400")
		t.Logf("%s\n%s\n%s", logs, j.logs.text(), j.c.logs())
	}
	if _, err := j.kubectl(t, "delete", "namespace", j.namespace, "--wait"); err != nil {
		t.Error(err)
	}
	j.logs.wait()
}

// running returns hang.Report of the containers that run. Their output then ends with the stacks of their goroutines.
func (j *job) running(t *testing.T) string {
	ids, _ := j.kubectl(t, "get", "pods", "--output=jsonpath={.items[*].status.containerStatuses[*].containerID}")
	var left []hang.Container
	for id := range strings.FieldsSeq(ids) {
		if c, err := inspect(id); err == nil && c.first != 0 {
			left = append(left, hang.Container{Name: id, First: c.first})
		}
	}
	return hang.Report(left...)
}

// transcript collects the output of a command.
type transcript struct {
	mu     sync.Mutex
	all    strings.Builder
	grown  chan struct{} // closed at the next write
	ending chan struct{} // closed when the command has ended
}

func (s *transcript) follow(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	s.grown, s.ending = make(chan struct{}), make(chan struct{})
	cmd.Stdout, cmd.Stderr = s, s
	require.NoError(t, cmd.Start())
	go func() {
		defer close(s.ending)
		_ = cmd.Wait()
	}()
}

func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.grown)
	s.grown = make(chan struct{})
	return s.all.Write(p)
}

func (s *transcript) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.String()
}

// find waits until the expression matches n times, and returns the matches with their groups.
func (s *transcript) find(t *testing.T, expression string, n int) [][]string {
	t.Helper()
	e, timeout := regexp.MustCompile(expression), time.After(waitTimeout)
	for {
		s.mu.Lock()
		grown, text := s.grown, s.all.String()
		s.mu.Unlock()
		if m := e.FindAllStringSubmatch(text, -1); len(m) >= n {
			return m
		}
		select {
		case <-grown:
		case <-s.ending:
			if m := e.FindAllStringSubmatch(s.text(), -1); len(m) >= n {
				return m
			}
			require.FailNow(t, "the logs have ended", "without %d matches of %q", n, expression)
		case <-timeout:
			require.FailNow(t, "timeout", "the logs do not have %d matches of %q", n, expression)
		}
	}
}

func (s *transcript) wait() {
	if s.ending != nil {
		<-s.ending
	}
}
