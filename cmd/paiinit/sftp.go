package main

import (
	"net/netip"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/sshd"
)

// sftpServer is the command of this program that the SSH server runs for the subsystem sftp.
const sftpServer = "sftp-server"

// sftpCommand serves SFTP on its standard input and output. Its arguments are the paths to hide from the client. It is
// not for people, so the help does not show it.
func sftpCommand() *cli.Command {
	return &cli.Command{
		Name: sftpServer, Hidden: true,
		Action: func(c *cli.Context) error {
			return sshd.ServeSFTP(os.Stdin, os.Stdout, c.Args().Slice())
		},
	}
}

// hidden returns the paths that a key for sftp only must not reach: the memory and the devices of this machine, the
// secret and the sockets of the job, and the list of keys that may log in.
func (id *identity) hidden() []string {
	paths := []string{"/proc", "/sys", "/dev", id.state.Path, id.keysFile, id.absolute(id.secretFile)}
	for _, secret := range id.job.Secrets {
		paths = append(paths, secret.Name)
	}
	return paths
}

// isPeer reports whether an address belongs to the job: to the peers from the environment, or to the roster.
func (a *agreement) isPeer(addr netip.Addr) bool {
	peer := func(p envspec.Peer) bool {
		host, err := netip.ParseAddr(p.Host)
		return err == nil && host.Unmap() == addr
	}
	member := func(m rendezvous.Member) bool { return m.Addr.Addr().Unmap() == addr }
	return slices.ContainsFunc(a.job.Peers, peer) || slices.ContainsFunc(a.roster.Members, member)
}
