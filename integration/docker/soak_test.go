package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/hang"
)

var (
	soakTime = flag.Duration("soak", 0, "how long TestSoak begins jobs with random faults; 0 = none")
	soakSeed = flag.Uint64("soak-seed", 0, "seed of the first job of TestSoak; others follow; 0 = from the clock")
)

const (
	// settleLimit bounds the time from the end of a fault until the ranks train again. The longest documented part is
	// 48 s, for a rank 0 that may be cut off; another is the engine's back-off.
	settleLimit = 3 * time.Minute
	// soakEnd bounds the time from the last fault, or from the last step, to the end of all containers.
	soakEnd = 2 * time.Minute
	// moreFiles is how many more descriptors the agent of a rank may have than before the faults. The number of
	// connections that are just open varies; a leak grows with each restart.
	moreFiles = 6
)

// effect says what a fault does to a job that does not restart.
type effect int

const (
	harmless effect = iota // the job goes on
	fails                  // a process of the job fails: the job's status is the launcher's
	loses                  // a container is lost: all others end with 75
	stops                  // a container is told to end: all end with 143
)

// soakFault is what happens to a container.
type soakFault struct {
	name   string
	effect effect
	lasts  time.Duration // at most

	orFails bool // the launcher may notice the loss first, and the container may be back before the job has ended

	restartsOnly bool // the engine starts the container again, which would wait for a job that has ended
	workersOnly  bool // with restarts: on rank 0 it ends the job
	do           func(j *soakJob, p planned) error
	codes        []int // statuses with which the container itself may end
}

// planned is one fault of a job.
type planned struct {
	soakFault
	rank    int
	after   time.Duration // since the end of the one before
	settled bool          // wait first until the ranks train again
	lasts   time.Duration
}

func (p planned) String() string {
	text := fmt.Sprintf("%s of rank %d after %v", p.name, p.rank, p.after)
	if p.soakFault.lasts > 0 {
		text += fmt.Sprintf(" for %v", p.lasts)
	}
	if !p.settled {
		text += " at any moment"
	}
	return text
}

var soakFaults = []soakFault{
	{name: "kill of the process", effect: fails, do: func(j *soakJob, p planned) error {
		return j.kill(p.rank, rankProcess)
	}},
	{name: "kill of the launcher's daemon", effect: fails, do: func(j *soakJob, p planned) error {
		return j.kill(p.rank, `^(\S*python3\S* (-\S+ )*)?\S*(orted|prted|prterun|mpirun|hydra_pmi_proxy|torchrun)\b`)
	}},
	{name: "kill of the agent", effect: loses, codes: []int{128 + 9, 70}, do: func(j *soakJob, p planned) error {
		return j.kill(p.rank, "agent")
	}},
	{name: "kill of the container", effect: loses, codes: []int{128 + 9}, do: func(j *soakJob, p planned) error {
		return j.signalFirst(p.rank, syscall.SIGKILL)
	}},
	{name: "SIGTERM", effect: stops, workersOnly: true, codes: []int{128 + 15}, do: func(j *soakJob, p planned) error {
		return j.signalFirst(p.rank, syscall.SIGTERM)
	}},
	{
		name: "restart", effect: stops, workersOnly: true, restartsOnly: true, codes: []int{128 + 15},
		do: func(j *soakJob, p planned) error { return j.engine("restart", "--time", "30", j.containers[p.rank]) },
	},
	{name: "pause", effect: harmless, lasts: 5 * time.Second, do: func(j *soakJob, p planned) error {
		if err := j.engine("pause", j.containers[p.rank]); err != nil {
			return err
		}
		time.Sleep(p.lasts)
		return j.engine("unpause", j.containers[p.rank])
	}},
	{
		name: "cut", effect: loses, orFails: true, lasts: 15 * time.Second, codes: []int{75},
		do: func(j *soakJob, p planned) error {
			if err := j.engine("network", "disconnect", j.job.name, j.containers[p.rank]); err != nil {
				return err
			}
			time.Sleep(p.lasts)
			return j.engine("network", "connect", "--alias", j.host(p.rank), j.job.name, j.containers[p.rank])
		},
	},
}

// soakPlan is what happens in a job; it depends on the seed alone.
type soakPlan struct {
	trainer  trainer
	restarts bool
	faults   []planned
}

func (p soakPlan) String() string {
	return fmt.Sprintf("%s, restarts %v: %v", p.trainer.name, p.restarts, p.faults)
}

// planSoak makes the plan of a job. Three losses of the same rank, or three failures in a row, would be a crash loop.
func planSoak(seed uint64) soakPlan {
	rnd := rand.New(rand.NewPCG(seed, 0))
	millis := func(most time.Duration) time.Duration {
		return time.Duration(rnd.Int64N(most.Milliseconds()+1)) * time.Millisecond
	}
	p := soakPlan{trainer: trainers[seed%uint64(len(trainers))], restarts: rnd.IntN(3) > 0}
	n := 1
	if p.restarts {
		n += rnd.IntN(4)
	}
	for last := -1; len(p.faults) < n; {
		i, rank := rnd.IntN(len(soakFaults)), rnd.IntN(ranks)
		f := soakFaults[i]
		var before int
		if len(p.faults) > 0 {
			before = p.faults[len(p.faults)-1].rank
		}
		switch {
		case !p.restarts && f.restartsOnly, p.restarts && f.workersOnly && rank == 0:
			continue
		case last >= 0 && f.effect == soakFaults[last].effect && (f.effect == fails || rank == before):
			continue
		}
		next := planned{soakFault: f, rank: rank, lasts: millis(f.lasts), settled: p.restarts && rnd.IntN(2) == 0}
		next.after = millis(4 * time.Second)
		if !p.restarts {
			next.after = millis(8 * time.Second)
		}
		if len(p.faults) == 0 {
			next.settled = p.restarts
		}
		p.faults, last = append(p.faults, next), i
	}
	return p
}

func TestSoakPlan(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(1000) {
		p := planSoak(seed)
		require.Equal(t, p.String(), planSoak(seed).String())
		for _, f := range p.faults {
			seen[fmt.Sprint(f.name, p.restarts)]++
			require.False(t, p.restarts && f.workersOnly && f.rank == 0, p)
		}
	}
	require.Len(t, seen, 2*len(soakFaults)-1)
}

// soakJob is a job of the soak.
type soakJob struct {
	*trainingJob
	t     *testing.T
	began time.Time
	codes []map[int]bool // by rank: statuses that the faults explain
}

// TestSoak runs jobs with random faults, one after the other: none hangs, launches twice, ends with a wrong status or
// leaves anything behind. Each is a test of its own whose name has the seed:
//
//	go test ./integration/docker -timeout 0 -v -run TestSoak -soak 1h
func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = uint64(time.Now().Unix())
	}
	jobs := 0
	for begin := time.Now(); time.Since(begin) < *soakTime; jobs++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Run("job", func(t *testing.T) { soak(t, planSoak(seed)) }) // returns when this parallel test has ended
		})
		seed++
	}
	t.Logf("%d jobs", jobs)
}

func soak(t *testing.T, p soakPlan) {
	t.Logf("again: -soak 1s -soak-seed %s; %v", strings.Split(t.Name(), "/")[1], p)
	j := &soakJob{trainingJob: newTrainingJob(t, p.trainer), t: t, began: time.Now()}
	t.Cleanup(func() { j.dumpIfFailed() })
	for range ranks {
		j.codes = append(j.codes, map[int]bool{0: true})
	}
	if p.restarts {
		j.withRestarts(p)
	} else {
		j.once(p.faults[0])
	}
	left, err := docker(t.Context(), "ps", "--quiet", "--filter", "name="+j.job.name)
	require.NoError(t, err)
	require.Empty(t, left, "containers still run")
	require.Empty(t, processesIn(t, j.containers), "processes are left")
}

// withRestarts runs a job that starts again after each fault, and ends with 0 once it has settled after the last one.
func (j *soakJob) withRestarts(p soakPlan) {
	j.options = append(j.options, "--restart", "on-failure")
	j.train(j.t, 1_000_000, "--restarts", "unlimited", "--rejoin", "5m", "--timeout", "5m")
	j.settle("")
	before := j.agents()
	for i, f := range p.faults {
		if i > 0 && f.settled {
			j.settle(p.faults[i-1].name)
		}
		time.Sleep(f.after)
		j.inject(f)
	}
	j.settle(p.faults[len(p.faults)-1].name)
	for rank, now := range j.agents() {
		if now.pid == before[rank].pid {
			assert.LessOrEqual(j.t, len(now.open), len(before[rank].open)+moreFiles,
				"rank %d's agent had open\n%s\nand has\n%s", rank,
				strings.Join(before[rank].open, "\n"), strings.Join(now.open, "\n"))
		}
	}
	j.stop(j.t)
	require.Equal(j.t, same(0), j.wait(j.t, soakEnd))
	require.True(j.t, j.log(j.t).Complete(ranks))
	for _, d := range j.deaths() {
		assert.True(j.t, j.codes[d.rank][d.status],
			"no fault explains status %d of rank %d at %v", d.status, d.rank, d.at)
	}
}

// once runs a job that does not start again, with one fault at any moment of its life.
func (j *soakJob) once(f planned) {
	j.train(j.t, 20, "--timeout", "1m")
	time.Sleep(f.after)
	hit := j.inject(f)
	got := j.wait(j.t, soakEnd)
	complete := j.log(j.t).Complete(ranks)
	j.t.Logf("statuses %v, complete %v", got, complete)
	victim := -1
	if hit && f.effect == loses && (!f.orFails || got[f.rank] == 75) {
		victim = f.rank
	}
	for rank, status := range got {
		switch {
		case status == 0:
			assert.True(j.t, complete, "rank %d ended with 0, but the ranks have not done their work", rank)
		case !hit || f.effect == harmless:
			assert.Fail(j.t, "no fault explains a status", "status %d of rank %d", status, rank)
		case rank == victim:
			assert.True(j.t, status == 75 || j.codes[rank][status], "status %d of rank %d, the victim", status, rank)
		case f.effect == loses && !f.orFails:
			assert.Equal(j.t, 75, status, "rank %d", rank)
		case f.effect == stops:
			assert.Equal(j.t, 128+15, status, "rank %d", rank)
		default:
			assert.NotContains(j.t, []int{64, 69, 70, 77, 78, 126, 127}, status, "rank %d", rank)
		}
	}
	var others []int
	for rank, status := range got {
		if rank != victim {
			others = append(others, status)
		}
	}
	assert.Len(j.t, slices.Compact(others), 1, "the ranks tell different statuses: %v", got)
	assert.LessOrEqual(j.t, len(j.log(j.t).Launches), 1, "launched twice")
}

// inject makes a fault happen, and reports whether there was what it needs: a container that runs, with that process.
func (j *soakJob) inject(f planned) (hit bool) {
	begin := time.Now()
	err := f.do(j, f)
	j.t.Logf("%6.1f s: %v: %v, took %v",
		time.Since(j.began).Seconds(), f, err, time.Since(begin).Round(time.Millisecond))
	for _, c := range f.codes {
		j.codes[f.rank][c] = true
	}
	return err == nil
}

// settle waits until all ranks train, in a new launch or beyond the step of this moment.
func (j *soakJob) settle(after string) {
	begin, first := time.Now(), j.log(j.t)
	for deadline := time.Now().Add(cmp.Or(j.within, settleLimit)); !j.log(j.t).Trains(first, ranks); {
		if time.Now().After(deadline) {
			require.Fail(j.t, "the job hangs", "after %q: %+v", after, j.log(j.t).Launches)
		}
		time.Sleep(100 * time.Millisecond)
	}
	j.t.Logf("%6.1f s: the ranks train, %v after %q, in generation %d", time.Since(j.began).Seconds(),
		time.Since(begin).Round(100*time.Millisecond), after, j.log(j.t).Last().Generation)
}

// engine calls docker.
func (j *soakJob) engine(args ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.t.Context()), soakEnd)
	defer cancel()
	_, err := docker(ctx, args...)
	return err
}

// first returns the process id of process 1 of a container, 0 if it does not run.
func (j *soakJob) first(rank int) int {
	ctx := context.WithoutCancel(j.t.Context())
	out, err := docker(ctx, "inspect", "--format", "{{.State.Pid}}", j.containers[rank])
	require.NoError(j.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	require.NoError(j.t, err)
	return pid
}

func (j *soakJob) signalFirst(rank int, sig syscall.Signal) error {
	pid := j.first(rank)
	if pid == 0 {
		return fmt.Errorf("the container does not run")
	}
	return syscall.Kill(pid, sig)
}

// kill kills the first process whose command line matches, or the agent.
func (j *soakJob) kill(rank int, what string) error {
	out, err := docker(j.t.Context(), "top", j.containers[rank], "-eo", "pid,ppid,args")
	if err != nil {
		return err
	}
	first := j.first(rank)
	for _, p := range parseTop(out) {
		if what == "agent" && p.parent == first || what != "agent" && matches(what, p.command) {
			return syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("no process %s", what)
}

// agent is a paiinit of a container.
type agent struct {
	pid  int
	open []string
}

// agents returns the agents of all ranks.
func (j *soakJob) agents() (all []agent) {
	for rank := range ranks {
		var a agent
		first := j.first(rank)
		for _, p := range j.top(j.t, rank) {
			if p.parent == first && strings.Contains(p.command, "paiinit") {
				open, err := hang.Descriptors(p.pid)
				require.NoError(j.t, err)
				a = agent{p.pid, open}
				break
			}
		}
		require.NotZero(j.t, a.pid, "rank %d has no agent", rank)
		all = append(all, a)
	}
	return all
}

// death is the end of one start of a container.
type death struct {
	rank, status int
	at           time.Time
}

// deaths returns the ends of all starts of the job's containers, as the engine reports them. It remembers the last 256
// events of all containers.
func (j *soakJob) deaths() (all []death) {
	args := []string{"events", "--since", fmt.Sprint(j.began.Unix() - 1), "--until", fmt.Sprint(time.Now().Unix() + 1),
		"--filter", "event=die", "--format", "{{json .}}"}
	for _, c := range j.containers {
		args = append(args, "--filter", "container="+c)
	}
	out, err := docker(j.t.Context(), args...)
	require.NoError(j.t, err)
	for line := range strings.Lines(out) {
		var e struct {
			ID       string
			TimeNano int64
			Actor    struct{ Attributes map[string]string }
		}
		require.NoError(j.t, json.Unmarshal([]byte(line), &e))
		status, err := strconv.Atoi(e.Actor.Attributes["exitCode"])
		require.NoError(j.t, err)
		all = append(all, death{slices.Index(j.containers, e.ID), status, time.Unix(0, e.TimeNano)})
	}
	require.GreaterOrEqual(j.t, len(all), ranks)
	return all
}

// dumpIfFailed logs how far the training came. The job logs its containers.
func (j *soakJob) dumpIfFailed() {
	if !j.t.Failed() {
		return
	}
	text, _ := os.ReadFile(filepath.Join(j.dir, "log"))
	j.t.Logf("the training:\n%s", text[max(0, len(text)-4000):])
}

// processesIn returns the processes of this machine that are in the cgroups of containers.
func processesIn(t *testing.T, containers []string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cgroup")
	require.NoError(t, err)
	for _, name := range all {
		text, _ := os.ReadFile(name) // the process may have ended meanwhile
		if slices.ContainsFunc(containers, func(id string) bool { return strings.Contains(string(text), id) }) {
			found = append(found, name)
		}
	}
	return found
}
