package integration

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

// manyRestarts is more in make soak.
var manyRestarts = flag.Int("restarts", 800, "number of restarts in a row, above 20")

// downtimeLimit bounds the mean time from the end of a generation to the launch of the next, as rank 0 logs it: 5 ms on
// free processors, 31 ms where 30 processes wait for two. The rest of a restart is the command's own time.
const downtimeLimit = 250 * time.Millisecond

// manyCommand fails at once, and leaves processes that hold a lock of their generation and rank. Each generation looks
// on each rank whether a lock of the last one is held on any. Two statuses by turns are no crash loop.
const manyCommand = `g=$PAIINIT_GENERATION; last=$((g-1))
for r in 0 1 2; do
	[ $last = 0 ] || flock -n -s /run/locks/$last-$r true || echo "generation $g on rank $RANK: rank $r is not clear"
done
rm -f /run/locks/$((g-2))-$RANK
exec 9>/run/locks/$g-$RANK; flock -n 9 || echo "generation $g runs twice on rank $RANK"
case " $PAUSES " in *" $g "*) echo "paused in $g"; until [ -e /run/locks/go-$g ]; do sleep 0.01; done;; esac
[ $g = "${PAUSES##* }" ] && exit 0
setsid sleep 1001 & (setsid env -i sleep 1002 &)
exit $((3 + g % 2))`

// resources are what a process of paiinit holds.
type resources struct{ files, threads, kB int } // kB of its own, not of files

// TestManyRestarts: no process of an earlier generation is alive at any launch, and paiinit does not grow.
func TestManyRestarts(t *testing.T) {
	require.Greater(t, *manyRestarts, 20)
	l := newLab(t)
	locks := t.TempDir()
	early, last := min(100, *manyRestarts/2), *manyRestarts+1
	hosts := everywhere(peersHosts(t, l, 3))
	for i := range hosts {
		hosts[i].binds = map[string]string{"/run/locks": locks}
		hosts[i].env["PAUSES"] = fmt.Sprint(early, " ", last)
		hosts[i].env["PAIINIT_LOG_LEVEL"] = "info"
		// Each generation runs for more than 1 ms, so that the delay always starts anew.
		hosts[i].flags = append(hosts[i].flags, "--restarts", "unlimited", "--restart-reset", "1ms")
	}
	containers := startAll(t, hosts, "sh", "-c", manyCommand)
	began := time.Now()
	next := 2
	measure := func(generation int) (all []resources) {
		for ; next <= generation; next++ {
			waitLine(t, containers[0], fmt.Sprintf("generation=%d ", next)) // "the job runs again"
		}
		for _, c := range containers {
			waitLine(t, c, fmt.Sprintf("paused in %d", generation))
		}
		for _, c := range containers {
			for _, pid := range []int{c.PID(), agentPID(t, c)} {
				all = append(all, resourcesOf(t, pid))
			}
		}
		require.NoError(t, os.WriteFile(filepath.Join(locks, fmt.Sprintf("go-%d", generation)), nil, 0o600))
		return all
	}
	before := measure(early)
	half := time.Now()
	after := measure(last)
	t.Logf("%d restarts in %v, the last %d in %v", *manyRestarts, time.Since(began), last-early, time.Since(half))
	require.Equal(t, same(3, 0), statuses(t, containers))
	for i := range before {
		t.Logf("rank %d, %s: generation %d %+v, generation %d %+v", i/2, [...]string{"init", "agent"}[i%2],
			early, before[i], last, after[i])
	}
	mean := meanDowntime(t, containers[0])
	t.Logf("mean downtime %v", mean)
	require.Less(t, mean, downtimeLimit)
	for _, c := range containers {
		require.NotContains(t, stdout(c), "is not clear")
		require.NotContains(t, stdout(c), "runs twice")
	}
	for i := range before {
		require.LessOrEqual(t, after[i].files, before[i].files+moreFiles)
		require.LessOrEqual(t, after[i].threads, before[i].threads+moreThreads)
		more := moreKB
		if i%2 == 0 { // the first process, which takes no part in a launch
			more = 4 << 10
		}
		require.LessOrEqual(t, after[i].kB, before[i].kB+more)
	}
}

// What a process may hold more than early in the job: connections that are closing, threads that the runtime has
// started for blocked calls and keeps, and garbage. Where a launch follows within a second, the collector lets this
// grow to four times the memory in use. What 700 restarts leak is more, if each leaks 50 kB.
const (
	moreFiles   = 4
	moreThreads = 6
	moreKB      = 32 << 10
)

func meanDowntime(t *testing.T, c *lab.Container) time.Duration {
	t.Helper()
	all := regexp.MustCompile(`msg="the job runs again" .* downtime=(\S+)`).FindAllStringSubmatch(stderr(c), -1)
	require.Len(t, all, *manyRestarts)
	var sum float64
	for _, match := range all {
		seconds, err := strconv.ParseFloat(match[1], 64)
		require.NoError(t, err)
		sum += seconds
	}
	return time.Duration(sum / float64(len(all)) * float64(time.Second))
}

func resourcesOf(t *testing.T, pid int) (r resources) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", pid)
	files, err := os.ReadDir(filepath.Join(proc, "fd"))
	require.NoError(t, err)
	threads, err := os.ReadDir(filepath.Join(proc, "task"))
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(proc, "smaps_rollup"))
	require.NoError(t, err)
	for line := range bytes.Lines(text) {
		if f := strings.Fields(string(line)); f[0] == "Pss_Anon:" { // the pages of the program's file come and go
			r.kB, err = strconv.Atoi(f[1])
			require.NoError(t, err)
		}
	}
	r.files, r.threads = len(files), len(threads)
	return r
}
