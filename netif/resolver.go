package netif

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

// Resolver asks the system's resolver for addresses, and the DNS server itself for the names of an address: /etc/hosts
// holds the container's short id there under docker, and the name that tells the index is the server's.
type Resolver struct{}

// LookupHost returns the addresses of a name.
func (Resolver) LookupHost(ctx context.Context, name string) ([]netip.Addr, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return nil, err
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs, nil
}

// LookupPTR returns the names that the DNS server gives to an address.
func (Resolver) LookupPTR(ctx context.Context, addr netip.Addr) ([]string, error) {
	conf, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		return nil, fmt.Errorf("reading /etc/resolv.conf: %w", err)
	}
	name, err := dns.ReverseAddr(addr.String())
	if err != nil {
		return nil, err
	}
	question := new(dns.Msg).SetQuestion(name, dns.TypePTR)
	var client dns.Client
	err = errors.New("/etc/resolv.conf names no server")
	for _, server := range conf.Servers {
		var answer *dns.Msg
		if answer, _, err = client.ExchangeContext(ctx, question, net.JoinHostPort(server, conf.Port)); err != nil {
			continue
		}
		var names []string
		for _, rr := range answer.Answer {
			if ptr, ok := rr.(*dns.PTR); ok {
				names = append(names, ptr.Ptr)
			}
		}
		if len(names) == 0 {
			return nil, &net.DNSError{Err: "no such host", Name: name, Server: server, IsNotFound: true}
		}
		return names, nil
	}
	return nil, fmt.Errorf("asking for the name of %v: %w", addr, err)
}
