package main

import (
	"net"
	"net/netip"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// network is the one over which this container was reached by the others.
type network struct {
	name    string       // of the interface; "" for loopback, or when there is none
	prefix  netip.Prefix // of its address
	several bool         // there are others that a program could take for it
}

func networkOf(addr netip.Addr) (n network) {
	ifs, err := net.Interfaces()
	if err != nil || addr.IsLoopback() {
		return network{}
	}
	usable := 0
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil || i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		global := false
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			global = global || p.Addr().IsGlobalUnicast()
			if p.Addr() == addr {
				n.name, n.prefix = i.Name, p.Masked()
			}
		}
		if global {
			usable++
		}
	}
	n.several = n.name != "" && usable > 1
	return n
}

// common is the network in the form of launchers, if it has to be told and holds the addresses of all ranks.
func (n network) common(members []rendezvous.Member) string {
	if !n.several {
		return ""
	}
	for _, m := range members {
		if !n.prefix.Contains(m.Addr.Addr().Unmap()) {
			return ""
		}
	}
	return n.prefix.String()
}

// sessionSockets tells the ranks that a launcher starts here about this container's network, which may have another name elsewhere.
func (c *container) sessionSockets() []launch.Var {
	if n := networkOf(c.node.Self().Addr.Addr()); n.several {
		return launch.Sockets(n.name)
	}
	return nil
}
