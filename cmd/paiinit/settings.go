package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/paiinit/paiinit/cmd/paiinit/early"
	"github.com/paiinit/paiinit/stderrlog"
)

// Which program is called ssh in the job (--ssh).
const (
	sshOwn   = "own"
	sshImage = "image"
)

const secretVariable = early.SecretVariable

// settings are what the command line and its environment twins say about this program itself. What they say about the
// job goes to envspec by the names of its variables.
type settings struct {
	command []string // COMMAND ARG...
	dir     string   // where this program was started, and COMMAND starts; "" = cannot be told

	job map[string]string // flags about the job, by PAIINIT_ variable

	secretFile   string
	keysFile     string
	insecure     bool
	allowPartial bool
	sameLauncher bool
	timeout      time.Duration
	grace        time.Duration
	exec         string
	signal       string
	until        string // untilRank0, or roles in lower case, sorted, with commas between; "" = all that do not serve
	networkHints string
	rdma         string
	ssh          string
	logFormat    string
	logLevel     slog.Level
	stateDir     string
	people       string

	stderr *stderrlog.Log // where the log goes; nil: standard error itself
}

// jobFlags are the flags that envspec understands, with the variables that are their twins.
func jobFlags() []cli.Flag {
	var flags []cli.Flag
	for _, f := range [][2]string{
		{"system", "`NAME` of the scheduler, when the detected one is wrong"},
		{"job", "`ID` of the job, the same in all its containers"},
		{"attempt", "`ID` of this attempt of the job, the same in all its containers"},
		{"role", "`NAME` of this container's role, such as worker"},
		{"index", "`NUMBER` of this container within its role, from 0"},
		{"rank", "`NUMBER` of this container within the job, from 0"},
		{"size", "`NUMBER` of containers of the job"},
		{"peers", "`LIST` of containers: HOST[:PORT],... or @FILE or dns:NAME,dns:NAME"},
		{"slots", "`NUMBER` of processes that a launcher may start here"},
		{"port", "`NUMBER` of the one port for SSH and gossip, TCP and UDP " +
			"(default: the scheduler's ssh port, else 12345; 12345 to 12408 under Slurm)"},
	} {
		flags = append(flags, &cli.StringFlag{Name: f[0], Usage: f[1] + " (PAIINIT_" + strings.ToUpper(f[0]) + ")"})
	}
	return flags
}

func runFlags() []cli.Flag {
	return append(jobFlags(),
		&cli.StringFlag{Name: "secret-file", Usage: "`FILE` with the job's secret: head -c 32 /dev/urandom | base64 (PAIINIT_SECRET_FILE; or the secret itself in PAIINIT_SECRET)"},
		&cli.BoolFlag{Name: "insecure", Usage: "run without a secret: anybody who reaches the port and knows the job id takes part (PAIINIT_INSECURE)"},
		&cli.StringFlag{Name: "authorized-keys", Usage: "`FILE` with keys of people who may log in from outside: shell, commands, scp, sftp (PAIINIT_AUTHORIZED_KEYS)"},
		&cli.StringFlag{Name: "people", Usage: "`WHERE` people who have logged in may run commands: " +
			"job, on all ranks, or local, in this container only (PAIINIT_PEOPLE; default job)"},
		&cli.BoolFlag{Name: "require-same-launcher", Usage: "refuse to launch where mpirun or mpiexec is not of the same version on all ranks (PAIINIT_REQUIRE_SAME_LAUNCHER)"},
		&cli.BoolFlag{Name: "allow-partial", Usage: "accept that a launcher has used fewer hosts than it was asked to (PAIINIT_ALLOW_PARTIAL)"},
		&cli.StringFlag{Name: "timeout", Usage: "`TIME` for all ranks to come; 0 = no limit (PAIINIT_TIMEOUT; default 10m)"},
		&cli.StringFlag{Name: "grace", Usage: "`TIME` between SIGTERM and SIGKILL for the command; " +
			"0 = SIGKILL at once (PAIINIT_GRACE; default 8s)"},
		&cli.StringFlag{Name: "exec", Usage: "`WHO` runs COMMAND: rank0, or all, each on its own host (PAIINIT_EXEC; default rank0)"},
		&cli.StringFlag{Name: "signal", Usage: "`TARGET` of signals: leader (COMMAND alone, through shells) " +
			"or group (its whole process group) (PAIINIT_SIGNAL; default leader)"},
		&cli.StringFlag{Name: "until", Usage: "`ROLES` that end the job once their commands have ended with 0, " +
			"such as chief,worker; or rank0 (PAIINIT_UNTIL; default all but ps, server and evaluator)"},
		&cli.StringFlag{Name: "network-hints", Usage: "`WHAT` to tell launchers and libraries of the network " +
			"that the ranks share: auto or off (PAIINIT_NETWORK_HINTS; default auto)"},
		&cli.StringFlag{Name: "rdma", Usage: "`WHAT` to do about verbs devices: auto, require or off (PAIINIT_RDMA; default auto)"},
		&cli.StringFlag{Name: "ssh",
			Usage: "`WHICH` program is ssh in the job's PATH: own (hosts outside of the job go to the image's ssh), " +
				"or image (PAIINIT_SSH; default own)"},
		&cli.StringFlag{Name: "log-format", Usage: "text or json (PAIINIT_LOG_FORMAT; default text)"},
		&cli.StringFlag{Name: "log-level", Usage: "debug, info, warn or error (PAIINIT_LOG_LEVEL; default info)"},
		&cli.StringFlag{Name: "state-dir", Usage: "`DIR` for the host list and the agent's socket " +
			"(PAIINIT_STATE_DIR; default /run/paiinit, or a directory of this job in /dev/shm or TMPDIR)"},
	)
}

// usageError is a mistake on the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// newSettings reads the flags of c, and for those that are not given their twins in environ.
func newSettings(c *cli.Command, environ []string) (settings, error) {
	s := settings{command: c.Args().Slice(), job: make(map[string]string)}
	for _, f := range jobFlags() {
		name := f.Names()[0]
		if c.IsSet(name) {
			s.job[twin(name)] = c.String(name)
		}
	}
	get := func(name, fallback string) string {
		if c.IsSet(name) {
			return c.String(name)
		}
		if v := lookup(environ, twin(name)); v != "" {
			return v
		}
		return fallback
	}
	var errs []error
	duration := func(name, fallback string) time.Duration {
		v := get(name, fallback)
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 {
			if v == "0" {
				return 0
			}
			errs = append(errs, fmt.Errorf("--%s (%s) is %q: want a time such as 90s or 10m", name, twin(name), v))
		}
		return d
	}
	oneOf := func(name string, values ...string) string {
		v := get(name, values[0])
		if !slices.Contains(values, v) {
			errs = append(errs, fmt.Errorf("--%s (%s) is %q: want one of %s", name, twin(name), v, strings.Join(values, ", ")))
		}
		return v
	}
	s.dir, _ = os.Getwd() // who needs it says why there is none
	s.secretFile = get("secret-file", "")
	s.keysFile = s.absolute(get("authorized-keys", ""))
	s.timeout = duration("timeout", "10m")
	s.grace = duration("grace", "8s")
	s.exec = oneOf("exec", execRank0, execAll)
	s.signal = oneOf("signal", signalLeader, signalGroup)
	s.until = untilOf(get("until", ""))
	if s.until != "" && s.until != untilRank0 && s.exec != execAll {
		errs = append(errs, fmt.Errorf("--until (%s) is %q: it needs --exec all", twin("until"), get("until", "")))
	}
	s.people = oneOf("people", peopleJob, peopleLocal)
	s.networkHints = oneOf("network-hints", hintsAuto, hintsOff)
	s.rdma = oneOf("rdma", rdmaAuto, rdmaRequire, rdmaOff)
	s.ssh = oneOf("ssh", sshOwn, sshImage)
	s.logFormat = oneOf("log-format", "text", "json")
	s.stateDir = s.absolute(get("state-dir", ""))
	if err := s.logLevel.UnmarshalText([]byte(oneOf("log-level", "info", "debug", "warn", "error"))); err != nil {
		errs = append(errs, err)
	}
	yes := func(name string) bool {
		v := lookup(environ, twin(name))
		if v == "" || c.IsSet(name) {
			return c.Bool(name)
		}
		b, err := strconv.ParseBool(v)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is %q: want true or false", twin(name), v))
		}
		return b
	}
	s.insecure = yes("insecure")
	s.allowPartial = yes("allow-partial")
	s.sameLauncher = yes("require-same-launcher")
	if err := errors.Join(errs...); err != nil {
		return settings{}, &usageError{err}
	}
	return s, nil
}

// logOutput is where the log goes.
func (s *settings) logOutput() io.Writer {
	if s.stderr == nil {
		return os.Stderr
	}
	return s.stderr
}

// lostText tells how much of the log was dropped.
func (s *settings) lostText(lines int) []byte {
	var b bytes.Buffer
	s.logger(&b).Warn("standard error was not read, log lines were dropped", "lines", lines)
	return b.Bytes()
}

// logger writes to standard error only: standard output belongs to the job.
func (s *settings) logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: s.logLevel}
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// absolute completes a path that begins at the directory in which this program was started: the agent leaves that.
func (s *settings) absolute(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(s.dir, name)
}

func twin(flag string) string {
	return "PAIINIT_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// lookup gives the first value of a variable, as getenv does.
func lookup(environ []string, name string) string {
	for _, kv := range environ {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v
		}
	}
	return ""
}

// commandOf tells which command of this program is meant; without one, and for everything after "--", it is run.
func commandOf(args []string) string {
	if len(args) < 2 || !slices.Contains(early.Commands(), args[1]) {
		return "run"
	}
	switch args[1] {
	case "--help", "-h", "-help":
		return "help"
	case "--version", "-v", "-version":
		return "version"
	}
	return args[1]
}

// runArgs is the command line with the command spelled out, and COMMAND kept apart: it is never taken for a command of ours,
// nor its arguments for flags.
func runArgs(args []string) []string {
	rest := args[1:]
	if len(rest) > 0 && rest[0] == "run" {
		rest = rest[1:]
	}
	return append([]string{args[0], "run"}, apart(runFlags(), rest)...)
}

// apart puts "--" before the first argument that is no flag, nor the value of one. What follows is passed on as it is:
// without it, the library would go on to look for flags in there.
func apart(flags []cli.Flag, args []string) []string {
	i := firstWord(flags, args)
	if i == len(args) || args[i] == "--" {
		return args
	}
	return slices.Insert(slices.Clone(args), i, "--")
}

// firstWord is the place of the first argument that is no flag, nor the value of one: of "--", if there is one.
func firstWord(flags []cli.Flag, args []string) int {
	valued := make(map[string]bool)
	for _, f := range flags {
		for _, name := range f.Names() {
			d, ok := f.(cli.DocGenerationFlag)
			valued[name] = ok && d.TakesValue()
		}
	}
	for i := 0; i < len(args); i++ {
		switch name := strings.TrimLeft(args[i], "-"); {
		case args[i] == "--" || args[i] == "-" || !strings.HasPrefix(args[i], "-"):
			return i
		case valued[name]:
			i++ // an equals sign in it would be part of the name
		}
	}
	return len(args)
}

func newApp(environ []string, action func(context.Context, settings) error) *cli.Command {
	usage := func(_ context.Context, _ *cli.Command, err error, _ bool) error { return &usageError{err} }
	return &cli.Command{
		Name:  "paiinit",
		Usage: "start a distributed job when all of its containers are there, and end them all with the same status",
		UsageText: "paiinit [run] [FLAGS] [--] COMMAND [ARG...]\npaiinit rsh HOST COMMAND...\npaiinit each [--ranks LIST] -- COMMAND...\n" +
			"paiinit status | wait | barrier NAME | hosts | hostfile\npaiinit env | rdma [--json] | version",
		Version:         version,
		HideVersion:     true,
		HideHelpCommand: true,
		Writer:          os.Stdout,
		ErrWriter:       os.Stderr,
		ExitErrHandler:  func(context.Context, *cli.Command, error) {},
		OnUsageError:    usage,
		Commands: append([]*cli.Command{
			{
				Name:            "run",
				Usage:           "gather all ranks; rank 0, or with --exec all every rank, then runs COMMAND (the default command)",
				ArgsUsage:       "[--] COMMAND [ARG...]",
				Flags:           runFlags(),
				HideHelpCommand: true,
				OnUsageError:    usage,
				Action: func(ctx context.Context, c *cli.Command) error {
					s, err := newSettings(c, environ)
					if err != nil {
						return err
					}
					return action(ctx, s)
				},
			},
			{Name: "rsh", Usage: "run a command on another rank, as mpirun does; also when called by the name ssh or rsh", ArgsUsage: "[OPTIONS] HOST COMMAND..."},
			eachCommand(environ, usage),
			envCommand(environ, usage),
			rdmaCommand(environ, usage),
			sftpCommand(),
			{Name: "version", Usage: "version and Go version", Action: showVersion},
		}, questions(environ)...),
	}
}
