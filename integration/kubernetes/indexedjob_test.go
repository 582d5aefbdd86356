//go:build kubernetes

package kubernetes

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSum runs the example unchanged with three kinds of cluster DNS, which cache the answer that a name does not exist
// not at all, for 5 s like most, or for 30 s.
func TestSum(t *testing.T) {
	for _, namespace := range []string{"plain", "cached", "long"} {
		t.Run(namespace, func(t *testing.T) {
			j := start(t, namespace)
			pods := j.watch(t, allEnded)
			require.Equal(t, map[string]int{"0": 0, "1": 0, "2": 0, "3": 0}, statuses(pods))
			require.Contains(t, j.condition(t), "Complete")
			sum := j.logs.find(t, `allreduce over \d+ ranks on (\d) hosts: sum = (\d+), expected (\d+) `, 1)[0]
			require.Equal(t, "4", sum[1])
			require.Equal(t, sum[3], sum[2])
			t.Logf("launched %.2f s after the last pod's paiinit had started", j.gathering(t).Seconds())
		})
	}
}

// TestFailingRank: the status of the rank is that of the pods, and the Job fails.
func TestFailingRank(t *testing.T) {
	j := start(t, "failing", "mpirun", "python3", "/examples/allreduce.py", "--fail", "1")
	pods := j.watch(t, allEnded)
	require.Contains(t, j.condition(t), "Failed")
	require.Equal(t, map[string]int{"0": 3, "1": 3, "2": 3, "3": 3}, statuses(pods))
}

// TestDeletedPod: deleting a pod of a running job ends the others, with and without a grace period, and even if
// Kubernetes would replace the pod.
func TestDeletedPod(t *testing.T) {
	for name, tt := range map[string]struct {
		limit string
		flags []string
	}{
		"deleted":  {"0", []string{"--wait=false"}},
		"killed":   {"0", []string{"--grace-period=0", "--force"}},
		"replaced": {"6", []string{"--wait=false"}},
	} {
		t.Run(name, func(t *testing.T) {
			limit := func(manifest string) string {
				return replace(t, manifest, "backoffLimit: 0", "backoffLimit: "+tt.limit)
			}
			j := startChanged(t, name, limit, "mpirun", "python3", "/examples/allreduce.py", "--sleep", "1000")
			j.logs.find(t, "sum = ", 1)
			victim := strings.TrimSpace(must(j.kubectl(t, "get", "pods",
				"--selector=batch.kubernetes.io/job-completion-index=2", "--output=name"))(t))
			begin := time.Now()
			must(j.kubectl(t, append([]string{"delete", victim}, tt.flags...)...))(t)
			pods := j.watch(t, func(pods map[string]pod) bool {
				return count(pods, func(p pod) bool { return p.index() != "2" && !p.ended.IsZero() }) == size-1
			})
			took := time.Since(begin)
			t.Logf("the others ended after %.1f s: %v", took.Seconds(), statuses(pods))
			require.Less(t, took, 15*time.Second)
			for _, p := range pods {
				if p.index() != "2" && !p.ended.IsZero() {
					require.Equal(t, 128+15, p.status())
				}
			}
			if tt.limit == "0" {
				require.Contains(t, j.condition(t), "Failed")
			}
		})
	}
}

// onEachHost prints the process ids and start times of paiinit's processes. Only the first generation stays.
const onEachHost = `echo "$(uname -n) runs $(awk '$2 == "(paiinit)" && $4 <= 1 { print $1 "@" $22 }' /proc/[0-9]*/stat |
	sort | tr '\n' ' ')"
	python3 /examples/allreduce.py; [ $PAIINIT_GENERATION = 2 ] || exec sleep 1000`

// TestReplacedPod: a job that may start again outlives the deletion of a pod, and no other pod is restarted.
func TestReplacedPod(t *testing.T) {
	for name, flags := range map[string][]string{
		"drained": {"--wait=false"},
		"crashed": {"--grace-period=0", "--force"},
	} {
		t.Run(name, func(t *testing.T) {
			same := func(manifest string) string { return manifest }
			j := startExample(t, "restarts.yaml", name, same,
				"mpirun", "--map-by", "ppr:1:node", "sh", "-c", onEachHost)
			j.logs.find(t, "sum = ", 1)
			j.logs.find(t, onHost, size)
			first := j.watch(t, allStarted)
			victim := strings.TrimSpace(must(j.kubectl(t, "get", "pods",
				"--selector=batch.kubernetes.io/job-completion-index=2", "--output=name"))(t))
			begin := time.Now()
			must(j.kubectl(t, append([]string{"delete", victim}, flags...)...))(t)
			pods := j.watch(t, func(pods map[string]pod) bool {
				return count(pods, func(p pod) bool { return p.status() == 0 }) == size
			})
			t.Logf("all ended with 0 %.1f s after the deletion", time.Since(begin).Seconds())
			require.Contains(t, j.condition(t), "Complete")
			j.logs.wait()
			require.Len(t, j.logs.find(t, "sum = ", 2), 2)
			replacement := j.requireSurvivors(t, first, pods)
			t.Log(j.logs.find(t, `the job runs again after .*: clear .*, rejoin \d[\d.]* s, commit .*`, 1)[0][0])
			own := must(j.kubectl(t, "logs", replacement, "--timestamps"))(t)
			began := regexp.MustCompile(`(?m)^(\S+) \S+ [^:\n]+: paiinit `).FindStringSubmatch(own)
			require.NotNil(t, began, own)
			launches := j.logs.find(t, `(?m)^\S+ (\S+) \S+ [^:\n]+: launching `, 2)
			require.Len(t, launches, 2)
			t.Logf("launched %.3f s after the replacement's first line",
				logTime(t, launches[1][1]).Sub(logTime(t, began[1])).Seconds())
		})
	}
}

// requireSurvivors fails unless all pods but that of index 2 have the container and the processes of paiinit that they
// had first. It returns the name of the pod that has replaced the other one.
func (j *job) requireSurvivors(t *testing.T, first, pods map[string]pod) (replacement string) {
	t.Helper()
	processes := make(map[string][]string) // by host, one for each generation
	for _, m := range j.logs.find(t, onHost, 2*size) {
		processes[m[1]] = append(processes[m[1]], m[2])
	}
	for name, p := range pods {
		was, survives := first[name]
		switch {
		case p.status() != 0:
		case !survives:
			replacement = name
		default:
			before, after := was.Status.ContainerStatuses[0], p.Status.ContainerStatuses[0]
			require.Zero(t, after.RestartCount)
			require.Equal(t, before.ContainerID, after.ContainerID)
			is := processes["allreduce-"+p.index()]
			require.Len(t, is, 2)
			require.Equal(t, is[0], is[1])
			t.Logf("%s: restartCount %d, processes of paiinit %s, then %s", name, after.RestartCount, is[0], is[1])
		}
	}
	require.NotEmpty(t, replacement)
	return replacement
}

// onHost matches the line of onEachHost.
const onHost = `(?m)(allreduce-\d) runs (\S.*?) *$`

// save is a rank that needs three seconds to save its work on SIGTERM.
const save = `trap 'sleep 3; echo saved; exit 0' TERM; echo runs; while :; do sleep 0.1; done`

// TestStopped: a deleted Job saves its work, and ends within the pods' terminationGracePeriodSeconds, 30 s.
func TestStopped(t *testing.T) {
	j := start(t, "stopped", "mpirun", "--map-by", "ppr:1:node", "sh", "-c", save)
	j.logs.find(t, `(?m) runs$`, size)
	begin := time.Now()
	must(j.kubectl(t, "delete", "job", "allreduce", "--cascade=foreground", "--wait=false"))(t)
	pods := j.watch(t, allEnded)
	took := time.Since(begin)
	j.logs.wait()
	t.Logf("all ended after %.1f s: %v", took.Seconds(), statuses(pods))
	require.Less(t, took, 30*time.Second)
	require.Len(t, j.logs.find(t, `(?m) saved$`, size), size)
	require.Equal(t, map[string]int{"0": 143, "1": 143, "2": 143, "3": 143}, statuses(pods))
}

// gathering returns the time from the first log line of the last pod to the launch.
func (j *job) gathering(t *testing.T) time.Duration {
	t.Helper()
	var last time.Time
	for _, m := range j.logs.find(t, `(?m)^\S+ (\S+) \S+ [^:\n]+: paiinit `, size) {
		if when := logTime(t, m[1]); when.After(last) {
			last = when
		}
	}
	return logTime(t, j.logs.find(t, `(?m)^\S+ (\S+) \S+ [^:\n]+: launching `, 1)[0][1]).Sub(last)
}

// logTime reads the time that kubectl logs --timestamps prints.
func logTime(t *testing.T, text string) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err)
	return when
}

func must(out string, err error) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		require.NoError(t, err)
		return out
	}
}
