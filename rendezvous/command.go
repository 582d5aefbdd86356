package rendezvous

import (
	"fmt"
	"time"
)

// Where every rank runs a command of its own, each tells rank 0 how it ended, and rank 0 orders the others to end theirs.

// End is how the command of one rank ended.
type End struct {
	Rank    int
	Name    string
	Outcome Outcome
	After   time.Duration // from the launch, by the rank's own clock
	Stopped bool          // it was told to end before it did
}

// Report tells rank 0 how the command of this rank ended, as soon as it can be told, and once more whenever the connection to
// it comes back; e.Rank and e.Name are left out. Rank 0 itself does not report.
func (n *Node) Report(e End) {
	n.ask(func() {
		n.own = &message{Type: ended, Outcome: &e.Outcome, After: int64(e.After), Stopped: e.Stopped}
		if n.up.wire != nil {
			n.up.wire.send(*n.own)
		}
	})
}

// Ends tells rank 0 how the commands of the other ranks ended, each once.
func (n *Node) Ends() <-chan End { return n.ends }

// Order has every other rank end its command, those included that cannot be reached at the moment. Rank 0 calls it, once.
func (n *Node) Order(signal int, reason string) {
	n.ask(func() {
		if n.lead == nil || n.order != nil || n.phase != Running {
			return
		}
		n.order = &message{Type: stop, Signal: signal, Reason: reason}
		for _, t := range n.lead.targets {
			if t.link != nil {
				t.link.send(*n.order)
			}
		}
	})
}

func (n *Node) onOrder(m message) {
	if n.phase != Running {
		return
	}
	select {
	case n.stops <- Stop{Name: n.up.leader.ID, Signal: m.Signal, Reason: m.Reason}:
	default: // it was heard already
	}
}

func (n *Node) onEnded(t *target, m message) {
	if m.Outcome == nil || t.ended {
		return
	}
	if n.phase != Running {
		o := *m.Outcome
		o.Reason = fmt.Sprintf("%s: %s", n.nameOf(t), o.Reason)
		n.setGathered(Roster{}, &EndedError{o})
		return
	}
	member, ok := n.memberOf(t)
	if !ok {
		return
	}
	t.ended = true
	n.ends <- End{Rank: member.Rank, Name: member.Alias, Outcome: *m.Outcome, After: time.Duration(m.After), Stopped: m.Stopped}
}
