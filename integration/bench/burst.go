package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// burstLimit bounds one round. A job that needs longer counts as late.
const burstLimit = time.Minute

// burst holds the measurements of one job size.
type burst struct {
	size         int
	all          series // s
	rank0, other series // CPU, s
	warnings     series
	late         int // rounds that did not launch within burstLimit

	shortSecret *burst // the same with a short secret; nil in that burst itself
}

// measureBurst starts all containers of a job at the same moment, as a scheduler does. They share the processors of one
// machine, which stands in for a slow cluster.
func measureBurst(ctx context.Context, binary string, sizes []int, rounds int, logs string) (report, error) {
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
	bursts := make([]burst, len(sizes))
	for range rounds {
		for i, size := range sizes {
			b := &bursts[i]
			if b.shortSecret == nil {
				b.size, b.shortSecret = size, &burst{size: size}
			}
			err := c.measureOneBurst(ctx, b, jobSecret)
			if err == nil {
				err = c.measureOneBurst(ctx, b.shortSecret, shortSecret)
			}
			if err != nil {
				return report{}, fmt.Errorf("%d containers at once: %w", size, errors.Join(err, c.end(ctx, true)))
			}
		}
	}
	return burstReport(bursts, rounds), nil
}

// measureOneBurst measures one round: the containers start, wait at the gate, and execute paiinit when it opens.
func (c *cluster) measureOneBurst(ctx context.Context, b *burst, secret string) error {
	env := []string{"PAIINIT_SECRET=" + secret, "PAIINIT_ROLE=worker",
		"PAIINIT_PEERS=" + strings.Join(c.addrs[:b.size], ",")}
	for i := range b.size {
		if _, err := c.start(i, append(env, "PAIINIT_INDEX="+strconv.Itoa(i)),
			"/run/bin/paiinit", "--", "/run/bin/stamp", "launched", "/bin/sleep", "1000"); err != nil {
			return err
		}
	}
	settleDown(ctx)
	begin := time.Now()
	gate, err := os.OpenFile(c.gate, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("opening the gate: %w", err)
	}
	defer func() { _ = gate.Close() }()
	waiting, cancel := context.WithTimeout(ctx, burstLimit)
	defer cancel()
	launched, err := stamp(waiting, c.containers[0], "launched")
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
	switch {
	case late:
		b.late++
	case err != nil:
		return err
	default:
		b.all = append(b.all, launched.Sub(begin).Seconds())
	}
	return errors.Join(c.burstCosts(b), c.endBurst(ctx, late))
}

// burstCosts records the processor time that the ranks used so far, and the number of warnings in their logs.
func (c *cluster) burstCosts(b *burst) error {
	var times series
	for _, p := range c.containers {
		sum, err := groupTime(p.PID())
		if err != nil {
			return err
		}
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.PID()))
		if err != nil {
			return err
		}
		var agents []byte
		for _, list := range lists { // each thread lists its own children
			children, err := os.ReadFile(list)
			if err != nil {
				return err
			}
			agents = append(agents, children...)
		}
		for _, agent := range strings.Fields(string(agents)) {
			pid, err := strconv.Atoi(agent)
			if err != nil {
				return err
			}
			d, err := groupTime(pid)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			sum += d
		}
		times = append(times, sum.Seconds())
	}
	b.rank0 = append(b.rank0, times[0])
	b.other = append(b.other, times[1:].median())
	warnings := 0
	for _, p := range c.containers {
		warnings += strings.Count(p.Output(), "level=WARN")
	}
	b.warnings = append(b.warnings, float64(warnings))
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

// endBurst ends the containers, with SIGKILL if the job was late, and saves their logs if -logs was given.
func (c *cluster) endBurst(ctx context.Context, late bool) error {
	if !late {
		if err := c.containers[0].Signal(syscall.SIGTERM); err != nil {
			return err
		}
	}
	containers := c.containers
	if err := c.end(ctx, late); err != nil || c.logs == "" {
		return err
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
func (b *burst) launch() string {
	text := b.all.cell("%.2f")
	if b.late > 0 {
		text = fmt.Sprintf("%s; %d rounds took longer than %v", text, b.late, burstLimit)
	}
	return text
}

func burstReport(bursts []burst, rounds int) report {
	r := report{
		name:  "burst",
		title: "All containers at once",
		intro: []string{fmt.Sprintf("All containers execute paiinit at the same moment. They are namespaces of one "+
			"machine with %d CPUs, Linux %s, %s, and share its CPUs, which stands in for a slow cluster. The time is "+
			"from that moment until rank 0 executes its command, a stand-in for mpirun. %d rounds. "+nineOfTen,
			runtime.NumCPU(), release(), runtime.Version(), rounds)},
		rows: [][]string{{"start to launch, s"}, {"CPU of rank 0 until then, s"},
			{"CPU of the median other rank, s"}, {"warnings in all logs"},
			{"start to launch with a secret of fewer than 32 bytes, s"}},
	}
	for _, b := range bursts {
		r.columns = append(r.columns, fmt.Sprintf("%d containers", b.size))
		for i, cell := range []string{b.launch(), b.rank0.cell("%.2f"), b.other.cell("%.2f"), b.warnings.cell("%.0f"),
			b.shortSecret.launch()} {
			r.rows[i] = append(r.rows[i], cell)
		}
	}
	return r
}
