package main

import (
	"context"
	"net/netip"
	"time"

	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rendezvous"
)

// wayTimeout covers two SYN packets that are lost: the kernel repeats them after 1 s and 3 s.
const wayTimeout = 4 * time.Second

// checkWay warns when packets to a port that no environment names are dropped between two hosts of the job, where
// mpirun would wait for minutes without a word. Rank 0 dials the port that the first rank on another host keeps for the
// job: the kernel there refuses, which is an answer.
func (c *container) checkWay(ctx context.Context, r rendezvous.Roster) {
	to, ok := otherHost(r.Members)
	if !ok {
		return
	}
	at := netip.AddrPortFrom(to.Addr.Addr(), uint16(to.Task))
	if err := netif.Answers(ctx, at, wayTimeout); err != nil {
		c.log.Warn("packets to other ports than ours do not reach a rank", "phase", "launch", "peer", to.Alias,
			"err", err,
			"hint", "mpirun and its ranks connect to random ports: "+
				"allow all TCP between the hosts of the job, or give them a range (docs/launchers.md)")
	}
}

// otherHost is the first rank at another address than rank 0's that keeps a port for the job.
func otherHost(members []rendezvous.Member) (m rendezvous.Member, ok bool) {
	for _, m := range members {
		if m.Task != 0 && m.Addr.Addr().Unmap() != members[0].Addr.Addr().Unmap() {
			return m, true
		}
	}
	return m, false
}
