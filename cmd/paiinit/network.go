package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// Whether launchers and libraries are told which network to use (--network-hints).
const (
	hintsAuto = "auto"
	hintsOff  = "off"
)

// network is the one over which this container was reached by the others.
type network struct {
	name    string       // of the interface; "" for loopback, or when there is none
	prefix  netip.Prefix // of its address
	several bool         // there are others that a program could take for it
}

func networkOf(addr netip.Addr) (n network) {
	if addr.IsLoopback() {
		return network{}
	}
	links, err := usableLinks()
	if err != nil {
		return network{}
	}
	usable := 0
	for _, l := range links {
		global := false
		for _, p := range l.prefixes {
			global = global || p.Addr().IsGlobalUnicast()
			if p.Addr() == addr {
				n.name, n.prefix = l.name, p.Masked()
			}
		}
		if global {
			usable++
		}
	}
	n.several = n.name != "" && usable > 1
	return n
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

// commonInterface is the interface over which every rank is reached, where it has one name on all of them and IPv4,
// which is what Horovod asks of it; "" if there is none.
func commonInterface(members []rendezvous.Member) string {
	name := members[0].Network
	for i := range members {
		if m := &members[i]; m.Network != name || !m.Addr.Addr().Unmap().Is4() {
			return ""
		}
	}
	if strings.ContainsFunc(name, func(r rune) bool {
		return r > 'z' || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_.-@", r)
	}) {
		return "" // horovodrun puts it into a line for a shell
	}
	return name
}

// reachedOver is the network over which this container was reached. Behind a NAT none of its interfaces has that
// address. With --network-hints off it is not looked for.
func (c *container) reachedOver(r rendezvous.Roster) network {
	if c.networkHints == hintsOff {
		return network{}
	}
	if m, ok := r.Self(c.nonce); ok {
		if n := networkOf(m.Addr.Addr().Unmap()); n.name != "" {
			return n
		}
	}
	return networkOf(c.node.Self().Addr.Addr())
}

// sessionSockets tells the ranks that a launcher starts here about this container's network, which may have another
// name elsewhere.
func (c *container) sessionSockets(n network) []launch.Var {
	if n.several {
		return launch.OwnVariables(n.name)
	}
	return nil
}

// withoutSettled are those of vars that contradict no choice of the user's. Files are read only where there is a
// choice: several networks, or devices.
func (c *container) withoutSettled(n network, r rendezvous.Roster, vars []launch.Var, level slog.Level) []launch.Var {
	if !n.several && (len(r.Members) == 0 || !c.launchFabric(r).Devices) {
		return vars
	}
	texts := c.choices()
	return slices.DeleteFunc(vars, func(v launch.Var) bool { return c.settled(texts, v.Name, level) })
}

// settled says whether the user has made the choice that a variable or option would make, and logs it.
func (c *container) settled(texts launch.Texts, name string, level slog.Level) bool {
	why := texts.Settled(name)
	if why != "" {
		c.log.Log(context.Background(), level, "a network hint is left out", "phase", "launch",
			"variable", name, "reason", why)
	}
	return why != ""
}

// choices are the texts in which the user of this job may have chosen a network.
func (c *container) choices() launch.Texts {
	p := &launch.Places{
		Environ: c.agent.Environ, Args: c.settings.command, Command: c.command, Dir: c.dir, Root: os.DirFS("/"),
	}
	p.Launcher = launch.Configured(p.Environ)
	return p.Texts()
}
