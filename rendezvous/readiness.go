package rendezvous

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A job is ready while every rank is present and runs its command, and that of rank 0 can be used. Rank 0 knows it, and
// the other ranks ask: a rank tells when its command runs, and Report tells when it has ended.

// command is what this container knows of its own command in this generation.
type command struct {
	runs, ended bool
	awaits      string // why it cannot be used yet
}

// CommandRuns tells rank 0 that the command of this rank runs, and again whenever the connection comes back.
func (n *Node) CommandRuns() {
	n.post(func() {
		n.command.runs = true
		if n.lead == nil && n.phase == Running {
			n.up.send(message{Type: works})
		}
	})
}

// CommandEnded says on rank 0 that its command has ended. Other ranks Report.
func (n *Node) CommandEnded() { n.post(func() { n.command.ended = true }) }

// CommandAwaits says on rank 0 why its command, although it may run, cannot be used yet; "" = it can.
func (n *Node) CommandAwaits(why string) { n.post(func() { n.command.awaits = why }) }

// readyTimeout is how long Unready waits for rank 0. Probes of Kubernetes give up after a second.
const readyTimeout = 500 * time.Millisecond

// Unready returns why the job is not ready, on one line that begins with the phase; "" = it is ready.
func (n *Node) Unready(ctx context.Context) string {
	why, known, phase := "the rendezvous is closed", true, "gathering"
	n.ask(func() {
		why, known = n.unready()
		if n.phase == Running {
			phase = "running"
		}
	})
	if known {
		return why
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	switch a, ok := n.calls.inquire(ctx, message{Brief: true}); {
	case !ok:
		return phase + ": rank 0 does not answer"
	case a.Ready:
		return ""
	default:
		return cmp.Or(a.Reason, "rank 0 does not say whether the job is ready")
	}
}

// unready returns the answer of Unready; known is false if only rank 0 has it, and is connected.
func (n *Node) unready() (why string, known bool) {
	switch {
	case n.phase == Ended && errors.Is(n.outcomeErr, ErrNext):
		return "restarting: the next generation begins", true
	case n.phase == Ended && n.outcomeErr != nil:
		return oneLine("ended: " + n.outcomeErr.Error()), true
	case n.phase == Ended:
		return fmt.Sprintf("ended: the job has ended with status %d", n.outcome.Status), true
	case n.clearing.order != nil:
		return "restarting: the processes of the last launch are being ended", true
	case n.lead != nil && n.phase == Running:
		return oneLine(n.lead.unready()), true
	case n.lead == nil && n.up.wire != nil:
		return "", false
	case n.phase == Running:
		return "running: the connection to rank 0 is lost", true
	}
	return oneLine(n.ungathered()), true
}

// ungathered says what the launch waits for.
func (n *Node) ungathered() string {
	if e := n.waitingError(); len(e.Missing) > 0 {
		return "gathering: " + e.awaited(Fold(e.Missing), "")
	}
	if n.lead != nil && n.phase == Gathering {
		for _, t := range n.lead.targets {
			if why := t.examines(); why != "" && t.rec != nil {
				return fmt.Sprintf("gathering: %s: %s", n.lead.nameOf(t), why)
			}
		}
		if why := n.examines(); why != "" {
			return fmt.Sprintf("gathering: %s: %s", n.current.display(), why)
		}
	}
	return "gathering: all ranks are present, and agree on the launch"
}

// unready says why the running job is not ready: what has failed first, then what has not begun.
func (c *coordinator) unready() string {
	var lost, ended, idle []Missing
	for _, m := range c.n.roster.Members {
		runs, over := c.n.command.runs, c.n.command.ended
		missing := Missing{Rank: m.Rank, Name: m.Display(), alias: m.Alias}
		if t := c.targets[m.ID]; m.Nonce != c.n.self.Nonce {
			if t == nil || t.link == nil {
				missing.Reason = "no connection"
				if t != nil && t.err != nil {
					missing.Reason = explain(t.err)
				}
				lost = append(lost, missing)
				continue
			}
			runs, over = t.works || !c.n.cfg.Everyone, t.ended
		}
		switch {
		case over:
			ended = append(ended, missing)
		case !runs:
			idle = append(idle, missing)
		}
	}
	size := len(c.n.roster.Members)
	switch {
	case len(lost) > 0:
		return fmt.Sprintf("running: %d of %d ranks are lost: %s", len(lost), size, Fold(lost))
	case len(ended) > 0:
		return fmt.Sprintf("running: the command of %d of %d ranks has ended: %s", len(ended), size, foldNames(ended))
	case c.n.order != nil:
		return "running: the job is being ended"
	case c.n.command.awaits != "":
		return "running: rank 0 is not ready: " + c.n.command.awaits
	case len(idle) > 0:
		return fmt.Sprintf("running: %d of %d ranks do not run their command yet: %s", len(idle), size, foldNames(idle))
	}
	return ""
}

// maxLine is the longest answer of Unready, in bytes.
const maxLine = 1000

// oneLine makes one line of a text, which may hold texts of other programs.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + " ..."
	}
	return text
}
