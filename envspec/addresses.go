package envspec

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Addresses returns the addresses of all containers: only these may connect to the port of a job without a secret. It
// includes loopback only if a peer has such an address, because every user of a shared host network can connect from
// there. It fails if the environment does not list all containers by address.
func (j *Job) Addresses() ([]netip.Addr, error) {
	const needs = "--insecure needs the addresses of all containers"
	list := []netip.Addr{} // nil would admit all addresses
	for _, p := range j.Peers {
		a, err := netip.ParseAddr(p.Host)
		if err != nil {
			return nil, fmt.Errorf(needs+"; %s is known as %q only", p.Alias, p.Host)
		}
		if a = a.Unmap(); a.Is4() && a.IsLoopback() {
			a = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // the source address of connections to any of 127.0.0.0/8
		}
		list = append(list, a)
	}
	if len(j.Seeds) == 0 && len(j.Peers) == j.Size {
		return list, nil
	}
	size := strconv.Itoa(j.Size)
	if j.Size < 0 {
		size = "known to rank 0"
	}
	return nil, fmt.Errorf(needs+" (%s); the environment lists %d", size, len(j.Peers))
}

// Hosts returns the host of every peer and seed that the environment names.
func (j *Job) Hosts() (hosts []string) {
	for _, p := range j.Peers {
		if p.Host != "" {
			hosts = append(hosts, p.Host)
		}
	}
	for _, s := range j.Seeds {
		hosts = append(hosts, s.Host)
	}
	return hosts
}
