package main

import (
	"errors"
	"io/fs"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/statedir"
)

// writeHosts writes the host lists of this container, which every rank has: AZUREML_MPI_HOSTFILE,
// AZ_BATCHAI_MPI_HOST_FILE and PAIINIT_HOSTFILE name them wherever a rank may be started.
func (a *agreement) writeHosts() error {
	var hosts []hostfile.Host
	members, names := a.named()
	for i := range members {
		if slots := a.slotsOf(&members[i]); slots > 0 {
			hosts = append(hosts, hostfile.Host{Name: names[i], Slots: slots})
		}
	}
	if err := writeHostfiles(a.state, hosts); err != nil {
		return err
	}
	for _, reader := range launch.HostfileReaders() {
		if len(members) > 1 && mayRead(reader, a.settings.command, a.exec) {
			a.linkHostfile(reader.Program, reader.Hostfile)
		}
	}
	return nil
}

// mayRead reports whether a command may start a launcher on all hosts: by its name, or in a script, whose text is not
// read. With --exec all a script's launcher stays on its own host, because every rank starts one.
func mayRead(reader launch.HostfileReader, command []string, exec string) bool {
	if len(command) == 0 {
		return exec == execRank0 // of a rank that waits: a person may start it there
	}
	name, _ := launch.Called(command)
	return name == reader.Program || name == "" && exec == execRank0 && !launch.Spawns(command) &&
		!launch.ReachesHosts(command)
}

// linkHostfile puts a link to the host list in the only place where a launcher looks for one by itself, unless something
// is there.
func (a *agreement) linkHostfile(launcher, name string) {
	unlink, err := a.state.Link(statedir.Hostfile, name)
	if unlink != nil {
		a.unlinkHostfile = unlink
	}
	command := ""
	if len(a.settings.command) > 0 {
		command, _ = launch.Called(a.settings.command)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		a.log.Info("the host list that is there already is kept", "phase", "launch", "file", name)
	case err != nil && command == launcher:
		a.log.Warn(launcher+" would use this host only", "phase", "launch", "err", err,
			"hint", launcher+" --hostfile $PAIINIT_HOSTFILE")
	case err != nil:
		a.log.Debug(launcher+" would find no host list", "phase", "launch", "err", err)
	}
}
