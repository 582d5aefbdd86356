package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
)

// phase is a step of a job's life, and how a real job is held in it.
type phase struct {
	name     string
	held     string   // for the page: what holds the job there
	launcher bool     // COMMAND is mpirun
	restarts bool     // the phase exists only with --restarts
	over     string   // what the target logs when it ends the phase, whatever holds it; "" = it never does
	closed   []string // gates
	prepare  func(t *trial)
	reach    func(ctx context.Context, t *trial) error // starts the containers, and returns when the phase is reached
	release  func(ctx context.Context, t *trial) error // ends what held it
}

// Names of the phases, in the order of a job.
const (
	identify = "identify"
	listen   = "listen"
	gather   = "gather"
	check    = "check"
	launch   = "launch"
	run      = "run"
	clearing = "clear"
	rejoin   = "rejoin"
	exit     = "exit"
)

var phases = []*phase{
	{
		name: identify, held: "the target's `--secret-file` is a pipe to which nothing has been written yet",
		prepare: func(t *trial) {
			delete(t.target().env, "PAIINIT_SECRET")
			t.target().flags = append(t.target().flags, "--secret-file", "/run/gate/"+secretGate)
		},
		reach: func(ctx context.Context, t *trial) error {
			if err := t.startAll(others(t.role.rank)...); err != nil {
				return err
			}
			if err := t.start(t.role.rank); err != nil {
				return err
			}
			f, err := t.reader(ctx, secretGate)
			if err == nil {
				t.held = append(t.held, f)
			}
			return err
		},
		release: func(ctx context.Context, t *trial) error {
			f := t.held[len(t.held)-1]
			t.held = t.held[:len(t.held)-1]
			_, _ = f.WriteString(jobSecret) // the reader may be dead
			return f.Close()
		},
	},
	{
		name: listen, held: "nothing: it takes milliseconds and waits for nothing",
		reach: func(ctx context.Context, t *trial) error { return t.startAll(0, 1, 2) },
	},
	{
		name: gather, held: "rank 2 has not come yet",
		reach: func(ctx context.Context, t *trial) error {
			if err := t.startAll(0, 1); err != nil {
				return err
			}
			return t.says(ctx, 0, "present 2")
		},
		release: func(ctx context.Context, t *trial) error { return t.start(last) },
	},
	{
		name: check, held: "the target's `--preflight` waits for a file system", closed: []string{checkGate},
		prepare: func(t *trial) { t.target().flags = append(t.target().flags, "--preflight", preflight) },
		reach: func(ctx context.Context, t *trial) error {
			if err := t.startAll(0, 1, 2); err != nil {
				return err
			}
			if err := t.says(ctx, 0, "present 3"); err != nil {
				return err
			}
			return t.says(ctx, t.role.rank, "preflight waits")
		},
		release: func(ctx context.Context, t *trial) error { return t.open(checkGate) },
	},
	{
		name: launch, held: "Open MPI's daemons on the other hosts load from a slow file system", launcher: true,
		closed: []string{launchGate},
		reach: func(ctx context.Context, t *trial) error {
			if err := t.startAll(0, 1, 2); err != nil {
				return err
			}
			if err := t.says(ctx, 0, "daemon of 1 waits"); err != nil {
				return err
			}
			return t.says(ctx, 0, "daemon of 2 waits")
		},
		release: func(ctx context.Context, t *trial) error { return t.open(launchGate) },
	},
	{
		name: run, held: "COMMAND waits for data", launcher: true, closed: []string{runGate},
		reach:   func(ctx context.Context, t *trial) error { return t.running(ctx) },
		release: func(ctx context.Context, t *trial) error { return t.open(runGate) },
	},
	{
		name: clearing, held: "a rank has failed, and a process on every host ignores SIGTERM", launcher: true,
		restarts: true, closed: []string{runGate, failGate, clearGate},
		reach: func(ctx context.Context, t *trial) error {
			if err := t.running(ctx); err != nil {
				return err
			}
			if err := t.open(failGate); err != nil {
				return err
			}
			for rank := range ranks {
				if err := t.says(ctx, rank, "restarting the job"); err != nil {
					return err
				}
			}
			return nil
		},
		release: func(ctx context.Context, t *trial) error { return t.open(clearGate) },
	},
	{
		name: rejoin, held: "the container of rank 2 was killed, and its next start has not come yet", launcher: true,
		restarts: true, closed: []string{runGate},
		reach: func(ctx context.Context, t *trial) error {
			if err := t.running(ctx); err != nil {
				return err
			}
			t.absent = t.now[last]
			t.absent.Kill()
			for _, rank := range []int{0, 1} {
				if err := t.says(ctx, rank, "no process of the last generation is left"); err != nil {
					return err
				}
			}
			return nil
		},
		release: func(ctx context.Context, t *trial) error { return t.replace(ctx, last) },
	},
	{
		name: exit, held: "COMMAND has ended, and rank 2, which is stopped, does not acknowledge it",
		over: "did not acknowledge the end of the job", closed: []string{runGate},
		reach: func(ctx context.Context, t *trial) error {
			if err := t.startAll(0, 1, 2); err != nil {
				return err
			}
			for rank := range ranks {
				if err := t.says(ctx, rank, "all 3 present"); err != nil {
					return err
				}
			}
			if err := t.says(ctx, 0, "up 0"); err != nil {
				return err
			}
			if err := t.now[last].Pause(); err != nil {
				return err
			}
			if err := t.open(runGate); err != nil {
				return err
			}
			return t.says(ctx, 1, "the job has ended")
		},
		release: func(ctx context.Context, t *trial) error { return t.now[last].Resume() },
	},
}

// running starts the job and returns when the command of every rank runs.
func (t *trial) running(ctx context.Context) error {
	if err := t.startAll(0, 1, 2); err != nil {
		return err
	}
	for rank := range ranks {
		if err := t.says(ctx, 0, fmt.Sprintf("up %d in generation 1", rank)); err != nil {
			return err
		}
	}
	return nil
}

func others(rank int) (list []int) {
	for other := range ranks {
		if other != rank {
			list = append(list, other)
		}
	}
	return list
}

// role says which rank a fault hits.
type role struct {
	name string
	rank int
}

var roles = []role{{"rank 0", 0}, {"rank 1", 1}}

// cell is one row of the table.
type cell struct {
	fault    *fault
	phase    *phase
	role     role
	restarts bool
}

// id names a cell on the command line and in the page.
func (c cell) id() string {
	id := strings.Join([]string{c.phase.name, c.fault.name, c.role.name}, "/")
	if c.restarts && !c.phase.restarts {
		id += "/restarts"
	}
	return strings.ReplaceAll(id, " ", "-")
}

// cells returns all cells that make sense, and the reasons why the others are left out, with their number.
func cells() (list []cell, omitted []omission) {
	for _, p := range phases {
		for i := range faults {
			for _, r := range roles {
				for _, restarts := range []bool{false, true} {
					c := cell{&faults[i], p, r, restarts}
					if restarts != p.restarts && p.name != run {
						continue // one of the two exists
					}
					if why := c.omitted(); why != "" {
						omitted = count(omitted, why)
						continue
					}
					list = append(list, c)
				}
			}
		}
	}
	return list, omitted
}

// omission is a rule that leaves cells out.
type omission struct {
	why   string
	cells int
}

func count(list []omission, why string) []omission {
	for i := range list {
		if list[i].why == why {
			list[i].cells++
			return list
		}
	}
	return append(list, omission{why, 1})
}

// matching returns the cells whose name matches.
func matching(list []cell, pattern string) (out []cell, err error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	for _, c := range list {
		if re.MatchString(c.id()) {
			out = append(out, c)
		}
	}
	if out == nil {
		return nil, fmt.Errorf("no cell matches %q", pattern)
	}
	return out, nil
}

// tenth returns a random tenth of the cells.
func tenth(list []cell, seed uint64) (out []cell) {
	for _, i := range rand.New(rand.NewPCG(seed, 0)).Perm(len(list))[:(len(list)+9)/10] {
		out = append(out, list[i])
	}
	return out
}
