package main

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rendezvous"
)

// The values of --network-hints: whether paiinit tells launchers and libraries which network to use.
const (
	hintsAuto = "auto"
	hintsOff  = "off"
)

// endpoints returns the address and the interface of every rank.
func endpoints(members []rendezvous.Member) (hosts []netif.Endpoint) {
	for _, m := range members {
		hosts = append(hosts, netif.Endpoint{Interface: m.Network, Addr: m.Addr.Addr()})
	}
	return hosts
}

// reachedOver returns the network over which rank 0 reached this container. Behind a NAT no interface has that address,
// so it returns the network of the container's own address. With --network-hints off it returns the zero Network.
func (a *agreement) reachedOver() netif.Network {
	if a.networkHints == hintsOff {
		return netif.Network{}
	}
	if m, ok := a.roster.Self(a.nonce); ok {
		if n := netif.Of(m.Addr.Addr().Unmap()); n.Name != "" {
			return n
		}
	}
	return netif.Of(a.ownAddr())
}

// withoutSettled drops the variables that contradict the user's choice. It reads configuration files only if there is
// something to choose: several networks, or devices.
func (a *agreement) withoutSettled(n netif.Network, vars []launch.Var) []launch.Var {
	if !n.Several && !a.fabric.Devices {
		return vars
	}
	settled := a.settled()
	return slices.DeleteFunc(vars, func(v launch.Var) bool { return settled(v.Name) })
}

// settled reads the texts in which the user of this job may have chosen a network. It returns a function that reports
// whether the user has already made the choice that a variable or option would make, and logs it.
func (a *agreement) settled() func(name string) bool {
	environ := a.agent.Environ
	texts := (&launch.Places{
		Environ: environ, Args: a.settings.command, Command: a.command, Dir: a.dir, Root: os.DirFS("/"),
		Launcher: launch.Configured(environ),
	}).Texts()
	return func(name string) bool {
		why := texts.Settled(name)
		if why != "" {
			a.log.Debug("a network hint is left out", "phase", "launch", "variable", name, "reason", why)
		}
		return why != ""
	}
}

// wayTimeout covers two lost SYN packets, which the kernel repeats after 1 s and 3 s.
const wayTimeout = 4 * time.Second

// checkWay logs, and passes to blocked, that a firewall between two hosts of the job drops packets to ports other than
// paiinit's: mpirun would then wait silently for minutes. This is no warning, because a port range of the launcher may
// be open; the supervisor warns if the launcher really waits. Rank 0 dials the port that the first rank on another host
// reserves for the job. If packets arrive, the kernel there refuses the connection, which is an answer.
func (a *agreement) checkWay(ctx context.Context, blocked func(string)) {
	to, ok := a.roster.OtherHost()
	if !ok {
		return
	}
	at := netip.AddrPortFrom(to.Addr.Addr(), uint16(to.Task))
	if err := netif.Answers(ctx, at, wayTimeout); err != nil {
		blocked(to.Display() + " gets no packets: " + err.Error())
		a.log.Info("a rank gets no packets on other ports than paiinit's", "phase", "launch", "peer", to.Display(),
			"err", err,
			"hint", "mpirun and its ranks connect to random ports: "+
				"allow all TCP between the hosts of the job, or set a port range (docs/launchers.md)")
	}
}
