package main

import (
	"context"
	"net/netip"
	"time"

	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rendezvous"
)

// wayTimeout covers two lost SYN packets, which the kernel repeats after 1 s and 3 s.
const wayTimeout = 4 * time.Second

// checkWay warns if a firewall between two hosts of the job drops packets to ports other than paiinit's, because mpirun
// would then wait silently for minutes. Rank 0 dials the port that the first rank on another host reserves for the job.
// If packets arrive, the kernel there refuses the connection, which is an answer.
func (a *agreement) checkWay(ctx context.Context) {
	to, ok := otherHost(a.roster.Members)
	if !ok {
		return
	}
	at := netip.AddrPortFrom(to.Addr.Addr(), uint16(to.Task))
	if err := netif.Answers(ctx, at, wayTimeout); err != nil {
		a.log.Warn("a rank gets no packets on other ports than paiinit's", "phase", "launch", "peer", to.Alias,
			"err", err,
			"hint", "mpirun and its ranks connect to random ports: "+
				"allow all TCP between the hosts of the job, or set a port range (docs/launchers.md)")
	}
}

// otherHost returns the first rank that reserves a port for the job and has another address than rank 0.
func otherHost(members []rendezvous.Member) (m rendezvous.Member, ok bool) {
	for _, m := range members {
		if m.Task != 0 && m.Addr.Addr().Unmap() != members[0].Addr.Addr().Unmap() {
			return m, true
		}
	}
	return m, false
}
