package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

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
	ctx, cancel := context.WithTimeout(ctx, wayTimeout)
	defer cancel()
	if err := dropped(ctx, netip.AddrPortFrom(to.Addr.Addr(), uint16(to.Task))); err != nil {
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

// dropped returns an error unless something answers at the address, if only to refuse the connection, before the
// deadline of ctx. That ctx was cancelled says nothing.
func dropped(ctx context.Context, addr netip.AddrPort) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
	var late net.Error
	switch {
	case err == nil:
		_ = conn.Close()
		return nil
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET),
		errors.Is(ctx.Err(), context.Canceled):
		return nil
	case errors.As(err, &late) && late.Timeout():
		return fmt.Errorf("no answer from %v/tcp within %v", addr, wayTimeout)
	}
	return err
}
