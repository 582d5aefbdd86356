package envspec

import (
	"net/netip"
	"slices"
	"strings"
)

// whoAmI lists this container's name and addresses, for messages.
func (r *reader) whoAmI() string {
	var list []string
	if r.in.Hostname != "" {
		list = append(list, r.in.Hostname)
	}
	for _, a := range r.in.Addrs {
		list = append(list, a.Unmap().String())
	}
	if len(list) == 0 {
		return "it has neither"
	}
	return strings.Join(list, ", ")
}

// isSelf says whether a host of a list is this container, by name or address.
func (r *reader) isSelf(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return r.isOwn(addr)
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	own := strings.ToLower(strings.TrimSuffix(r.in.Hostname, "."))
	if own == "" {
		return host == "localhost"
	}
	shortHost, _, hostLong := strings.Cut(host, ".")
	shortOwn, _, ownLong := strings.Cut(own, ".")
	// node1 and node1.cluster are the same host; node1.a and node1.b are not.
	return host == "localhost" || host == own || shortHost == shortOwn && hostLong != ownLong
}

// lookup returns the addresses of a host name, none if DNS does not have it.
func (r *reader) lookup(host string) []netip.Addr {
	if r.in.Resolver == nil {
		return nil
	}
	addrs, err := r.in.Resolver.LookupHost(r.ctx, host)
	if err != nil {
		return nil
	}
	return addrs
}

// isOwn says whether an address is this container's.
func (r *reader) isOwn(addr netip.Addr) bool {
	addr = addr.Unmap()
	return addr.IsLoopback() || slices.ContainsFunc(r.in.Addrs, func(a netip.Addr) bool { return a.Unmap() == addr })
}
