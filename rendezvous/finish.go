package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Finish tells every rank how the job ended and waits until each rank has acknowledged it or is known to be gone, until
// ctx ends at the latest. It waits 5 s for a connected rank, which may be frozen and will read the outcome later, and
// 15 s for a rank whose connection is lost. Rank 0 calls it, and leaves last. Before the launch it tells the ranks that
// are connected, and stays for stay to tell ranks that connect late.
func (n *Node) Finish(ctx context.Context, o Outcome, stay time.Duration) error {
	if !n.ask(func() {
		if n.lead == nil || n.phase == Ended {
			n.setFinished(o, nil)
			return
		}
		n.lead.tellGo() // ranks that were not told go would take the job for one that was never launched
		n.end(o)
		noteFirst(&n.ownTimes.Ended)
		n.lead.ending, n.lead.tellsLateRanks = true, stay > 0
		if stay > 0 {
			n.after(stay, func() {
				n.lead.tellsLateRanks = false // a coordinator that ends the job does not step down (onHello)
				n.lead.checkEnd()
			})
		}
		for _, t := range n.lead.targets {
			if t.link != nil {
				n.lead.tellEnd(t)
			}
		}
		n.lead.checkEnd()
	}) {
		return fmt.Errorf("telling the end of the job: %w", errEnded)
	}
	ctx, cancel := context.WithTimeout(ctx, doneTimeout)
	defer cancel()
	select {
	case <-n.finished:
	case <-ctx.Done():
		n.ask(func() {
			if n.lead != nil { // otherwise there was no rank to tell, and ctx ended at the same moment
				n.lead.sendBye()
			}
		})
		select {
		case <-n.finished:
		case <-n.ctx.Done():
		}
	}
	var names []string
	var bug *BugError
	n.ask(func() {
		if n.lead != nil {
			names = n.lead.untold
		}
		errors.As(n.outcomeErr, &bug)
	})
	switch {
	case bug != nil:
		return bug
	case len(names) > 0:
		return fmt.Errorf("%s did not acknowledge the end of the job", strings.Join(names, ","))
	}
	return nil
}

// tellEnd sends the outcome to a rank that is connected.
func (c *coordinator) tellEnd(t *target) {
	t.endSent = time.Now()
	o := c.n.outcome
	t.link.send(message{Type: done, Outcome: &o, Last: c.tellsLateRanks})
	c.n.after(c.n.cfg.scaled(doneAckTimeout), c.checkEnd)
}

// pending reports whether rank 0 still waits for this rank to acknowledge the end of the job.
func (c *coordinator) pending(t *target) bool {
	switch {
	case t.doneAck || t.gone:
		return false
	case t.link != nil:
		return time.Since(t.endSent) < c.n.cfg.scaled(doneAckTimeout)
	}
	_, member := c.memberOf(t)
	return member && t.rec != nil
}

// mayCall reports whether a container that was here, or that gossip has named, may not know the end. If there are more
// containers than ranks, one that comes earlier in the order may have ended its connection to lead itself. It then
// calls this coordinator (onHello).
func (t *target) mayCall() bool {
	return t.link == nil && !t.doneAck && !t.gone && (!t.endSent.IsZero() || !t.tried)
}

func (c *coordinator) checkEnd() {
	if c.n.lead != c || !c.ending {
		return
	}
	told, mayCall := 0, false
	for _, t := range c.targets {
		if c.pending(t) {
			return
		}
		if t.doneAck {
			told++
		}
		mayCall = mayCall || t.mayCall()
	}
	if c.tellsLateRanks && (told < c.n.cfg.Size-1 || mayCall) {
		return
	}
	c.sendBye()
}

// sendBye lets the other ranks leave, and ends rank 0 when they have left.
func (c *coordinator) sendBye() {
	left, first := true, !c.leaving && c.untold == nil
	for _, t := range c.targets {
		if first && !t.doneAck && (t.link != nil || c.pending(t)) {
			c.untold = append(c.untold, c.nameOf(t))
			slices.Sort(c.untold)
		}
		if t.link == nil {
			continue
		}
		left = false
		if !c.leaving {
			t.link.send(message{Type: bye})
		}
	}
	switch {
	case left:
		c.n.setFinished(c.n.outcome, nil)
	case !c.leaving:
		c.leaving = true
		c.n.finishSoon(c.n.outcome, nil)
	}
}
