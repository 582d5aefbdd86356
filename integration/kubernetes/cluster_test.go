//go:build kubernetes

package kubernetes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/paiinit/paiinit/integration/testsignals"
)

const (
	startTime    = 2 * time.Minute
	jobImage     = "paiinit-test/job:kubernetes"
	sandboxImage = "paiinit-test/sandbox:kubernetes" // containerd runs it to hold a pod's namespaces
)

var (
	programs = flag.String("programs", "../../.cache/kubernetes", "`directory` of the programs kubernetes and coredns")
	image    = flag.String("image", "paiinit-example", "docker `image` of the job")
)

// theCluster serves all tests.
var theCluster *cluster

func TestMain(m *testing.M) {
	flag.Parse()
	testsignals.Default()
	status, err := func() (status int, err error) {
		c, err := newCluster()
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		theCluster = c
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		ended := make(chan int, 1)
		go func() { ended <- m.Run() }()
		select {
		case status := <-ended:
			return status, nil
		case sig := <-stop: // the process exits without waiting for the tests
			return 0, fmt.Errorf("the tests were stopped: %v", sig)
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// cluster is a Kubernetes cluster of one node.
type cluster struct {
	dir, programs string
	undo          []func() error // close runs them in reverse order
	pid           int
}

func newCluster() (_ *cluster, err error) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	c := &cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("starting a cluster: %w", err), c.close())
		}
	}()
	if c.programs, err = filepath.Abs(*programs); err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp("", "paiinit-kubernetes-"); err != nil {
		return nil, err
	}
	c.later(func() error { return os.RemoveAll(c.dir) })
	if err := c.images(ctx); err != nil {
		return nil, err
	}
	if err := c.keepSettings(); err != nil {
		return nil, err
	}
	group := filepath.Base(c.dir)
	if err := c.controlGroup(group); err != nil {
		return nil, err
	}
	prepared := time.Since(begin)

	cmd := exec.Command("./cluster.sh", c.dir, c.programs, group)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
	}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // its EOF ends the cluster with this process
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c.pid = cmd.Process.Pid
	c.later(func() error {
		_ = stdin.Close()
		_ = cmd.Process.Kill() // also kills all processes in its PID namespace
		_ = cmd.Wait()
		return nil
	})
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("cluster.sh prints %q; the ends of its logs:\n%s", line, c.logs()), err)
	}
	// kubectl must run in the network of the cluster.
	script := fmt.Sprintf("#!/bin/sh\nexport HOME=%[1]q KUBECONFIG=%[1]s/kubeconfig\n"+
		"exec nsenter --net=/proc/%[2]d/ns/net %[3]q kubectl \"$@\"\n",
		c.dir, c.pid, filepath.Join(c.programs, "kubernetes"))
	if err := os.Mkdir(filepath.Join(c.dir, "bin"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(c.dir, "bin/kubectl"), []byte(script), 0o755); err != nil {
		return nil, err
	}
	fmt.Printf("built the images in %.1f s, started the cluster in %.1f s\n",
		prepared.Seconds(), (time.Since(begin) - prepared).Seconds())
	return c, nil
}

func (c *cluster) later(undo func() error) { c.undo = append(c.undo, undo) }

func (c *cluster) close() error {
	var errs []error
	for _, undo := range slices.Backward(c.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// images builds the images of job and sandbox, and saves them for cluster.sh.
func (c *cluster) images(ctx context.Context) error {
	build := filepath.Join(c.dir, "build")
	script := `mkdir "$1" && cp ../../examples/allreduce.py /bin/busybox "$1"
		printf 'FROM %s\nCOPY allreduce.py /examples/\n' "$2" | docker build -q --network none -t "$3" -f - "$1"
		printf 'FROM scratch\nCOPY busybox /\nENTRYPOINT ["/busybox", "sleep", "1000000"]\n' |
			docker build -q --network none -t "$4" -f - "$1"
		docker save -o "$5" "$3" "$4"`
	c.later(func() error {
		_, err := run(context.Background(), nil, "docker", "image", "rm", "--no-prune", jobImage, sandboxImage)
		return err
	})
	_, err := run(ctx, nil, "sh", "-euc", script,
		"sh", build, *image, jobImage, sandboxImage, filepath.Join(c.dir, "images.tar"))
	return err
}

// keepSettings saves the sysctls of this machine that kubelet changes, and restores them at the end.
func (c *cluster) keepSettings() error {
	for _, file := range []string{
		"/proc/sys/kernel/panic", "/proc/sys/kernel/panic_on_oops", "/proc/sys/vm/overcommit_memory",
	} {
		value, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		c.later(func() error { return os.WriteFile(file, value, 0) })
	}
	return nil
}

// controlGroup creates a control group for the pods in every hierarchy.
func (c *cluster) controlGroup(name string) error {
	hierarchies := []string{"/sys/fs/cgroup"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		if hierarchies, err = filepath.Glob("/sys/fs/cgroup/*"); err != nil {
			return err
		}
	}
	for _, h := range hierarchies {
		group := filepath.Join(h, name)
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) { // a link to another hierarchy
			return err
		}
		c.later(func() error { return removeGroup(group) })
	}
	return nil
}

// removeGroup removes a control group and all groups below it. It retries while their killed processes still end.
func removeGroup(group string) error {
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		err = nil
		var groups []string
		_ = filepath.WalkDir(group, func(path string, d os.DirEntry, failed error) error {
			if failed == nil && d.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
		for _, g := range slices.Backward(groups) {
			err = errors.Join(err, os.Remove(g))
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// logs returns the ends of the daemons' logs.
func (c *cluster) logs() string {
	var all strings.Builder
	files, _ := filepath.Glob(filepath.Join(c.dir, "log", "*"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		fmt.Fprintf(&all, "--- %s\n%s\n", filepath.Base(f), text[max(0, len(text)-2000):])
	}
	return all.String()
}

// kubectl returns a command that runs kubectl.
func (c *cluster) kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return c.shell(ctx, `exec kubectl "$@"`, args...)
}

// shell returns a shell command that can call kubectl.
func (c *cluster) shell(ctx context.Context, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-euc", script, "sh"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(c.dir, "bin")+":"+os.Getenv("PATH"))
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// watch calls ended for each change of the objects that args select, until ended returns true.
func watch[T any](ctx context.Context, c *cluster, ended func(event string, object T) bool, args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := c.kubectl(ctx, append([]string{"get", "--watch", "--output-watch-events", "--output=json"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	events := json.NewDecoder(stdout)
	for {
		var e struct {
			Type   string
			Object T
		}
		if err := events.Decode(&e); err != nil {
			return fmt.Errorf("watching %s: %w %s",
				strings.Join(args, " "), errors.Join(err, context.Cause(ctx)), stderr.String())
		}
		if ended(e.Type, e.Object) {
			return nil
		}
	}
}

func run(ctx context.Context, stdin io.Reader, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin = stdin
	return output(cmd)
}

func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}
