package rendezvous

import "fmt"

// Phase is where a rank stands.
type Phase string

// The phases. Phase.mayBecome says in which order they come.
const (
	Gathering Phase = "gathering"
	Prepared  Phase = "prepared" // holds a roster and has acknowledged it
	Running   Phase = "running"
	Ended     Phase = "ended"
)

// mayBecome is the table of legal changes. A roster is void when a rank is lost before go; nothing is taken back after that.
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

// BugError reports a state that the protocol excludes: a bug in this package, which no retry mends.
type BugError struct{ Reason string }

func (e *BugError) Error() string { return "a bug in the rendezvous: " + e.Reason }

// enter changes the phase; entering the same phase again changes nothing. An illegal change is refused and reports false: this rank
// leaves with a BugError, because what it would do next could launch twice, or lose the outcome.
func (n *Node) enter(next Phase) bool {
	switch {
	case next == n.phase:
	case n.phase.mayBecome(next):
		n.phase = next
	default:
		err := &BugError{fmt.Sprintf("a rank that is %s cannot become %s", n.phase, next)}
		n.log.Error(err.Error(), "peer", n.self.ID)
		n.setFinished(Outcome{}, err)
		n.setGathered(Roster{}, err)
		return false
	}
	return true
}

// end enters Ended with the outcome of the job.
func (n *Node) end(o Outcome) {
	if n.enter(Ended) {
		n.outcome = o
	}
}
