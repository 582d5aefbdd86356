package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/hostfile"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/statedir"
)

func identityOf(job envspec.Job, host, nonce string, start time.Time) statedir.Identity {
	return statedir.Identity{
		Job: job.ID, Attempt: job.Attempt, Role: job.Role, Index: job.Index, Rank: job.Rank, Size: job.Size,
		Alias: job.Alias, Host: host, Nonce: nonce, Start: start,
	}.OfThisProcess()
}

// openState creates and locks the state directory dir. If dir is "", it takes the first usable default.
func openState(ctx context.Context, dir string, own statedir.Identity, environ []string) (*statedir.Dir, error) {
	self, err := launch.OwnPath(environ)
	if err != nil {
		return nil, err
	}
	d, err := statedir.Open(ctx, statedir.Config{
		Dir: dir, Owner: own, Program: self, Links: append(launch.Fills(), "ssh"),
	})
	if running := (*statedir.RunningError)(nil); err != nil && !errors.As(err, &running) {
		err = fmt.Errorf("no directory for the state can be used (--state-dir): %w", err)
	}
	return d, err
}

// writeHosts writes the host lists of this container. Every rank needs them: AZUREML_MPI_HOSTFILE,
// AZ_BATCHAI_MPI_HOST_FILE and PAIINIT_HOSTFILE name them in the environment of every rank.
func (a *agreement) writeHosts() error {
	var hosts []hostfile.Host
	members, names := a.named()
	for i, m := range members {
		if m.Slots > 0 {
			hosts = append(hosts, hostfile.Host{Name: names[i], Slots: m.Slots})
		}
	}
	if err := writeHostfiles(a.state, hosts); err != nil {
		return err
	}
	if a.policy.Restarts != 0 { // the job may fill the file system before the next generation needs its lists
		if err := a.state.Reserve(len(members)); err != nil {
			a.log.Debug("no room for the host lists of a restart", "phase", "launch", "err", err)
		}
	}
	if len(members) > 1 {
		for _, reader := range launch.HostfileReaders(a.settings.command, a.exec == execAll) {
			a.linkHostfile(reader.Program, reader.Hostfile)
		}
	}
	return nil
}

// linkHostfile links the host list to the only path where a launcher looks for one by itself. It never replaces a file
// there.
func (a *agreement) linkHostfile(launcher, name string) {
	unlink, err := a.state.Link(statedir.Hostfile, name)
	if unlink != nil {
		a.unlinkHostfile = unlink
	}
	command, _ := launch.Called(a.settings.command)
	switch {
	case errors.Is(err, fs.ErrExist):
		a.log.Debug("kept the host list that exists already", "phase", "launch", "file", name)
	case err != nil && command == launcher:
		a.log.Warn(launcher+" would use this host only", "phase", "launch", "err", err,
			"hint", launcher+" --hostfile $PAIINIT_HOSTFILE")
	case err != nil:
		a.log.Debug(launcher+" would find no host list", "phase", "launch", "err", err)
	}
}

// writeHostfiles writes the host lists in each launcher's format.
func writeHostfiles(d *statedir.Dir, hosts []hostfile.Host) error {
	if err := d.FreeReserve(); err != nil {
		return fmt.Errorf("writing the host list: %w", err)
	}
	for name, dialect := range map[string]hostfile.Dialect{
		statedir.Hostfile: hostfile.OpenMPI, statedir.CountedHostfile: hostfile.Hydra,
	} {
		var b bytes.Buffer
		if err := hostfile.Write(&b, dialect, hosts); err != nil {
			return err
		}
		if err := d.WriteFile(name, b.Bytes()); err != nil {
			return fmt.Errorf("writing the host list: %w", err)
		}
	}
	return nil
}

// chooseDir returns the state directory of the paiinit that this process asks: the paiinit that the command line
// names, else the paiinit that package statedir finds.
func chooseDir(environ []string, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	return statedir.Find(launch.Value(environ, "PAIINIT_AGENT"), launch.Value(environ, "PAIINIT_STATE_DIR"))
}
