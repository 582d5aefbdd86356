// Package pid1 makes a program fit to be the first process of a container, by running it as two processes.
//
// The first process starts the program a second time, as its only child, and from then on does two things: it hands
// signals on, and it reaps every child that ends. It is the only caller of wait4(-1), and it waits for nobody else, so
// the second process, the agent, is an ordinary Go program that may use os/exec as it likes: its exit statuses cannot
// be taken away by a reaper. When the agent ends, the first process kills everything that is left and returns the
// agent's status. When the agent crashes, the first process says how and returns [StatusCrash].
//
//	         first process                          agent
//	signals  -- pipe, one byte for each signal ---> Agent.Signals
//	secrets  -- pipe, one for each secret --------> Agent.Secrets
//	status   <- pipe, one byte ------------------- what the agent function returned
//
// Signals travel through a pipe, not by kill(2): none is lost before the agent is ready to take it, the order is kept,
// and Ctrl-C, which the terminal sends to both processes, is seen once. What is sent to the agent directly is dropped,
// SIGKILL and SIGSTOP excepted, and what would crash it (QUIT, ABRT, SEGV and the like) is, too.
//
// The agent inherits everything that the first process was started with: standard input, output and error and any
// other open file, directory (the first process goes to /), umask, limits (RLIMIT_NOFILE as it was before the Go runtime raised it: os/exec and
// package syscall see to that), controlling terminal, session and process group. SIGHUP, SIGINT, SIGTSTP, SIGTTIN,
// SIGTTOU and SIGCONT stay ignored if they were (nohup); children get the default action of all other signals, as the Go
// runtime has caught these. For the same reason blocked signals stay blocked, but for SIGHUP, SIGINT, SIGQUIT, SIGABRT,
// SIGTERM and faults. Standard files that are closed at the start are opened as /dev/null by the Go runtime.
//
// The package imports little, so that a program can call Main from an init function, before its other packages are
// initialised, and the agent starts that much earlier. The first process then never initialises them.
//
// Neither process is dumpable (prctl(2), PR_SET_DUMPABLE), so that no process of the job reads or writes its memory;
// the programs that they start are.
//
// What it refuses to do: it reads no configuration, starts no other program, does not touch the terminal, and does not
// ask the job to end: sending SIGTERM and waiting is the agent's task. Only what is then left is killed.
package pid1

import "os"

// StatusCrash is what [Main] returns in the first process when the agent could not be started, or ended without
// returning from its function: by a panic, os.Exit or a signal. It is EX_SOFTWARE of sysexits.h.
const StatusCrash = 70

// StatusConfig is what [Main] returns when a secret is longer than [MaxSecret]. It is EX_CONFIG of sysexits.h.
const StatusConfig = 78

// MaxSecret is the size in bytes of the longest secret. A pipe always holds that much, even for a user who has used up
// his share of pipe memory (pipe(7), pipe-user-pages-soft).
const MaxSecret = 4096

// Config says what the process was started with. The zero value of Secrets means none.
type Config struct {
	// Args is os.Args itself, not a copy of its strings: the environment block is found behind them.
	Args []string
	// Environ is os.Environ(), not a copy of its strings: secrets are overwritten in them.
	Environ []string
	// Secrets names the variables that are moved out of the environment: they appear in /proc/PID/environ of neither
	// process, and not in Agent.Environ. Their values in os.Environ are overwritten with zeros.
	Secrets []string
	// Stderr gets at most a few lines: a warning when orphans cannot be adopted, and how the agent crashed.
	Stderr *os.File
}

// Agent is what the second process gets.
type Agent struct {
	// Environ is the job's environment: without the secrets and without this package's own variable. Whoever starts
	// a program has to use it instead of os.Environ.
	Environ []string
	// Secrets has the values of those variables of Config.Secrets that were set, by name. They are the only copies in
	// the memory of both processes: the caller clears them when it does not need them any more.
	Secrets map[string][]byte
	// Signals has the signals that the first process got, in the order in which it got them: every one that asks for
	// something (see ending and others in signals.go), but not SIGCHLD, SIGPIPE and SIGURG. If the first process is
	// killed and was not PID 1 (with which everything else is killed), a last SIGTERM comes. It is never closed.
	Signals <-chan os.Signal
	// Fork calls start, which has to start one program of the job: all of them have to be started this way. The agent's own timers have
	// some slack (prctl(2), PR_SET_TIMERSLACK), which is inherited; Fork gives the program what the first process was started with.
	Fork func(start func() error) error
	// Init is true if the first process is PID 1 of its namespace. If false, it is a child subreaper (prctl(2)).
	Init bool
}

// Main runs agent in a second process, between a first process that is this one.
//
// In the first process it returns when everything is over, with the agent's status, [StatusCrash] or [StatusConfig].
// In the second process, which is the same program with the same arguments, it calls agent, hands the result over to
// the first process, and returns it. In both, the caller has to end the process with the returned status at once. A
// result outside 0..255 cannot be a status and counts as [StatusCrash].
//
// Main must be called before the program does anything else: a signal that comes earlier meets the Go runtime's
// default action.
func Main(cfg Config, agent func(Agent) int) int {
	value, environ := take(cfg.Environ, Variable)
	cfg.Environ = environ
	if value != nil {
		if h, ok := parseHandover(*value, len(cfg.Secrets)); ok && h.parent == os.Getppid() {
			return second(cfg, h, agent)
		}
		// The variable is from another paiinit, further up: somebody passed os.Environ() of an agent on.
	}
	return first(cfg)
}

// take removes every occurrence of the variable from the environment. The value is that of the first one, as in
// getenv(3), nil if there is none.
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
