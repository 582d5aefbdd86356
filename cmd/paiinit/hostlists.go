package main

import (
	"errors"
	"io/fs"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/statedir"
)

// writeHosts writes the host lists of this container, which every rank has: AZUREML_MPI_HOSTFILE, AZ_BATCHAI_MPI_HOST_FILE and
// PAIINIT_HOSTFILE name them wherever a rank may be started.
func (c *container) writeHosts(a *agreement) error {
	var hosts []hostfile.Host
	members, names := a.named()
	for i := range members {
		if slots := a.slotsOf(&members[i]); slots > 0 {
			hosts = append(hosts, hostfile.Host{Name: names[i], Slots: slots})
		}
	}
	if err := writeHostfiles(c.state, hosts); err != nil {
		return err
	}
	if len(members) > 1 && mayBeDeepSpeed(c.settings.command, c.exec) {
		c.linkDeepSpeed(launch.DeepSpeedHostfile)
	}
	return nil
}

// mayBeDeepSpeed says whether a command may start DeepSpeed on all hosts: by its name, or in a script, which cannot be
// seen through. With --exec all a script's deepspeed stays on its own host, because every rank starts one.
func mayBeDeepSpeed(command []string, exec string) bool {
	if len(command) == 0 {
		return exec == execRank0 // of a rank that waits: a person may start it there
	}
	name, _ := launch.Called(command)
	return name == "deepspeed" || name == "" && exec == execRank0 && !launch.Spawns(command) &&
		!launch.ReachesHosts(command)
}

// linkDeepSpeed puts a link to the host list in the only place where the deepspeed command looks for one by itself,
// unless something is there.
func (c *container) linkDeepSpeed(name string) {
	unlink, err := c.state.Link(statedir.Hostfile, name)
	if unlink != nil {
		c.unlinkDeepSpeed = unlink
	}
	command := ""
	if len(c.settings.command) > 0 {
		command, _ = launch.Called(c.settings.command)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		c.log.Info("the host list that is there already is kept", "phase", "launch", "file", name)
	case err != nil && command == "deepspeed":
		c.log.Warn("deepspeed would use this host only", "phase", "launch", "err", err, "hint", "deepspeed --hostfile $PAIINIT_HOSTFILE")
	case err != nil:
		c.log.Debug("deepspeed would find no host list", "phase", "launch", "err", err)
	}
}
