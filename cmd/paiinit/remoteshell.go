package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/identify"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/statedir"
)

// remoteShell runs `paiinit rsh`, which launchers call for each host. The paiinit of this container opens the session.
func remoteShell(args, environ []string) int {
	words, name := args[1:], filepath.Base(args[0])
	other := "" // the image's own ssh, if there is one
	if name == "ssh" || name == "rsh" {
		other, _ = launch.LookPastSelf(name, environ)
	} else {
		words = args[2:]
	}
	inv, secretFile, err := rsh.CommandLine(words, environ)
	secretFile = cmp.Or(secretFile, launch.Value(environ, "PAIINIT_SECRET_FILE"))
	var dir string
	var dirErr error
	if err == nil && !inv.Version {
		dir, dirErr = chooseDir(environ, "")
	}
	socket := filepath.Join(dir, statedir.AgentSocket)
	handOn := func() {}
	if other != "" {
		handOn = func() { complain("%v", launch.Become(other, args, environ)) }
		hasSecret := secretFile != "" || launch.Value(environ, secretVariable) != ""
		if early.Answer() == nil && (err != nil || inv.Version || isForeign(inv, socket, dirErr, hasSecret)) {
			handOn()
		}
	}
	switch {
	case len(words) == 1 && (words[0] == "--help" || words[0] == "-h" || words[0] == "-help"):
		_, _ = os.Stdout.WriteString(rsh.Help)
		return 0
	case err == nil && inv.Version:
		complain("%s, an ssh for the ranks of a job", version)
		return 0
	}
	if err != nil {
		err = &usageError{Err: err}
	}
	if err := cmp.Or(err, dirErr); err != nil {
		complainOf(err, "rsh", nil)
		return statusUsage
	}
	c := rsh.Caller{
		Socket: socket, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Term: launch.Value(environ, "TERM"),
		Environ: environ, Signals: rsh.CatchSignals, HandOn: handOn,
		Direct: func(ctx context.Context) (*rsh.Pool, rsh.Agent, error) {
			return direct(ctx, environ, secretFile, inv.Port)
		},
	}
	if answer := early.Answer(); answer != nil {
		c.Answer = answer
	}
	return c.Run(context.Background(), inv)
}

// isForeign reports whether a call under the name ssh is for the image's own ssh: it names no host, or a host outside
// of the job. If no paiinit runs here (err, or no answer), a call with the job's secret is for the job.
func isForeign(inv rsh.Invocation, socket string, err error, hasSecret bool) bool {
	known := false
	if err == nil {
		known, err = rsh.Known(context.Background(), socket, inv.Host, inv.Command)
	}
	return !known && (err == nil || !hasSecret)
}

// direct returns connections for a container in which no paiinit runs, inside or outside of the job. It derives the
// keys from the job's secret, and finds a host with the variables about the job or by its name in the network.
func direct(ctx context.Context, environ []string, secretFile string, port int) (*rsh.Pool, rsh.Agent, error) {
	job, _, err := identify.Job(ctx, environ, nil)
	if err != nil {
		return nil, rsh.Agent{}, err
	}
	keys, _, err := identify.Keys(secretFile, []byte(launch.Value(environ, secretVariable)), &job)
	if keys == nil {
		unknown := errors.New("the job's secret is unknown here; use --secret-file FILE")
		return nil, rsh.Agent{}, cmp.Or(err, unknown)
	}
	pool := rsh.New(poolConfig(keys, job.Size, slog.New(slog.NewTextHandler(os.Stderr, nil))))
	book := bookOf(nil, job)
	return pool, rsh.Agent{Resolve: func(ctx context.Context, name string) (rsh.Target, bool) {
		addr, ok := book.Locate(ctx, netif.Resolver{}, name, port, job.Port)
		return rsh.Target{Name: name, Addr: addr}, ok
	}}, nil
}

// poolConfig returns the settings of connections to other containers of a job with size ranks. They log in with the
// job's key and require a host key of the job.
func poolConfig(keys *jobkey.Keys, size int, log *slog.Logger) rsh.Config {
	return rsh.Config{
		User: keys.User(), Host: keys.HostKeys(), Label: keys.Label(), Logger: log,
		Patience: rendezvous.LoginPatience(size),
	}
}
