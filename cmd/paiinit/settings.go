package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/early"
	"github.com/paiinit/paiinit/inspect"
	"github.com/paiinit/paiinit/joblog"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/rsh"
	"github.com/paiinit/paiinit/statedir"
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

	job     map[string]string // flags about the job, by PAIINIT_ variable
	unknown []string          // variables that look like one of paiinit's and are none

	timeout  time.Duration
	stateDir string
	report   string // directory; "" = none

	loginSettings
	commandSettings

	logFormat string
	logLevel  slog.Level
	stderr    *stderrlog.Log
}

// loginSettings say who may log in to this container, with which keys, and whether its port answers probes.
type loginSettings struct {
	secretFile string
	keysFile   string
	insecure   bool
	http       bool
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
	compare      string // --check
	preflight    string
	argumentSettings
	restartSettings
	hangSettings
}

// usageError is a mistake on the command line.
type usageError = cmdline.UsageError

// jobFlags returns the flags about the job. Package envspec reads their twins.
func jobFlags() []cli.Flag {
	return append(cmdline.In(cmdline.Who,
		cmdline.Text(nil, "role", "NAME", "role of this container, such as worker", ""),
		cmdline.Text(nil, "index", "NUMBER", "index of this container within its role, from 0", ""),
		cmdline.Text(nil, "rank", "NUMBER", "rank of this container within the job, from 0", ""),
		cmdline.Text(nil, "size", "NUMBER", "number of containers of the job", ""),
		cmdline.Text(nil, "peers", "LIST", "all containers: HOST[:PORT],... @FILE or dns:NAME", ""),
		cmdline.Text(nil, "slots", "NUMBER", "number of processes that a launcher may start here", ""),
		cmdline.Text(nil, "job", "ID", "ID of the job, the same in all its containers", ""),
		cmdline.Text(nil, "attempt", "ID", "ID of this attempt, the same in all its containers", ""),
		cmdline.Text(nil, "system", "NAME", "name of the scheduler, if the detected one is wrong", ""),
	), cmdline.In(cmdline.Network,
		cmdline.Text(nil, "port", "NUMBER", "port, TCP and UDP", "the scheduler's or 12345"),
	)...)
}

// ownFlags returns the flags of run about paiinit itself, which set s. An empty twin means the default.
func ownFlags(s *settings) []cli.Flag {
	return slices.Concat(cmdline.In(cmdline.What,
		cmdline.Choice(&s.exec, "exec", "RANKS", "who runs COMMAND: rank0, all, leader",
			execRank0, execAll, execLeader),
		cmdline.Duration(&s.timeout, "timeout", "wait for all ranks, 0 = forever", 10*time.Minute, "10m"),
		cmdline.Bool(&s.sameLauncher, "require-same-launcher", "refuse ranks with different versions of mpirun"),
		cmdline.Choice(&s.compare, "check", "MODE", "differences: warn, require or off",
			inspect.CheckWarn, inspect.CheckRequire, inspect.CheckOff),
		cmdline.Text(&s.preflight, "preflight", "COMMAND", "shell command that must succeed on all ranks", ""),
		cmdline.Choice(&s.ssh, "ssh", "WHICH", "first ssh in PATH: own or image", sshOwn, sshImage),
	), cmdline.In(cmdline.Leader,
		cmdline.Bool(&s.template, "template", "replace words such as {rank} in arguments"),
		cmdline.Text(&s.leaderArgs, "leader-args", "ARGS", "more arguments of COMMAND on rank 0", ""),
		cmdline.Text(&s.workerArgs, "worker-args", "ARGS", "more arguments of COMMAND on other ranks", ""),
		cmdline.Text(&s.ready, "ready", "CHECK", "start others after tcp:, http: or file: of rank 0", ""),
		cmdline.Text(&s.firstLine, "first", "COMMAND", "shell command on rank 0 before the others", ""),
	), cmdline.In(cmdline.Network,
		cmdline.Text(&s.secretFile, "secret-file", "FILE", "file with the job's secret (or PAIINIT_SECRET)", ""),
		cmdline.Bool(&s.insecure, "insecure", "no secret: every host that reaches the port can join"),
		cmdline.Bool(&s.http, "http", "the port also answers /livez, /readyz and /metrics"),
		cmdline.Text(&s.keysFile, "authorized-keys", "FILE", "keys of people who may log in from outside", ""),
		cmdline.Choice(&s.people, "people", "WHERE", "where they may run: job or local", peopleJob, peopleLocal),
		cmdline.Choice(&s.networkHints, "network-hints", "MODE", "set launchers' network: auto or off",
			hintsAuto, hintsOff),
		cmdline.Choice(&s.rdma, "rdma", "MODE", "verbs devices: auto, require or off", rdmaAuto, rdmaRequire, rdmaOff),
	), cmdline.In(cmdline.End,
		cmdline.Duration(&s.grace, "grace", "time from SIGTERM to SIGKILL, 0 = none", 8*time.Second, "8s"),
		cmdline.Choice(&s.signal, "signal", "TARGET", "what gets signals: leader or group", signalLeader, signalGroup),
		cmdline.Text(&s.until, "until", "ROLES", "roles that end the job (with --exec all), or rank0", ""),
		cmdline.Bool(&s.allowPartial, "allow-partial", "accept a launcher that used too few hosts"),
		cmdline.Text(&s.restarts, "restarts", "NUMBER", "in-place restarts, or unlimited", "0"),
	), cmdline.In(cmdline.Restart,
		cmdline.Choice(&s.restartOn, "restart-on", "CAUSES", "restart on any failure or on lost", "any", "lost"),
		cmdline.Text(&s.noRestartOn, "no-restart-on", "STATUSES", "no restart after these, such as 2,93", ""),
		cmdline.Duration(&s.restartGrace, "restart-grace", "SIGTERM to SIGKILL before a restart", 2*time.Second, "2s"),
		cmdline.Duration(&s.hang, "hang", "fail after so long without progress", 0, "never"),
		cmdline.Duration(&s.rejoin, "rejoin", "time for a lost container to return", 10*time.Minute, "10m"),
		cmdline.Text(&s.spareText, "spares", "NUMBER", "last containers, which replace lost ones", "0"),
		cmdline.Duration(&s.restartReset, "restart-reset", "a run this long renews the restarts",
			10*time.Minute, "10m"),
		cmdline.Text(&s.progressFile, "progress-file", "FILE", "file whose change is progress, too", ""),
	), cmdline.In(cmdline.Log,
		cmdline.Choice(&s.logFormat, "log-format", "FORMAT", "text, logfmt or json", "text", "logfmt", "json"),
		cmdline.Choice(new(string), "log-level", "LEVEL", "info, debug, warn or error",
			"info", "debug", "warn", "error"),
		cmdline.Text(&s.report, "report", "DIR", "where rank 0 leaves a report at the end", ""),
		cmdline.Text(&s.stateDir, "state-dir", "DIR", "host lists and sockets", statedir.FirstPlace),
	))
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
	s.report, s.progressFile = s.absolute(s.report), s.absolute(s.progressFile)
	if err := s.completeUntil(); err != nil {
		return err
	}
	if err := s.restartSettings.complete(c.IsSet); err != nil {
		return err
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

// launching completes a command that takes the flags of run and a COMMAND.
func launching(environ []string, command *cli.Command, action func(*cli.Context, settings) error) *cli.Command {
	var s settings
	command.ArgsUsage, command.Flags = "[--] COMMAND [ARG...]", append(jobFlags(), ownFlags(&s)...)
	command.Before = func(c *cli.Context) error {
		twin := func(variable string) string { return launch.Value(environ, variable) }
		return cmdline.SetTwins(c, ownFlags(new(settings)), twin)
	}
	command.Action = func(c *cli.Context) error {
		if err := s.complete(c); err != nil {
			return err
		}
		s.unknown = inspect.Unknown(environ, func() []string { return cmdline.Twins(command.Flags) }, cmdline.Closest)
		return action(c, s)
	}
	return command
}

func newApp(environ []string, action func(context.Context, settings) error) *cli.App {
	commands := append([]*cli.Command{
		launching(environ, &cli.Command{
			Name: "run", Usage: "wait for all ranks, then run COMMAND; the default command",
			Description: "Each flag has a variable, such as PAIINIT_LOG_LEVEL. More: docs/commands.md\n" +
				cmdline.RunExamples(),
		}, func(c *cli.Context, s settings) error { return action(c.Context, s) }),
		{
			Name: "rsh", Usage: "run a command or a shell on another rank, like ssh", CustomHelpTemplate: rsh.Help,
			ArgsUsage: "[USER@]HOST [COMMAND...]", // package rsh parses the words; completions need them
			Flags:     []cli.Flag{cmdline.Text(nil, "secret-file", "FILE", "file with the job's secret", "")},
		},
		eachCommand(environ),
		envCommand(environ),
		checkCommand(environ),
		rdmaCommand(environ),
		installCommand(),
		sftpCommand(),
		{Name: "version", Usage: "print the versions of paiinit and Go", Action: showVersion,
			Description: cmdline.Examples("paiinit version", "docker run IMAGE paiinit version")},
	}, questions(environ)...)
	return cmdline.App("paiinit", commands)
}
