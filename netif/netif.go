// Package netif describes the networks of this container: its own addresses and interfaces, the network over which
// other hosts reach it, whether a host answers, and the names of an address. It also reserves a port for the job. It
// hides netlink(7), netdevice(7) and the DNS server.
package netif

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// Addrs returns the addresses of this host, except loopback.
func Addrs() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing this host's addresses: %w", err)
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
	Name    string       // the interface; "" for loopback, or if there is none
	Prefix  netip.Prefix // the interface's address and prefix length
	Several bool         // a program could choose another network instead
}

// Of returns the network of an address of this host; the zero Network if there is none.
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
		for _, p := range l.prefixes {
			if p.Addr() == addr {
				n.Name, n.Prefix = l.name, p.Masked()
			}
		}
		if slices.ContainsFunc(l.prefixes, func(p netip.Prefix) bool { return p.Addr().IsGlobalUnicast() }) {
			usable++
		}
	}
	n.Several = n.Name != "" && usable > 1
	return n
}

// Common returns the prefix of the network if it contains all hosts and a program could choose another network instead;
// otherwise "".
func (n Network) Common(hosts []Endpoint) string {
	outside := func(h Endpoint) bool { return !n.Prefix.Contains(h.Addr.Unmap()) }
	if !n.Several || slices.ContainsFunc(hosts, outside) {
		return ""
	}
	return n.Prefix.String()
}

// Endpoint is the address of a host, and the name of its interface there.
type Endpoint struct {
	Interface string
	Addr      netip.Addr
}

// SharedInterface returns the interface over which the other hosts reach every host, or "". It must have the same name
// on all hosts, an IPv4 address, and a name that needs no quoting in a shell.
func SharedInterface(hosts []Endpoint) string {
	if len(hosts) == 0 {
		return ""
	}
	name := hosts[0].Interface
	differs := func(h Endpoint) bool { return h.Interface != name || !h.Addr.Unmap().Is4() }
	special := func(r rune) bool {
		return r > 'z' || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_.-@", r)
	}
	if slices.ContainsFunc(hosts, differs) || strings.ContainsFunc(name, special) {
		return ""
	}
	return name
}

// usableLink is an interface that is up, and is not loopback.
type usableLink struct {
	name     string
	prefixes []netip.Prefix
}

// usableLinks asks the kernel for all addresses once. net.Interface.Addrs would fetch all of them again for each
// interface: on a host with many interfaces that takes longer than everything else before the launch.
func usableLinks() (links []*usableLink, err error) {
	answer, err := syscall.NetlinkRIB(syscall.RTM_GETADDR, syscall.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("fetching the addresses of all interfaces: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(answer)
	if err != nil {
		return nil, fmt.Errorf("reading the addresses of all interfaces: %w", err)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("fetching the names of interfaces: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	byIndex := make(map[uint32]*usableLink) // nil = not usable
	for _, m := range messages {
		index, p, ok := addressOf(m)
		if !ok {
			continue
		}
		l, known := byIndex[index]
		if !known {
			if name, usable := usableName(socket, index); usable {
				l = &usableLink{name: name}
				links = append(links, l)
			}
			byIndex[index] = l
		}
		if l != nil {
			l.prefixes = append(l.prefixes, p)
		}
	}
	return links, nil
}

// usableName queries one interface (netdevice(7)), because a list of all has a kilobyte or more per interface.
func usableName(socket int, index uint32) (name string, usable bool) {
	request, err := unix.NewIfreq("any") // the kernel overwrites the name
	if err != nil {
		return "", false
	}
	request.SetUint32(index)
	if unix.IoctlIfreq(socket, unix.SIOCGIFNAME, request) != nil {
		return "", false // the interface no longer exists
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
		// On a point-to-point link, IFA_ADDRESS is the address of the other end.
		if a.Attr.Type == syscall.IFA_LOCAL || a.Attr.Type == syscall.IFA_ADDRESS && !p.IsValid() {
			if addr, ok := netip.AddrFromSlice(a.Value); ok {
				p = netip.PrefixFrom(addr, int(m.Data[1]))
			}
		}
	}
	return binary.NativeEndian.Uint32(m.Data[4:]), p, p.IsValid()
}

// Answers returns an error unless the host at the address accepts or refuses a connection before the timeout. It
// returns nil if ctx was cancelled.
func Answers(ctx context.Context, addr netip.AddrPort, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
	var late net.Error
	switch {
	case err == nil:
		_ = conn.Close()
		return nil
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET),
		errors.Is(ctx.Err(), context.Canceled):
		return nil
	case errors.As(err, &late) && late.Timeout():
		return fmt.Errorf("no answer from %v/tcp within %v", addr, timeout)
	}
	return err
}
