package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/identify"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/pid1"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
)

// identity is the place of this container in its job, from its command line, its environment and its machine, and the
// keys derived from the job's secret. It does not change once identify has returned.
type identity struct {
	settings
	agent pid1.Agent
	begin time.Time
	first int // PID of the first process, the parent of this one

	host  string
	job   envspec.Job
	nonce string
	keys  *jobkey.Keys // nil for a job of one rank until a command needs them
	open  bool         // --insecure: anyone who knows the job's ID can derive the keys

	log     *slog.Logger
	state   *statedir.Dir
	command string // path of the command, "" when this container has none
}

// readJob reads the scheduler's variables. If they contradict each other, it returns an error and still sets id.job, so
// that this container can tell the other ranks. After other errors id.job has no scheduler.
func (id *identity) readJob(ctx context.Context) (err error) {
	id.job, id.host, err = identify.Job(ctx, id.agent.Environ, id.settings.job)
	if contradiction, ok := errors.AsType[*envspec.VarError](err); ok && contradiction.Job != nil {
		id.job = *contradiction.Job
		return contradiction
	}
	if err != nil && statedir.UnderPaiinit() { // docker exec, for example, without the flags of the ENTRYPOINT
		unnamed := identityOf(envspec.Job{Index: -1, Rank: -1, Size: 1}, id.host, "", id.begin)
		return cmp.Or(unnamed.CheckAlone(id.stateDir), err)
	}
	return err
}

// secretError says that the job's secret is missing or unusable.
type secretError struct{ error }

func (e *secretError) Unwrap() error { return e.error }

// deriveKeys derives the keys from the first secret that it finds, and returns where it found that.
func (id *identity) deriveKeys(log *slog.Logger) (source string, err error) {
	keys, from, err := identify.Keys(id.secretFile, id.agent.Secrets[secretVariable], &id.job)
	id.keys = keys
	switch {
	case err != nil:
		return "", &secretError{err}
	case id.keys != nil:
		return from.Name, nil
	case id.job.Size == 1:
		id.keys = jobkey.Random(id.job.ID, id.job.Attempt)
		return "random, for a single container", nil
	case id.insecure:
		id.keys, id.open = jobkey.Insecure(id.job.ID, id.job.Attempt), true
		log.Warn("running without a secret (--insecure): anyone who reaches the port and knows the job's ID "+
			"can run commands in this job", "phase", "identify")
		return "none (--insecure)", nil
	}
	return "", &secretError{fmt.Errorf("the job has %s ranks and no secret", known(id.job.Size, "several"))}
}

// findCommand finds the path of the command. It fails if flags do not fit the job, or if this container is rank 0 and
// has no command.
func (id *identity) findCommand() error {
	if err := id.checkSpares(); err != nil {
		return err
	}
	if len(id.job.Peers) == id.job.Size { // otherwise rank 0 checks once all roles are known
		var roles []string
		for _, p := range id.job.Peers {
			roles = append(roles, p.Role)
		}
		if err := id.checkUntil(roles); err != nil {
			return err
		}
	}
	if len(id.settings.command) == 0 {
		if id.job.Rank == 0 || id.job.First {
			return &usageError{Err: errors.New("this container is rank 0 and has no COMMAND to run")}
		}
		if id.exec == execAll {
			return cmdline.Errorf("with --exec %s every rank needs a COMMAND, and this one has none", id.whoRuns())
		}
		return nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("finding the working directory: %w", err)
	}
	id.command, err = launch.Look(id.settings.command[0], id.agent.Environ, dir)
	if look := (*launch.LookError)(nil); errors.As(err, &look) && look.Status == 127 && mistyped(look.Name) != "" {
		if o := id.state.Beside(id.stateDir); o != nil { // probably a mistyped subcommand for that paiinit
			return &statedir.RunningError{Owner: *o}
		}
	}
	if err != nil && id.job.Rank > 0 && id.exec == execRank0 {
		id.log.Debug("this rank cannot run its command, and does not need to: only rank 0 runs it",
			"phase", "identify", "err", err)
		id.command = ""
		return nil
	}
	return err
}

// routine logs a step of a healthy launch. A container that is its whole job is silent while nothing is wrong.
func (id *identity) routine(message string, args ...any) {
	level := slog.LevelInfo
	if id.job.Size == 1 {
		level = slog.LevelDebug
	}
	id.log.Log(context.Background(), level, message, args...)
}

// display returns the name of this container for people.
func (id *identity) display() string { return rendezvous.Display(id.job.Name, id.job.Alias) }

func (id *identity) elapsed() time.Duration { return time.Since(id.begin).Round(time.Microsecond) }
