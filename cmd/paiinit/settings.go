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
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/cmd/paiinit/early"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/stderrlog"
)

// Which program is called ssh in the job (--ssh).
const (
	sshOwn   = "own"
	sshImage = "image"
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
	logSettings
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

// logSettings say what is logged, in which format, and where.
type logSettings struct {
	logFormat string
	logLevel  slog.Level
	stderr    *stderrlog.Log // nil = standard error itself
}

// jobFlags returns the flags about the job. Package envspec reads their twins.
func jobFlags() []cli.Flag {
	return []cli.Flag{
		textFlag("system", "NAME", "name of the scheduler, if the detected one is wrong", ""),
		textFlag("job", "ID", "ID of the job, the same in all its containers", ""),
		textFlag("attempt", "ID", "ID of this attempt of the job, the same in all its containers", ""),
		textFlag("role", "NAME", "role of this container, such as worker", ""),
		textFlag("index", "NUMBER", "index of this container within its role, from 0", ""),
		textFlag("rank", "NUMBER", "rank of this container within the job, from 0", ""),
		textFlag("size", "NUMBER", "number of containers of the job", ""),
		textFlag("peers", "LIST", "containers of the job: HOST[:PORT],... or @FILE or dns:NAME,dns:NAME", ""),
		textFlag("slots", "NUMBER", "number of processes that a launcher may start here", ""),
		textFlag("port", "NUMBER", "port for SSH and gossip, TCP and UDP",
			"the scheduler's ssh port, else 12345; 12345 to 12408 under Slurm"),
	}
}

// ownFlags returns the flags of run about paiinit itself. An empty twin means the default.
func ownFlags() []cli.Flag {
	return []cli.Flag{
		textFlag("secret-file", "FILE", "file with the job's secret, or the secret itself in PAIINIT_SECRET; "+
			"make one with: head -c 32 /dev/urandom | base64", ""),
		boolFlag("insecure", "run without a secret: every host that reaches the port and knows the job's ID can join"),
		textFlag("authorized-keys", "FILE",
			"file with keys of people who may log in from outside: shell, commands, scp, sftp", ""),
		choiceFlag("people", "WHERE", "where people who have logged in may run commands: "+
			"job (on all ranks) or local (in this container only)", peopleJob, peopleLocal),
		boolFlag("require-same-launcher", "refuse to launch if ranks have different versions of mpirun or mpiexec"),
		boolFlag("allow-partial", "accept a launcher that used fewer hosts than it was asked to"),
		durationFlag("timeout", "how long to wait for all ranks (0 = forever)", 10*time.Minute, "10m"),
		durationFlag("grace", "how long COMMAND may go on after SIGTERM before it gets SIGKILL (0 = SIGKILL at once)",
			8*time.Second, "8s"),
		choiceFlag("exec", "RANKS", "which ranks run COMMAND: rank0 or all", execRank0, execAll),
		choiceFlag("signal", "TARGET", "which processes get signals: leader (COMMAND alone, through shells) "+
			"or group (its whole process group)", signalLeader, signalGroup),
		textFlag("until", "ROLES", "roles that end the job once all their commands have exited with 0, "+
			"such as chief,worker; or rank0", "all but ps, server and evaluator"),
		choiceFlag("network-hints", "MODE", "whether to tell launchers and libraries which network the ranks share: "+
			"auto or off", hintsAuto, hintsOff),
		choiceFlag("rdma", "MODE", "whether to use verbs devices: auto, require or off",
			rdmaAuto, rdmaRequire, rdmaOff),
		choiceFlag("ssh", "WHICH", "first ssh in the job's PATH: "+
			"own (hands hosts outside of the job to the image's ssh) or image", sshOwn, sshImage),
		choiceFlag("log-format", "FORMAT", "format of the log: text or json", "text", "json"),
		choiceFlag("log-level", "LEVEL", "least severe level that is logged: debug, info, warn or error",
			"info", "debug", "warn", "error"),
		textFlag("state-dir", "DIR", "directory for the host list and the agent's socket",
			"/run/paiinit, or a directory of this job in /dev/shm or TMPDIR"),
	}
}

func runFlags() []cli.Flag { return append(jobFlags(), ownFlags()...) }

// textFlag returns a flag of run whose default the help describes in words.
func textFlag(name, value, usage, otherwise string) cli.Flag {
	return &cli.StringFlag{Name: name, Usage: withTwin(name, value, usage), DefaultText: otherwise}
}

func boolFlag(name, usage string) cli.Flag {
	return &cli.BoolFlag{Name: name, Usage: withTwin(name, "", usage)}
}

func durationFlag(name, usage string, value time.Duration, text string) cli.Flag {
	return &cli.DurationFlag{
		Name: name, Usage: withTwin(name, "TIME", usage), Value: value, DefaultText: text, Action: notNegative(name),
	}
}

// choiceFlag returns a flag of run that takes one of words. The first is the default.
func choiceFlag(name, value, usage string, words ...string) cli.Flag {
	return &cli.GenericFlag{Name: name, Usage: withTwin(name, value, usage), Value: &choice{words[0], words}}
}

// withTwin adds the environment twin of a flag to its help. The library shows the word in backquotes beside the flag.
func withTwin(name, value, usage string) string {
	if value == "" {
		return usage + " [" + twin(name) + "]"
	}
	return usage + " [" + twin(name) + "=`" + value + "`]"
}

// notNegative returns an action that refuses negative durations, which the library accepts.
func notNegative(name string) func(*cli.Context, time.Duration) error {
	return func(c *cli.Context, d time.Duration) error {
		if d < 0 {
			return refusal(c, name, d.String())
		}
		return nil
	}
}

// choice is the value of a flag that accepts a few words.
type choice struct {
	word  string
	words []string
}

func (c *choice) String() string { return c.word }

func (c *choice) Set(word string) error {
	if !slices.Contains(c.words, word) {
		return fmt.Errorf("want one of %s", strings.Join(c.words, ", "))
	}
	c.word = word
	return nil
}

// usageError is a mistake on the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// wrongUsage turns the library's error about a flag's value into a refusal. Package flag has no error type for it, only
// text.
func wrongUsage(c *cli.Context, err error, _ bool) error {
	for _, format := range []string{"invalid value %q for flag -%s", "invalid boolean value %q for -%s"} {
		var value, name string
		if n, _ := fmt.Sscanf(err.Error(), format, &value, &name); n == 2 {
			return refusal(c, strings.TrimSuffix(name, ":"), value)
		}
	}
	return &usageError{err}
}

// refusal returns the error for a value that a flag or its twin does not accept.
func refusal(c *cli.Context, name, value string) error {
	where := "--" + name
	if c.Command.Name == "run" && name != "help" {
		where += " (" + twin(name) + ")"
	}
	err := errors.New("want another value")
	for _, f := range c.Command.Flags {
		if !slices.Contains(f.Names(), name) {
			continue
		}
		switch f := f.(type) {
		case *cli.DurationFlag:
			err = errors.New("want a time such as 90s or 10m")
		case *cli.BoolFlag:
			err = errors.New("want true or false")
		case *cli.GenericFlag:
			err = f.Value.Set(value)
		}
	}
	return &usageError{fmt.Errorf("%s is %q: %w", where, value, err)}
}

// setTwins sets each flag of run that the command line does not give to the value of its environment twin.
func setTwins(c *cli.Context, environ []string) error {
	var errs []error
	for _, f := range ownFlags() {
		name := f.Names()[0]
		v := lookup(environ, twin(name))
		if v == "" || c.IsSet(name) {
			continue
		}
		if c.Set(name, v) != nil {
			errs = append(errs, refusal(c, name, v))
		}
	}
	return errors.Join(errs...)
}

// newSettings returns the settings in the flags of run, after setTwins.
func newSettings(c *cli.Context) (settings, error) {
	s := settings{
		command: c.Args().Slice(),
		job:     givenJobFlags(c),
		timeout: c.Duration("timeout"),
		loginSettings: loginSettings{
			secretFile: c.String("secret-file"),
			insecure:   c.Bool("insecure"),
			people:     c.String("people"),
		},
		commandSettings: commandSettings{
			exec:         c.String("exec"),
			signal:       c.String("signal"),
			until:        untilOf(c.String("until")),
			grace:        c.Duration("grace"),
			allowPartial: c.Bool("allow-partial"),
			sameLauncher: c.Bool("require-same-launcher"),
			networkHints: c.String("network-hints"),
			rdma:         c.String("rdma"),
			ssh:          c.String("ssh"),
		},
		logSettings: logSettings{logFormat: c.String("log-format")},
	}
	s.dir, _ = os.Getwd() // a caller that needs it reports the error
	s.keysFile = s.absolute(c.String("authorized-keys"))
	s.stateDir = s.absolute(c.String("state-dir"))
	if s.until != "" && s.until != launch.UntilRank0 && s.exec != execAll {
		err := fmt.Errorf("--until (%s) is %q: it needs --exec all", twin("until"), c.String("until"))
		return settings{}, &usageError{err}
	}
	return s, s.logLevel.UnmarshalText([]byte(c.String("log-level")))
}

// givenJobFlags returns the flags about the job on the command line, under the names of their twins.
func givenJobFlags(c *cli.Context) map[string]string {
	given := make(map[string]string)
	for _, f := range jobFlags() {
		if name := f.Names()[0]; c.IsSet(name) {
			given[twin(name)] = c.String(name)
		}
	}
	return given
}

// logOutput returns the destination of the log.
func (s *settings) logOutput() io.Writer {
	if s.stderr == nil {
		return os.Stderr
	}
	return s.stderr
}

// lostText returns a log line that reports how many lines were dropped.
func (s *settings) lostText(lines int) []byte {
	var b bytes.Buffer
	s.logger(&b).Warn("standard error was not read, log lines were dropped", "lines", lines)
	return b.Bytes()
}

// logger returns a logger that writes to w. Standard output belongs to the job, so the log never goes there.
func (s *settings) logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: s.logLevel}
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// absolute makes a path absolute. Relative paths start at the first working directory, which the agent leaves.
func (s *settings) absolute(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(s.dir, name)
}

func twin(flag string) string {
	return "PAIINIT_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// lookup returns the first value of a variable, like getenv(3).
func lookup(environ []string, name string) string {
	for _, kv := range environ {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v
		}
	}
	return ""
}

// commandOf returns the command of this program on a command line: run, if the line names none. It returns "complete"
// for a shell that asks for completions, unless the flag for that follows "--" and so belongs to COMMAND.
func commandOf(args []string) string {
	if args[len(args)-1] == early.CompletionFlag && !slices.Contains(args, "--") {
		return "complete"
	}
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

// runArgs returns the command line with "run" as its first word.
func runArgs(args []string) []string {
	rest := args[1:]
	if len(rest) > 0 && rest[0] == "run" {
		rest = rest[1:]
	}
	return append([]string{args[0], "run"}, rest...)
}

// flagsFirst moves the words of a command behind its flags, because the library stops parsing flags at the first word.
func flagsFirst(flags []cli.Flag, args []string) []string {
	var words []string
	for {
		i := firstWord(flags, args)
		if i == len(args) || args[i] == "--" {
			return slices.Concat(args[:i], words, args[i:])
		}
		words = append(words, args[i])
		args = slices.Concat(args[:i], args[i+1:])
	}
}

// firstWord returns the index of the first argument that is neither a flag nor the value of a flag. "--" counts as a
// word.
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
			i++ // its value is the next argument: with --name=value, name would not match
		}
	}
	return len(args)
}

func newApp(environ []string, action func(context.Context, settings) error) *cli.App {
	commands := append([]*cli.Command{
		{
			Name: "run",
			Usage: "wait for all ranks, then run COMMAND on rank 0, or with --exec all on every rank " +
				"(the default command)",
			ArgsUsage: "[--] COMMAND [ARG...]",
			Flags:     runFlags(),
			Before:    func(c *cli.Context) error { return setTwins(c, environ) },
			Action: func(c *cli.Context) error {
				s, err := newSettings(c)
				if err != nil {
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
		c.Flags = append(c.Flags, helpFlag())
		c.HideHelp, c.OnUsageError = true, wrongUsage
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
		Version:              version,
		HideVersion:          true,
		HideHelp:             true,
		Flags:                []cli.Flag{helpFlag()},
		EnableBashCompletion: true,
		Writer:               os.Stdout,
		ErrWriter:            os.Stderr,
		ExitErrHandler:       func(*cli.Context, error) {},
		OnUsageError:         wrongUsage,
		CommandNotFound:      func(c *cli.Context, _ string) { _ = cli.ShowSubcommandHelp(c) },
		Commands:             commands,
	}
}

// helpFlag returns a flag like the library's own, which is a global variable that every call writes to.
func helpFlag() cli.Flag {
	return &cli.BoolFlag{Name: "help", Aliases: []string{"h"}, Usage: "show help", DisableDefaultText: true}
}
