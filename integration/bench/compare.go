package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/paiinit/paiinit/integration/lab"
)

// pairs holds the values of two builds, measured by turns: value i of each comes from round i.
type pairs struct {
	name, format string
	of           [2]series // the old build, the new one
}

// ratios returns the new build's value divided by the old one's, for each pair.
func (p *pairs) ratios() (out series) {
	for i := range min(len(p.of[0]), len(p.of[1])) {
		out = append(out, p.of[1][i]/p.of[0][i])
	}
	return out
}

// measureBuilds compares two builds of paiinit. The build that goes first changes from round to round.
func measureBuilds(ctx context.Context, builds [2]string, rounds int) (r report, err error) {
	if builds[0] == "" {
		return r, errors.New("-old names the build to compare with")
	}
	for i, file := range builds {
		if builds[i], err = filepath.Abs(file); err == nil {
			_, err = os.Stat(builds[i])
		}
		if err != nil {
			return r, err
		}
	}
	r = report{
		name: "builds", title: "Two builds",
		intro: []string{fmt.Sprintf("Two builds of paiinit, %d pairs by turns on %d CPUs, Linux %s, %s. %s",
			rounds, runtime.NumCPU(), release(), runtime.Version(), nineOfTen)},
		columns: []string{"old", "new", "new / old, of each pair"},
	}
	for _, measure := range []func(context.Context, [2]string, int) ([]*pairs, error){
		initPairs, rendezvousPairs, shellPairs, launcherPairs,
	} {
		all, err := measure(ctx, builds, rounds)
		if err != nil {
			return r, err
		}
		for _, p := range all {
			r.rows = append(r.rows,
				[]string{p.name, p.of[0].cell(p.format), p.of[1].cell(p.format), p.ratios().cell("%.3f")})
		}
	}
	return r, nil
}

// byTurns calls measure with the number of each build once per round, and first once for each to warm the caches.
func byTurns(rounds int, measure func(build int, warm bool) error) error {
	for round := range rounds + 1 {
		for i := range 2 {
			build := (i + round) % 2
			if err := measure(build, round == 0); err != nil {
				return fmt.Errorf("the %s build: %w", []string{"old", "new"}[build], err)
			}
		}
	}
	return nil
}

func initPairs(ctx context.Context, builds [2]string, rounds int) ([]*pairs, error) {
	dir, err := os.MkdirTemp("", "paiinit-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	inside := filepath.Join(dir, "inside")
	if err := buildInside(ctx, inside, "./integration/initspec/inside"); err != nil {
		return nil, err
	}
	var inits [2]contestant
	err = byTurns(rounds, func(build int, warm bool) error {
		c := contestant{args: []string{builds[build], "--log-level=error", "--state-dir=" + filepath.Join(dir, "state"),
			"--"}}
		if err := c.measure(ctx, inside, true); err != nil || warm {
			return err
		}
		to := &inits[build]
		to.start, to.stop = append(to.start, c.start...), append(to.stop, c.stop...)
		to.first, to.all, to.reap = append(to.first, c.first...), append(to.all, c.all...), append(to.reap, c.reap...)
		return nil
	})
	return []*pairs{
		{"init: start to end of `true`, ms", "%.2f", [2]series{inits[0].start, inits[1].start}},
		{"init: SIGTERM to end, with `sleep`, ms", "%.2f", [2]series{inits[0].stop, inits[1].stop}},
		{"init: PSS of PID 1, kB", "%.0f", [2]series{inits[0].first, inits[1].first}},
		{"init: PSS of PID 1 and its agent, kB", "%.0f", [2]series{inits[0].all, inits[1].all}},
		{"init: CPU of PID 1 to reap 10,000 orphans, ms", "%.0f", [2]series{inits[0].reap, inits[1].reap}},
	}, err
}

func rendezvousPairs(ctx context.Context, builds [2]string, rounds int) (_ []*pairs, err error) {
	if missing := lab.Missing(); len(missing) > 0 {
		return nil, errors.New(missing[0])
	}
	dir, err := os.MkdirTemp("", "paiinit-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c := &cluster{inside: filepath.Join(dir, "inside"), stamp: filepath.Join(dir, "stamp")}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.open(ctx, builds[0], jobSize); err != nil {
		return nil, err
	}
	p := &pairs{name: fmt.Sprintf("rendezvous: last of %d hosts to launch, ms", jobSize), format: "%.2f"}
	err = byTurns(rounds, func(build int, warm bool) error {
		c.binary = builds[build]
		var took series
		if err := c.measureOurs(ctx, ours{secret: jobSecret, into: &took}); err != nil {
			return errors.Join(err, c.end(ctx, true))
		}
		if !warm {
			p.of[build] = append(p.of[build], took...)
		}
		return nil
	})
	return []*pairs{p}, err
}

// commandsOfShell is how often a job measures each command of the remote shell; their median is one value.
const commandsOfShell = 10

func shellPairs(ctx context.Context, builds [2]string, rounds int) ([]*pairs, error) {
	return jobPairs(ctx, builds, 2, rounds, commandsOfShell, []turn{
		{Name: "rsh: one command, ms", Args: []string{"/run/bin/paiinit", "rsh", "node-1", "true"}},
		{Name: "rsh: `paiinit rsh -V`, ms", Args: []string{"/run/bin/paiinit", "rsh", "-V"}},
		{Name: "`paiinit version`, ms", Args: []string{"/run/bin/paiinit", "version"}},
	})
}

func launcherPairs(ctx context.Context, builds [2]string, rounds int) ([]*pairs, error) {
	hosts := strconv.Itoa(launchedHosts)
	return jobPairs(ctx, builds, launchedHosts, rounds, 1, []turn{
		{Name: "launchers: Open MPI's `mpirun hostname` on " + hosts + " hosts, ms",
			Args: []string{"mpirun.openmpi", "-np", hosts, "hostname"}},
		{Name: "launchers: MPICH's `mpiexec.hydra hostname` on " + hosts + " hosts, ms",
			Args: []string{"mpiexec.hydra", "-n", hosts, "hostname"}},
	})
}

// jobPairs starts one job per build and round, in which rank 0 measures each command that number of times.
func jobPairs(
	ctx context.Context, builds [2]string, hosts, rounds, times int, commands []turn,
) (all []*pairs, err error) {
	n, err := newNetwork(builds[0], hosts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	for _, c := range commands {
		all = append(all, &pairs{name: c.Name, format: "%.2f"})
	}
	err = byTurns(rounds, func(build int, warm bool) error {
		n.paiinit = builds[build]
		took, err := n.measure(ctx, times, commands)
		if err != nil || warm {
			return err
		}
		for _, p := range all {
			p.of[build] = append(p.of[build], took[p.name].median())
		}
		return nil
	})
	return all, err
}
