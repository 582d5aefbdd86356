package rendezvous

import (
	"context"
	"sync"
)

// Kills asks the other ranks how many processes of the job the kernel has killed in their containers for lack of
// memory, and returns the ranks that report any. Ranks that do not answer before ctx ends are left out. Rank 0 calls it
// after a failure.
func (n *Node) Kills(ctx context.Context) map[int]int {
	lead := n.leading()
	if lead == nil {
		return nil
	}
	var ranks []int
	n.ask(func() {
		for _, m := range n.roster.Members {
			if m.Rank != n.self.Rank {
				ranks = append(ranks, m.Rank)
			}
		}
	})
	var mu sync.Mutex
	found := make(map[int]int)
	var wg sync.WaitGroup
	for _, rank := range ranks {
		wg.Go(func() {
			if r, ok := lead.readClock(ctx, rank); ok && r.kills > 0 {
				mu.Lock()
				defer mu.Unlock()
				found[rank] = r.kills
			}
		})
	}
	wg.Wait()
	return found
}

// kills returns the answer of this rank.
func (n *Node) kills() int {
	if n.cfg.Kills == nil {
		return 0
	}
	return n.cfg.Kills()
}
