package rdma

import (
	"fmt"
	"net/netip"
	"slices"
)

// Kind is a kind of fabric: what a program has to speak to use a port.
type Kind uint8

// The kinds, best first. The numbers go over the network.
const (
	KindNone       Kind = iota // unknown, or not of any use to MPI and NCCL
	KindInfiniBand             // verbs, with addresses from a subnet manager
	KindRoCE                   // verbs over Ethernet, with addresses from IP
	KindEFA                    // Amazon's, by libfabric only
	KindOmniPath               // Intel's and Cornelis', by PSM2 or libfabric
	KindIWARP                  // verbs over TCP
	KindSoftware               // rxe or siw: for tests
	kinds                      // how many there are
)

var kindTexts = [kinds]string{"none", "InfiniBand", "RoCE", "EFA", "Omni-Path", "iWARP", "software RDMA"}

// String returns the usual name.
func (k Kind) String() string {
	if k < kinds {
		return kindTexts[k]
	}
	return "unknown"
}

// minMemlock is the limit of locked memory, in bytes, below which MPI and NCCL cannot register their buffers; 8 MiB, the
// default of current kernels, is known to be too little. Above it the job may still need more.
const minMemlock = 1 << 30

func (l Limits) unlimited() bool { return l.IPCLock || l.Memlock < 0 }
func (l Limits) enough() bool    { return l.unlimited() || l.Memlock >= minMemlock }

func (p *Port) active() bool { return p.State == "ACTIVE" || p.State == "ACTIVE_DEFER" }

// kind tells what a port of d is. The protocol of RDMA netlink is the clearest sign; older kernels have the node's type and
// the link layer only.
func (d *Device) kind(p *Port) Kind {
	switch {
	case d.software:
		return KindSoftware
	case d.Protocol == "iw" || d.nodeType == "RNIC":
		return KindIWARP
	case d.Protocol == "opa" || d.Driver == "hfi1":
		return KindOmniPath
	case d.Driver == "efa":
		return KindEFA
	case d.Protocol == "usnic" || d.Driver == "usnic_verbs":
		return KindNone
	case p.LinkLayer == "InfiniBand":
		return KindInfiniBand
	case p.LinkLayer == "Ethernet":
		return KindRoCE
	}
	return KindNone
}

// resolve decides of every port whether it can be used.
func (r *Report) resolve(netdevs []string) {
	for i := range r.Devices {
		d := &r.Devices[i]
		for j := range d.Ports {
			p := &d.Ports[j]
			p.Fabric, p.reason = d.kind(p), d.reasonOf(r.NetnsMode)
			switch {
			case p.reason != reasonNone:
			case !p.active():
				p.reason = reasonPort
			case p.Fabric == KindNone:
				p.reason = reasonLinkLayer
			case (p.Fabric == KindRoCE || p.Fabric == KindSoftware) && !p.reachable(netdevs):
				p.reason = reasonAddress
			case !r.Limits.enough():
				p.reason = ReasonMemlock
			}
			p.Usable = p.reason == reasonNone
			if !p.Usable {
				p.Why = p.reason.String()
			}
		}
	}
}

// reachable says whether a port on Ethernet has a GID made from an IP address of a network interface of this container.
func (p *Port) reachable(netdevs []string) bool {
	return slices.ContainsFunc(p.GIDs, func(g GID) bool { return g.routable() && g.here(netdevs) })
}

// settled says whether a port on Ethernet can be reached by a GID with which nothing is wrong.
func (p *Port) settled(netdevs []string) bool {
	return slices.ContainsFunc(p.GIDs, func(g GID) bool { return g.Type != "RoCE v1" && g.routable() && g.here(netdevs) })
}

// here says whether the GID's network interface is in this container, as far as that is known.
func (g GID) here(netdevs []string) bool {
	return g.Netdev == "" || netdevs == nil || slices.Contains(netdevs, g.Netdev)
}

func (g GID) routable() bool {
	a, err := netip.ParseAddr(g.GID)
	return err == nil && !a.IsLinkLocalUnicast()
}

// family is the address family that a routable GID is made from.
func (g GID) family() Flags {
	if g.ipv4() {
		return flagIPv4
	}
	return flagIPv6
}

func (g GID) ipv4() bool {
	a, err := netip.ParseAddr(g.GID)
	return err == nil && a.Is4In6()
}

// subnetPrefix is the upper half of a GID, in hexadecimal.
func subnetPrefix(g GID) string {
	a, err := netip.ParseAddr(g.GID)
	if err != nil {
		return ""
	}
	b := a.As16()
	return fmt.Sprintf("%x", b[:8])
}

// MarshalText gives the name, for JSON.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is the inverse of MarshalText; kinds of later versions are KindNone.
func (k *Kind) UnmarshalText(b []byte) error {
	*k = Kind(max(0, slices.Index(kindTexts[:], string(b))))
	return nil
}
