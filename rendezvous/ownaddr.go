package rendezvous

import (
	"errors"
	"net"
	"net/netip"
	"slices"
)

// OwnAddr returns the address of this machine by which other machines most likely reach it.
func OwnAddr() (netip.Addr, error) { return ownAddr(nil, nil) }

// ownAddr returns the address at which other containers most likely reach this one: the source address that the kernel
// uses to reach a peer with a known address, otherwise the first address of an interface, IPv4 before IPv6.
func ownAddr(peers []Peer, seeds []Seed) (netip.Addr, error) {
	var hosts []string
	for _, p := range peers {
		hosts = append(hosts, p.Host)
	}
	for _, s := range seeds {
		hosts = append(hosts, s.Host)
	}
	for _, h := range hosts {
		a, err := netip.ParseAddr(h)
		if err != nil {
			continue
		}
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
		if err != nil {
			continue
		}
		local := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		_ = c.Close()
		if !local.IsUnspecified() {
			return local.WithZone(""), nil
		}
	}
	ifs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	var found []netip.Addr
	for _, ifa := range ifs {
		if n, ok := ifa.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(n.IP); ok && !a.Unmap().IsLinkLocalUnicast() {
				found = append(found, a.Unmap())
			}
		}
	}
	if len(found) == 0 {
		return netip.Addr{}, errors.New("no interface has an address")
	}
	// Other machines cannot reach a loopback address; a job of one rank does not need that.
	class := func(a netip.Addr) int {
		switch {
		case a.IsLoopback():
			return 2
		case a.Is6():
			return 1
		}
		return 0
	}
	return slices.MinFunc(found, func(a, b netip.Addr) int { return class(a) - class(b) }), nil
}
