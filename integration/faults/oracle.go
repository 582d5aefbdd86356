package main

import (
	"slices"
	"time"
)

// expectation is what must follow from a cell.
type expectation struct {
	why    string        // the rule
	status int           // of all containers but those below
	hit    int           // of the container that the fault hit; same or waits
	guest  int           // of the guest
	within time.Duration // from the end of the hold to the end of the last container
	ends   bool          // the fault itself ends what held the phase
	next   bool          // the target's container is started again
	moves  bool          // on another host
	says   string        // pattern of a line that must be printed
	by     speaker
}

const (
	same  = -1 // the status of the others
	waits = -2 // the container goes on waiting, until --rejoin
)

// speaker is whose log has the line.
type speaker int

const (
	witness speaker = iota // rank 0, or rank 1 where rank 0 is hit
	hit
	visitor // the guest
)

// Bounds of a job on a machine that is not overloaded.
const (
	usual    = 15 * time.Second
	noticed  = 45 * time.Second           // a rank that is cut off finds out by itself
	missing  = timeout + 15*time.Second   // a rank is missing at --timeout
	comeBack = 60 * time.Second           // a container is started again
	fenced   = comeBack + 30*time.Second  // the same, once the lost one cannot run COMMAND any more
	stopped  = pauseTime + 22*time.Second // telling the outcome
)

// expect is the oracle: it computes what must follow from effect, phase, role and restarts.
func (c cell) expect() expectation {
	f, p := c.fault, c.phase.name
	e := expectation{hit: same, within: usual + f.slow, says: "the job has ended, status 0"}
	switch f.effect {
	case harmless:
		e.why = "the job needs nothing of what is gone"
		if f.names != "" {
			e.why, e.says, e.by = "paiinit finds another way, and says so", f.names, hit
		}
	case delays:
		e.why = "the job waits for a rank that stands still or is slow"
	case fails:
		return c.expectFailure(e)
	case kills, cuts:
		return c.expectLoss(e)
	case unwritable:
		return c.expectUnwritable(e)
	case unable:
		e.why = "the container ends by itself, and is missing until --timeout"
		e.status, e.hit, e.says, e.within = 75, f.status, f.names, missing
		if p == listen {
			e.by = hit
		}
	case misfit:
		e.why = "a rank that does not fit ends the job"
		e.status, e.says, e.within = f.status, f.names, missing
		if f.status == 75 {
			e.why = "ranks whose names lead nowhere are missing until --timeout"
		}
	case outdated:
		e.why = "ranks of different versions do not run together: the job ends"
		e.status, e.guest, e.says, e.ends = f.status, f.status, f.names, true
	case guest, rival:
		e.why = "the job goes on, the other container is refused"
		e.guest, e.says, e.by = f.status, f.names, visitor
		if f.effect == rival && c.role.rank == 0 && c.before() {
			e.why = "two containers that claim rank 0 before a launch contradict each other, and the job ends"
			e.status, e.ends = f.status, true
		}
	}
	return e
}

// before reports whether the job has not been launched yet.
func (c cell) before() bool {
	return slices.Contains([]string{identify, listen, gather, check}, c.phase.name)
}

// expectFailure is the oracle for the failure of COMMAND.
func (c cell) expectFailure(e expectation) expectation {
	e.ends = true
	if c.restarts {
		e.why, e.says = "COMMAND has failed, and starts again in place", "the job runs again"
		return e
	}
	e.why, e.status, e.says = "COMMAND has failed: its status is that of the job", c.fault.status, c.fault.names
	if e.status == 0 { // Open MPI's own, which depends on what its daemon did
		e.status = map[string]int{launch: 128 + 9, run: 205}[c.phase.name]
	}
	return e
}

// expectLoss is the oracle for the loss of a container.
func (c cell) expectLoss(e expectation) expectation {
	zero, cut := c.role.rank == 0, c.fault.effect == cuts
	if !cut {
		e.hit = c.fault.status
	}
	switch {
	case c.before():
		e.why = "a rank that is lost before the launch is missing until --timeout"
		e.status, e.within, e.says = 75, missing, "missing: worker-1"
		if zero {
			e.says = "rank 0 is missing|rank 0 is gone"
		}
	case c.phase.name == exit:
		e.why, e.within = "the outcome is known: it stays, whatever happens then", stopped
	case c.restarts:
		e.why = "the others clear, wait for the next start of the container, and go on"
		e.within, e.says, e.next, e.ends = comeBack, "the job runs again", true, c.phase.name == run
		if cut {
			e.hit, e.moves = waits, true
		}
		if zero || cut {
			e.within = fenced
		}
	default:
		e.why = "a rank that is lost while COMMAND runs ends the job"
		e.status, e.ends, e.says = 75, true, `rank 1 \(worker-1\).* lost`
		if zero {
			e.says = "rank 0 is gone"
		}
		if cut {
			e.within = noticed
		}
	}
	return e
}

// expectUnwritable is the oracle for a container that cannot write its files any more.
func (c cell) expectUnwritable(e expectation) expectation {
	f, p := c.fault, c.phase.name
	launches := p == clearing || p == rejoin // again
	switch zero := c.role.rank == 0; {
	case p == identify:
		e.why = "the container cannot open its sockets, and is missing until --timeout"
		e.status, e.hit, e.within, e.says, e.by = 75, f.status, missing, f.names, hit
	case zero && (c.before() || launches):
		e.why = "rank 0 cannot write the host lists"
		e.status, e.says = f.status, "worker-0: writing the host list: .*"+f.names
	case !zero && (p == launch || launches):
		e.why = "Open MPI's daemon needs a directory: its status is that of the job"
		e.status, e.says, e.within = 213, "Open MPI: .*Read-only file system", 2*usual
	default:
		e.why = "what is needed is written already"
	}
	return e
}

// omitted returns why a cell makes no sense; "" = it does.
func (c cell) omitted() string {
	f, p, zero := c.fault, c.phase.name, c.role.rank == 0
	guests := f.effect == guest || f.effect == rival
	switch {
	case f.phases == nil && p == listen:
		return "*listen* takes milliseconds and waits for nothing: *identify* and *gather* stand for it"
	case f.phases != nil && !slices.Contains(f.phases, p):
		return f.only
	case f.slow == flapTime && p == launch:
		return "in *launch* a daemon of the launcher fails if it starts before the link is up again: that is chance"
	case p == exit && !zero:
		return "in *exit* another rank leaves as soon as it knows the outcome: nothing holds it"
	case guests && p == identify:
		return "in *identify* the rank has not come yet, and a second container would be the first"
	case guests && p == clearing:
		return "*clear* ends after --restart-grace, which may be sooner than a guest is refused: *run* and *rejoin* " +
			"stand for it"
	case guests && p == exit:
		return "in *exit* the job takes no containers, and ends before a guest has found it"
	case f.effect == guest && (p == gather || p == rejoin) && zero:
		return "in *gather* and *rejoin* a guest that claims rank 0 also misses rank 2, and waits until --timeout"
	case f.alone != "" && c.role.rank != f.rank:
		return f.alone
	}
	return ""
}
