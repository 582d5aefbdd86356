// Package netif tells which networks this container is on: its own addresses and interfaces, the network over which
// other hosts reach it, whether a host answers at all, and which names an address has. It also holds a port free for
// the job.
//
// It hides netlink(7), netdevice(7) and the DNS server. It knows no ranks and no launchers: addresses come in, names
// and prefixes go out.
package netif

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"unicode"

	"golang.org/x/sys/unix"
)

// Addrs are the addresses of this host, without those of loopback.
func Addrs() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing the own addresses: %w", err)
	}
	var own []netip.Addr
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && !ip.IsLoopback() {
				own = append(own, ip.Unmap())
			}
		}
	}
	return own, nil
}

// Network is a network of this host.
type Network struct {
	Name    string       // of the interface; "" for loopback, or when there is none
	Prefix  netip.Prefix // of its address
	Several bool         // there are others that a program could take for it
}

// Of returns the network to which an address of this host belongs; the zero Network if there is none.
func Of(addr netip.Addr) (n Network) {
	if addr.IsLoopback() {
		return Network{}
	}
	links, err := usableLinks()
	if err != nil {
		return Network{}
	}
	usable := 0
	for _, l := range links {
		global := false
		for _, p := range l.prefixes {
			global = global || p.Addr().IsGlobalUnicast()
			if p.Addr() == addr {
				n.Name, n.Prefix = l.name, p.Masked()
			}
		}
		if global {
			usable++
		}
	}
	n.Several = n.Name != "" && usable > 1
	return n
}

// Common returns the prefix of the network if a program could take another one for it, and it holds all addresses.
func (n Network) Common(addrs []netip.Addr) string {
	if !n.Several {
		return ""
	}
	for _, a := range addrs {
		if !n.Prefix.Contains(a.Unmap()) {
			return ""
		}
	}
	return n.Prefix.String()
}

// Endpoint is the address at which a host is reached, and the name of its interface there.
type Endpoint struct {
	Interface string
	Addr      netip.Addr
}

// SharedInterface returns the interface over which all hosts are reached, where it has one name on all of them and
// IPv4, and a shell takes the name as it is; "" if there is none.
func SharedInterface(hosts []Endpoint) string {
	if len(hosts) == 0 {
		return ""
	}
	name := hosts[0].Interface
	for _, h := range hosts {
		if h.Interface != name || !h.Addr.Unmap().Is4() {
			return ""
		}
	}
	if strings.ContainsFunc(name, func(r rune) bool {
		return r > 'z' || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_.-@", r)
	}) {
		return ""
	}
	return name
}

// usableLink is an interface that is up, and is not loopback.
type usableLink struct {
	name     string
	prefixes []netip.Prefix
}

// usableLinks asks the kernel for all addresses once: net.Interface.Addrs asks for those of all interfaces to return
// those of one, which takes a host of many interfaces longer than everything else before the launch.
func usableLinks() ([]usableLink, error) {
	answer, err := syscall.NetlinkRIB(syscall.RTM_GETADDR, syscall.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("asking for the addresses of all interfaces: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(answer)
	if err != nil {
		return nil, fmt.Errorf("reading the addresses of all interfaces: %w", err)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("asking for the names of interfaces: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	places := make(map[uint32]int) // in links, by the index of the interface; -1: not usable
	var links []usableLink
	for _, m := range messages {
		index, p, ok := addressOf(m)
		if !ok {
			continue
		}
		at, known := places[index]
		if !known {
			at = -1
			if name, usable := usableName(socket, index); usable {
				at, links = len(links), append(links, usableLink{name: name})
			}
			places[index] = at
		}
		if at >= 0 {
			links[at].prefixes = append(links[at].prefixes, p)
		}
	}
	return links, nil
}

// usableName asks for one interface (netdevice(7)): the kernel writes a kilobyte or more about each in a list of all.
func usableName(socket int, index uint32) (name string, usable bool) {
	request, err := unix.NewIfreq("any") // the name is the answer
	if err != nil {
		return "", false
	}
	request.SetUint32(index)
	if unix.IoctlIfreq(socket, unix.SIOCGIFNAME, request) != nil {
		return "", false // it is gone
	}
	name = request.Name()
	if unix.IoctlIfreq(socket, unix.SIOCGIFFLAGS, request) != nil {
		return "", false
	}
	flags := request.Uint16()
	return name, flags&unix.IFF_UP != 0 && flags&unix.IFF_LOOPBACK == 0
}

// addressOf reads one address of an interface (rtnetlink(7), struct ifaddrmsg: family, length of the prefix, flags,
// scope, index).
func addressOf(m syscall.NetlinkMessage) (index uint32, p netip.Prefix, ok bool) {
	if m.Header.Type != syscall.RTM_NEWADDR || len(m.Data) < syscall.SizeofIfAddrmsg {
		return 0, p, false
	}
	attrs, err := syscall.ParseNetlinkRouteAttr(&m)
	if err != nil {
		return 0, p, false
	}
	for _, a := range attrs {
		// On a link between two points IFA_ADDRESS is the other end.
		if a.Attr.Type == syscall.IFA_LOCAL || a.Attr.Type == syscall.IFA_ADDRESS && !p.IsValid() {
			if addr, ok := netip.AddrFromSlice(a.Value); ok {
				p = netip.PrefixFrom(addr, int(m.Data[1]))
			}
		}
	}
	return binary.NativeEndian.Uint32(m.Data[4:]), p, p.IsValid()
}
