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

// Whether launchers and libraries are told which network to use (--network-hints).
const (
	hintsAuto = "auto"
	hintsOff  = "off"
)

// endpoints are where the ranks are reached.
func endpoints(members []rendezvous.Member) (hosts []netif.Endpoint) {
	for i := range members {
		m := &members[i]
		hosts = append(hosts, netif.Endpoint{Interface: m.Network, Addr: m.Addr.Addr()})
	}
	return hosts
}

// addrsOf are the addresses of the ranks.
func addrsOf(members []rendezvous.Member) (addrs []netip.Addr) {
	for i := range members {
		addrs = append(addrs, members[i].Addr.Addr())
	}
	return addrs
}

// reachedOver is the network over which this container was reached. Behind a NAT none of its interfaces has that
// address. With --network-hints off it is not looked for.
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

// sessionSockets tells the ranks that a launcher starts here about this container's network, which may have another
// name elsewhere.
func (a *agreement) sessionSockets(n netif.Network) []launch.Var {
	if n.Several {
		return launch.OwnVariables(n.Name)
	}
	return nil
}

// withoutSettled are those of vars that contradict no choice of the user's. Files are read only where there is a
// choice: several networks, or devices.
func (a *agreement) withoutSettled(n netif.Network, vars []launch.Var, level slog.Level) []launch.Var {
	if !n.Several && !a.fabric.Devices {
		return vars
	}
	texts := a.choices()
	return slices.DeleteFunc(vars, func(v launch.Var) bool { return a.settled(texts, v.Name, level) })
}

// settled says whether the user has made the choice that a variable or option would make, and logs it.
func (a *agreement) settled(texts launch.Texts, name string, level slog.Level) bool {
	why := texts.Settled(name)
	if why != "" {
		a.log.Log(context.Background(), level, "a network hint is left out", "phase", "launch",
			"variable", name, "reason", why)
	}
	return why != ""
}

// choices are the texts in which the user of this job may have chosen a network.
func (a *agreement) choices() launch.Texts {
	p := &launch.Places{
		Environ: a.agent.Environ, Args: a.settings.command, Command: a.command, Dir: a.dir, Root: os.DirFS("/"),
	}
	p.Launcher = launch.Configured(p.Environ)
	return p.Texts()
}
