package main

import (
	"net/netip"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/sshd"
)

// sftpServer is the command that the SSH server runs for the subsystem sftp.
const sftpServer = "sftp-server"

// sftpCommand is not for people: it speaks SFTP on its standard input and output. Its arguments are hidden from the
// client.
func sftpCommand() *cli.Command {
	return &cli.Command{
		Name: sftpServer, Hidden: true,
		Action: func(c *cli.Context) error {
			return sshd.ServeSFTP(os.Stdin, os.Stdout, c.Args().Slice())
		},
	}
}

// hidden is what a key for sftp alone must not reach: the memory and the devices of this machine, what makes a caller
// one of the job, and who may log in.
func (c *container) hidden() []string {
	paths := []string{"/proc", "/sys", "/dev", c.state.Path, c.keysFile, c.absolute(c.secretFile)}
	for _, secret := range c.job.Secrets {
		paths = append(paths, secret.Name)
	}
	return paths
}

// isPeer reports whether an address is one of the job's: of the list that the environment gives, or of the roster.
func (c *container) isPeer(addr netip.Addr) bool {
	for _, p := range c.job.Peers {
		if a, err := netip.ParseAddr(p.Host); err == nil && a.Unmap() == addr {
			return true
		}
	}
	for _, m := range c.agreed().roster.Members {
		if m.Addr.Addr().Unmap() == addr {
			return true
		}
	}
	return false
}
