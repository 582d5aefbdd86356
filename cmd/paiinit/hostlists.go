package main

import (
	"errors"
	"io/fs"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/statedir"
)

// writeHosts writes the host lists of this container. Every rank needs them: AZUREML_MPI_HOSTFILE,
// AZ_BATCHAI_MPI_HOST_FILE and PAIINIT_HOSTFILE name them in the environment of every rank.
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

// mayRead reports whether a command may start this launcher on all hosts: the command is the launcher, or may be a
// script that calls it. With --exec all a script's launcher stays on its own host, because every rank starts one.
func mayRead(reader launch.HostfileReader, command []string, exec string) bool {
	if len(command) == 0 {
		return exec == execRank0 // a user may start the launcher in this container
	}
	name, _ := launch.Called(command)
	return name == reader.Program || name == "" && exec == execRank0 && !launch.Spawns(command) &&
		!launch.ReachesHosts(command)
}

// linkHostfile links the host list to the only path where a launcher looks for one by itself. It never replaces a file
// there.
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
		a.log.Info("kept the host list that exists already", "phase", "launch", "file", name)
	case err != nil && command == launcher:
		a.log.Warn(launcher+" would use this host only", "phase", "launch", "err", err,
			"hint", launcher+" --hostfile $PAIINIT_HOSTFILE")
	case err != nil:
		a.log.Debug(launcher+" would find no host list", "phase", "launch", "err", err)
	}
}
