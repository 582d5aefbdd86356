// Package initspec specifies, in tests, paiinit as the init of a container. Each row of the list in spec_test.go is one
// requirement. The list runs on several drivers, which create containers in different ways: namespaces as root,
// namespaces of a user, Docker with its defaults and Docker with almost all rights removed. In each of them the static
// binary is PID 1, beside busybox and the program inside.
//
// # The cases of other inits
//
// The suites of tini 0.19 and dumb-init 1.2.5 (catatonit has none) require the following, which these functions test.
//
//	exit status of the command, 0 to 255          TestAllStatuses, statuses
//	128+n for a command that signal n ended       deaths, terminate
//	a command that cannot be executed             cannotRun: 126 and 127 like a shell, not 1 or 2
//	orphans are reaped, as PID 1                  orphans, orphansWhileWaiting
//	and as a child subreaper                      behind
//	TERM, USR1, USR2 and others are forwarded     signals, terminate
//	signals of faults are forwarded               faults; not done by tini and catatonit
//	TERM, QUIT, CONT, INT one after another       repeated
//	the whole process group gets a signal         saveWithWorkers, by --signal group
//	only the child gets a signal                  saveWithWorkers
//	the rest of the group gets TERM at the end    daemonsAreAsked, saveInBackground
//	ignored and blocked signals stay so           ignored, inherited
//	the command is the terminal's foreground      terminal, controlC, jobControl
//	TSTP, TTIN and TTOU stop, CONT continues      stoppedGroup; TestSignalsReachTheAgent in package pid1
//	standard files that are closed                closedFiles
//
// These do not apply:
//
//   - rewriting signals (dumb-init -r): the job catches the signal that its scheduler sends.
//   - remapping exit statuses (tini -e): schedulers decide by the status whether to retry.
//   - SIGSEGV ignored and SIGILL blocked at the start (tini): the Go runtime handles both before it runs our code.
//   - SIGTERM blocked at the start (tini): nothing could stop such a container.
//   - TSTP becomes STOP in a new session (dumb-init): the command has its own process group, in the same session.
//   - CONT before TERM (dumb-init): paiinit sends CONT with TERM, and only to stopped processes.
//   - the first HUP and CONT are dropped (dumb-init): they result from giving up the terminal, which paiinit does not
//     do.
//   - the working directory / of the init (dumb-init): tested in package pid1, without a container.
//   - a parent's death (tini -p), warnings about reaping (tini -w), verbosity, licences and version texts: paiinit has
//     other flags.
package initspec
