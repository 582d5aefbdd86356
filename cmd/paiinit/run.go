package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/paiinit/paiinit/cmdline"
	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/identify"
	"github.com/paiinit/paiinit/launch"
	"github.com/paiinit/paiinit/localapi"
	"github.com/paiinit/paiinit/pid1"
	"github.com/paiinit/paiinit/rendezvous"
	"github.com/paiinit/paiinit/statedir"
	"github.com/paiinit/paiinit/stderrlog"
)

// The exit statuses of paiinit itself, after sysexits.h.
const (
	statusUsage      = 64
	statusUnmendable = 69
	statusBug        = 70
	statusRetry      = 75
	statusSecret     = 77
	statusConfig     = 78
)

// run is the agent: it reads the command line, launches the job, and reports why it ends.
func run(args []string, agent pid1.Agent) int {
	status, begin := 0, time.Now()
	var s settings
	var c *container // nil = the command line is wrong
	stderr := stderrlog.New(os.Stderr)
	defer stderr.Close()
	app := newApp(agent.Environ, func(ctx context.Context, got settings) error {
		s = got
		if len(args) == 1 && isSingle(ctx, agent.Environ) {
			return &bareError{}
		}
		if err := errors.Join(s.checkHang(), s.checkArguments(), s.checkHTTP()); err != nil {
			return err
		}
		s.stderr = stderr
		c = newContainer(s, agent, stderr.Logger(s.logTo(agent.Environ)))
		var err error
		status, err = launchJob(ctx, c)
		return err
	})
	err := cmdline.Run(context.Background(), app, cmdline.RunArgs(args))
	if err == nil {
		return status
	}
	if status == 0 {
		status = statusOf(err)
	}
	log := slog.New(slog.DiscardHandler)
	if c != nil {
		log = c.log
	}
	o := s.failure(err)
	o.Status, o.After = status, time.Since(begin)
	if ended, ok := errors.AsType[*rendezvous.EndedError](err); ok {
		o = ended.Outcome
		o.After = cmp.Or(o.After, time.Since(begin))
	}
	beside := is[*statedir.RunningError](err) || is[*statedir.SeveralError](err)
	if !beside { // the running paiinit owns the termination message
		s.writeTermination(agent.Environ, log, o)
	}
	stderr.Ending()
	typo := (is[*launch.LookError](err) || beside) && len(s.command) > 0 && mistyped(s.command[0]) != ""
	switch {
	case is[*bareError](err):
		_, _ = stderr.Write([]byte(cmdline.Bare))
	case c == nil || typo: // a person is typing
		complainOf(err, "run", s.command)
	case is[*usageError](err) || beside: // no job has failed
		log.Error(err.Error(), "phase", "exit", "status", status, "hint", o.Next)
	default:
		sayOutcome(log.Error, o)
	}
	return status
}

// bareError says that there is nothing to do: the command line has no word, and nothing tells about a job.
type bareError struct{}

func (*bareError) Error() string { return "no COMMAND given, and nothing here tells about a job" }

// isSingle reports whether nothing tells about a job.
func isSingle(ctx context.Context, environ []string) bool {
	job, _, err := identify.Job(ctx, environ, nil)
	return err == nil && job.System == "single"
}

// is reports whether an error is of type E, or wraps one.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// statusOf maps an error to the exit status that schedulers act on.
func statusOf(err error) int {
	var (
		look    *launch.LookError
		missing *rendezvous.MissingError
		ended   *rendezvous.EndedError
		stopped *stoppedError
		refusal *localapi.Refusal
	)
	switch {
	case is[*usageError](err), is[*bareError](err), is[*statedir.RunningError](err), is[*statedir.SeveralError](err):
		return statusUsage
	case is[*envspec.VarError](err), is[*rendezvous.ConflictError](err):
		return statusConfig
	case errors.As(err, &look):
		return look.Status
	case is[*secretError](err):
		return statusSecret
	case errors.As(err, &missing) && missing.OtherVersion():
		return statusUnmendable
	case missing != nil && missing.OtherSecret():
		return statusSecret
	case missing != nil:
		return statusRetry
	case errors.As(err, &ended):
		return ended.Outcome.Status
	case is[*rendezvous.BugError](err):
		return statusBug
	case is[*rendezvous.LostError](err), is[*lostError](err), is[*absentError](err), is[*localapi.TimeoutError](err),
		is[*localapi.ClosedError](err):
		return statusRetry
	case errors.As(err, &stopped):
		return 128 + stopped.signal
	case errors.As(err, &refusal):
		return refusal.Exit
	}
	return statusUnmendable
}

// failure returns the outcome of a job that an error ends.
func (s *settings) failure(err error) rendezvous.Outcome {
	return rendezvous.Outcome{
		Status: statusOf(err), Reason: err.Error(), Next: hint(err, "run", s.command), Stopped: is[*stoppedError](err),
	}
}

// hint returns what a person can do about an error of a command of this program; command is COMMAND, if there is one.
func hint(err error, asked string, command []string) string {
	var (
		missing *rendezvous.MissingError
		look    *launch.LookError
		usage   *usageError
		advised *advisedError
	)
	switch {
	case is[*statedir.RunningError](err):
		if meant := didYouMean(strings.Join(command[:min(len(command), 1)], "")); meant != "" {
			return meant
		}
		return "paiinit status asks the running paiinit; run a command beside the job without paiinit; " +
			"give another job a name (--job)"
	case errors.As(err, &advised):
		return advised.advice
	case errors.As(err, &usage) && usage.Meant != "":
		return fmt.Sprintf("did you mean %s? see paiinit %s --help", usage.Meant, asked)
	case usage != nil:
		return fmt.Sprintf("see paiinit %s --help", asked)
	case is[*secretError](err):
		return "make a secret with: head -c 32 /dev/urandom | base64; give the same one to every container: " +
			"--secret-file FILE (or PAIINIT_SECRET_FILE), such as a mounted Kubernetes or docker secret; " +
			"PAIINIT_SECRET in the environment; or a key that the scheduler already shares " +
			"(OpenPAI's job ssh plugin). Without a secret, --insecure lets every host that reaches the port join"
	case errors.As(err, &missing) && missing.OtherVersion():
		return "all containers of a job need the same version of paiinit; `paiinit version` shows it in each image"
	case missing != nil && missing.OtherSecret():
		return "give all containers of the job the same secret; " +
			"the first log line of each container has the fingerprint of its secret"
	case is[*rendezvous.ConflictError](err):
		return "compare the first log lines of the containers: one size, an index for each, and a name for each job"
	case missing != nil:
		return "look at the logs of the missing containers first; --timeout sets how long to wait"
	case errors.As(err, &look) && look.Status == 127:
		return cmp.Or(didYouMean(look.Name), "check the spelling; COMMAND must be in this image, in PATH or by path")
	}
	return ""
}

// didYouMean asks about a word that resembles a command of this program; it returns "" for any other word.
func didYouMean(word string) string {
	if name := mistyped(word); name != "" {
		return fmt.Sprintf("did you mean paiinit %s?", name)
	}
	return ""
}

// passThrough replaces this process by the command: an image's ENTRYPOINT must be harmless when a launcher starts it
// again.
func passThrough(args, environ []string) int {
	var s settings
	app := newApp(environ, func(_ context.Context, got settings) error { s = got; return nil })
	if err := cmdline.Run(context.Background(), app, cmdline.RunArgs(args)); err != nil {
		complainOf(err, "run", nil)
		return statusOf(err)
	}
	if len(s.command) == 0 {
		complain("no COMMAND given\nhint: %s is set, so this process is inside a launched rank and only runs COMMAND",
			envspec.Nested(environ))
		return statusUsage
	}
	if ignored := ignoredFlags(args, environ); len(ignored) > 0 {
		complain("%s has no effect here, because a running paiinit has started this command\n"+
			"hint: give it to that paiinit", strings.Join(ignored, " "))
	}
	dir, err := os.Getwd()
	if err != nil {
		complain("finding the working directory: %v", err)
		return statusUnmendable
	}
	path, err := launch.Look(s.command[0], environ, dir)
	if err != nil {
		complainOf(&advisedError{err, didYouMean(s.command[0])}, "run", nil)
		return statusOf(err)
	}
	err = syscall.Exec(path, s.command, launch.Without(environ, []launch.Var{{Name: secretVariable}}))
	complain("running %s: %v", path, err)
	return 126
}

// ignoredFlags returns the flags that passThrough ignores in a script of the job, where a user would miss --exec all.
// It returns none in a rank that a launcher has started: the rank runs the ENTRYPOINT of its container, whose paiinit
// has used these flags.
func ignoredFlags(args, environ []string) []string {
	if envspec.Nested(launch.Without(environ, []launch.Var{{Name: "PAIINIT_ACTIVE"}})) != "" {
		return nil
	}
	rest := cmdline.RunArgs(args)[2:]
	return rest[:cmdline.FirstWord(runFlags(), rest)]
}
