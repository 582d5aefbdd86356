package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/joblog"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/stderrlog"
)

// Which program is called ssh in the job (--ssh).
const (
	sshOwn   = "own"
	sshImage = "image"
)

// The processes that get a signal for the command (--signal).
const (
	signalLeader = "leader" // COMMAND, through shells
	signalGroup  = "group"  // its whole process group
)

const secretVariable = early.SecretVariable

// settings are the command line and its environment twins, as far as they are about this program. Flags about the job
// go to envspec under the names of its variables.
type settings struct {
	command []string // COMMAND ARG...
	dir     string   // working directory at start, which COMMAND gets; "" = unknown

	job map[string]string // flags about the job, by PAIINIT_ variable

	timeout  time.Duration
	stateDir string

	loginSettings
	commandSettings

	logFormat string
	logLevel  slog.Level
	stderr    *stderrlog.Log
	unnamed   *slog.Logger // the log before this container knows its name; nil = the command line is wrong
}

// loginSettings say who may log in to this container, and with which keys.
type loginSettings struct {
	secretFile string
	keysFile   string
	insecure   bool
	people     string
}

// commandSettings say on which ranks and how COMMAND runs, and which launchers and networks it may use.
type commandSettings struct {
	exec         string
	signal       string
	until        string // of launch.Needed; roles are sorted
	grace        time.Duration
	allowPartial bool
	sameLauncher bool
	networkHints string
	rdma         string
	ssh          string
}

// usageError is a mistake on the command line.
type usageError = cmdline.UsageError

// jobFlags returns the flags about the job. Package envspec reads their twins.
func jobFlags() []cli.Flag {
	return []cli.Flag{
		cmdline.Text(nil, "system", "NAME", "name of the scheduler, if the detected one is wrong", ""),
		cmdline.Text(nil, "job", "ID", "ID of the job, the same in all its containers", ""),
		cmdline.Text(nil, "attempt", "ID", "ID of this attempt of the job, the same in all its containers", ""),
		cmdline.Text(nil, "role", "NAME", "role of this container, such as worker", ""),
		cmdline.Text(nil, "index", "NUMBER", "index of this container within its role, from 0", ""),
		cmdline.Text(nil, "rank", "NUMBER", "rank of this container within the job, from 0", ""),
		cmdline.Text(nil, "size", "NUMBER", "number of containers of the job", ""),
		cmdline.Text(nil, "peers", "LIST", "containers of the job: HOST[:PORT],... or @FILE or dns:NAME,dns:NAME", ""),
		cmdline.Text(nil, "slots", "NUMBER", "number of processes that a launcher may start here", ""),
		cmdline.Text(nil, "port", "NUMBER", "port for SSH and gossip, TCP and UDP",
			"the scheduler's ssh port, else 12345; 12345 to 12408 under Slurm"),
	}
}

// ownFlags returns the flags of run about paiinit itself, which set s. An empty twin means the default.
func ownFlags(s *settings) []cli.Flag {
	return []cli.Flag{
		cmdline.Text(&s.secretFile, "secret-file", "FILE", "file with the job's secret, or the secret itself in "+
			"PAIINIT_SECRET; make one with: head -c 32 /dev/urandom | base64", ""),
		cmdline.Bool(&s.insecure, "insecure",
			"run without a secret: every host that reaches the port and knows the job's ID can join"),
		cmdline.Text(&s.keysFile, "authorized-keys", "FILE",
			"file with keys of people who may log in from outside: shell, commands, scp, sftp", ""),
		cmdline.Choice(&s.people, "people", "WHERE", "where people who have logged in may run commands: "+
			"job (on all ranks) or local (in this container only)", peopleJob, peopleLocal),
		cmdline.Bool(&s.sameLauncher, "require-same-launcher",
			"refuse to launch if ranks have different versions of mpirun or mpiexec"),
		cmdline.Bool(&s.allowPartial, "allow-partial", "accept a launcher that used fewer hosts than it was asked to"),
		cmdline.Duration(&s.timeout, "timeout", "how long to wait for all ranks (0 = forever)", 10*time.Minute, "10m"),
		cmdline.Duration(&s.grace, "grace", "how long COMMAND may go on after SIGTERM before it gets SIGKILL "+
			"(0 = SIGKILL at once)", 8*time.Second, "8s"),
		cmdline.Choice(&s.exec, "exec", "RANKS", "which ranks run COMMAND: rank0 or all", execRank0, execAll),
		cmdline.Choice(&s.signal, "signal", "TARGET", "which processes get signals: "+
			"leader (COMMAND alone, through shells) or group (its whole process group)", signalLeader, signalGroup),
		cmdline.Text(&s.until, "until", "ROLES", "roles that end the job once all their commands have exited with 0, "+
			"such as chief,worker; or rank0", "all but ps, server and evaluator"),
		cmdline.Choice(&s.networkHints, "network-hints", "MODE",
			"whether to tell launchers and libraries which network the ranks share: auto or off", hintsAuto, hintsOff),
		cmdline.Choice(&s.rdma, "rdma", "MODE", "whether to use verbs devices: auto, require or off",
			rdmaAuto, rdmaRequire, rdmaOff),
		cmdline.Choice(&s.ssh, "ssh", "WHICH", "first ssh in the job's PATH: "+
			"own (hands hosts outside of the job to the image's ssh) or image", sshOwn, sshImage),
		cmdline.Choice(&s.logFormat, "log-format", "FORMAT", "format of the log: text (for people), logfmt or json",
			string(joblog.FormatText), string(joblog.FormatLogfmt), string(joblog.FormatJSON)),
		cmdline.Choice(new(string), "log-level", "LEVEL",
			"least severe level that is logged: debug, info, warn or error", "info", "debug", "warn", "error"),
		cmdline.Text(&s.stateDir, "state-dir", "DIR", "directory for the host list and the agent's socket",
			"/run/paiinit, or a directory of this job in /dev/shm or TMPDIR"),
	}
}

// logTo returns a handler that writes the log to w as the settings and the terminal on standard error want it.
func (s *settings) logTo(environ []string) func(w io.Writer) slog.Handler {
	return func(w io.Writer) slog.Handler {
		return joblog.On(os.Stderr, environ).Handler(w, joblog.Format(s.logFormat), s.logLevel)
	}
}

func runFlags() []cli.Flag { return append(jobFlags(), ownFlags(new(settings))...) }

// complete sets what the flags of run do not set by themselves.
func (s *settings) complete(c *cli.Context) error {
	s.command, s.job = c.Args().Slice(), givenJobFlags(c)
	s.dir, _ = os.Getwd() // a caller that needs it reports the error
	s.keysFile, s.stateDir = s.absolute(s.keysFile), s.absolute(s.stateDir)
	until := s.until
	s.until = untilOf(until)
	if s.until != "" && s.until != launch.UntilRank0 && s.exec != execAll {
		return cmdline.Errorf("--until (%s) is %q: it needs --exec all", cmdline.Twin("until"), until)
	}
	return s.logLevel.UnmarshalText([]byte(c.String("log-level")))
}

// givenJobFlags returns the flags about the job on the command line, under the names of their twins.
func givenJobFlags(c *cli.Context) map[string]string {
	given := make(map[string]string)
	for _, f := range jobFlags() {
		if name := f.Names()[0]; c.IsSet(name) {
			given[cmdline.Twin(name)] = c.String(name)
		}
	}
	return given
}

// absolute makes a path absolute. Relative paths start at the first working directory, which the agent leaves.
func (s *settings) absolute(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(s.dir, name)
}

// runArgs returns the command line with "run" as its first word.
func runArgs(args []string) []string {
	rest := args[1:]
	if len(rest) > 0 && rest[0] == "run" {
		rest = rest[1:]
	}
	return append([]string{args[0], "run"}, rest...)
}

func newApp(environ []string, action func(context.Context, settings) error) *cli.App {
	var s settings
	commands := append([]*cli.Command{
		{
			Name: "run",
			Usage: "wait for all ranks, then run COMMAND on rank 0, or with --exec all on every rank " +
				"(the default command)",
			ArgsUsage: "[--] COMMAND [ARG...]",
			Flags:     append(jobFlags(), ownFlags(&s)...),
			Before: func(c *cli.Context) error {
				twin := func(variable string) string { return launch.Value(environ, variable) }
				return cmdline.SetTwins(c, ownFlags(new(settings)), twin)
			},
			Action: func(c *cli.Context) error {
				if err := s.complete(c); err != nil {
					return err
				}
				return action(c.Context, s)
			},
		},
		{
			Name: "rsh", ArgsUsage: "HOST [COMMAND...]",
			Usage: "run a command or a shell on another rank; also under the names ssh and rsh",
		},
		eachCommand(environ),
		envCommand(environ),
		rdmaCommand(environ),
		sftpCommand(),
		{Name: "version", Usage: "print the versions of paiinit and Go", Action: showVersion},
	}, questions(environ)...)
	for _, c := range commands {
		c.UsageText = strings.TrimSpace("paiinit " + c.Name + " [options] " + c.ArgsUsage)
		c.Flags = append(c.Flags, cmdline.Help())
		c.HideHelp, c.OnUsageError = true, cmdline.OnUsageError
		c.Subcommands = []*cli.Command{} // with nil, the library takes the words for help topics
		for _, f := range c.Flags {
			if f, ok := f.(*cli.BoolFlag); ok {
				f.DisableDefaultText = true
			}
		}
	}
	return &cli.App{
		Name:  "paiinit",
		Usage: "start a distributed job once all its containers are present, and end them all with the same status",
		UsageText: "paiinit [run] [FLAGS] [--] COMMAND [ARG...]\n" +
			"paiinit rsh HOST COMMAND...\npaiinit each [--ranks LIST] -- COMMAND...\n" +
			"paiinit status | wait | barrier NAME | hosts | hostfile\npaiinit env | rdma [--json] | version",
		HideHelp:             true,
		Flags:                []cli.Flag{cmdline.Help()},
		EnableBashCompletion: true,
		ExitErrHandler:       func(*cli.Context, error) {},
		OnUsageError:         cmdline.OnUsageError,
		CommandNotFound:      func(c *cli.Context, _ string) { _ = cli.ShowSubcommandHelp(c) },
		Commands:             commands,
	}
}
