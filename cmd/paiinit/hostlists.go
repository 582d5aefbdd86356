package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// writeHosts writes the host lists of this container, which every rank has: AZUREML_MPI_HOSTFILE,
// AZ_BATCHAI_MPI_HOST_FILE and PAIINIT_HOSTFILE name them wherever a rank may be started.
func (c *container) writeHosts(r rendezvous.Roster) error {
	var hosts []hostfile.Host
	_, names := c.named()
	for i, m := range r.Members {
		if slots := c.slotsOf(m); slots > 0 {
			hosts = append(hosts, hostfile.Host{Name: names[i], Slots: slots})
		}
	}
	if err := c.state.writeHostfiles(hosts); err != nil {
		return err
	}
	for _, reader := range launch.HostfileReaders() {
		if len(r.Members) > 1 && mayRead(reader, c.settings.command, c.exec) {
			c.linkHostfile(reader.Program, reader.Hostfile)
		}
	}
	return nil
}

// mayRead reports whether a command may start a launcher on all hosts: by its name, or in a script, which cannot be
// seen through. With --exec all a script's launcher stays on its own host, because every rank starts one.
func mayRead(reader launch.HostfileReader, command []string, exec string) bool {
	if len(command) == 0 {
		return exec == execRank0 // of a rank that waits: a person may start it there
	}
	name, _ := launch.Called(command)
	return name == reader.Program || name == "" && exec == execRank0 && !launch.Spawns(command) &&
		!launch.ReachesHosts(command)
}

// linkHostfile puts a link to the host list in the only place where a launcher looks for one by itself, unless
// something is there: a link, so that a list that a killed paiinit has left is told from the user's own.
func (c *container) linkHostfile(launcher, name string) {
	target := c.state.path("hostfile")
	there, err := os.Readlink(name)
	switch {
	case err == nil && there == target:
		return
	case err == nil && filepath.Base(there) == filepath.Base(target) &&
		!isThere(filepath.Join(filepath.Dir(there), socketName)):
		err = replaceLink(target, name) // of a paiinit that has ended
	default:
		madeDir := os.Mkdir(filepath.Dir(name), 0o755) == nil
		if err = os.Symlink(target, name); err == nil {
			c.unlinkHostfile = func() {
				if now, err := os.Readlink(name); err == nil && now == target {
					_ = os.Remove(name)
				}
				if madeDir {
					_ = os.Remove(filepath.Dir(name)) // if nothing else is in it
				}
			}
		}
	}
	command := ""
	if len(c.settings.command) > 0 {
		command, _ = launch.Called(c.settings.command)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		c.log.Info("the host list that is there already is kept", "phase", "launch", "file", name)
	case err != nil && command == launcher:
		c.log.Warn(launcher+" would use this host only", "phase", "launch", "err", err,
			"hint", launcher+" --hostfile $PAIINIT_HOSTFILE")
	case err != nil:
		c.log.Debug(launcher+" would find no host list", "phase", "launch", "err", err)
	}
}

func isThere(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
