package docker

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// site is a job on machines of its own, as in the guides. A machine is a container that stands in for a host: it has a
// name, an address, and docker0, the bridge of a Docker engine, with the same address on all machines. Containers of
// the job use the network of their machine, as with --network=host.
type site struct {
	*job
	names     []string // names of the machines
	addresses []string
}

// newSite starts the machines, which resolve each other's names.
func newSite(t *testing.T, image func() (string, error), names ...string) *site {
	t.Helper()
	s := &site{job: newJobOf(t, image), names: names}
	for i, name := range names {
		id, err := docker(t.Context(), "run", "--detach", "--network", s.name, "--hostname", name,
			"--network-alias", name,
			"--name", fmt.Sprintf("%s-machine-%d", s.name, i), "--label", "paiinit-test=yes", "--init",
			"--entrypoint", "sleep", s.image, "infinity")
		require.NoError(t, err)
		id = strings.TrimSpace(id)
		s.hosts = append(s.hosts, id)
		out, err := docker(t.Context(), "inspect", "--format",
			"{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", id)
		require.NoError(t, err)
		pid, address, _ := strings.Cut(strings.TrimSpace(out), " ")
		s.addresses = append(s.addresses, address)
		// The veth pair brings the bridge up, which has no carrier without an interface.
		_, err = run(t.Context(), nil, "nsenter", "--target", pid, "--net", "sh", "-ec", `
			ip link add docker0 type bridge
			ip address add 172.17.0.1/16 dev docker0
			ip link add veth0 type veth peer name veth1
			ip link set veth0 master docker0 up
			ip link set veth1 up
			ip link set docker0 up`)
		require.NoError(t, err)
	}
	return s
}

// run starts the next container of the job on a machine. args are the arguments of docker run, without the network;
// IMAGE stands for the job's image, with paiinit and python.
func (s *site) run(t *testing.T, machine int, args ...string) {
	t.Helper()
	id, err := docker(t.Context(), append([]string{"run", "--detach"}, s.words(t, machine, args)...)...)
	require.NoError(t, err)
	s.containers = append(s.containers, strings.TrimSpace(id))
}

// words returns the arguments of docker run for the next container of the job.
func (s *site) words(t *testing.T, machine int, args []string) []string {
	t.Helper()
	file, err := binary()
	require.NoError(t, err)
	at := slices.Index(args, "IMAGE")
	require.NotEqual(t, -1, at, "no IMAGE in %q", args)
	args = slices.Clone(args)
	args[at] = s.image
	return append([]string{"--network", "container:" + s.hosts[machine], "--label", "paiinit-test=yes",
		"--name", s.next(),
		"--volume", file + ":/usr/bin/paiinit:ro", "--volume", pythonProgram(t) + ":/usr/bin/python:ro"}, args...)
}

// next returns the name of the next container of the job.
func (s *site) next() string { return fmt.Sprintf("%s-%d", s.name, len(s.containers)) }

// runOnTerminal starts the next container of the job on a terminal, like a user.
func (s *site) runOnTerminal(t *testing.T, machine int, args ...string) *terminal {
	t.Helper()
	words := append([]string{"run"}, s.words(t, machine, args)...)
	s.containers = append(s.containers, s.next())
	return newTerminal(t, words...)
}

// pythonProgram creates a program python, as training images call the interpreter.
func pythonProgram(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "python")
	text := []byte("#!/bin/sh\nexec python3 \"$@\"\n")
	require.NoError(t, os.WriteFile(file, text, 0o755)) //nolint:gosec // a program
	return file
}

// documented runs a job of a guide four times: it succeeds, a rank fails, a container is late, a container is stopped.
// lay prepares the job, with further arguments for its training program, and returns a function per container that
// starts it. The program is examples/allreduce.py, or takes the same --fail and --sleep. Rank 0's container prints done
// when the work is complete, and failed describes the end of the job after rank 1 has failed.
func documented(
	t *testing.T, done string, failed failure, lay func(t *testing.T, args string) (*job, []func()),
) {
	startAll := func(start []func()) {
		for _, s := range start {
			s()
		}
	}
	all := func(j *job, status int) []int { return slices.Repeat([]int{status}, len(j.containers)) }
	t.Run("well", func(t *testing.T) {
		j, start := lay(t, "")
		startAll(start)
		require.Equal(t, all(j, 0), j.wait(t, cmp.Or(j.within, documentTime)))
		out, _ := j.output(t, 0)
		require.Contains(t, out, done)
	})
	t.Run("failing rank", func(t *testing.T) {
		j, start := lay(t, " --fail 1")
		startAll(start)
		got := j.wait(t, cmp.Or(j.within, documentTime))
		if failed.status == anyFailure {
			requireEqualNotZero(t, got)
		} else {
			require.Equal(t, all(j, failed.status), got)
		}
		out, says := j.output(t, 0)
		require.Regexp(t, failed.says, out+says)
	})
	t.Run("late container", func(t *testing.T) {
		j, start := lay(t, "")
		startAll(start[:len(start)-1])
		j.follow(t, 0, "waiting for", 1)
		start[len(start)-1]()
		require.Equal(t, all(j, 0), j.wait(t, cmp.Or(j.within, documentTime)))
		out, _ := j.output(t, 0)
		require.Contains(t, out, done)
	})
	t.Run("stopped container", func(t *testing.T) {
		j, start := lay(t, " --sleep 1000")
		startAll(start)
		j.follow(t, 0, done, 1)
		last := len(j.containers) - 1
		if j.stop != nil {
			j.stop(t, j.containers[last])
			got := j.wait(t, cmp.Or(j.within, documentTime))
			require.Contains(t, []int{75, 143}, got[0])
			require.Equal(t, append(all(j, got[0])[:last], 143), got)
			return
		}
		_, err := docker(t.Context(), "stop", "--time", "30", j.containers[last])
		require.NoError(t, err)
		require.Equal(t, all(j, 143), j.wait(t, cmp.Or(j.within, documentTime)))
	})
}

// failure describes the end of a failed job.
type failure struct {
	status int    // of all containers
	says   string // regular expression for the output of rank 0's container
}

var (
	openMPIFailure    = failure{3, `Process name: \[\[\d+,1\],1\]\s+Exit code: +3`}
	tensorFlowFailure = failure{3, `rank 1's command \S+ ended with status 3`}
	torchFailure      = failure{1, `rank +: 1 \(local_rank: 1\)\s+exitcode +: 3 `}
	// MPICH's status for a killed rank varies, and its message may not name the rank.
	mpichFailure = failure{anyFailure, `rank 0's command \S+ ended with status`}
)

const anyFailure = -1

// documentTime is the timeout of a job that ends by itself, beside other tests.
const documentTime = 3 * time.Minute
