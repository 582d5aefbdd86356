package main

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
)

// agreement is what the ranks agreed on at the commit, and what follows from it for this container. Before the commit
// its roster is empty.
type agreement struct {
	roster rendezvous.Roster
	alias  string         // of this container
	peers  []envspec.Peer // that this container's environment lists

	names         func() []string // hostNames of the roster, computed once
	writeSSHFiles func()          // writes ssh_config and known_hosts, once
	sessionVars   func() []string // computed once
}

// agreed returns the agreement of the commit, or one with an empty roster before it.
func (c *container) agreed() *agreement {
	if a := c.agreement.Load(); a != nil {
		return a
	}
	return c.newAgreement(rendezvous.Roster{})
}

// agree notes that the ranks have agreed on a roster.
func (c *container) agree(roster rendezvous.Roster) { c.agreement.Store(c.newAgreement(roster)) }

func (c *container) newAgreement(roster rendezvous.Roster) *agreement {
	a := &agreement{
		roster: roster, alias: c.job.Alias, peers: c.job.Peers,
		names:         sync.OnceValue(func() []string { return hostNames(roster.Members) }),
		sessionVars:   sync.OnceValue(func() []string { return c.varsOfSessions(roster) }),
		writeSSHFiles: func() {},
	}
	if len(roster.Members) > 0 && !c.isAlone() {
		a.writeSSHFiles = sync.OnceFunc(func() {
			if err := c.writeSSH(c.running, a); err != nil && c.running.Err() == nil {
				c.log.Warn("ssh_config for other ssh clients cannot be written", "phase", "gather", "err", err)
			}
		})
	}
	return a
}

// named returns the members of the roster and their names in host lists.
func (a *agreement) named() ([]rendezvous.Member, []string) { return a.roster.Members, a.names() }

// slotsOf returns how many processes a launcher may start on a rank: as the scheduler told this container alone, else as
// the rank itself has announced.
func (a *agreement) slotsOf(m *rendezvous.Member) int {
	for i := range a.peers { // without copies: this is asked for every rank
		if p := &a.peers[i]; p.Decided && p.Index == m.Index && p.Role == m.Role {
			return p.Slots
		}
	}
	return m.Slots
}

// hostNames returns the names for the host lists. A launcher knows its own host by the host name, so that is a rank's
// name if it is unique and every launcher can write it. Containers that share a host name go by role and index. If a
// role's name does not fit into a host list either, the name is the rank's number.
func hostNames(members []rendezvous.Member) []string {
	count := make(map[string]int)
	for _, m := range members {
		count[m.Host]++
		if m.Alias != m.Host {
			count[m.Alias]++
		}
	}
	names := make([]string, len(members))
	for i, m := range members {
		switch {
		case count[m.Host] == 1 && expressible(m.Host):
			names[i] = m.Host
		case expressible(m.Alias):
			names[i] = m.Alias
		default:
			names[i] = "rank-" + strconv.Itoa(m.Rank)
		}
	}
	return names
}

// expressible reports whether every launcher can write the name. A dot is refused: Open MPI 4 cuts the name there.
func expressible(name string) bool {
	for _, d := range []hostfile.Dialect{hostfile.OpenMPI, hostfile.Hydra} {
		if strings.Contains(name, ".") || hostfile.Check(d, name) != nil {
			return false
		}
	}
	return true
}

// resolve finds the container that a launcher or a person calls by one of its names, or by a name in DNS.
func (a *agreement) resolve(ctx context.Context, host string) (rsh.Target, bool) {
	if m, ok := a.memberNamed(host); ok {
		return rsh.Target{Name: m.Alias, ID: m.ID, Addr: m.Addr}, true
	}
	m, ok := memberAt(ctx, netif.Resolver{}, a.roster.Members, host)
	return rsh.Target{Name: m.Alias, ID: m.ID, Addr: m.Addr}, ok
}

// lookupTimeout is how long the resolver may take for a name that this job does not know.
const lookupTimeout = 5 * time.Second

// memberAt returns the only container at the addresses of a name: a host list from before has the hosts' own names,
// also where the peers are given by address.
func memberAt(
	ctx context.Context, dns envspec.Resolver, members []rendezvous.Member, host string,
) (m rendezvous.Member, ok bool) {
	if _, err := netip.ParseAddr(host); err == nil || host == "" || len(members) == 0 {
		return m, false
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := dns.LookupHost(ctx, host)
	if err != nil {
		return m, false
	}
	for i := range members {
		switch {
		case !slices.Contains(addrs, members[i].Addr.Addr()):
		case ok:
			return rendezvous.Member{}, false // two containers on one address cannot be told apart by it
		default:
			m, ok = members[i], true
		}
	}
	return m, ok
}

// memberNamed finds the container of a name or address that the job itself knows.
func (a *agreement) memberNamed(host string) (rendezvous.Member, bool) {
	members, names := a.named()
	if host == "localhost" || host == "127.0.0.1" || host == "::1" {
		host = a.alias
	}
	for i, m := range members {
		if host == names[i] || host == m.Alias || host == m.ID {
			return m, true
		}
	}
	for _, p := range a.peers {
		if slices.Contains(p.Names, host) || host == p.Host {
			for _, m := range members {
				if m.Role == p.Role && m.Index == p.Index {
					return m, true
				}
			}
		}
	}
	addr, err := netip.ParseAddr(host)
	short, _, _ := strings.Cut(host, ".")
	var found []rendezvous.Member
	for i, m := range members {
		named := m.Host == host || m.Host == short || names[i] == short
		if err == nil && m.Addr.Addr() == addr.Unmap() || err != nil && named {
			found = append(found, m)
		}
	}
	if len(found) == 1 { // two containers on one address cannot be told apart by it
		return found[0], true
	}
	return rendezvous.Member{}, false
}

// foreign reports whether the image's own ssh may handle a host that resolve does not know. It never gets a launcher's
// daemon, the address of two ranks, or a rank that is still missing: these belong to this job.
func (a *agreement) foreign(host, command string) bool {
	if _, daemon := launch.DaemonOf(command); daemon {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return !slices.ContainsFunc(a.roster.Members, func(m rendezvous.Member) bool {
		return host == m.Host || err == nil && addr.Unmap() == m.Addr.Addr()
	}) && !slices.ContainsFunc(a.peers, func(p envspec.Peer) bool {
		return host == p.Alias || host == p.Host || slices.Contains(p.Names, host)
	})
}

// namesByRank returns the names of every rank.
func (a *agreement) namesByRank() [][]string {
	members, own := a.named()
	var hosts [][]string
	for i, name := range own {
		names := []string{name}
		if alias := members[i].Alias; alias != name {
			names = append(names, alias)
		}
		hosts = append(hosts, names)
	}
	return hosts
}
