package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/integration/lab"
)

const (
	// scaleLimit bounds one launch. A job that needs longer counts as late.
	scaleLimit = time.Minute
	// waitedFor is how long ranks have waited when their memory is measured: longer than the start and all that a
	// paiinit puts off until later. watchedFor is how long they are watched before.
	waitedFor, watchedFor = 15 * time.Second, 10 * time.Second
)

// scale holds the measurements of one job size.
type scale struct {
	size         int
	burst        series // s
	rank0, other series // CPU, s
	warnings     series
	gone         series // s
	last         series // ms
	memory0      series // kB
	memory       series // kB, of the median other rank
	wakeups      series // 1/s, of the median other rank
	late         int    // rounds that did not launch within scaleLimit
}

// measureScale measures jobs of several sizes. Their containers share the processors of one machine, which stands in
// for a slow cluster.
func measureScale(ctx context.Context, binary string, sizes []int, rounds int, logs string) (report, error) {
	dir, err := os.MkdirTemp("", "paiinit-bench-")
	if err != nil {
		return report{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c := &cluster{logs: logs, inside: filepath.Join(dir, "inside"),
		stamp: filepath.Join(dir, "stamp"), gate: filepath.Join(dir, "gate")}
	defer func() { _ = c.close() }()
	if err := unix.Mkfifo(c.gate, 0o644); err != nil {
		return report{}, fmt.Errorf("making the gate: %w", err)
	}
	if err := c.open(ctx, binary, slices.Max(sizes)); err != nil {
		return report{}, err
	}
	scales := make([]scale, len(sizes))
	for range rounds {
		for i, size := range sizes {
			s := &scales[i]
			s.size = size
			err := c.measureBurst(ctx, s)
			if err == nil {
				err = c.measureWait(ctx, s)
			}
			if err != nil {
				return report{}, fmt.Errorf("%d containers: %w", size,
					errors.Join(err, c.saveLogs(c.containers), c.end(ctx, true)))
			}
		}
	}
	return scaleReport(scales, rounds), nil
}

// startScaled starts a rank of a job whose command is a stand-in for mpirun.
func (c *cluster) startScaled(rank, size int) (*lab.Container, error) {
	return c.start(rank, []string{
		"PAIINIT_SECRET=" + jobSecret, "PAIINIT_ROLE=worker", "PAIINIT_INDEX=" + strconv.Itoa(rank),
		"PAIINIT_PEERS=" + strings.Join(c.addrs[:size], ","), "PAIINIT_LOG_FORMAT=json",
	}, "/run/bin/paiinit", "--", "/run/bin/stamp", "launched", "/bin/sleep", "1000")
}

// openGate lets all containers that wait at the gate execute paiinit.
func (c *cluster) openGate() (io.Closer, error) {
	gate, err := os.OpenFile(c.gate, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the gate: %w", err)
	}
	return gate, nil
}

// measureBurst measures a launch, and the end of the job: the containers start, wait at the gate, and execute paiinit
// when it opens.
func (c *cluster) measureBurst(ctx context.Context, s *scale) error {
	for i := range s.size {
		if _, err := c.startScaled(i, s.size); err != nil {
			return err
		}
	}
	settleDown(ctx)
	begin := time.Now()
	gate, err := c.openGate()
	if err != nil {
		return err
	}
	defer func() { _ = gate.Close() }()
	waiting, cancel := context.WithTimeout(ctx, scaleLimit)
	defer cancel()
	launched, err := stamp(waiting, c.containers[0], "launched")
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
	switch {
	case late:
		s.late++
	case err != nil:
		return err
	default:
		s.burst = append(s.burst, launched.Sub(begin).Seconds())
	}
	if err := c.burstCosts(s); err != nil {
		return err
	}
	settleDown(ctx)
	return c.endScaled(ctx, s, late)
}

// measureWait measures the wait for the last rank, and the launch when it has started.
func (c *cluster) measureWait(ctx context.Context, s *scale) error {
	for i := range s.size - 1 {
		if _, err := c.startScaled(i, s.size); err != nil {
			return err
		}
	}
	gate, err := c.openGate()
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, 2*scaleLimit)
	defer cancel()
	zero := c.containers[0]
	_, err = zero.WaitLine(waiting, fmt.Sprintf(`"present":%d,`, s.size-1))
	if err = errors.Join(err, gate.Close()); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(waitedFor - watchedFor):
	}
	noise, err := c.watch(ctx, watchedFor)
	if err != nil {
		return err
	}
	var memory series
	for _, p := range c.containers {
		kB, err := containerMemory(p)
		if err != nil {
			return err
		}
		memory = append(memory, kB)
	}
	s.wakeups = append(s.wakeups, noise.switches[1:].median())
	s.memory0, s.memory = append(s.memory0, memory[0]), append(s.memory, memory[1:].median())
	last, err := c.startScaled(s.size-1, s.size)
	if err != nil {
		return err
	}
	if gate, err = c.openGate(); err != nil {
		return err
	}
	defer func() { _ = gate.Close() }()
	if err := s.last.since(ctx, last, "start", zero, "launched"); err != nil {
		return err
	}
	return c.endScaled(ctx, s, false)
}

// containerMemory returns the proportional set size, in kB, of PID 1 and the agent of a container.
func containerMemory(p *lab.Container) (float64, error) {
	agents, err := agentsOf(p)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, pid := range append(agents, p.PID()) {
		kB, err := pss(pid)
		if err != nil {
			return 0, err
		}
		sum += kB
	}
	return sum, nil
}

// agentsOf returns the children of a container's first process.
func agentsOf(p *lab.Container) (agents []int, err error) {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.PID()))
	if err != nil {
		return nil, err
	}
	for _, list := range lists { // each thread lists its own children
		children, err := os.ReadFile(list)
		if errors.Is(err, fs.ErrNotExist) { // the thread has ended
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, child := range strings.Fields(string(children)) {
			pid, err := strconv.Atoi(child)
			if err != nil {
				return nil, err
			}
			agents = append(agents, pid)
		}
	}
	return agents, nil
}

// burstCosts records the processor time that the ranks used so far, and the number of warnings in their logs.
func (c *cluster) burstCosts(s *scale) error {
	var times series
	for _, p := range c.containers {
		sum, err := groupTime(p.PID())
		if err != nil {
			return err
		}
		agents, err := agentsOf(p)
		if err != nil {
			return err
		}
		for _, agent := range agents {
			d, err := groupTime(agent)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			sum += d
		}
		times = append(times, sum.Seconds())
	}
	s.rank0 = append(s.rank0, times[0])
	s.other = append(s.other, times[1:].median())
	warnings := 0
	for _, p := range c.containers {
		warnings += strings.Count(p.Output(), `"level":"WARN"`)
	}
	s.warnings = append(s.warnings, float64(warnings))
	return nil
}

// groupTime returns the processor time of a process, including threads that ended (fields 14 and 15 of proc(5)'s stat).
func groupTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var sum time.Duration
	for _, f := range fields[11:13] {
		ticks, err := strconv.Atoi(f)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		sum += time.Duration(ticks) * (time.Second / 100) // sysconf(_SC_CLK_TCK) is 100 on Linux
	}
	return sum, nil
}

// endScaled ends the job by a signal to rank 0, or with SIGKILL if it was late, and saves its logs.
func (c *cluster) endScaled(ctx context.Context, s *scale, late bool) error {
	began := time.Now()
	if !late {
		if err := c.containers[0].Signal(syscall.SIGTERM); err != nil {
			return err
		}
	}
	containers := c.containers
	err := c.end(ctx, late)
	if !late && err == nil {
		s.gone = append(s.gone, time.Since(began).Seconds())
	}
	return errors.Join(err, c.saveLogs(containers))
}

// saveLogs writes what containers have logged to a new directory, if -logs was given.
func (c *cluster) saveLogs(containers []*lab.Container) error {
	if c.logs == "" {
		return nil
	}
	dir, err := os.MkdirTemp(c.logs, fmt.Sprintf("%d-", len(containers)))
	for _, p := range containers {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, p.Name), []byte(p.Output()), 0o600)
		}
	}
	return err
}

// launch formats the cell of the time to the launch.
func (s *scale) launch() string {
	text := s.burst.cell("%.2f")
	if s.late > 0 {
		text = fmt.Sprintf("%s; %d rounds took longer than %v", text, s.late, scaleLimit)
	}
	return text
}

func scaleReport(scales []scale, rounds int) report {
	r := report{
		name:  "scale",
		title: "Many containers",
		plot:  "Time to the launch by the number of containers",
		intro: []string{
			fmt.Sprintf("Jobs in namespaces of one machine with %d CPUs, Linux %s, %s. All containers share its CPUs, "+
				"which stands in for a slow cluster. The command is a stand-in for mpirun. Rounds: %d. "+nineOfTen,
				runtime.NumCPU(), release(), runtime.Version(), rounds),
			"First all containers execute paiinit at the same moment; the launch is when rank 0 executes its " +
				"command. The end is from SIGTERM to rank 0 until the last container has ended.",
			fmt.Sprintf("Then all but the last start. Their memory, after at least %v of waiting, is PSS of both "+
				"processes: each of n processes that share a page counts one n-th of it, as containers of one image "+
				"do on one node. The last container's start is its exec.", waitedFor),
		},
		rows: [][]string{{"all at once: start to launch, s"}, {"CPU of rank 0 until then, s"},
			{"CPU of the median other rank, s"}, {"warnings in all logs"}, {"SIGTERM to the last container's end, s"},
			{"memory of rank 0 while it waits, kB"}, {"memory of the median other rank, kB"},
			{"its voluntary context switches, 1/s"}, {"the last container's start to launch, ms"}},
	}
	for _, s := range scales {
		r.columns = append(r.columns, fmt.Sprintf("%d containers", s.size))
		for i, cell := range []string{s.launch(), s.rank0.cell("%.2f"), s.other.cell("%.2f"), s.warnings.cell("%.0f"),
			s.gone.cell("%.2f"), s.memory0.cell("%.0f"), s.memory.cell("%.0f"), s.wakeups.cell("%.1f"),
			s.last.cell("%.1f")} {
			r.rows[i] = append(r.rows[i], cell)
		}
	}
	return r
}
