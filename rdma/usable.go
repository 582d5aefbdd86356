package rdma

import (
	"net/netip"
	"slices"
)

// Kind is a kind of fabric, which decides how programs use a port.
type Kind uint8

// The kinds, best first. The numbers go over the network.
const (
	KindNone       Kind = iota // unknown, or useless to MPI and NCCL
	KindInfiniBand             // verbs, with addresses from a subnet manager
	KindRoCE                   // verbs over Ethernet, with addresses from IP
	KindEFA                    // Amazon's, through libfabric only
	KindOmniPath               // Intel's and Cornelis', through PSM2 or libfabric
	KindIWARP                  // verbs over TCP
	KindSoftware               // rxe or siw: for tests
	kinds                      // the number of kinds
)

var kindTexts = [kinds]string{"none", "InfiniBand", "RoCE", "EFA", "Omni-Path", "iWARP", "software RDMA"}

// String returns the kind's usual name.
func (k Kind) String() string { return kindTexts[k] }

// minMemlock is the limit of locked memory, in bytes, below which MPI and NCCL cannot register their buffers. The
// default of current kernels, 8 MiB, is too little; large jobs may need more than minMemlock.
const minMemlock = 1 << 30

func (l Limits) unlimited() bool { return l.IPCLock || l.Memlock < 0 }
func (l Limits) enough() bool    { return l.unlimited() || l.Memlock >= minMemlock }

func (p *Port) active() bool { return p.State == "ACTIVE" || p.State == "ACTIVE_DEFER" }

// kind returns the kind of a port of d. RDMA netlink's protocol is the clearest sign; older kernels have only the
// node's type and the link layer.
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

// resolve decides which ports can be used.
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

// settled says whether a port on Ethernet has such a GID of RoCE v2, which needs no finding.
func (p *Port) settled(netdevs []string) bool {
	v2 := func(g GID) bool { return g.Type != "RoCE v1" && g.routable() && g.here(netdevs) }
	return slices.ContainsFunc(p.GIDs, v2)
}

// here says whether the GID's network interface is in this container; unknown counts as yes.
func (g GID) here(netdevs []string) bool {
	return g.Netdev == "" || netdevs == nil || slices.Contains(netdevs, g.Netdev)
}

func (g GID) routable() bool {
	a, err := netip.ParseAddr(g.GID)
	return err == nil && !a.IsLinkLocalUnicast()
}

// family returns the address family that a routable GID is made from.
func (g GID) family() Flags {
	if a, _ := netip.ParseAddr(g.GID); a.Is4In6() {
		return flagIPv4
	}
	return flagIPv6
}

// MarshalText returns the name, for JSON.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a name. Kinds of later versions become KindNone.
func (k *Kind) UnmarshalText(b []byte) error {
	*k = Kind(max(0, slices.Index(kindTexts[:], string(b))))
	return nil
}
