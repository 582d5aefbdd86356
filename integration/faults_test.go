package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/integration/lab"
)

var (
	faultRuns = flag.Int("faults", 0,
		"number of runs of TestFaults, each with the next fault of the list; 0 = each short fault once")
	faultSize     = flag.Int("fault-hosts", 5, "number of hosts of each run")
	faultParallel = flag.Int("fault-parallel", 4, "number of runs at the same time")
	faultSeed     = flag.Uint64("fault-seed", 0, "seed of run 0, from which the others follow; 0 = from the clock")
	faultFrom     = flag.Int("fault-from", 0, "number of the first run; with one -fault-seed, "+
		"-fault-from 0 -faults 100 and -fault-from 100 -faults 100 are two halves of -faults 200")
	faultOnly = flag.String("fault", "", "regular expression for the names of the faults to run")
	faultLogs = flag.String("fault-logs", os.TempDir(), "directory for the logs of failed runs")
	faultKeep = flag.Bool("fault-keep", false, "keep the logs of all runs")
)

// faultCommand is the command of a job with faults. It runs for $0 seconds and ends with status 3.
const faultCommand = `echo "launched $PAIINIT_RANK of $PAIINIT_SIZE"; sleep $0; exit 3`

const (
	// endLimit bounds the time from the last fault to the end of the job, without the time of its command. Most jobs
	// need a few seconds; a job that needs more than endLimit counts as hanging.
	endLimit = 60 * time.Second

	// faultLimit bounds the time from the start of the job to its last fault.
	faultLimit = 90 * time.Second
)

// fault is a failure while a job starts, runs or ends.
type fault struct {
	name  string
	slow  bool    // takes more than a few seconds
	sleep float64 // run time of the command, in seconds
	do    func(j *faultyJob) error
	want  []int // accepted statuses; all containers must have the same one
	lossy bool  // needs more time, because kernels retransmit lost packets with back-off
}

var faults = []fault{
	{"nothing", false, 0.2, func(j *faultyJob) error { return j.startAll() }, []int{3}, false},
	{"worker killed while gathering, and started again", false, 0.2, func(j *faultyJob) error {
		last := j.worker()
		err := j.startBut(last)
		victim := j.workerBut(last)
		return all(err,
			func() error { return j.say(0, "peer=worker-%d ", victim) },
			func() error { return j.kill(victim) },
			func() error { return j.start(last) },
			func() error { return j.start(victim) })
	}, []int{3}, false},
	{"worker killed while gathering", false, 0.2, func(j *faultyJob) error {
		j.setTimeout()
		last := j.worker()
		err := j.startBut(last)
		victim := j.workerBut(last)
		return all(err,
			func() error { return j.say(0, "peer=worker-%d ", victim) },
			func() error { return j.kill(victim) },
			func() error { return j.start(last) })
	}, []int{75}, false},
	{"worker killed at the launch", false, 60, func(j *faultyJob) error {
		return all(j.startAll(),
			func() error { return j.say(0, "all ranks are present") },
			j.moment,
			func() error { return j.kill(j.worker()) })
	}, []int{75}, false},
	{"worker killed while running", false, 60, func(j *faultyJob) error {
		return all(j.startAll(),
			func() error { return j.say(0, "launched 0") },
			func() error { return j.kill(j.worker()) })
	}, []int{75}, false},
	{"agent of a worker killed while running", false, 60, func(j *faultyJob) error {
		return all(j.startAll(),
			func() error { return j.say(0, "launched 0") },
			func() error { return j.killAgent(j.worker()) })
	}, []int{75}, false},
	{"agent of rank 0 killed while running", false, 60, func(j *faultyJob) error {
		return all(j.startAll(),
			func() error { return j.say(0, "launched 0") },
			func() error { return j.killAgent(0) })
	}, []int{75}, false},
	{"container told to stop while gathering", false, 0.2, func(j *faultyJob) error {
		last := j.worker()
		err := j.startBut(last)
		victim := j.workerBut(last)
		return all(err,
			func() error { return j.say(0, "peer=worker-%d ", victim) },
			func() error { return j.now[victim].Signal(syscall.SIGTERM) })
	}, []int{128 + 15}, false},
	{"container told to stop while running", false, 60, func(j *faultyJob) error {
		return all(j.startAll(),
			func() error { return j.say(0, "launched 0") },
			func() error { return j.now[j.rnd.IntN(len(j.now))].Signal(syscall.SIGTERM) })
	}, []int{128 + 15}, false},
	{"rank 0 comes last", false, 0.2, func(j *faultyJob) error {
		return all(j.startBut(0),
			func() error { return j.say(j.worker(), "msg=listening") },
			j.moment,
			func() error { return j.start(0) })
	}, []int{3}, false},
	{"rank 0 killed before any worker starts, and started again", false, 0.2, func(j *faultyJob) error {
		return all(j.start(0),
			j.moment,
			func() error { return j.kill(0) },
			func() error { return j.startBut(0) },
			func() error { return j.start(0) })
	}, []int{3}, false},
	{"rank 0 killed while gathering, and started again", false, 0.2, func(j *faultyJob) error {
		last := j.worker()
		return all(j.startBut(last),
			func() error { return j.say(0, "present=%d ", 2+j.rnd.IntN(len(j.hosts)-2)) },
			j.moment,
			func() error { return j.kill(0) },
			func() error { return j.start(last) },
			func() error { return j.start(0) })
	}, []int{3}, false},
	{"rank 0 killed while gathering", false, 0.2, func(j *faultyJob) error {
		j.setTimeout()
		last := j.worker()
		return all(j.startBut(last),
			func() error { return j.say(0, "present=%d ", 2+j.rnd.IntN(len(j.hosts)-2)) },
			func() error { return j.kill(0) },
			func() error { return j.start(last) })
	}, []int{75}, false},
	{"rank 0 killed at the launch", false, 60, func(j *faultyJob) error {
		j.setTimeout()
		return all(j.startAll(),
			func() error { return j.say(0, "present=%d ", len(j.hosts)) },
			j.moment,
			func() error { return j.kill(0) })
	}, []int{75}, false},
	{"rank 0 killed while running", false, 60, func(j *faultyJob) error {
		return all(j.startAll(), func() error { return j.say(0, "launched 0") }, func() error { return j.kill(0) })
	}, []int{75}, false},
	{"rank 0 killed at the end", false, 0.2, func(j *faultyJob) error {
		return all(j.startAll(),
			func() error { return j.say(0, "the command has ended") },
			j.moment,
			func() error { return j.kill(0) })
	}, []int{3, 75}, false},
	{"names resolve late", false, 0.2, func(j *faultyJob) error {
		names := make([]string, len(j.hosts))
		for i := range names {
			names[i] = fmt.Sprintf("host-%d.example", i)
		}
		for _, h := range j.hosts {
			h.env["PAIINIT_PEERS"] = strings.Join(names, ",")
		}
		if err := j.startAll(); err != nil {
			return err
		}
		for _, i := range j.rnd.Perm(len(names)) {
			j.pause(time.Second / time.Duration(len(names)))
			j.lab.Name(names[i], j.hosts[i].machine.Addr)
		}
		return nil
	}, []int{3}, false},
	{"worker without a cable for 5 s while running", true, 12, func(j *faultyJob) error {
		return all(j.startAll(),
			func() error { return j.say(0, "launched 0") },
			func() error { return j.cut(j.worker(), 5*time.Second) })
	}, []int{3}, false},
	{"worker without a cable while running", true, 300, func(j *faultyJob) error {
		return all(j.startAll(),
			func() error { return j.say(0, "launched 0") },
			func() error { return j.leave(j.worker()) })
	}, []int{75}, false},
	{"rank 0 without a cable while running", true, 300, func(j *faultyJob) error {
		return all(j.startAll(), func() error { return j.say(0, "launched 0") }, func() error { return j.leave(0) })
	}, []int{75}, false},
	{"worker without a cable for 3 s while gathering", true, 0.2, func(j *faultyJob) error {
		last := j.worker()
		err := j.startBut(last)
		victim := j.workerBut(last)
		return all(err,
			func() error { return j.say(0, "peer=worker-%d ", victim) },
			func() error { return j.hosts[victim].machine.CutOff() },
			func() error { return j.start(last) },
			func() error {
				j.pause(3 * time.Second)
				return j.hosts[victim].machine.Reconnect()
			})
	}, []int{3}, false},
	{"worker stopped for 15 s while gathering", true, 0.2, func(j *faultyJob) error {
		last := j.worker()
		err := j.startBut(last)
		victim := j.workerBut(last)
		return all(err,
			func() error { return j.say(0, "peer=worker-%d ", victim) },
			j.now[victim].Pause,
			func() error { return j.start(last) },
			func() error {
				j.pause(15 * time.Second)
				return j.now[victim].Resume()
			})
	}, []int{3}, false},
	{"worker stopped for 15 s while running", true, 18, func(j *faultyJob) error {
		victim := j.worker()
		return all(j.startAll(),
			func() error { return j.say(0, "launched 0") },
			func() error { return j.now[victim].Pause() },
			func() error {
				j.pause(15 * time.Second)
				return j.now[victim].Resume()
			})
	}, []int{3}, false},
	{"rank 0 stopped for 15 s while running", true, 18, func(j *faultyJob) error {
		return all(j.startAll(),
			func() error { return j.say(0, "launched 0") },
			func() error { return j.now[0].Pause() },
			func() error {
				j.pause(15 * time.Second)
				return j.now[0].Resume()
			})
	}, []int{3}, false},
	{"worker stopped for 15 s over the end", true, 5, func(j *faultyJob) error {
		victim := j.worker()
		return all(j.startAll(),
			func() error { return j.say(0, "launched 0") },
			func() error { return j.now[victim].Pause() },
			func() error {
				j.pause(15 * time.Second)
				return j.now[victim].Resume()
			})
	}, []int{3}, false},
	{"a quarter of the machines with 50 ms delay and a fifth of the frames lost", true, 3, func(j *faultyJob) error {
		for _, i := range j.rnd.Perm(len(j.hosts))[:max(1, len(j.hosts)/4)] {
			if err := j.hosts[i].machine.Slow(50*time.Millisecond, 0.2); err != nil {
				return err
			}
		}
		return j.startAll()
	}, []int{3}, true},
	{"rank 0 with 50 ms delay and a fifth of the frames lost", true, 3, func(j *faultyJob) error {
		return all(j.hosts[0].machine.Slow(50*time.Millisecond, 0.2), j.startAll)
	}, []int{3}, true},
}

// faultyJob is one run of a job with a fault.
type faultyJob struct {
	ctx   context.Context
	lab   *lab.Lab
	rnd   *rand.Rand
	hosts []host
	flags []string
	sleep float64

	now    []*lab.Container // by rank; nil = not started
	killed map[*lab.Container]bool
	apart  map[*lab.Container]bool // cut off until the end; may blame rank 0
	blamed []int                   // the others must name one of these ranks as the cause
	child  bool                    // paiinit is not PID 1
}

// setTimeout sets a short --timeout, in which all ranks can still start on a busy machine.
func (j *faultyJob) setTimeout() {
	j.flags = []string{"--timeout", fmt.Sprintf("%ds", 15+len(j.hosts)/2)}
}

func all(err error, steps ...func() error) error {
	for _, step := range steps {
		if err == nil {
			err = step()
		}
	}
	return err
}

func (j *faultyJob) start(i int) error {
	h := j.hosts[i]
	h.flags = append(slices.Clone(h.flags), j.flags...)
	p := h.program("sh", "-c", faultCommand, fmt.Sprint(j.sleep))
	p.Parent = j.child
	c, err := h.machine.Start(p)
	j.now[i] = c
	return err
}

func (j *faultyJob) startAll() error { return j.startBut(-1) }

// startBut starts all hosts but one, in random order.
func (j *faultyJob) startBut(but int) error {
	for _, i := range j.rnd.Perm(len(j.hosts)) {
		if i != but {
			if err := j.start(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (j *faultyJob) worker() int { return 1 + j.rnd.IntN(len(j.hosts)-1) }

func (j *faultyJob) workerBut(not int) int {
	for {
		if i := j.worker(); i != not {
			return i
		}
	}
}

// say waits until a rank prints the text.
func (j *faultyJob) say(rank int, format string, args ...any) error {
	_, err := j.now[rank].WaitLine(j.ctx, fmt.Sprintf(format, args...))
	return err
}

func (j *faultyJob) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-j.ctx.Done():
	}
}

// moment waits a few milliseconds, at random, to hit different steps of the commit or of the end.
func (j *faultyJob) moment() error {
	j.pause(time.Duration(j.rnd.IntN(10_000+500*len(j.hosts))) * time.Microsecond)
	return nil
}

func (j *faultyJob) kill(i int) error {
	c := j.now[i]
	j.killed[c] = true
	j.blamed = append(j.blamed, i)
	c.Kill()
	_, err := c.Wait(j.ctx)
	return err
}

// killAgent kills paiinit's second process in a container, not its PID 1.
func (j *faultyJob) killAgent(i int) error {
	agent, err := agentOf(j.now[i])
	if err != nil {
		return err
	}
	j.killed[j.now[i]] = true // PID 1 ends the container with another status than the others have
	j.blamed = append(j.blamed, i)
	return syscall.Kill(agent, syscall.SIGKILL)
}

// agentOf finds the second of paiinit's two processes.
func agentOf(c *lab.Container) (pid int, err error) {
	processes, err := c.Processes()
	if err != nil {
		return 0, err
	}
	paiinit := map[int]bool{}
	for _, p := range processes {
		paiinit[p.PID] = len(p.Args) > 0 && strings.HasSuffix(p.Args[0], "/paiinit")
	}
	for _, p := range processes {
		if paiinit[p.PID] && paiinit[p.Parent] {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("no agent among %v", processes)
}

// leave cuts a machine off until the end of the run.
func (j *faultyJob) leave(i int) error {
	j.apart[j.now[i]] = true
	j.blamed = append(j.blamed, i)
	return j.hosts[i].machine.CutOff()
}

func (j *faultyJob) cut(i int, d time.Duration) error {
	m := j.hosts[i].machine
	return all(m.CutOff(), func() error { j.pause(d); return m.Reconnect() })
}

// result is the outcome of a run, for the log.
type result struct {
	begun, ended time.Duration // from the start to the last fault, and from there to the end of the last container
	apart        time.Duration // from the last fault to the end of the last container that was cut off
	statuses     map[int]int   // number of containers by exit status
}

// check waits for the end and checks what must hold after any fault: no container hangs or leaves processes or sockets
// behind, the command was launched at most once, and all containers that were not killed end with the same status and
// log the cause and the rank that caused it.
func (j *faultyJob) check(f fault) (result, error) {
	begin := time.Now()
	bound := endLimit
	if slices.Contains(f.want, 3) { // the command runs to its end
		bound += time.Duration(j.sleep * float64(time.Second))
	}
	if f.lossy {
		bound += 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(j.ctx, bound)
	defer cancel()
	r := result{statuses: map[int]int{}}
	var errs []error
	var mu sync.Mutex
	var wg sync.WaitGroup
	hanging := 0
	for _, c := range j.lab.Containers() {
		wg.Go(func() {
			status, err := c.Wait(ctx)
			took := time.Since(begin)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				if hanging++; hanging <= 3 {
					errs = append(errs, fmt.Errorf("%s hangs: %w", c.Name, err))
				}
				return
			case j.killed[c]:
				return
			case j.apart[c]:
				r.apart = max(r.apart, took)
			default:
				r.ended = max(r.ended, took)
			}
			r.statuses[status]++
			errs = append(errs, j.checkOne(c, status))
		})
	}
	wg.Wait()
	if hanging > 3 {
		errs = append(errs, fmt.Errorf("%d containers hang", hanging))
	}
	launched := 0
	for _, c := range j.lab.Containers() {
		launched += strings.Count(stdout(c), fmt.Sprintf("launched 0 of %d\n", len(j.hosts)))
	}
	if launched > 1 {
		errs = append(errs, fmt.Errorf("launched %d times", launched))
	}
	if len(r.statuses) > 1 {
		errs = append(errs, errors.New("containers ended with different statuses"))
	}
	for status := range r.statuses {
		if !slices.Contains(f.want, status) {
			errs = append(errs, fmt.Errorf("status is %d, want %v", status, f.want))
		}
		if status == 3 && launched != 1 {
			errs = append(errs, fmt.Errorf("status is the command's, but it was launched %d times", launched))
		}
	}
	return r, errors.Join(errs...)
}

// checkOne checks one container that has ended by itself.
func (j *faultyJob) checkOne(c *lab.Container, status int) error {
	var errs []error
	if left, known := c.Left(); known && len(left.Processes)+len(left.Sockets) > 0 {
		errs = append(errs, fmt.Errorf("%s has left %v", c.Name, left))
	}
	if status < 64 {
		return errors.Join(errs...)
	}
	var last string
	for line := range strings.Lines(stderr(c)) {
		if strings.Contains(line, fmt.Sprintf("status=%d", status)) {
			last = line
		}
	}
	switch blames := func(rank int) bool {
		return regexp.MustCompile(fmt.Sprintf(`\brank %d\b|\bworker-%d\b`, rank, rank)).MatchString(last)
	}; {
	case last == "":
		errs = append(errs, fmt.Errorf("%s ended with %d and did not log the cause", c.Name, status))
	case len(j.blamed) > 0 && !j.apart[c] && !slices.ContainsFunc(j.blamed, blames):
		errs = append(errs, fmt.Errorf("%s does not name rank %v as the cause: %s", c.Name, j.blamed, last))
	}
	return errors.Join(errs...)
}

func runFault(ctx context.Context, t *testing.T, f fault, seed uint64) (r result, text string, err error) {
	begin := time.Now()
	l, err := lab.New(lab.Config{})
	if err != nil {
		return r, "", err
	}
	defer func() {
		if err != nil || *faultKeep {
			running := l.Running()
			text = running + transcript(l, begin)
		}
		err = errors.Join(err, l.Close())
	}()
	doing, cancel := context.WithTimeout(ctx, faultLimit)
	defer cancel()
	j := &faultyJob{
		ctx: doing, lab: l, rnd: rand.New(rand.NewPCG(seed, 0)), hosts: peersHosts(t, l, *faultSize), sleep: f.sleep,
		child: seed%2 == 1, killed: map[*lab.Container]bool{}, apart: map[*lab.Container]bool{},
	}
	j.now = make([]*lab.Container, len(j.hosts))
	if err := f.do(j); err != nil {
		return r, "", err
	}
	begun := time.Since(begin)
	j.ctx = ctx
	r, err = j.check(f)
	r.begun = begun
	return r, "", err
}

// TestFaults runs real jobs with faults, half of them with paiinit as PID 1. It logs each run on one line; for a failed
// run it also prints the flags to repeat it, and saves a log file:
//
//	go test ./integration -timeout 0 -v -run TestFaults -faults 200 -fault-hosts 64
func TestFaults(t *testing.T) {
	t.Parallel()
	requireLab(t)
	only, err := regexp.Compile(*faultOnly)
	require.NoError(t, err)
	var list []fault
	for _, f := range faults {
		if only.MatchString(f.name) && (*faultOnly != "" || *faultRuns > 0 || !f.slow) {
			list = append(list, f)
		}
	}
	require.NotEmpty(t, list, "no such fault")
	runs, seed := *faultRuns, *faultSeed
	if runs == 0 {
		runs = len(list)
	}
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	begin := time.Now()
	var mu sync.Mutex
	took := map[string][]time.Duration{}
	failed := 0
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(1, *faultParallel))
	for i := *faultFrom; i < *faultFrom+runs; i++ {
		f, seed := list[i%len(list)], seed+uint64(i)
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			start := time.Now()
			r, text, err := runFault(t.Context(), t, f, seed)
			d := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			took[f.name] = append(took[f.name], d)
			outcome := "ok"
			if err != nil {
				outcome = "FAIL"
			}
			line := fmt.Sprintf("run %3d, seed %d: %-4s %6.1f s, of which %5.1f s after the fault",
				i, seed, outcome, d.Seconds(), r.ended.Seconds())
			if r.apart > 0 {
				line += fmt.Sprintf(" (%.1f s in containers that were cut off)", r.apart.Seconds())
			}
			t.Logf("%s; %s; statuses %v", line, f.name, r.statuses)
			file := filepath.Join(*faultLogs, fmt.Sprintf("paiinit-fault-%d.log", seed))
			if text != "" {
				// The log only helps with debugging: failing to write it does not fail the test.
				_ = os.WriteFile(file, fmt.Appendf(nil, "%s\n%v\n\n%s\n", f.name, err, text), 0o600)
			}
			if err != nil {
				failed++
				t.Errorf("%s, after %v: %v\nagain: -fault '^%s$' -faults 1 -fault-hosts %d -fault-seed %d\nlog: %s",
					f.name, d.Round(time.Millisecond), err, regexp.QuoteMeta(f.name), *faultSize, seed, file)
			}
		})
	}
	wg.Wait()
	for _, f := range list {
		if all := took[f.name]; len(all) > 0 {
			slices.Sort(all)
			t.Logf("%-75s %3d runs, %6.1f to %6.1f s", f.name, len(all), all[0].Seconds(), all[len(all)-1].Seconds())
		}
	}
	t.Logf("%d runs with %d hosts in %v, first seed %d, %d failed",
		runs, *faultSize, time.Since(begin).Round(time.Second), seed+uint64(*faultFrom), failed)
}
