// Package pid1 lets a program be the first process of a container, by running it as two processes.
//
// The first process starts the program again, as its only child, and then does two things: it forwards signals, and it
// reaps every child that ends. Only the first process calls wait4(-1). The second process, the agent, is an ordinary Go
// program that uses os/exec as usual: no reaper takes its exit statuses. When the agent ends, the first process kills
// everything that is left and returns the agent's status. If the agent crashes, the first process reports how and
// returns [StatusCrash].
//
//	         first process                          agent
//	signals  -- pipe, one byte for each signal ---> Agent.Signals
//	secrets  -- pipe, one for each secret --------> Agent.Secrets
//	status   <- pipe, one byte -------------------- result of the agent function
//
// Signals travel through a pipe, not by kill(2): none is lost before the agent is ready, their order is kept, and the
// agent sees Ctrl-C, which the terminal sends to both processes, once. The agent ignores signals that are sent to it
// directly, except SIGKILL and SIGSTOP, even signals that would crash it (QUIT, ABRT, SEGV and others). Where
// GOTRACEBACK is set (package runtime), SIGSEGV and other faults crash it, which prints the stacks of its goroutines.
//
// The agent inherits what the first process was started with: open files, directory (the first process changes to /),
// umask, limits (os/exec and package syscall restore RLIMIT_NOFILE, which the Go runtime raises), controlling terminal,
// session and process group. SIGHUP, SIGINT, SIGTSTP, SIGTTIN, SIGTTOU and SIGCONT stay ignored if they were (nohup).
// The Go runtime catches all other signals, so children get their default action. For the same reason blocked signals
// stay blocked, except SIGHUP, SIGINT, SIGQUIT, SIGABRT, SIGTERM and faults. The Go runtime opens standard files that
// are closed as /dev/null.
//
// The package imports little, so that a program can call Main from an init function, before its other packages are
// initialised: the agent starts earlier, and the first process never initialises them.
//
// Neither process is dumpable (prctl(2), PR_SET_DUMPABLE), so that no process of the job can read or write its memory.
// The programs that they start are dumpable.
//
// The package reads no configuration, starts no other program, does not touch the terminal, and does not ask the job to
// end: the agent sends SIGTERM and waits, and the first process kills what is left.
package pid1

import "os"

// StatusCrash is the status that [Main] returns in the first process if the agent did not start, or ended without
// returning from its function: by a panic, os.Exit or a signal. It is EX_SOFTWARE of sysexits.h.
const StatusCrash = 70

// StatusConfig is the status that [Main] returns if a secret is longer than [MaxSecret]. It is EX_CONFIG of sysexits.h.
const StatusConfig = 78

// MaxSecret is the maximum size of a secret in bytes. A pipe always holds that much, even if the user has used up the
// limit of pipe memory (pipe(7), pipe-user-pages-soft).
const MaxSecret = 4096

// Agent holds what the second process gets.
type Agent struct {
	// Environ is the job's environment, without the secrets and this package's variable. Programs of the job must be
	// started with it instead of os.Environ.
	Environ []string
	// Secrets has the values of the secret variables that were set, by name. They are the only copies in both
	// processes: the caller clears them as soon as it can.
	Secrets map[string][]byte
	// Signals delivers the signals that the first process gets, in order, except SIGCHLD, SIGPIPE and some others (see
	// ending and others in signals.go). If the first process is killed and is not PID 1, a last SIGTERM follows; the
	// death of PID 1 kills everything. The channel is never closed.
	Signals <-chan os.Signal
	// StartWithSlack calls start, which must start one program of the job, with the timer slack that the first process
	// was started with. The agent's own slack (prctl(2), PR_SET_TIMERSLACK) is larger, and programs would inherit it.
	StartWithSlack func(start func() error) error
	// Settle says that the job runs now, and the agent waits: it leaves the working directory, so that this can be
	// unmounted, and soon releases what only the start needed.
	Settle func()
	// Init is true if the first process is PID 1 of its namespace. If false, it is a child subreaper (prctl(2)).
	Init bool
}

// Main runs agent in a second process and supervises it from this one, the first process.
//
// environ is os.Environ(), not a copy of its strings. Main removes the variables that secrets names: neither process's
// /proc/PID/environ nor Agent.Environ has them, and Main overwrites their values in os.Environ with zeros.
//
// In the first process it returns when everything is over, with the agent's status, [StatusCrash] or [StatusConfig].
// In the second process, which is the same program with the same arguments, it calls agent, passes the result to the
// first process, and returns it. In both, the caller must end the process with the returned status at once. A result
// outside 0..255 counts as [StatusCrash].
//
// Call Main before the program does anything else: before, the Go runtime handles signals by their default action.
func Main(environ, secrets []string, agent func(Agent) int) int {
	value, environ := take(environ, Variable)
	if value != nil {
		if h, ok := parseHandover(*value, len(secrets)); ok && h.parent == os.Getppid() {
			return second(h, environ, secrets, agent)
		}
		// The variable belongs to a paiinit further up, whose agent started a program with its own os.Environ().
	}
	return first(environ, secrets)
}

// take removes every occurrence of a variable from the environment. It returns the first value, as getenv(3) does; nil
// if there is none.
func take(environ []string, name string) (value *string, rest []string) {
	rest = make([]string, 0, len(environ))
	for _, entry := range environ {
		if v, ok := cutPrefix(entry, name+"="); !ok {
			rest = append(rest, entry)
		} else if value == nil {
			value = &v
		}
	}
	return value, rest
}
