package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/paiinit/paiinit/integration/lab"
)

const (
	// reachTime bounds how long a phase may take to be reached.
	reachTime = 60 * time.Second
	// tries is how often a cell is tried until the fault comes before the end of the phase.
	tries = 4
)

// errLate: paiinit's own limit ended the phase, and the container, before the fault had happened.
var errLate = errors.New("the phase was over before the fault had happened")

// result is what was seen of a cell.
type result struct {
	cell
	statuses string
	took     time.Duration // from the end of the hold to the end of the last container
	line     string
	skipped  error  // this host cannot do the fault
	err      error  // it differs from the expectation
	log      string // of a failed cell
	late     int    // trials whose fault came too late
}

// runCell runs a cell and compares it with the oracle. On a busy machine, the job may take as many times the bound as
// slack says.
func runCell(ctx context.Context, c cell, bin binaries, slack int) (r result) {
	if c.fault.needs != nil {
		if why := c.fault.needs(); why != nil {
			return result{cell: c, skipped: why}
		}
	}
	for late := range tries {
		r = runTrial(ctx, c, bin, slack)
		r.late = late
		if !errors.Is(r.err, errLate) {
			break
		}
	}
	return r
}

// runTrial runs a job once.
func runTrial(ctx context.Context, c cell, bin binaries, slack int) (r result) {
	r.cell = c
	t, err := newTrial(ctx, c, bin)
	if err != nil {
		r.err = err
		return r
	}
	e := c.expect()
	e.within *= time.Duration(slack)
	if err = t.do(ctx, e); err == nil {
		err = t.watch(ctx, e, &r)
	}
	running := ""
	if err != nil {
		running = t.lab.Running()
	}
	r.log = t.transcript() + running
	r.err = errors.Join(err, t.close())
	return r
}

// do brings the job into the phase, lets the fault happen, and ends what held the job.
func (t *trial) do(ctx context.Context, e expectation) error {
	reaching, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if t.phase.prepare != nil {
		t.phase.prepare(t)
	}
	if t.fault.prepare != nil {
		t.fault.prepare(t)
	}
	if err := t.phase.reach(reaching, t); err != nil {
		return fmt.Errorf("reaching %s: %w", t.phase.name, err)
	}
	t.hit = t.now[t.role.rank]
	if t.fault.inject != nil {
		if err := t.inject(reaching); err != nil {
			return fmt.Errorf("doing %q: %w", t.fault.name, err)
		}
	}
	if t.guest != nil { // it must meet the job in this phase
		select {
		case <-t.guest.Ended():
		case <-reaching.Done():
			return errors.New("the guest has not ended")
		}
	}
	if t.passed != nil && t.phase.launcher { // a launcher that starts or ends just then may fail for reasons of its own
		<-t.passed
	}
	if t.phase.release != nil && !e.ends {
		if err := t.phase.release(reaching, t); err != nil {
			return fmt.Errorf("going on after %s: %w", t.phase.name, err)
		}
	}
	switch {
	case e.moves:
		h, err := t.copyOf(t.role.rank, "spare")
		if err != nil {
			return err
		}
		t.lab.Forget(hostName(t.role.rank))
		t.lab.Name(hostName(t.role.rank), h.machine.Addr)
		h.starts = t.hosts[t.role.rank].starts
		t.hosts[t.role.rank] = h
		return t.start(t.role.rank)
	case e.next:
		return t.replace(reaching, t.role.rank)
	}
	return nil
}

// inject lets the fault happen. On a busy machine the phase may end meanwhile, and with it the container.
func (t *trial) inject(ctx context.Context) error {
	err := t.fault.inject(ctx, t)
	if t.phase.over == "" || err == nil && t.fault.effect != kills {
		return err
	}
	select {
	case <-t.hit.Ended():
	case <-ctx.Done():
		return err
	}
	if !strings.Contains(t.hit.Output(), t.phase.over) { // killed in time, or it left too early
		return err
	}
	return errors.Join(errLate, err)
}

// watch waits for the end of all containers.
func (t *trial) watch(ctx context.Context, e expectation, r *result) error {
	begin := time.Now()
	waiting, cancel := context.WithTimeout(ctx, e.within)
	defer cancel()
	type ending struct {
		c    *lab.Container
		want int
	}
	var list []ending
	for rank, c := range t.now {
		want := e.status
		switch {
		case c == t.hit && e.hit != same:
			want = e.hit
		case c == t.absent:
			want = 128 + 9
		}
		if c != nil {
			list = append(list, ending{c, want})
		}
		if rank == t.role.rank && c != t.hit && e.hit != waits {
			list = append(list, ending{t.hit, e.hit})
		}
	}
	if t.guest != nil {
		list = append(list, ending{t.guest, e.guest})
	}
	var errs []error
	var seen []string
	for _, x := range list {
		status, err := x.c.Wait(waiting)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s has not ended within %v", x.c.Name, e.within))
			continue
		}
		seen = append(seen, fmt.Sprintf("%s %d", x.c.Name, status))
		if status != x.want {
			errs = append(errs, fmt.Errorf("%s ended with %d, expected %d", x.c.Name, status, x.want))
		}
	}
	r.took, r.statuses = time.Since(begin), strings.Join(seen, ", ")
	if e.status == 0 {
		errs = append(errs, t.ranOnce())
	}
	var err error
	if r.line, err = t.line(e); err != nil {
		errs = append(errs, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(append(errs, t.failed)...)
}

// ranOnce checks that each rank of the last generation has done its work, once, and that no generation was launched
// twice.
func (t *trial) ranOnce() error {
	begun, done := map[string]int{}, map[string]int{}
	generation := 0
	for _, c := range t.lab.Containers() {
		for _, l := range c.Lines() {
			var what string
			var rank, g int
			if _, err := fmt.Sscanf(l.Text, "%s %d in generation %d", &what, &rank, &g); err != nil || l.Stderr {
				continue
			}
			generation = max(generation, g)
			switch key := fmt.Sprintf("rank %d in generation %d", rank, g); what {
			case "up":
				begun[key]++
			case "done":
				done[key]++
			}
		}
	}
	for key, n := range begun {
		if n > 1 {
			return fmt.Errorf("%s was launched %d times", key, n)
		}
	}
	workers := 1
	if t.phase.launcher {
		workers = ranks
	}
	for rank := range workers {
		key := fmt.Sprintf("rank %d in generation %d", rank, generation)
		if done[key] != 1 {
			return fmt.Errorf("status 0, and %s has done its work %d times", key, done[key])
		}
	}
	return nil
}

// line returns the line that must be printed.
func (t *trial) line(e expectation) (string, error) {
	c := t.now[t.witness()]
	switch e.by {
	case hit:
		c = t.hit
	case visitor:
		c = t.guest
	}
	re := regexp.MustCompile(e.says)
	for _, l := range slices.Backward(c.Lines()) {
		if l.Stderr && re.MatchString(l.Text) {
			return l.Text, nil
		}
	}
	return "", fmt.Errorf("%s has not printed a line with %q", c.Name, e.says)
}

// transcript returns the output of all containers in the order of time.
func (t *trial) transcript() string {
	var lines []lab.Line
	for _, c := range t.lab.Containers() {
		lines = append(lines, c.Lines()...)
	}
	slices.SortStableFunc(lines, func(a, b lab.Line) int { return a.Time.Compare(b.Time) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%7.3f %s | %s\n", l.Time.Sub(t.begin).Seconds(), l.Container, l.Text)
	}
	return b.String()
}
