// Package hosts finds a host of the job by any of its names, and writes the ssh_config of all hosts for OpenSSH's
// client.
//
// It hides the kinds of names: those in host lists, role and index, the container's host name, whole or up to its first
// dot, the names and addresses from the scheduler, and finally DNS. A name or address that two hosts share finds
// neither. Hosts and names come in as plain values; the caller supplies the resolver.
package hosts

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Host is one container of the job.
type Host struct {
	ID    string // the host must prove the host key of this id
	Name  string // the name in host lists
	Alias string // role and index
	Own   string // the container's host name
	Tool  string // the container's name in its scheduler's tools; "" = it has no other one
	Role  string
	Index int
	Addr  netip.AddrPort
}

// Peer is a container as the scheduler's environment lists it.
type Peer struct {
	Role  string
	Index int
	Alias string
	Host  string   // address or name
	Port  int      // 0 = unknown
	Names []string // further names
}

// Book holds the hosts of a job and their names.
type Book struct {
	Hosts []Host // in rank order; none before the ranks are agreed
	Peers []Peer
	Self  string // Alias of this container
}

// Find returns the host of a name or address that the job itself knows.
func (b *Book) Find(name string) (Host, bool) {
	if name == "localhost" || name == "127.0.0.1" || name == "::1" {
		name = b.Self
	}
	for _, h := range b.Hosts {
		if name == h.Name || name == h.Alias || name == h.ID {
			return h, true
		}
	}
	for _, p := range b.Peers {
		if slices.Contains(p.Names, name) || name == p.Host {
			for _, h := range b.Hosts {
				if h.Role == p.Role && h.Index == p.Index {
					return h, true
				}
			}
		}
	}
	addr, err := netip.ParseAddr(name)
	short, _, _ := strings.Cut(name, ".")
	return b.only(func(h Host) bool {
		if err == nil {
			return h.Addr.Addr() == addr.Unmap()
		}
		return h.Own == name || h.Own == short || h.Name == short
	})
}

// Resolver finds the addresses of a name, in their shortest form.
type Resolver interface {
	LookupHost(ctx context.Context, name string) ([]netip.Addr, error)
}

// Resolve returns the host at the addresses of a name, for which it waits at most 5 s. A host list from another source
// may have the hosts' own names even if the peers are given by address.
func (b *Book) Resolve(ctx context.Context, dns Resolver, name string) (Host, bool) {
	if _, err := netip.ParseAddr(name); err == nil || name == "" || len(b.Hosts) == 0 {
		return Host{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addrs, err := dns.LookupHost(ctx, name)
	if err != nil {
		return Host{}, false
	}
	return b.only(func(h Host) bool { return slices.Contains(addrs, h.Addr.Addr()) })
}

// only returns the host that has a property, unless another host has it as well.
func (b *Book) only(has func(Host) bool) (found Host, ok bool) {
	for _, h := range b.Hosts {
		switch {
		case !has(h):
		case ok:
			return Host{}, false
		default:
			found, ok = h, true
		}
	}
	return found, ok
}

// Locate returns the address of a host before the ranks are agreed; only the host key can prove which host it is. given
// is the port that the caller demands, usual the port of hosts that the environment does not list; 0 = none.
func (b *Book) Locate(ctx context.Context, dns Resolver, name string, given, usual int) (netip.AddrPort, bool) {
	host, port := name, cmp.Or(given, usual)
	for _, p := range b.Peers {
		if p.Alias == name || slices.Contains(p.Names, name) || p.Host == name && (given == 0 || given == p.Port) {
			host, port = p.Host, cmp.Or(p.Port, port)
			break
		}
	}
	addrs, err := dns.LookupHost(ctx, host)
	if err != nil || len(addrs) == 0 || port <= 0 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addrs[0], uint16(port)), true
}

// Claims reports whether a name belongs to this job, even if Find does not find its host: two hosts share the address,
// or the rank is not present yet.
func (b *Book) Claims(name string) bool {
	addr, err := netip.ParseAddr(name)
	return slices.ContainsFunc(b.Hosts, func(h Host) bool {
		return name == h.Own || err == nil && addr.Unmap() == h.Addr.Addr()
	}) || slices.ContainsFunc(b.Peers, func(p Peer) bool {
		return name == p.Alias || name == p.Host || slices.Contains(p.Names, name)
	})
}

// Names returns the names in host lists, in rank order.
func (b *Book) Names() []string {
	names := make([]string, len(b.Hosts))
	for i, h := range b.Hosts {
		names[i] = h.Name
	}
	return names
}

// All returns, for every host, the names of Both and the name in the scheduler's tools, if no other host has that name.
func (b *Book) All() [][]string {
	all := b.Both()
	for i, h := range b.Hosts {
		has := func(own []string) bool { return slices.Contains(own, h.Tool) }
		if h.Tool != "" && !slices.ContainsFunc(all, has) {
			all[i] = append(all[i], h.Tool)
		}
	}
	return all
}

// Both returns, for every host, the name in host lists and the alias if it differs.
func (b *Book) Both() [][]string {
	var all [][]string
	for _, h := range b.Hosts {
		all = append(all, slices.Compact([]string{h.Name, h.Alias}))
	}
	return all
}
