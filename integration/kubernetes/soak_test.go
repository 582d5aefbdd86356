//go:build kubernetes

package kubernetes

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/hang"
	"github.com/paiinit/paiinit/integration/training"
)

var (
	soakTime = flag.Duration("soak", 0, "how long TestSoak begins jobs with random faults; 0 = none")
	soakSeed = flag.Uint64("soak-seed", 0, "seed of the first job of TestSoak; others follow; 0 = from the clock")
)

const (
	// settleLimit bounds the time from the end of a fault until the ranks train again. The Job controller waits 10, 20,
	// 40, 80 and 160 s before it recreates the first pods that have failed.
	settleLimit = 4 * time.Minute
	// maxSoakFaults is how many faults a job has, and maxFailed how many pods they may end: after one more, the Job
	// controller would wait for longer than settleLimit.
	maxSoakFaults, maxFailed = 3, 5
	// moreFiles is how many more descriptors an agent may have than before the faults. It keeps a connection to each of
	// the other containers that it has called, and has one of each that has called it; before the faults it may have
	// that of rank 0 alone. A leak grows with each restart.
	moreFiles = 6
)

// soakFault is what happens to a pod.
type soakFault struct {
	name  string
	lasts time.Duration // at most
	codes []int         // statuses with which the pod may end; none = its rank is not lost
	fails bool          // it ends a process of the job
	stops bool          // on rank 0, it ends all pods of the job with 143, and all are recreated
	do    func(j *soakJob, p planned) error
}

// planned is one fault of a job.
type planned struct {
	soakFault
	rank         int
	after, lasts time.Duration
}

func (p planned) String() string {
	text := fmt.Sprintf("%s of rank %d after %v", p.name, p.rank, p.after)
	if p.soakFault.lasts > 0 {
		text += fmt.Sprintf(" for %v", p.lasts)
	}
	return text
}

// ends returns how many pods the fault may end.
func (p planned) ends() int {
	if p.stops && p.rank == 0 {
		return size
	}
	return 1
}

// repeats reports whether the fault may end a generation as the last one did: both end a process of the job, or both
// lose the same rank.
func (p planned) repeats(last planned) bool {
	loses, lost := len(p.codes) > 0, len(last.codes) > 0
	return loses && lost && p.rank == last.rank || p.fails && last.fails
}

var soakFaults = []soakFault{
	{name: "kill of the process", fails: true, do: func(j *soakJob, p planned) error {
		return j.kill(p.rank, func(c container) int { return c.find(`^\S*python3\S* /train/resume\.py`) })
	}},
	{name: "kill of the launcher's daemon", fails: true, do: func(j *soakJob, p planned) error {
		return j.kill(p.rank, func(c container) int { return c.find(`^\S*(orted|mpirun)\b`) })
	}},
	{name: "kill of the agent", codes: []int{128 + 9, 70, 75}, do: func(j *soakJob, p planned) error {
		return j.kill(p.rank, container.agent)
	}},
	{name: "kill of the container", codes: []int{128 + 9, 75}, do: func(j *soakJob, p planned) error {
		return j.kill(p.rank, func(c container) int { return c.first })
	}},
	{name: "deletion", codes: []int{128 + 15}, stops: true, do: func(j *soakJob, p planned) error {
		return j.delete(p.rank, "--wait=false")
	}},
	{
		name: "deletion without grace", codes: []int{128 + 9, 128 + 15}, stops: true,
		do: func(j *soakJob, p planned) error {
			return j.delete(p.rank, "--grace-period=0", "--force", "--wait=false")
		},
	},
	{name: "freeze", lasts: 5 * time.Second, do: func(j *soakJob, p planned) error {
		c, err := j.container(p.rank)
		if err != nil {
			return err
		}
		c.signal(syscall.SIGSTOP)
		time.Sleep(p.lasts)
		c.signal(syscall.SIGCONT)
		return nil
	}},
	{name: "cut", lasts: 15 * time.Second, codes: []int{75}, do: func(j *soakJob, p planned) error {
		c, err := j.container(p.rank)
		if err != nil {
			return err
		}
		// The kernel forgets the routes of a link that is down.
		script := `route=$(ip route show default); ip link set eth0 down; sleep "$1"; ip link set eth0 up
			ip route add $route`
		_, err = output(exec.Command("nsenter", "--net=/proc/"+strconv.Itoa(c.first)+"/ns/net",
			"sh", "-euc", script, "sh", fmt.Sprint(p.lasts.Seconds())))
		return err
	}},
}

// soakPlan is what happens in a job; it depends on the seed alone.
type soakPlan struct {
	restarts bool
	faults   []planned
}

// planSoak makes the plan of a job. The same end of three generations in a row would be a crash loop, and end the job.
func planSoak(seed uint64) soakPlan {
	rnd := rand.New(rand.NewPCG(seed, 0))
	millis := func(most time.Duration) time.Duration {
		return time.Duration(rnd.Int64N(most.Milliseconds()+1)) * time.Millisecond
	}
	p := soakPlan{restarts: rnd.IntN(3) > 0}
	n, failed := 1, 0
	if p.restarts {
		n += rnd.IntN(maxSoakFaults)
	}
	for len(p.faults) < n {
		f := soakFaults[rnd.IntN(len(soakFaults))]
		next := planned{f, rnd.IntN(size), millis(8 * time.Second), millis(f.lasts)}
		if len(p.faults) > 0 && next.repeats(p.faults[len(p.faults)-1]) {
			continue
		}
		if failed += next.ends(); failed > maxFailed {
			break
		}
		p.faults = append(p.faults, next)
	}
	return p
}

// TestSoakPlan: every fault is in some plan, and no plan is one that the job does not survive.
func TestSoakPlan(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(1000) {
		p := planSoak(seed)
		failed := 0
		for i, f := range p.faults {
			seen[fmt.Sprint(f.name, p.restarts)]++
			failed += f.ends()
			require.False(t, i > 0 && f.repeats(p.faults[i-1]), "seed %d: %v", seed, p.faults)
		}
		require.NotEmpty(t, p.faults)
		require.LessOrEqual(t, failed, maxFailed, "seed %d: %v", seed, p.faults)
	}
	require.Len(t, seen, 2*len(soakFaults))
}

// soakJob is a job of the soak.
type soakJob struct {
	*job
	t     *testing.T
	dir   string // shared by all pods
	began time.Time
	codes []map[int]bool // by rank: statuses that the faults explain
}

// TestSoak runs jobs with random faults, one after the other: none hangs, launches twice, ends with a wrong status or
// leaves anything behind. Each is a test of its own whose name has the seed:
//
//	make soak-kubernetes SOAK=1h SEED=1
func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = uint64(time.Now().Unix())
	}
	jobs := 0
	for begin := time.Now(); time.Since(begin) < *soakTime; jobs++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { soak(t, seed) })
		seed++
	}
	t.Logf("%d jobs", jobs)
}

func soak(t *testing.T, seed uint64) {
	p := planSoak(seed)
	t.Logf("again: make soak-kubernetes SOAK=1s SEED=%d; restarts %v: %v", seed, p.restarts, p.faults)
	j := &soakJob{t: t, dir: t.TempDir(), began: time.Now()}
	for range size {
		j.codes = append(j.codes, map[int]bool{0: true})
	}
	program, err := os.ReadFile("../docker/testdata/resume.py")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(j.dir, "resume.py"), program, 0o600))
	t.Cleanup(j.dumpIfFailed)
	if p.restarts {
		j.withRestarts(seed, p.faults)
	} else {
		j.once(seed, p.faults[0])
	}
}

// train starts the job of an example, with one rank in each pod.
func (j *soakJob) train(seed uint64, example string, steps int, change func(manifest string) string) {
	mount := func(manifest string) string {
		manifest = replace(j.t, manifest, "          volumeMounts:\n", "          volumeMounts:\n"+
			"            - name: train\n              mountPath: /train\n")
		return change(replace(j.t, manifest, "      volumes:\n", "      volumes:\n"+
			"        - name: train\n          hostPath:\n            path: "+j.dir+"\n"))
	}
	j.job = startExample(j.t, example, fmt.Sprint("soak-", seed), mount,
		"mpirun", "--map-by", "ppr:1:node", "python3", "/train/resume.py", "/train", fmt.Sprint(steps), "mpi")
}

// withRestarts runs a job that starts again after each fault, and ends with 0 once it has settled after the last one.
func (j *soakJob) withRestarts(seed uint64, faults []planned) {
	j.train(seed, "restarts.yaml", 1_000_000, func(manifest string) string {
		manifest = replace(j.t, manifest, "backoffLimit: 6", "backoffLimit: 1000")
		return replace(j.t, manifest, "- name: PAIINIT_RESTARTS\n              value: \"3\"\n",
			"- name: PAIINIT_RESTARTS\n              value: unlimited\n"+
				"            - name: PAIINIT_REJOIN\n              value: 5m\n"+
				"            - name: PAIINIT_TIMEOUT\n              value: 5m\n"+
				"            - name: GOTRACEBACK\n              value: all\n")
	})
	j.settle("the start")
	before := j.agents()
	for _, f := range faults {
		time.Sleep(f.after)
		j.inject(f)
		j.settle(f.name)
	}
	for id, open := range j.agents() {
		if was, survives := before[id]; survives {
			assert.LessOrEqual(j.t, len(open), len(was)+moreFiles,
				"the agent in container %s had open\n%s\nand has\n%s", id,
				strings.Join(was, "\n"), strings.Join(open, "\n"))
		}
	}
	require.NoError(j.t, os.WriteFile(filepath.Join(j.dir, "stop"), nil, 0o600))
	require.Contains(j.t, j.condition(j.t), "Complete")
	require.True(j.t, j.log().Complete(size))
	for _, p := range j.pods() {
		rank, err := strconv.Atoi(p.index())
		require.NoError(j.t, err)
		assert.True(j.t, j.codes[rank][p.status()], "no fault explains status %d of %s", p.status(), p.Metadata.Name)
	}
	j.requireNothingLeft()
}

// once runs a job that does not start again, with one fault at any moment of its life.
func (j *soakJob) once(seed uint64, f planned) {
	j.train(seed, "indexed-job.yaml", 20, func(manifest string) string { return manifest })
	ctx, cancel := context.WithTimeout(j.t.Context(), 2*waitTimeout)
	defer cancel()
	var pods map[string]pod
	watched := make(chan error, 1)
	go func() { // from now on: a Job that fails deletes pods that still run
		var err error
		pods, err = j.follow(ctx, func(pods map[string]pod) bool {
			return len(pods) >= size && count(pods, func(p pod) bool { return p.ended.IsZero() }) == 0
		})
		watched <- err
	}()
	time.Sleep(f.after)
	j.inject(f)
	require.NoError(j.t, <-watched, "%+v", pods)
	complete := j.log().Complete(size)
	condition := j.condition(j.t)
	j.t.Logf("statuses %v, complete %v, the Job is %v", statuses(pods), complete, condition)
	for _, p := range pods {
		if p.status() == 0 {
			assert.True(j.t, complete, "%s ended with 0, but the ranks have not done their work", p.Metadata.Name)
		}
		assert.NotContains(j.t, []int{64, 69, 77, 78, 126, 127}, p.status(), p.Metadata.Name)
	}
	if slices.Contains(condition, "Complete") {
		assert.True(j.t, complete, "the Job is complete, and the ranks have not done their work")
	}
	assert.LessOrEqual(j.t, len(j.log().Launches), 1, "launched twice")
	j.requireNothingLeft()
}

// inject makes a fault happen. There may be nothing that it needs: a container that runs, with that process.
func (j *soakJob) inject(f planned) {
	begin := time.Now()
	err := f.do(j, f)
	j.t.Logf("%6.1f s: %v: %v, took %v",
		time.Since(j.began).Seconds(), f, err, time.Since(begin).Round(time.Millisecond))
	for _, c := range f.codes {
		j.codes[f.rank][c] = true
	}
	if f.stops && f.rank == 0 {
		for _, codes := range j.codes {
			codes[128+15] = true
		}
	}
}

// settle waits until all ranks train, in a new launch or beyond the step of this moment.
func (j *soakJob) settle(after string) {
	begin, first := time.Now(), j.log()
	for !j.log().Trains(first, size) {
		if time.Since(begin) > settleLimit {
			require.Fail(j.t, "the job hangs", "after %q: %+v", after, j.log().Launches)
		}
		time.Sleep(100 * time.Millisecond)
	}
	j.t.Logf("%6.1f s: the ranks train, %v after %q, in generation %d", time.Since(j.began).Seconds(),
		time.Since(begin).Round(100*time.Millisecond), after, j.log().Last().Generation)
}

// log returns what the job's ranks have logged until now.
func (j *soakJob) log() training.Log {
	text, err := os.ReadFile(filepath.Join(j.dir, "log"))
	if err != nil {
		require.ErrorIs(j.t, err, os.ErrNotExist)
	}
	log, err := training.Read(string(text))
	require.NoError(j.t, err, string(text))
	return log
}

// pods returns the pods of the job that Kubernetes knows now.
func (j *soakJob) pods() []pod {
	var list struct{ Items []pod }
	text := must(j.kubectl(j.t, "get", "pods", "--output=json"))(j.t)
	require.NoError(j.t, json.Unmarshal([]byte(text), &list))
	return list.Items
}

func (j *soakJob) delete(rank int, flags ...string) error {
	for _, p := range j.pods() {
		if p.index() == strconv.Itoa(rank) && p.status() < 0 {
			_, err := j.kubectl(j.t, append([]string{"delete", "pod", p.Metadata.Name}, flags...)...)
			return err
		}
	}
	return fmt.Errorf("no pod of rank %d", rank)
}

// container is a container that runs, with its processes on this machine.
type container struct {
	id        string
	first     int // process 1
	processes map[int]process
}

type process struct {
	parent        int
	name, command string
}

// container returns the container of a rank.
func (j *soakJob) container(rank int) (container, error) {
	for _, p := range j.pods() {
		if p.index() == strconv.Itoa(rank) && p.started() && p.running() {
			return inspect(p.Status.ContainerStatuses[0].ContainerID)
		}
	}
	return container{}, fmt.Errorf("no container of rank %d runs", rank)
}

// inspect finds the processes of a container by their control group.
func inspect(id string) (container, error) {
	c := container{id: strings.TrimPrefix(id, "containerd://"), processes: make(map[int]process)}
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, name := range groups {
		if text, _ := os.ReadFile(name); !strings.Contains(string(text), c.id) { // the process may have ended
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "status"))
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		p := process{command: strings.ReplaceAll(string(command), "\x00", " ")}
		inner := 0
		for line := range strings.Lines(string(status)) {
			switch fields := strings.Fields(line); {
			case len(fields) < 2:
			case fields[0] == "Name:":
				p.name = fields[1]
			case fields[0] == "PPid:":
				p.parent, _ = strconv.Atoi(fields[1])
			case fields[0] == "NSpid:":
				inner, _ = strconv.Atoi(fields[len(fields)-1])
			}
		}
		if c.processes[pid] = p; inner == 1 {
			c.first = pid
		}
	}
	if c.first == 0 && err == nil {
		err = fmt.Errorf("container %s has no process 1", c.id)
	}
	return c, err
}

// find returns a process whose command line matches; 0 = none.
func (c container) find(command string) int {
	e := regexp.MustCompile(command)
	for pid, p := range c.processes {
		if e.MatchString(p.command) {
			return pid
		}
	}
	return 0
}

// agent returns the agent of paiinit; 0 = none.
func (c container) agent() int {
	for pid, p := range c.processes {
		if p.parent == c.first && p.name == "paiinit" {
			return pid
		}
	}
	return 0
}

func (c container) signal(s syscall.Signal) {
	for pid := range c.processes {
		_ = syscall.Kill(pid, s)
	}
}

// kill kills the process of a rank's container that which selects.
func (j *soakJob) kill(rank int, which func(container) int) error {
	c, err := j.container(rank)
	if err != nil {
		return err
	}
	pid := which(c)
	if pid == 0 {
		return fmt.Errorf("no such process")
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// agents returns what the agents have open, by container.
func (j *soakJob) agents() map[string][]string {
	all := make(map[string][]string)
	for rank := range size {
		c, err := j.container(rank)
		require.NoError(j.t, err)
		open, err := hang.Descriptors(c.agent())
		require.NoError(j.t, err)
		all[c.id] = open
	}
	return all
}

// requireNothingLeft fails if a process of a pod runs although its container has ended.
func (j *soakJob) requireNothingLeft() {
	for _, p := range j.pods() {
		if !p.started() || p.running() {
			continue
		}
		left, _ := inspect(p.Status.ContainerStatuses[0].ContainerID)
		require.Empty(j.t, left.processes, "processes of %s are left", p.Metadata.Name)
	}
}

// dumpIfFailed logs how far the training came.
func (j *soakJob) dumpIfFailed() {
	if !j.t.Failed() || j.job == nil {
		return
	}
	text, _ := os.ReadFile(filepath.Join(j.dir, "log"))
	j.t.Logf("the training:\n%s", text[max(0, len(text)-4000):])
}
