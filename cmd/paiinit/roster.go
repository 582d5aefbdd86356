package main

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/hosts"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/statedir"
)

// agreement is the roster that the ranks have committed, and values that depend on it. Before the commit its roster is
// empty.
type agreement struct {
	*identity
	roster rendezvous.Roster
	fabric launch.Fabric // the verdict on the verbs devices of all ranks

	ownAddr func() netip.Addr // of this container, before and after the commit

	book          func() *hosts.Book // computed once
	writeSSHFiles func()             // writes ssh_config and known_hosts, once
	sessionVars   func() []string    // computed once

	unlinkHostfile func() // undoes linkHostfile; nil = nothing to undo

	restarted []launch.Var // by which the command learns of restarts
}

// agreed returns the agreement of the commit, or one with an empty roster before it.
func (c *container) agreed() *agreement {
	if a := c.agreement.Load(); a != nil {
		return a
	}
	return c.newAgreement(rendezvous.Roster{}, launch.Fabric{})
}

// agree notes what the ranks have agreed on.
func (c *container) agree(roster rendezvous.Roster, fabric launch.Fabric) *agreement {
	a := c.newAgreement(roster, fabric)
	a.restarted = c.restartVars()
	if last := c.agreement.Load(); last != nil {
		a.unlinkHostfile = last.unlinkHostfile
		if slices.EqualFunc(last.roster.Members, roster.Members, sameHost) {
			a.book, a.writeSSHFiles = last.book, last.writeSSHFiles
		}
	}
	c.agreement.Store(a)
	if g := c.current.Load(); g != nil {
		g.agree()
	}
	return a
}

// sameHost reports whether bookOf and the files for ssh clients say the same of two members.
func sameHost(a, b rendezvous.Member) bool {
	return a.ID == b.ID && a.Addr == b.Addr && a.Alias == b.Alias && a.Host == b.Host && a.Own == b.Own &&
		a.Role == b.Role && a.Index == b.Index
}

// generation is a launch of the job, as this rank takes part in it.
type generation struct {
	node   *rendezvous.Node
	phase  func() rendezvous.Phase
	agree  func()          // closes agreed
	agreed <-chan struct{} // closed once the container has the agreement of this generation, or ends
}

func newGeneration(node *rendezvous.Node) *generation {
	agreed := make(chan struct{})
	return &generation{
		node: node, phase: func() rendezvous.Phase { return node.View().Phase },
		agree: sync.OnceFunc(func() { close(agreed) }), agreed: agreed,
	}
}

// agreementTimeout is how long a session waits for the agreement.
const agreementTimeout = 10 * time.Second

// awaitAgreement waits for the agreement while the ranks commit it: rank 0's launcher may log in before this rank hears
// that all have agreed. Before, a session is a person's, and does not wait.
func (g *generation) awaitAgreement() {
	select {
	case <-g.agreed:
		return
	default:
	}
	if p := g.phase(); p != rendezvous.Prepared && p != rendezvous.Running {
		return
	}
	select {
	case <-g.agreed:
	case <-time.After(agreementTimeout):
	}
}

// sessionVars returns the variables of a session, those of this generation if it is a launcher's.
func (c *container) sessionVars() []string {
	if g := c.current.Load(); g != nil {
		g.awaitAgreement()
	}
	return c.agreed().sessionVars()
}

func (c *container) newAgreement(roster rendezvous.Roster, fabric launch.Fabric) *agreement {
	a := &agreement{
		identity: &c.identity, roster: roster, fabric: fabric,
		ownAddr:       func() netip.Addr { return c.node().Self().Addr.Addr() },
		book:          sync.OnceValue(func() *hosts.Book { return bookOf(roster.Members, c.job) }),
		writeSSHFiles: func() {},
	}
	a.sessionVars = sync.OnceValue(a.varsOfSessions)
	if len(roster.Members) > 0 && !c.isAlone() {
		a.writeSSHFiles = sync.OnceFunc(func() {
			if err := a.writeSSH(c.running, c.hostKey); err != nil && c.running.Err() == nil {
				c.log.Warn("ssh_config for other ssh clients cannot be written", "phase", "gather", "err", err)
			}
		})
	}
	return a
}

// bookOf lists the hosts of a roster and the peers of this container's environment, with all their names.
func bookOf(members []rendezvous.Member, job envspec.Job) *hosts.Book {
	b := &hosts.Book{Self: job.Alias}
	var all []hostfile.Container
	for _, m := range members {
		all = append(all, hostfile.Container{Host: m.Host, Alias: m.Alias})
	}
	for i, name := range hostfile.Names(all) {
		m := members[i]
		b.Hosts = append(b.Hosts, hosts.Host{
			ID: m.ID, Name: name, Alias: m.Alias, Own: m.Host, Tool: m.Own, Role: m.Role, Index: m.Index, Addr: m.Addr,
		})
	}
	for _, p := range job.Peers {
		b.Peers = append(b.Peers, hosts.Peer{
			Role: p.Role, Index: p.Index, Alias: p.Alias, Host: p.Host, Port: p.Port, Names: p.Names,
		})
	}
	return b
}

// named returns the members of the roster and their names in host lists.
func (a *agreement) named() ([]rendezvous.Member, []string) {
	return a.roster.Members, a.book().Names()
}

// resolve finds a container of the job by any of its names or by a name in DNS.
func (a *agreement) resolve(ctx context.Context, host string) (rsh.Target, bool) {
	h, ok := a.book().Find(host)
	if !ok {
		h, ok = a.book().Resolve(ctx, netif.Resolver{}, host)
	}
	return rsh.Target{Name: h.Alias, ID: h.ID, Addr: h.Addr}, ok
}

// foreign reports whether the image's own ssh may handle a host that resolve does not know. Launcher daemons, addresses
// that two ranks share, and missing ranks belong to this job.
func (a *agreement) foreign(host, command string) bool {
	_, daemon := launch.DaemonOf(command)
	return !daemon && !a.book().Claims(host)
}

// self returns this container's entry in the roster.
func (a *agreement) self() rendezvous.Member {
	m, _ := a.roster.Self(a.nonce) // the rendezvous refuses a roster without this container
	return m
}

// writeSSH writes ssh_config and known_hosts, with which OpenSSH's client can log in to every rank. It stops when ctx
// ends.
func (a *agreement) writeSSH(ctx context.Context, hostKey func(id string) ssh.PublicKey) error {
	known, err := a.book().KnownHosts(ctx, func(id string) []byte { return ssh.MarshalAuthorizedKey(hostKey(id)) })
	if err != nil {
		return err
	}
	if err := a.state.WriteFile(statedir.KnownHosts, known); err != nil {
		return err
	}
	return a.state.WriteFile(statedir.SSHConfig, a.book().SSHConfig(hosts.SSHFiles{
		Config: a.state.File(statedir.SSHConfig), Agent: a.state.File(statedir.KeysSocket),
		KnownHosts: a.state.File(statedir.KnownHosts),
	}))
}
