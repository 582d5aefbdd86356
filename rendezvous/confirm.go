package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// confirmPause is the time between two rounds of Confirm.
const confirmPause = time.Second

var errOver = errors.New("this generation ends")

// Confirm waits until this generation is certain to go on: on rank 0 when all other ranks have said so, on another rank
// when rank 0 has said so. A container that was frozen calls it before its command runs on, because the others may have
// taken it for dead, and the answers that wait in its sockets may be old. Confirm returns an error if the generation
// ends or is about to be cleared, if a rank is lost, or if ctx ends.
//
// Rank 0 begins no other generation while a connection of this one holds, except with the report that this rank has
// cleared. So only an answer over the connection is proof; other ranks may have been frozen as well.
func (n *Node) Confirm(ctx context.Context) error {
	for {
		answers, asked := n.askAll()
		all := true
		for range asked {
			select {
			case alive := <-answers:
				all = all && alive
			case <-n.over:
				return fmt.Errorf("asking whether the job goes on: %w", errEnded)
			case <-ctx.Done():
				return fmt.Errorf("asking whether the job goes on: %w", context.Cause(ctx))
			}
		}
		switch {
		case !n.goesOn():
			return fmt.Errorf("asking whether the job goes on: %w", errOver)
		case all:
			return nil
		case !sleep(ctx, n.finished, confirmPause) && ctx.Err() != nil:
			return fmt.Errorf("asking whether the job goes on: %w", context.Cause(ctx))
		}
	}
}

// goesOn reports whether this generation runs, and is not about to be cleared. On rank 0 no rank is lost.
func (n *Node) goesOn() (yes bool) {
	n.ask(func() {
		yes = n.phase == Running && n.clearing.order == nil
		for _, m := range n.roster.Members {
			if n.lead != nil && n.lead.targets[m.ID] != nil && n.lead.targets[m.ID].gone {
				yes = false
			}
		}
	})
	return yes
}

// askAll asks over the connection to rank 0, on rank 0 over those to all others, whether the process there answers.
func (n *Node) askAll() (answers <-chan bool, asked int) {
	var all chan bool
	n.ask(func() {
		var wires []*wire
		if n.lead == nil {
			wires = append(wires, n.up.wire)
		} else {
			for _, m := range n.roster.Members {
				if t := n.lead.targets[m.ID]; t != nil && m.Nonce != n.self.Nonce {
					wires = append(wires, t.link)
				}
			}
		}
		asked, all = len(wires), make(chan bool, len(wires))
		for _, w := range wires {
			if w == nil || n.probes[w] != nil { // the answer to an earlier question may be an old one
				all <- false
			} else {
				n.probe(w, func(alive bool) { all <- alive })
			}
		}
	})
	return all, asked
}
