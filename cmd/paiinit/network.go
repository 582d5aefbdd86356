package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"slices"

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
	for i := range members {
		m := &members[i]
		hosts = append(hosts, netif.Endpoint{Interface: m.Network, Addr: m.Addr.Addr()})
	}
	return hosts
}

// addrsOf returns the addresses of the ranks.
func addrsOf(members []rendezvous.Member) (addrs []netip.Addr) {
	for i := range members {
		addrs = append(addrs, members[i].Addr.Addr())
	}
	return addrs
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

// sessionSockets returns the variables that name this container's network for the ranks that a launcher starts here.
// The network may have another name in other containers.
func (a *agreement) sessionSockets(n netif.Network) []launch.Var {
	if n.Several {
		return launch.OwnVariables(n.Name)
	}
	return nil
}

// withoutSettled drops the variables that contradict the user's choice. It reads configuration files only if
// there is something to choose: several networks, or devices.
func (a *agreement) withoutSettled(n netif.Network, vars []launch.Var, level slog.Level) []launch.Var {
	if !n.Several && !a.fabric.Devices {
		return vars
	}
	texts := a.choices()
	return slices.DeleteFunc(vars, func(v launch.Var) bool { return a.settled(texts, v.Name, level) })
}

// settled reports whether the user has already made the choice that a variable or option would make, and logs it.
func (a *agreement) settled(texts launch.Texts, name string, level slog.Level) bool {
	why := texts.Settled(name)
	if why != "" {
		a.log.Log(context.Background(), level, "a network hint is left out", "phase", "launch",
			"variable", name, "reason", why)
	}
	return why != ""
}

// choices returns the texts in which the user of this job may have chosen a network.
func (a *agreement) choices() launch.Texts {
	p := &launch.Places{
		Environ: a.agent.Environ, Args: a.settings.command, Command: a.command, Dir: a.dir, Root: os.DirFS("/"),
	}
	p.Launcher = launch.Configured(p.Environ)
	return p.Texts()
}
