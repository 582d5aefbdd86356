package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/pid1"
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
// that this container can tell the other ranks.
func (id *identity) readJob(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("finding the host name: %w", err)
	}
	id.host = host
	in, err := envInput(id.agent.Environ, id.settings.job, host)
	if err != nil {
		return err
	}
	if id.job, err = envspec.Read(ctx, in); err == nil {
		return nil
	}
	if contradiction := contradictionIn(err); contradiction != nil {
		id.job = *contradiction.Job
		return contradiction
	}
	if statedir.UnderPaiinit() { // docker exec, for example, starts this program without the flags of the ENTRYPOINT
		unnamed := identityOf(envspec.Job{Index: -1, Rank: -1, Size: 1}, host, "", id.begin)
		return cmp.Or(unnamed.CheckAlone(id.stateDir), err)
	}
	return err
}

// contradictionIn returns the error of an environment that contradicts itself but identifies its container, else nil.
func contradictionIn(err error) *envspec.VarError {
	var contradiction *envspec.VarError
	if errors.As(err, &contradiction) && contradiction.Job != nil {
		return contradiction
	}
	return nil
}

func envInput(environ []string, flags map[string]string, host string) (envspec.Input, error) {
	in := envspec.Input{
		Environ: environ, Flags: flags, Files: os.DirFS("/"), Resolver: netif.Resolver{}, Hostname: host,
		CPUs: runtime.NumCPU(),
	}
	var err error
	in.Addrs, err = netif.Addrs()
	return in, err
}

// secretError says that the job's secret is missing or unusable.
type secretError struct{ err error }

func (e *secretError) Error() string { return e.err.Error() }
func (e *secretError) Unwrap() error { return e.err }

// deriveKeys derives the keys from the first secret that it finds, and returns where it found that.
func (id *identity) deriveKeys(log *slog.Logger) (source string, err error) {
	secret, source, err := findSecret(id.secretFile, id.agent.Secrets, id.job)
	switch {
	case err != nil:
		return "", &secretError{err}
	case secret != nil:
		id.keys, err = jobkey.Derive(secret, id.job.ID, id.job.Attempt)
		clear(secret)
		if err != nil {
			return "", &secretError{fmt.Errorf("secret of %s: %w", source, err)}
		}
		return source, nil
	case id.job.Size == 1:
		secret = make([]byte, 32)
		_, _ = rand.Read(secret) // never fails, by its documentation
		id.keys, err = jobkey.Derive(secret, id.job.ID, id.job.Attempt)
		return "random, for a single container", err
	case id.insecure:
		id.keys, id.open = jobkey.Insecure(id.job.ID, id.job.Attempt), true
		log.Warn("running without a secret (--insecure): anyone who reaches the port and knows the job's ID "+
			"can run commands in this job", "phase", "identify")
		return "none (--insecure)", nil
	}
	if id.job.Size < 0 {
		return "", &secretError{errors.New("the job has several ranks and no secret")}
	}
	return "", &secretError{fmt.Errorf("the job has %d ranks and no secret", id.job.Size)}
}

// findSecret reads the secret from the file that the command line names, else from the variables of the first process,
// else from the file that the scheduler shares, and returns nil if there is none. The caller clears the secret.
func findSecret(
	name string, variables map[string][]byte, job envspec.Job,
) (secret []byte, source string, err error) {
	if name == "" {
		if s := variables[secretVariable]; len(s) > 0 {
			return trimSecret(s), secretVariable, nil
		}
		if len(job.Secrets) == 0 {
			return nil, "", nil
		}
		name = job.Secrets[0].Name
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, "", fmt.Errorf("reading the secret: %w", err)
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, maxSecretFile) // io.ReadAll would leave copies of the secret in memory as its buffer grows
	n, err := io.ReadFull(f, b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, "", fmt.Errorf("reading the secret: %w", err)
	}
	return trimSecret(b[:n]), name, nil
}

// trimSecret removes the line end that an editor, echo or base64 adds to a file, so that a file and a variable give the
// same secret. Other white space may belong to the secret.
func trimSecret(b []byte) []byte { return bytes.TrimRight(b, "\r\n") }

// maxSecretFile is the number of bytes read of a secret's file. A scheduler's key file has a few KiB.
const maxSecretFile = 1 << 16

// closedList returns the addresses that may connect to the port of a job without a secret: the addresses of all peers
// in its environment. It includes loopback only if a peer has such an address, because every user of a shared host
// network can connect from there. Commands in this container use the local socket, or connect from its listed address.
func (id *identity) closedList() ([]netip.Addr, error) {
	list := []netip.Addr{} // nil would admit all addresses
	for _, p := range id.job.Peers {
		a, err := netip.ParseAddr(p.Host)
		if err != nil {
			return nil, &secretError{fmt.Errorf(
				"--insecure needs the addresses of all containers; %s is known as %q only", p.Alias, p.Host)}
		}
		if a = a.Unmap(); a.Is4() && a.IsLoopback() {
			a = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // the source address of connections to any of 127.0.0.0/8
		}
		list = append(list, a)
	}
	if len(id.job.Seeds) > 0 || len(id.job.Peers) != id.job.Size {
		return nil, &secretError{fmt.Errorf(
			"--insecure needs the addresses of all containers (%s); the environment lists %d",
			sizeText(id.job.Size), len(id.job.Peers))}
	}
	return list, nil
}

func rankText(rank int) string {
	if rank < 0 {
		return "to be agreed"
	}
	return fmt.Sprint(rank)
}

func sizeText(size int) string {
	if size < 0 {
		return "known to rank 0"
	}
	return fmt.Sprint(size)
}

// findCommand finds the path of the command. It fails if this container is rank 0 and has no command.
func (id *identity) findCommand() error {
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
			return &usageError{errors.New("this container is rank 0 and has no COMMAND to run")}
		}
		if id.exec == execAll {
			return &usageError{errors.New("with --exec all every rank needs a COMMAND, and this one has none")}
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

func (id *identity) elapsed() time.Duration { return time.Since(id.begin).Round(time.Microsecond) }
