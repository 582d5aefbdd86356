package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/paiinit/paiinit/joblog"
)

const (
	firstReport    = 3 * time.Second
	reportInterval = 10 * time.Second
	// Rank 0 repeats what it waits for, the other ranks only what has changed, or after this time.
	repeatInterval = time.Minute
)

// lastReport is the last line of a rank other than 0.
type lastReport struct {
	missing string
	at      time.Time
}

// report logs the missing ranks until all are present.
func (n *Node) report() {
	for pause := firstReport; sleep(n.ctx, n.gathered, pause); pause = reportInterval {
		n.post(n.sayWaiting)
	}
}

func (n *Node) sayWaiting() {
	if n.phase == Running || n.phase == Ended || n.isGathered() || n.up.idle {
		return
	}
	e := n.waitingError()
	missing := Fold(e.Missing)
	switch {
	case missing == "":
		return // a launch is being prepared, or rank 0 is about to say
	case n.lead == nil && missing == n.reported.missing && time.Since(n.reported.at) < repeatInterval:
		return
	}
	n.reported = lastReport{missing, time.Now()}
	attrs := []any{"phase", "gather", "present", e.Present, "size", e.Size, "missing", missing}
	left := ""
	if !n.limit.IsZero() {
		d := max(time.Until(n.limit).Round(time.Second), 0)
		attrs = append(attrs, "left", d)
		left = fmt.Sprintf(", %s left", joblog.Seconds(d))
	}
	n.log.Info("waiting for ranks", append(attrs, "elapsed", time.Since(n.begin).Round(time.Second),
		joblog.Text(e.awaited(missing, left)))...)
}

// awaited describes a wait for people. missing is the folded list, left the time until the deadline after a comma.
func (e *MissingError) awaited(missing, left string) string {
	switch {
	case e.alone:
		return fmt.Sprintf("waiting for rank 0%s: %s", left, missing)
	case e.Size < 1:
		return fmt.Sprintf("waiting for ranks%s; missing: %s", left, missing)
	}
	return fmt.Sprintf("waiting for ranks: %d of %d present%s; missing: %s", e.Present, e.Size, left, missing)
}

// waitingError is missingError with what concerns this rank: before rank 0 has connected, only rank 0. Other ranks may
// be present at rank 0 although gossip has not told of them.
func (n *Node) waitingError() *MissingError {
	e := n.missingError()
	if n.lead == nil && (n.up.wire == nil || n.up.told == nil) {
		e.Missing = slices.DeleteFunc(slices.Clone(e.Missing), func(m Missing) bool { return m.Rank != 0 })
		e.alone = true
	}
	if n.lead != nil && n.phase == Prepared {
		e.Missing = n.lead.unacknowledged()
		e.Present -= len(e.Missing)
	}
	return e
}

// unacknowledged lists the ranks that have not acknowledged the roster.
func (c *coordinator) unacknowledged() (out []Missing) {
	for _, t := range c.targets {
		if t.rec != nil && t.acked != c.n.roster.Epoch {
			out = append(out, Missing{Rank: t.rec.Rank, Name: c.nameOf(t),
				Reason: "it is present, but has not acknowledged the list of ranks"})
		}
	}
	slices.SortFunc(out, Missing.compare)
	return out
}

// atDeadline is the error of a rank that gives up, with what was tried.
func (n *Node) atDeadline() *MissingError {
	e := n.waitingError()
	e.Waited = time.Since(n.begin)
	return e
}

func (e *MissingError) gaveUp() string {
	groups := foldTried(e.Missing)
	tried := " " + strings.Join(groups, "")
	if len(groups) > 1 { // each on a line of its own
		tried = "\n  " + strings.Join(groups, "\n  ")
	}
	if e.alone || e.Size < 1 {
		return fmt.Sprintf("gave up after %s: rank 0 is missing:%s", joblog.Seconds(e.Waited), tried)
	}
	return fmt.Sprintf("gave up after %s: %d of %d ranks are present; missing:%s",
		joblog.Seconds(e.Waited), e.Present, e.Size, tried)
}
