package rendezvous

import (
	"errors"
	"net"
	"net/netip"
)

// OwnAddr returns the address of this machine by which other machines most likely reach it.
func OwnAddr() (netip.Addr, error) { return ownAddr(nil, nil) }

// ownAddr returns the address at which other containers most likely reach this one: the source address that the kernel
// uses to reach a peer with a known address, otherwise the first address of an interface that is up and is neither
// loopback nor link-local.
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
	var six, loop netip.Addr
	for _, ifa := range ifs {
		n, ok := ifa.(*net.IPNet)
		if !ok {
			continue
		}
		a, ok := netip.AddrFromSlice(n.IP)
		a = a.Unmap()
		switch {
		case !ok || a.IsLinkLocalUnicast():
		case a.IsLoopback():
			if !loop.IsValid() {
				loop = a
			}
		case a.Is4():
			return a, nil
		case !six.IsValid():
			six = a
		}
	}
	if six.IsValid() {
		return six, nil
	}
	if loop.IsValid() {
		return loop, nil // other machines cannot reach it; a job of one rank does not need that
	}
	return netip.Addr{}, errors.New("no interface has an address")
}
