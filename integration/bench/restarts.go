package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/integration/lab"
)

// restartSizes are the ranks of the jobs that restart.
var restartSizes = []int{16, jobSize}

// What the command of a job that restarts does, in every generation.
const (
	obeys  = "exec stamp generation-${PAIINIT_GENERATION:-1} /bin/sleep 1000"
	resist = `trap "" TERM; ` + obeys
)

// ends are the times of restarts, in ms, by the size of the job.
type ends struct {
	killed, resisted, again, replaced, agreed, spare series
}

// measureRestarts measures the time from the end of a process or of a container until the job runs again.
func measureRestarts(ctx context.Context, binary string, rounds int) (report, error) {
	dir, err := os.MkdirTemp("", "paiinit-bench-")
	if err != nil {
		return report{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c := &cluster{inside: filepath.Join(dir, "inside"), stamp: filepath.Join(dir, "stamp")}
	defer func() { _ = c.close() }()
	if err := c.open(ctx, binary, jobSize+1); err != nil {
		return report{}, err
	}
	results := make([]ends, len(restartSizes))
	for range rounds {
		for i, size := range restartSizes {
			if err := c.measureSize(ctx, size, &results[i]); err != nil {
				return report{}, fmt.Errorf("%d ranks: %w", size, errors.Join(err, c.end(ctx, true)))
			}
		}
	}
	return restartReport(results, rounds), nil
}

// measureSize takes one value of each measurement.
func (c *cluster) measureSize(ctx context.Context, size int, e *ends) error {
	for _, m := range []struct {
		what    string
		into    *series
		script  string
		spares  int
		restart func(ctx context.Context, size int) (from time.Time, err error)
	}{
		{"a process is killed", &e.killed, obeys, 0, c.killProcess},
		{"the others ignore SIGTERM", &e.resisted, resist, 0, c.killProcess},
		{"all containers are started again", &e.again, obeys, -1, c.startAllAgain},
		{"a container is replaced", &e.replaced, obeys, 0, func(ctx context.Context, size int) (time.Time, error) {
			return c.replace(ctx, size, &e.agreed)
		}},
		{"a spare stands in", &e.spare, obeys, 1, c.killContainer},
	} {
		if err := c.measureRestart(ctx, size, m.script, m.spares, m.into, m.restart); err != nil {
			return fmt.Errorf("%s: %w", m.what, err)
		}
	}
	return nil
}

// measureRestart runs a job, ends a part of it, and measures the time until rank 0's command runs again. A negative
// number of spares means a job without restarts.
func (c *cluster) measureRestart(ctx context.Context, size int, script string, spares int, into *series,
	restart func(ctx context.Context, size int) (time.Time, error)) error {
	for i := range size + max(spares, 0) {
		if _, err := c.startRank(i, size, spares, script); err != nil {
			return err
		}
	}
	for _, p := range c.containers[:size] {
		if _, err := stamp(ctx, p, "generation-1"); err != nil {
			return err
		}
	}
	settleDown(ctx)
	next := "generation-2"
	if spares < 0 {
		next = "generation-1" // of another job
	}
	from, err := restart(ctx, size)
	if err != nil {
		return err
	}
	to, err := stamp(ctx, c.containers[0], next)
	if err != nil {
		return err
	}
	*into = append(*into, milliseconds(to.Sub(from)))
	if err := c.containers[0].Signal(syscall.SIGINT); err != nil {
		return err
	}
	return c.end(ctx, false)
}

func (c *cluster) startRank(i, size, spares int, script string) (*lab.Container, error) {
	flags := []string{"/run/bin/paiinit", "--exec", "all"}
	if spares >= 0 {
		flags = append(flags, "--restarts", "1", "--spares", strconv.Itoa(spares))
	}
	env := []string{
		"PAIINIT_SECRET=" + jobSecret, "PAIINIT_ROLE=worker", "PAIINIT_INDEX=" + strconv.Itoa(i),
		"PAIINIT_PEERS=" + strings.Join(c.addrs[:size+max(spares, 0)], ","), "PAIINIT_LOG_FORMAT=json",
	}
	return c.start(i, env, append(flags, "--", "/bin/sh", "-c", script)...)
}

// killProcess kills the command of a rank.
func (c *cluster) killProcess(_ context.Context, size int) (time.Time, error) {
	rank := 1 + rand.IntN(size-1)
	processes, err := c.containers[rank].Processes()
	if err != nil {
		return time.Time{}, err
	}
	for _, p := range processes {
		if len(p.Args) > 0 && p.Args[0] == "/bin/sleep" {
			return time.Now(), syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
	return time.Time{}, fmt.Errorf("rank %d runs no command", rank)
}

// killContainer kills the first process of a rank's container.
func (c *cluster) killContainer(_ context.Context, size int) (time.Time, error) {
	from := time.Now()
	c.containers[1+rand.IntN(size-1)].Kill()
	return from, nil
}

// replace kills a container and starts it again when the others wait for it. It returns the time of its start.
func (c *cluster) replace(ctx context.Context, size int, agreed *series) (from time.Time, err error) {
	rank := 1 + rand.IntN(size-1)
	lost := c.containers[rank]
	lost.Kill()
	if _, err := lost.Wait(ctx); err != nil {
		return from, err
	}
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := c.containers[0].WaitLine(waiting, "restarting the job"); err != nil {
		return from, err
	}
	settleDown(ctx)
	next, err := c.startRank(rank, size, 0, obeys)
	if err != nil {
		return from, err
	}
	c.containers = c.containers[:len(c.containers)-1]
	c.containers[rank] = next
	if from, err = stamp(ctx, next, "start"); err != nil {
		return from, err
	}
	line, err := c.containers[0].WaitLine(waiting, "the job runs again")
	if err != nil {
		return from, err
	}
	var said struct {
		Commit float64 `json:"commit"`
	}
	if err := json.Unmarshal([]byte(line.Text), &said); err != nil {
		return from, fmt.Errorf("%q: %w", line.Text, err)
	}
	*agreed = append(*agreed, said.Commit*1000)
	return from, nil
}

// startAllAgain kills the command of a rank of a job without restarts, and starts all containers again once all have
// ended.
func (c *cluster) startAllAgain(ctx context.Context, size int) (from time.Time, err error) {
	if from, err = c.killProcess(ctx, size); err != nil {
		return from, err
	}
	if err := c.end(ctx, false); err != nil {
		return from, err
	}
	for i := range size {
		if _, err := c.startRank(i, size, -1, obeys); err != nil {
			return from, err
		}
	}
	return from, nil
}

func restartReport(results []ends, rounds int) report {
	r := report{
		name:  "restarts",
		title: "Restarts",
		plot:  "Time until the job runs again, with paiinit and with containers that are started again",
		intro: []string{
			fmt.Sprintf("Jobs with `--exec all` and `--restarts 1` on hosts in namespaces of a machine with %d CPUs, "+
				"Linux %s, %s; the command is a shell that executes `sleep`. Times are in ms, until rank 0 executes "+
				"the command again. Beside: the same job without restarts, all of whose containers are started again "+
				"as soon as all have ended, without the delays of an orchestrator. %d rounds by turns. "+nineOfTen,
				runtime.NumCPU(), release(), runtime.Version(), rounds),
			"From `kill -9` of a rank's process, or of a container's first process. A container that is replaced is " +
				"started again while the others wait; its time begins with its start, and the row below it with its " +
				"registration. A spare's time includes the 0.5 s in which a lost container may only have lost its " +
				"connection.",
		},
	}
	for _, size := range restartSizes {
		r.columns = append(r.columns, fmt.Sprintf("%d ranks", size))
	}
	row := func(name string, of func(e *ends) series) {
		cells := []string{name}
		for i := range results {
			cells = append(cells, of(&results[i]).cell("%.0f"))
		}
		r.rows = append(r.rows, cells)
	}
	row("a process is killed", func(e *ends) series { return e.killed })
	row("the same; the commands ignore SIGTERM for 2 s (--restart-grace)", func(e *ends) series { return e.resisted })
	row("the same; all containers are started again", func(e *ends) series { return e.again })
	row("a container is replaced, from its start", func(e *ends) series { return e.replaced })
	row("the same, from its registration to the agreement", func(e *ends) series { return e.agreed })
	row("a container is killed, a spare takes its place", func(e *ends) series { return e.spare })
	return r
}
