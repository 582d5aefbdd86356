package rendezvous

import (
	"fmt"
	"time"
)

// Phase is the state of a rank in the protocol.
type Phase string

// The phases. Phase.mayBecome says in which order they come.
const (
	Gathering Phase = "gathering"
	Prepared  Phase = "prepared" // holds a roster and has acknowledged it
	Running   Phase = "running"
	Ended     Phase = "ended"
)

// mayBecome is the table of legal changes. The loss of a rank voids a roster before go; after go nothing is taken back.
func (p Phase) mayBecome(next Phase) bool {
	switch p {
	case Gathering:
		return next == Prepared || next == Ended
	case Prepared:
		return next == Gathering || next == Running || next == Ended
	case Running:
		return next == Ended
	}
	return false
}

// BugError reports a state that the protocol excludes: a bug in this package.
type BugError struct{ Reason string }

func (e *BugError) Error() string { return "a bug in the rendezvous: " + e.Reason }

// course is the progress of this rank. Other goroutines than the loop wait until gathered or finished is closed.
type course struct {
	phase      Phase
	entered    time.Time     // phase
	gathered   chan struct{} // closed when roster and gatherErr are set
	roster     Roster
	gatherErr  error
	finished   chan struct{} // closed when outcome and outcomeErr are set
	outcome    Outcome
	outcomeErr error
}

// enter changes the phase. After an illegal change it reports false, and this rank ends with a BugError, because going
// on could launch twice or lose the outcome.
func (s *course) enter(next Phase) bool {
	switch {
	case next == s.phase:
	case s.phase.mayBecome(next):
		s.phase, s.entered = next, time.Now()
	default:
		s.setFinished(Outcome{}, &BugError{fmt.Sprintf("a rank that is %s cannot become %s", s.phase, next)})
		return false
	}
	return true
}

// end enters Ended with the outcome of the job.
func (s *course) end(o Outcome) {
	if s.enter(Ended) {
		s.outcome = o
	}
}

// setGathered lets Gather return the roster, or an error. The first call counts.
func (s *course) setGathered(err error) {
	if s.isGathered() {
		return
	}
	if err != nil {
		s.roster = Roster{}
	}
	s.gatherErr = err
	close(s.gathered)
}

// isGathered reports whether Gather may return.
func (s *course) isGathered() bool { return isClosed(s.gathered) }

// setFinished lets Wait return, and Gather where it still waits. The first call counts.
func (s *course) setFinished(o Outcome, err error) {
	if isClosed(s.finished) {
		return
	}
	s.enter(Ended)
	s.outcome, s.outcomeErr = o, err
	close(s.finished)
	if err == nil {
		err = &EndedError{o}
	}
	s.setGathered(err)
}
