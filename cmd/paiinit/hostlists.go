package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rendezvous"
)

// writeHosts writes the host lists of this container, which every rank has: AZUREML_MPI_HOSTFILE, AZ_BATCHAI_MPI_HOST_FILE and
// PAIINIT_HOSTFILE name them wherever a rank may be started.
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
	if len(c.settings.command) > 0 && filepath.Base(c.settings.command[0]) == "deepspeed" && len(r.Members) > 1 {
		c.writeDeepSpeed(launch.DeepSpeedHostfile, hosts)
	}
	return nil
}

// writeDeepSpeed leaves a host list in the only place where the deepspeed command looks for one by itself, unless there is one.
func (c *container) writeDeepSpeed(name string, hosts []hostfile.Host) {
	var b bytes.Buffer
	err := hostfile.Write(&b, hostfile.DeepSpeed, hosts)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(name), 0o755)
	}
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err == nil {
			_, werr := f.Write(b.Bytes())
			err = errors.Join(werr, f.Close())
		}
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		c.log.Info("the host list that is there already is kept", "phase", "launch", "file", name)
	case err != nil:
		c.log.Warn("deepspeed would use this host only", "phase", "launch", "err", err, "hint", "deepspeed --hostfile $PAIINIT_HOSTFILE")
	}
}
