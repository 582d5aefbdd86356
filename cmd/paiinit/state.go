package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
	self, err := ownPath(environ)
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

// ownPath returns the path of this program.
func ownPath(environ []string) (string, error) {
	self, err := os.Executable()
	if err == nil {
		return self, nil
	}
	cwd, errDir := os.Getwd() // os.Executable needs /proc
	self, errLook := launch.Look(os.Args[0], environ, cwd)
	if errLook != nil || errDir != nil {
		return "", fmt.Errorf("finding this program's own path: %w", errors.Join(err, errDir, errLook))
	}
	return self, nil
}

// writeHostfiles writes the host lists in each launcher's format.
func writeHostfiles(d *statedir.Dir, hosts []hostfile.Host) error {
	if err := d.FreeReserve(); err != nil {
		return err
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

// severalError is the error of a process that finds several paiinits to ask.
type severalError struct{ running []statedir.Identity }

func (e *severalError) Error() string {
	var list []string
	for _, id := range e.running {
		list = append(list, id.String())
	}
	return fmt.Sprintf("%d paiinits are running here, say which one with PAIINIT_STATE_DIR: %s",
		len(e.running), strings.Join(list, "; "))
}

// chooseDir returns the state directory of the paiinit that this process asks: the paiinit that the command line
// names, else the paiinit that package statedir finds.
func chooseDir(environ []string, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	dir, several := statedir.Find(lookup(environ, "PAIINIT_AGENT"), lookup(environ, "PAIINIT_STATE_DIR"))
	if several != nil {
		return "", &severalError{several}
	}
	return dir, nil
}
