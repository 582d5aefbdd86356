// Package identify finds out, with this machine's means, which container of which job this is, and examines the
// container for a launch.
//
// The packages below it know one matter each: variables, secrets, keys, launchers, networks, devices. This package
// hands them this machine's files, names and addresses, in the same way for a launch and for the commands that only
// ask.
package identify

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/secret"
)

// Job reads the variables and flags about the job on this machine, and returns the machine's host name.
func Job(ctx context.Context, environ []string, flags map[string]string) (job envspec.Job, host string, err error) {
	in := envspec.Input{
		Environ: environ, Flags: flags, Files: os.DirFS("/"), Resolver: netif.Resolver{}, CPUs: runtime.NumCPU(),
	}
	if in.Hostname, err = os.Hostname(); err != nil {
		return job, "", fmt.Errorf("finding the host name: %w", err)
	}
	if in.Addrs, err = netif.Addrs(); err == nil {
		job, err = envspec.Read(ctx, in)
	}
	return job, in.Hostname, err
}

// secretVariable is the name of the variable that may have the job's secret.
const secretVariable = "PAIINIT_SECRET"

// Source says where a secret is and how long it is.
type Source struct {
	Name  string // the file or the variable; "" = there is no secret
	Bytes int
}

// Keys derives the keys from the first secret that it finds: in the named file, the value of PAIINIT_SECRET, or what
// the scheduler shares. The keys are nil if there is none.
func Keys(file string, variable []byte, job *envspec.Job) (keys *jobkey.Keys, from Source, err error) {
	shared := ""
	if len(job.Secrets) > 0 {
		shared = job.Secrets[0].Name
	}
	found, file, err := secret.Find(file, variable, shared)
	if err != nil || found == nil {
		return nil, from, err
	}
	defer clear(found)
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // no other process may read its keys now
	from = Source{cmp.Or(file, secretVariable), len(found)}
	if keys, err = jobkey.Derive(found, job.ID, job.Attempt); err != nil {
		return nil, Source{}, fmt.Errorf("secret of %s: %w", from.Name, err)
	}
	return keys, from, nil
}
