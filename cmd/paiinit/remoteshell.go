package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/paiinit/paiinit/cmd/paiinit/early"
	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/jobkey"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/netif"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/statedir"
)

const shellHelp = `NAME:
   paiinit rsh - run a command or a shell on another rank; also under the names ssh and rsh

USAGE:
   paiinit rsh [--secret-file FILE] [SSH OPTIONS] [user@]HOST [COMMAND...]

HOST is a name or an address of a rank: see paiinit env, or the host list. The words of COMMAND are joined by spaces and
run by the /bin/sh of that container. Without COMMAND, at a terminal, rsh starts a shell (~. leaves it).

Under the name ssh, a HOST outside of the job is handed to the next ssh in PATH, if there is one, with all its words.

Options are those of OpenSSH's client, before or after HOST. -t, -tt, -T, -n, -s, -e, -p, their -o twins, SetEnv and
SendEnv work as they do there; the other rank accepts LANG, LC_*, TERM and COLORTERM. COMMAND runs as the user of the
other container; user@ may name that user or the caller. The job knows the address, the login and the host key of each
rank, so most other options are ignored. -D, -G, -L, -N, -O, -R, -W, -w and RemoteCommand are refused.

rsh asks the paiinit that started it, else the one that PAIINIT_AGENT or PAIINIT_STATE_DIR names, else the only one that
runs here. If none runs, rsh connects to HOST itself. For that it needs the secret of the job: --secret-file,
PAIINIT_SECRET_FILE, PAIINIT_SECRET, or the key that the scheduler shares.

The exit status is that of COMMAND; 128+n if signal n ended it; 255 if it could not be run or its connection was lost.
`

// remoteShell runs `paiinit rsh`, which launchers call for each host. The paiinit of this container opens the session.
func remoteShell(args, environ []string) int {
	words, handOn := args[1:], func() {}
	if name := filepath.Base(args[0]); name != "ssh" && name != "rsh" {
		words = args[2:]
	} else if other, err := lookPastSelf(name, environ); err == nil {
		handOn = func() { become(other, args, environ) }
		if early.Answer() == nil && isForeign(words, environ) {
			handOn()
		}
	}
	if len(words) == 1 && (words[0] == "--help" || words[0] == "-h" || words[0] == "-help") {
		_, _ = os.Stdout.WriteString(shellHelp)
		return 0
	}
	secretFile, words := ownFlag(words)
	inv, err := rsh.Parse(words)
	if err != nil {
		complain("%v", err)
		return statusUsage
	}
	if inv.Version {
		complain("%s, an ssh for the ranks of a job", version)
		return 0
	}
	if isOwnName(inv.User, environ) {
		inv.User = "" // as if it was not given: the other container's user may have another name
	}
	dir, err := chooseDir(environ, "")
	if err != nil {
		complain("%v", err)
		return statusUsage
	}
	c := rsh.Caller{
		Socket: filepath.Join(dir, statedir.AgentSocket),
		Stdin:  os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Term: lookup(environ, "TERM"), Environ: environ,
		Signals: func() <-chan os.Signal {
			caught := make(chan os.Signal, 16)
			signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
				syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH)
			return caught
		},
		Direct: func(ctx context.Context) (*rsh.Pool, rsh.Agent, error) {
			return direct(ctx, environ, secretFile, inv.Port)
		},
		HandOn: handOn,
	}
	if answer := early.Answer(); answer != nil {
		c.Answer = answer
	}
	return c.Run(context.Background(), inv)
}

// isForeign reports whether a call under the name ssh is for the image's own ssh: it names no host, or a host outside
// of the job. If no paiinit runs here, a call with the job's secret is for the job.
func isForeign(words, environ []string) bool {
	secretFile, words := ownFlag(words)
	inv, err := rsh.Parse(words)
	if err != nil || inv.Version {
		return true
	}
	dir, err := chooseDir(environ, "")
	known := false
	if err == nil {
		known, err = rsh.Known(context.Background(), filepath.Join(dir, statedir.AgentSocket), inv.Host, inv.Command)
	}
	if err != nil {
		known = secretFile != "" || lookup(environ, "PAIINIT_SECRET_FILE") != "" ||
			lookup(environ, secretVariable) != ""
	}
	return !known
}

// isOwnName reports whether name is the login name of this process's user. It also accepts USER and the numeric ID, for
// users without an entry in the user database.
func isOwnName(name string, environ []string) bool {
	uid := strconv.Itoa(os.Getuid())
	if name == "" || name == uid || name == lookup(environ, "USER") {
		return true
	}
	u, err := user.LookupId(uid)
	return err == nil && u.Username == name
}

// lookPastSelf finds the next program of a name in PATH after the link to this program.
func lookPastSelf(name string, environ []string) (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil { // /proc is not mounted
		path, errSelf := os.Executable()
		if errSelf != nil {
			return "", fmt.Errorf("finding this program's own path: %w", errors.Join(err, errSelf))
		}
		if self, err = os.Stat(path); err != nil {
			return "", err
		}
	}
	return launch.LookPast(name, environ, self)
}

// become executes another program in place of this process. If that fails, it reports the error and returns.
func become(path string, args, environ []string) {
	// Package early has requested a signal at the parent's death, which would survive the exec (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0)
	complain("running %s: %v", path, syscall.Exec(path, args, environ))
}

// ownFlag removes --secret-file, the only option that ssh does not have.
func ownFlag(words []string) (secretFile string, rest []string) {
	for i, w := range words {
		if !strings.HasPrefix(w, "-") {
			break
		}
		if v, ok := strings.CutPrefix(w, "--secret-file="); ok {
			return v, slices.Delete(slices.Clone(words), i, i+1)
		}
		if w == "--secret-file" && i+1 < len(words) {
			return words[i+1], slices.Delete(slices.Clone(words), i, i+2)
		}
	}
	return "", words
}

// direct returns connections for a container in which no paiinit runs, inside or outside of the job. It derives the
// keys from the job's secret, and finds a host with the variables about the job or by its name in the network.
func direct(ctx context.Context, environ []string, secretFile string, port int) (*rsh.Pool, rsh.Agent, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, rsh.Agent{}, fmt.Errorf("finding the host name: %w", err)
	}
	in, err := envInput(environ, nil, host)
	if err != nil {
		return nil, rsh.Agent{}, err
	}
	job, err := envspec.Read(ctx, in)
	if err != nil {
		return nil, rsh.Agent{}, err
	}
	if secretFile == "" {
		secretFile = lookup(environ, "PAIINIT_SECRET_FILE")
	}
	given := map[string][]byte{secretVariable: []byte(lookup(environ, secretVariable))}
	secret, source, err := findSecret(secretFile, given, job)
	switch {
	case err != nil:
		return nil, rsh.Agent{}, err
	case secret == nil:
		return nil, rsh.Agent{}, errors.New("the job's secret is unknown here; use --secret-file FILE")
	}
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // this process has the job's keys now
	keys, err := jobkey.Derive(secret, job.ID, job.Attempt)
	clear(secret)
	if err != nil {
		return nil, rsh.Agent{}, fmt.Errorf("secret of %s: %w", source, err)
	}
	pool := newPool(keys, &hostKeys{}, (&settings{}).logger(os.Stderr))
	book := bookOf(nil, job)
	return pool, rsh.Agent{Resolve: func(ctx context.Context, name string) (rsh.Target, bool) {
		addr, ok := book.Locate(ctx, netif.Resolver{}, name, port, job.Port)
		return rsh.Target{Name: name, Addr: addr}, ok
	}}, nil
}

// newPool returns connections to other containers. They log in with the job's key and require a host key of the job.
func newPool(keys *jobkey.Keys, hosts *hostKeys, log *slog.Logger) *rsh.Pool {
	return rsh.New(rsh.Config{
		User:   keys.User(),
		Host:   func(id string) ssh.PublicKey { return hosts.of(keys, id) },
		Label:  keys.Label(),
		Logger: log,
	})
}

// withBin puts the state directory's bin, which has links to this program, first in PATH. Its ssh is for programs such
// as horovodrun, pdsh and git, which find their remote shell only in PATH. Its horovodrun adds the job's hosts. With
// --ssh image the PATH stays unchanged.
func (s *settings) withBin(environ []string, bin string) []string {
	search := lookup(environ, "PATH")
	if first, _, _ := strings.Cut(search, ":"); first == bin || s.ssh == sshImage {
		return environ
	}
	if search == "" {
		search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" // the default of shells
	}
	kept := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool { return strings.HasPrefix(kv, "PATH=") })
	return append(kept, "PATH="+bin+":"+search)
}
