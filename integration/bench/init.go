package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// orphans is the number of processes that an init has to reap.
const orphans = 10000

// contestant is an init in the comparison.
type contestant struct {
	name string
	args []string // the command follows
	env  []string

	start, stop series // ms
	first, all  series // kB
	long, short waiting
	reap        series // ms of CPU
	zombies     series
}

// waiting is the cost of a container while it waits for other ranks, with a secret of one length.
type waiting struct {
	memory series // kB
	cpu    series // ms from the start to the end
}

// measureInits compares paiinit with tini and dumb-init, each as PID 1 of a namespace.
func measureInits(ctx context.Context, binary string, rounds int) (report, error) {
	if os.Geteuid() != 0 {
		return report{}, errors.New("PID namespaces need root")
	}
	dir, err := os.MkdirTemp("", "paiinit-bench-")
	if err != nil {
		return report{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	inside := filepath.Join(dir, "inside")
	if err := buildInside(ctx, inside, "./integration/initspec/inside"); err != nil {
		return report{}, err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return report{}, err
	}
	own := []string{binary, "--log-level=error", "--state-dir=" + filepath.Join(dir, "state")}
	contestants := []*contestant{
		{name: "paiinit", args: append(own, "--")},
		{name: "tini", args: []string{"tini", "--"}},
		{name: "dumb-init", args: []string{"dumb-init", "--"}},
	}
	for _, c := range contestants {
		if c.args[0], err = exec.LookPath(c.args[0]); err != nil {
			return report{}, fmt.Errorf("%w; on Debian or Ubuntu: apt-get install tini dumb-init; "+
				"for paiinit: make build", err)
		}
	}
	peers := contestant{
		args: append(own, "--rank=0", "--size=2", "--peers=127.0.0.1:12345,192.0.2.1:12345",
			"--log-level=debug", "--"),
	}
	for round := range rounds {
		for i := range contestants {
			c := contestants[(i+round)%len(contestants)]
			// Memory and reaping take long to measure and vary little, so one round in four is enough.
			slow := round%4 == 0
			if err := c.measure(ctx, inside, slow); err != nil {
				return report{}, fmt.Errorf("%s: %w", c.name, err)
			}
			if c == contestants[0] && slow {
				peers.env = []string{"PAIINIT_SECRET=" + jobSecret}
				err := c.long.measure(ctx, peers)
				if err == nil {
					peers.env = []string{"PAIINIT_SECRET=" + shortSecret}
					err = c.short.measure(ctx, peers)
				}
				if err != nil {
					return report{}, fmt.Errorf("%s waiting: %w", c.name, err)
				}
			}
		}
	}
	return initReport(contestants, rounds), nil
}

// buildInside builds a helper that runs in the containers.
func buildInside(ctx context.Context, file, source string) error {
	build := exec.CommandContext(ctx, "go", "build", "-o", file, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", build, err, out)
	}
	return nil
}

// measure adds one value to each series of times and, with all, to those of memory and reaping.
func (c *contestant) measure(ctx context.Context, inside string, all bool) error {
	begin := time.Now()
	p, err := c.launch(ctx, "true")
	if err != nil {
		return err
	}
	if err := p.end(0); err != nil {
		return err
	}
	c.start = append(c.start, milliseconds(time.Since(begin)))

	if p, err = c.launch(ctx, "sh", "-c", "echo ready; exec sleep 1000"); err != nil {
		return err
	}
	if _, err := p.line(); err != nil {
		return err
	}
	if all {
		first, agent, err := p.memory()
		if err != nil {
			return errors.Join(err, p.kill())
		}
		c.first, c.all = append(c.first, first), append(c.all, first+agent)
	}
	begin = time.Now()
	if err := p.terminate(); err != nil {
		return err
	}
	c.stop = append(c.stop, milliseconds(time.Since(begin)))
	if !all {
		return nil
	}
	return c.measureReaping(ctx, inside)
}

func (c *contestant) measureReaping(ctx context.Context, inside string) error {
	const script = `mount -t proc proc /proc && echo ready && read -r go && "$0" orphans "$1" && exec sleep 1000`
	p, err := c.launch(ctx, "sh", "-c", script, inside, strconv.Itoa(orphans))
	if err != nil {
		return err
	}
	if _, err := p.line(); err != nil {
		return err
	}
	before, err := p.cpu()
	if err != nil {
		return errors.Join(err, p.kill())
	}
	if _, err := p.stdin.Write([]byte("go\n")); err != nil {
		return errors.Join(err, p.kill())
	}
	line, err := p.line()
	if err != nil {
		return err
	}
	after, err := p.cpu()
	if err != nil {
		return errors.Join(err, p.kill())
	}
	var n, zombies int
	if _, err := fmt.Sscanf(line, "%d orphans, %d zombies", &n, &zombies); err != nil {
		return errors.Join(fmt.Errorf("%q: %w", line, err), p.kill())
	}
	c.reap = append(c.reap, milliseconds(after-before))
	c.zombies = append(c.zombies, float64(zombies))
	return p.terminate()
}

// measure starts a container whose peer never appears; it records the memory while it waits and its whole CPU time.
func (w *waiting) measure(ctx context.Context, peers contestant) error {
	p, err := peers.launch(ctx, "true")
	if err != nil {
		return err
	}
	if err := p.says("listening"); err != nil {
		return errors.Join(err, p.kill())
	}
	first, agent, err := p.memory()
	if err != nil {
		return errors.Join(err, p.kill())
	}
	w.memory = append(w.memory, first+agent)
	if err := p.terminate(); err != nil {
		return err
	}
	// PID 1 has reaped its agent, so its own figures include the agent's time (getrusage(2)).
	w.cpu = append(w.cpu, milliseconds(p.cmd.ProcessState.UserTime()+p.cmd.ProcessState.SystemTime()))
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func initReport(contestants []*contestant, rounds int) report {
	r := report{
		name:  "init",
		title: "The init",
		intro: []string{
			fmt.Sprintf("A single container, as PID 1 of a PID namespace; %d rounds by turns on %d CPUs, Linux %s, "+
				"%s. "+
				nineOfTen+" Memory is PSS: a page that two processes share counts half for each.",
				rounds, runtime.NumCPU(), release(), runtime.Version()),
			"The first process starts the agent before it initialises what only the agent needs (package early). " +
				"Without this, the same binary took 16.1 ms instead of 12.8 from start to end of `true`, 13.8 ms of " +
				"CPU instead of 10.9, and 1265 page faults instead of 1111 (60 starts by turns on a machine with " +
				"other load; tini took 1.8 ms). The first process starts the agent in a goroutine, because the " +
				"runtime locks init functions to a thread; this saves 1.4 ms of CPU.",
		},
	}
	rows := []struct {
		name   string
		format string
		of     func(*contestant) series
	}{
		{"start to end of `true`, ms", "%.1f", func(c *contestant) series { return c.start }},
		{"SIGTERM to end, with `sleep`, ms", "%.1f", func(c *contestant) series { return c.stop }},
		{"PSS of PID 1, kB", "%.0f", func(c *contestant) series { return c.first }},
		{"PSS of PID 1 and its agent, kB", "%.0f", func(c *contestant) series { return c.all }},
		{"the same while waiting for other ranks, kB", "%.0f", func(c *contestant) series { return c.long.memory }},
		{"the same with a secret of fewer than 32 bytes, kB", "%.0f",
			func(c *contestant) series { return c.short.memory }},
		{"CPU of a container that waits and is stopped, ms", "%.1f",
			func(c *contestant) series { return c.long.cpu }},
		{"the same with a secret of fewer than 32 bytes, ms", "%.1f",
			func(c *contestant) series { return c.short.cpu }},
		{"CPU of PID 1 to reap 10,000 orphans, ms", "%.0f", func(c *contestant) series { return c.reap }},
		{"zombies left", "%.0f", func(c *contestant) series { return c.zombies }},
	}
	for _, c := range contestants {
		r.columns = append(r.columns, c.name)
	}
	for _, row := range rows {
		cells := []string{row.name}
		for _, c := range contestants {
			cells = append(cells, row.of(c).cell(row.format))
		}
		r.rows = append(r.rows, cells)
	}
	return r
}

func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "of an unknown version"
	}
	return unix.ByteSliceToString(u.Release[:])
}
